//! Backups: the archive of everything, or of what came after a place, piece by piece.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use guanxi_engine::archive::Place;
use guanxi_engine::backup::Backup;
use guanxi_model::{Epoch, Error, EventId, Position, TenantId};

use super::{Caller, in_range};
use crate::http::App;
use crate::http::stream::{self, Sender};

/// What a cluster's operator does instead.
const BACKUP_OF_A_CLUSTER: &str = "back up its database with the database's own tools";
/// How long the next piece may wait for its turn.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// Begins a backup; one that goes on after a place if that is given.
pub async fn begin(
    caller: &Caller<'_>,
    app: &Arc<App>,
    after: Option<&str>,
) -> Result<Backup, Error> {
    let after = after.map(|text| place(text, caller.tenant)).transpose()?;
    caller.meet().await?;
    let engine = app.deployment.embedded(BACKUP_OF_A_CLUSTER)?.clone();
    app.apart(caller.context.deadline, move || engine.backup(after)).await
}

/// The id of an event, or a bare position, which is then of the history that stands.
fn place(text: &str, tenant: TenantId) -> Result<(Option<Epoch>, Position), Error> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let position = in_range("after", text.parse().ok(), &(0..=u64::MAX - 1))?;
        return Ok((None, Position(position)));
    }
    let id = EventId::parse(text, tenant)
        .map_err(|_| Error::invalid("after: it is the id of an event, or a position in the log"))?;
    Ok((Some(id.epoch), id.position))
}

/// An archive that was sent to its end.
#[derive(Debug)]
pub struct Sent {
    /// How far it reaches.
    pub place: Place,
    pub bytes: u64,
}

/// Sends the archive to its end; `render` makes an item of a piece.
pub async fn send<T>(
    app: &App,
    mut backup: Backup,
    sender: &Sender<T>,
    render: impl Fn(Bytes) -> T,
) -> Result<Sent, Error> {
    let mut bytes = 0;
    loop {
        let made = app.apart(Instant::now() + PIECE_TIMEOUT, move || {
            let piece = backup.next_piece()?;
            Ok((backup, piece))
        });
        let piece;
        (backup, piece) = made.await?;
        let Some(piece) = piece else {
            return Ok(Sent { place: backup.reached(), bytes });
        };
        bytes += piece.len() as u64;
        let mut piece = Bytes::from(piece);
        while !piece.is_empty() {
            let item = piece.split_to(piece.len().min(stream::ITEM_BYTES_TYPICAL));
            sender.send(render(item)).await?;
        }
    }
}
