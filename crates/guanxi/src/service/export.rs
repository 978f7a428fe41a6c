//! Exports: everything, or one kind, as lines from one snapshot. A thread of its own walks the
//! store, so that a slow reader holds no worker; the snapshot keeps replaced rows on disk until
//! the export ends, which is why its time is bounded.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use guanxi_api::edges::VersionText;
use guanxi_api::line::{ExportLine, LineFormat, write_csv, write_csv_header};
use guanxi_api::{Id, Time};
use guanxi_core::crew;
use guanxi_core::deployment::KeptReading;
use guanxi_core::{Exported, Reader};
use guanxi_model::{Code, Error, Kind, TenantId};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::Caller;
use super::streams::{self, Paced};

/// Bytes that are sent at once.
const PIECE_BYTES: usize = streams::ITEM_BYTES_TYPICAL;
/// Pieces that the walk may be ahead of the sender.
const PIECES_AHEAD_MAX: usize = 2;
/// How long the store's replaced rows may be kept for one reader.
const EXPORT_DURATION_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// An export that has its snapshot and its place among those that run.
pub struct RunningExport {
    /// Watch from here has no gap.
    pub position: String,
    walk: ExportThread,
}

/// Takes the snapshot.
pub async fn begin(
    caller: &Caller,
    kind: Option<&str>,
    format: LineFormat,
) -> Result<RunningExport, Error> {
    let tenant = caller.tenant;
    let kind = match kind {
        Some(name) => Some(caller.kind_named(name).await?),
        None => None,
    };
    let place = caller.app.exports.clone().try_acquire_owned().map_err(|_| {
        Error::new(Code::Overloaded, "as many exports as the service takes are running; try later")
    })?;
    let until = Instant::now() + EXPORT_DURATION_MAX;
    let KeptReading { reader, position, place: among_reads } = caller.keep_reading(until).await?;
    let places = (place, among_reads);
    Ok(RunningExport {
        position,
        walk: ExportThread { reader, tenant, kind, format, _places: places },
    })
}

impl RunningExport {
    /// Sends pieces of whole lines to the end; `render` makes an item of one.
    pub async fn run<T>(
        self,
        mut sender: Paced<T>,
        render: impl Fn(Bytes) -> T,
    ) -> Result<(), Error> {
        let (pieces, mut made) = mpsc::channel(PIECES_AHEAD_MAX);
        let thread = crew::aside("guanxi-export", move || self.walk.run(&pieces));
        thread.map_err(|error| {
            tracing::error!(%error, "an export's thread could not be started");
            Error::new(Code::Unavailable, "the export could not be started; try again")
        })?;
        let sending = async {
            while let Some(piece) = made.recv().await {
                match piece? {
                    Piece::Bytes(bytes) => {
                        let piece_bytes = bytes.len();
                        sender.send(render(bytes), piece_bytes).await?;
                    }
                    Piece::End => return Ok(()),
                }
            }
            Err(Error::new(Code::Internal, "the export ended before its end"))
        };
        let sent = tokio::time::timeout(EXPORT_DURATION_MAX, sending).await;
        sent.unwrap_or_else(|_| Err(Error::new(Code::DeadlineExceeded, "the export took too long")))
            .inspect_err(|error| tracing::warn!(%error, "an export was cut short"))
    }
}

enum Piece {
    Bytes(Bytes),
    /// Said in so many words, so that a walk that panicked is not taken for a whole one.
    End,
}

type PieceSender = mpsc::Sender<Result<Piece, Error>>;

/// What the thread works on.
struct ExportThread {
    reader: Reader,
    tenant: TenantId,
    kind: Option<Arc<Kind>>,
    format: LineFormat,
    /// Among exports, and in a cluster among lists.
    _places: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

impl ExportThread {
    /// Ends early when nobody takes the pieces any more.
    fn run(self, pieces: &PieceSender) {
        let mut buffer = Vec::with_capacity(2 * PIECE_BYTES);
        if self.format == LineFormat::Csv {
            // Writing into memory cannot fail.
            let _ = write_csv_header(&mut buffer);
        }
        let walked = self.reader.export(self.tenant, self.kind.as_deref(), &mut |exported| {
            write(self.format, &line_of(&exported), &mut buffer);
            if buffer.len() < PIECE_BYTES {
                return ControlFlow::Continue(());
            }
            let full = std::mem::replace(&mut buffer, Vec::with_capacity(2 * PIECE_BYTES));
            match pieces.blocking_send(Ok(Piece::Bytes(full.into()))) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_gone) => ControlFlow::Break(()),
            }
        });
        let last = match walked {
            Ok(()) if !buffer.is_empty() => {
                vec![Ok(Piece::Bytes(buffer.into())), Ok(Piece::End)]
            }
            Ok(()) => vec![Ok(Piece::End)],
            Err(error) => vec![Err(error)],
        };
        for piece in last {
            // Nobody may be left to take it.
            let _gone = pieces.blocking_send(piece);
        }
    }
}

fn write(format: LineFormat, line: &ExportLine<'_>, out: &mut Vec<u8>) {
    // Writing into memory cannot fail.
    match format {
        LineFormat::Ndjson => {
            let _ = serde_json::to_writer(&mut *out, line);
            out.push(b'\n');
        }
        LineFormat::Csv => {
            let _ = write_csv(line, out);
        }
    }
}

fn line_of<'a>(exported: &Exported<'a>) -> ExportLine<'a> {
    match *exported {
        Exported::Group { kind, source, name } => ExportLine {
            line_type: Some("group"),
            kind: Some(kind.name.as_str()),
            source: Some(Id(source.0)),
            group: Some(name.as_str()),
            ..ExportLine::default()
        },
        Exported::Edge { kind, key, row, group } => ExportLine {
            kind: Some(kind.name.as_str()),
            source: Some(Id(key.source.0)),
            target: Some(Id(key.target.0)),
            state: Some(row.state.name()),
            since: Some(Time(row.since)),
            group: group.map(|name| name.as_str()),
            owner: row.owner.map(Id),
            data: row.data.as_deref(),
            expires_at: row.expires_at.map(Time),
            version: Some(VersionText(row.version.0)),
            ..ExportLine::default()
        },
        Exported::Node { node_type, id, private } => ExportLine {
            line_type: Some("node"),
            node_type: Some(node_type.as_str()),
            id: Some(Id(id)),
            private: Some(private),
            ..ExportLine::default()
        },
        Exported::Counter { kind, id, value } => ExportLine {
            line_type: Some("counter"),
            kind: Some(kind.name.as_str()),
            id: Some(Id(id)),
            value: Some(value),
            ..ExportLine::default()
        },
    }
}
