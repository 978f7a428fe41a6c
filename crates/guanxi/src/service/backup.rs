//! Backups: the archive of everything, or of what came after a place, piece by piece.

use std::time::{Duration, Instant};

use bytes::Bytes;
use guanxi_api::number::in_range;
use guanxi_embedded::archive::LogPlace;
use guanxi_embedded::backup::Backup;
use guanxi_model::{Code, Epoch, Error, EventId, Position, Secret, TenantId};

use super::streams::{self, Paced};
use super::{App, Caller};

/// What a cluster's operator does instead.
const BACKUP_OF_A_CLUSTER: &str = "back up its database with the database's own tools";
/// How long the next piece may wait for its turn.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the log may be kept for one reader.
const COPY_DURATION_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Begins a backup; one that goes on after a place if that is given.
pub async fn begin(caller: &Caller, after: Option<&str>) -> Result<Backup, Error> {
    let app = &caller.app;
    let secret = app.deployment.secret();
    let after = after.map(|text| place(text, caller.tenant, secret)).transpose()?;
    caller.meet().await?;
    let engine = app.engine(BACKUP_OF_A_CLUSTER)?.clone();
    app.apart_for_copy(caller.context.deadline, move || engine.backup(after)).await
}

/// A place in the log as a backup that is to be continued names it: whoever has only the archive
/// cannot seal an event's id.
pub fn place_text(epoch: Epoch, position: Position) -> String {
    format!("{}:{}", epoch.0, position.0)
}

/// The id of an event, a place as `place_text` writes it, or a bare position, which is then of the
/// history that stands.
fn place(
    text: &str,
    tenant: TenantId,
    secret: &Secret,
) -> Result<(Option<Epoch>, Position), Error> {
    let (epoch, position) = match text.split_once(':') {
        Some((epoch, position)) => (Some(epoch), position),
        None => (None, text),
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(position) && epoch.is_none_or(is_number) {
        let position = in_range("after", position.parse().ok(), &(0..=u64::MAX - 1))?;
        let epoch = epoch.map(|epoch| epoch.parse().map(Epoch).map_err(|_| no_place()));
        return Ok((epoch.transpose()?, Position(position)));
    }
    let id = EventId::parse(text, tenant, secret).map_err(|_| no_place())?;
    Ok((Some(id.epoch), id.position))
}

fn no_place() -> Error {
    Error::invalid(
        "after: it is the id of an event, a position in the log, or EPOCH:POSITION as the end of a \
         backup",
    )
}

/// An archive that was sent to its end.
#[derive(Debug)]
pub struct SentArchive {
    /// How far it reaches.
    pub place: LogPlace,
    pub bytes: u64,
}

/// Sends the archive to its end; `render` makes an item of a piece.
pub async fn send<T>(
    app: &App,
    mut backup: Backup,
    sender: &mut Paced<T>,
    render: impl Fn(Bytes) -> T,
) -> Result<SentArchive, Error> {
    let until = Instant::now() + COPY_DURATION_MAX;
    let mut bytes = 0;
    while Instant::now() < until {
        let made = app.apart_for_copy(Instant::now() + PIECE_TIMEOUT, move || {
            let piece = backup.next_piece()?;
            Ok((backup, piece))
        });
        let piece;
        (backup, piece) = made.await?;
        let Some(piece) = piece else {
            return Ok(SentArchive { place: backup.reached(), bytes });
        };
        bytes += piece.len() as u64;
        let mut piece = Bytes::from(piece);
        while !piece.is_empty() {
            let item = piece.split_to(piece.len().min(streams::ITEM_BYTES_TYPICAL));
            let item_bytes = item.len();
            sender.send(render(item), item_bytes).await?;
        }
    }
    let hours = COPY_DURATION_MAX.as_secs() / 3_600;
    let message = format!("the copy was not read within {hours} h, for which the log is kept");
    Err(Error::new(Code::DeadlineExceeded, message))
}
