//! Imports: a file of any length is cut into lines, read and committed chunk by chunk while its
//! pieces come. With an id, the import's place is kept with its lines.

mod chunks;
mod reading;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use guanxi_api::Time;
use guanxi_api::import::{IMPORT_LINES_MAX, ImportAnswer, ImportPlace, Reject};
use guanxi_api::line::{CsvColumns, LineCutter, LineFormat};
use guanxi_api::number::in_range;
use guanxi_model::import::ImportId;
use guanxi_model::{Catalog, Change, Code, Error};
use tokio::sync::OwnedSemaphorePermit;

use self::chunks::{Chunks, Done};
pub use self::reading::line_change;
use super::caller::may_be_new;
use super::{App, Caller};

/// A sender that pauses for so long has what it sent committed meanwhile.
const LINGER: Duration = Duration::from_millis(50);
/// What must come while the sender is waited for as long as for a whole body (`http.body_timeout_ms`,
/// ten seconds): some two dozen lines a second, so that nobody keeps a place by a byte now and then.
const WINDOW_BYTES_MIN: usize = 16 * 1024;
/// What is cut into lines at once: a piece may be long and consist of empty lines, and the chunks
/// of its lines must not all be in memory together.
const FEED_BYTES_MAX: usize = 16 * 1024;

/// What a caller says of the lines before the first of them.
#[derive(Debug)]
pub struct ImportQuery<'a> {
    pub id: Option<&'a str>,
    /// Lines that are done already.
    pub after: u64,
    pub format: LineFormat,
    pub ignore_limits: bool,
    pub last_line: LastLine,
}

/// What the last line is when no line break follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLine {
    /// A line like any other: the protocol proves that the file ends there.
    MayBeOpen,
    /// What is left of a line whose sender went away. gRPC cannot tell a call that was cancelled
    /// from one that has ended, and half a line must never be taken for a whole one.
    MustEnd,
}

/// A place among the imports that run at once, taken before anything of one is read.
pub fn admit(app: &App) -> Result<OwnedSemaphorePermit, Error> {
    app.imports.clone().try_acquire_owned().map_err(|_| {
        Error::new(Code::Overloaded, "as many imports as the service takes are running; try later")
    })
}

/// Takes the pieces to their end, or to the caller's deadline. The place is the import's.
pub async fn run(
    caller: &Caller,
    _place: OwnedSemaphorePermit,
    query: ImportQuery<'_>,
    pieces: impl Stream<Item = Result<Bytes, Error>> + Unpin,
) -> Result<ImportAnswer, Error> {
    let id = query.id.map(ImportId::new).transpose()?;
    let after = in_range("after", Some(query.after), &(0..=IMPORT_LINES_MAX))?;
    caller.meet().await?;
    let mut chunks = Chunks::new(caller, id, after);
    let read = read(caller, pieces, &query, &mut chunks).await;
    // What was sent before a failure is as good as any: it is waited for, and counted.
    let settled = chunks.settle_all().await;
    if let Err(error) = read.and(settled) {
        return Err(chunks.stopped_at(error));
    }
    let token = chunks.token().await?;
    let (id, Done { lines, accepted, changed, rejected, rejects }) = chunks.into_done();
    Ok(ImportAnswer {
        id: id.map(|id| id.as_str().to_owned()),
        lines,
        accepted,
        changed,
        rejected,
        rejects_left_off: rejected - rejects.len() as u64,
        rejects,
        token: token.into(),
    })
}

/// Where an import stands, and what came of its lines.
pub async fn place(caller: Caller, id: String) -> Result<ImportPlace, Error> {
    let id = ImportId::new(&id)?;
    let (tenant, wanted) = (caller.tenant, id.clone());
    let row = caller.read(move |reader| reader.import(tenant, &wanted)).await?;
    let row = row.ok_or_else(|| {
        Error::new(Code::NotFound, format!("there is no import '{}'", id.as_str()))
    })?;
    Ok(ImportPlace {
        id: id.as_str().to_owned(),
        lines: row.lines,
        accepted: row.accepted,
        changed: row.changed,
        rejected: row.rejected,
        rejects_left_off: row.rejects_left_off(),
        at: Time(row.at),
        digest: row.digest.to_text(),
        rejects: row.rejects.iter().cloned().map(Reject::from).collect(),
    })
}

/// Lines as the cutter gave them.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Lines {
    fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.ends.push(self.bytes.len());
    }
}

/// How the lines of one feed become changes.
struct LineReading<'a> {
    caller: &'a Caller,
    catalog: Arc<Catalog>,
    ignore_limits: bool,
    /// Whether names that are not known were looked for: once for many lines, as a file may be full
    /// of what nobody knows.
    looked: bool,
}

impl LineReading<'_> {
    /// What a line says; kinds and node types may have come since the import began.
    async fn read(
        &mut self,
        columns: Option<&CsvColumns>,
        line: &[u8],
    ) -> Result<Result<Option<Change>, Error>, Error> {
        match self.change(columns, line) {
            Err(error) if may_be_new(&error) && !self.looked => {}
            read => return Ok(read),
        }
        self.caller.app.deployment.look_for_names(self.caller.context.deadline).await?;
        self.catalog = self.caller.catalog();
        self.looked = true;
        Ok(self.change(columns, line))
    }

    fn change(&self, columns: Option<&CsvColumns>, line: &[u8]) -> Result<Option<Change>, Error> {
        line_change(line, columns, self.caller.tenant, &self.catalog, self.ignore_limits)
    }
}

/// Reads the pieces to their end.
async fn read(
    caller: &Caller,
    mut pieces: impl Stream<Item = Result<Bytes, Error>> + Unpin,
    query: &ImportQuery<'_>,
    chunks: &mut Chunks,
) -> Result<(), Error> {
    let mut cutter = LineCutter::new(query.format);
    let mut header = HeaderLine::of(query.format);
    let mut pace = Pace::default();
    while let Some(piece) = next(caller, &mut pieces, chunks, &mut pace).await? {
        for bytes in piece.chunks(FEED_BYTES_MAX) {
            let mut lines = Lines::default();
            cutter.feed(bytes, &mut |line| lines.push(line));
            header.take_all(caller, query, &lines, chunks).await?;
            chunks.submit_full().await?;
        }
    }
    if query.last_line == LastLine::MustEnd && !cutter.is_between_lines() {
        chunks.submit_all().await?;
        return Err(Error::invalid(
            "lines: the last line has no line break behind it, so it may not be whole; go on with \
             that line, and end it",
        ));
    }
    let mut lines = Lines::default();
    cutter.finish(&mut |line| lines.push(line));
    header.take_all(caller, query, &lines, chunks).await?;
    chunks.submit_all().await
}

/// The next piece; none at the end.
async fn next(
    caller: &Caller,
    pieces: &mut (impl Stream<Item = Result<Bytes, Error>> + Unpin),
    chunks: &mut Chunks,
    pace: &mut Pace,
) -> Result<Option<Bytes>, Error> {
    let (window, deadline) = (caller.app.body_timeout, caller.context.deadline);
    let asked = Instant::now();
    let mut piece = tokio::time::timeout(LINGER, pieces.next()).await.ok();
    pace.waited += asked.elapsed();
    if piece.is_none() {
        chunks.submit_all().await?;
        let asked = Instant::now();
        let until = deadline.min(asked + window.saturating_sub(pace.waited));
        tokio::select! {
            waited = tokio::time::timeout_at(until.into(), pieces.next()) => {
                let late = |_| if until < deadline { pace.too_slow(window) } else { over() };
                piece = Some(waited.map_err(late)?);
            }
            () = caller.app.streams.stopped() => return Err(stopping()),
        }
        pace.waited += asked.elapsed();
    }
    let piece = piece.flatten();
    if let Some(Ok(bytes)) = &piece {
        pace.came(bytes.len(), window)?;
    }
    if caller.app.is_stopping() {
        return Err(stopping());
    }
    match Instant::now() < deadline {
        true => piece.transpose(),
        false => Err(over()),
    }
}

/// What came since the sender last brought enough, and how long it was waited for. The time that
/// the service takes for the lines is not the sender's.
#[derive(Debug, Default)]
struct Pace {
    bytes: usize,
    waited: Duration,
}

impl Pace {
    fn came(&mut self, bytes: usize, window: Duration) -> Result<(), Error> {
        self.bytes += bytes;
        if self.bytes >= WINDOW_BYTES_MIN {
            *self = Pace::default();
        }
        if self.waited > window { Err(self.too_slow(window)) } else { Ok(()) }
    }

    fn too_slow(&self, window: Duration) -> Error {
        let window = window.as_millis();
        late(match self.bytes {
            0 => format!("no more lines came for {window} ms"),
            bytes => format!(
                "the lines come too slowly: {bytes} bytes in {window} ms, and {WINDOW_BYTES_MIN} \
                 are the least; gather them first, or end the import sooner"
            ),
        })
    }
}

fn late(message: impl Into<String>) -> Error {
    Error::new(Code::DeadlineExceeded, message)
}

fn over() -> Error {
    late("the time that the caller gave was over before the end of the lines")
}

fn stopping() -> Error {
    Error::new(Code::Unavailable, "the service is stopping")
}

/// The first line of CSV, which names the columns.
enum HeaderLine {
    Needless,
    Missing,
    Read(CsvColumns),
}

impl HeaderLine {
    fn of(format: LineFormat) -> HeaderLine {
        match format {
            LineFormat::Ndjson => HeaderLine::Needless,
            LineFormat::Csv => HeaderLine::Missing,
        }
    }

    /// Takes lines on to the chunks. Without knowing the columns there is no reading on.
    async fn take_all(
        &mut self,
        caller: &Caller,
        query: &ImportQuery<'_>,
        lines: &Lines,
        chunks: &mut Chunks,
    ) -> Result<(), Error> {
        let (catalog, ignore_limits) = (caller.catalog(), query.ignore_limits);
        let mut reading = LineReading { caller, catalog, ignore_limits, looked: false };
        let mut from = 0;
        for &end in &lines.ends {
            self.take(&lines.bytes[from..end], &mut reading, chunks).await?;
            from = end;
        }
        Ok(())
    }

    async fn take(
        &mut self,
        line: &[u8],
        reading: &mut LineReading<'_>,
        chunks: &mut Chunks,
    ) -> Result<(), Error> {
        let columns = match self {
            HeaderLine::Needless => None,
            HeaderLine::Read(columns) => Some(&*columns),
            HeaderLine::Missing => {
                *self = HeaderLine::Read(CsvColumns::read(line)?);
                // Whoever goes on in the middle sends it again; it is counted once.
                chunks.skip_first_line(line);
                return Ok(());
            }
        };
        let read = reading.read(columns, line).await?;
        chunks.take(line, read);
        Ok(())
    }
}
