//! Backups over HTTP: the archive as a stream of bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use guanxi_engine::backup::Backup;
use guanxi_model::{Epoch, Error, EventId, Position};

use super::App;
use super::document::{BackedUp, ShipRefusals};
use super::extract::Call;
use super::problem::Refusal;
use super::query::Query;
use super::stream::{self, Sender};

/// What a cluster's operator does instead.
const BACKUP_OF_A_CLUSTER: &str = "back up its database with the database's own tools";
/// How long the next piece may wait for its turn.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);
const CONTENT_TYPE: &str = "application/octet-stream";

/// Streams a backup: everything at one position, while the service goes on.
///
/// The body is an archive for `guanxi restore`; one that was cut off is noticed there. With
/// `after` it holds only what came after that place, and continues the backup that ended there.
#[utoipa::path(
    get, path = "/v1/admin/backup", tag = "admin", operation_id = "backup",
    params(BackedUp),
    responses(
        (
            status = 200, description = "The archive.",
            content_type = "application/octet-stream", body = String,
        ),
        ShipRefusals,
    ),
)]
pub async fn backup(call: Call) -> Result<Response, Refusal> {
    let query = call.query(&["after"])?;
    call.no_body()?;
    let after = after(&call, &query)?;
    call.meet(&query).await?;
    let app = call.app.clone();
    let engine = app.deployment.embedded(BACKUP_OF_A_CLUSTER)?.clone();
    let backup = app.apart(call.context.deadline, move || engine.backup(after)).await?;
    // A cut archive is noticed by its reader, so there is no last item to tell it with.
    let untold = |error: &Error| {
        tracing::warn!(%error, "a backup was cut off");
        None
    };
    let items = call.app.streams.start(untold, |sender| send(app, backup, sender))?;
    Ok(stream::reply(CONTENT_TYPE, HeaderMap::new(), items))
}

/// The id of an event, or a bare position, which is then of the history that stands.
fn after(call: &Call, query: &Query<'_>) -> Result<Option<(Option<Epoch>, Position)>, Error> {
    let Some(text) = query.text("after") else {
        return Ok(None);
    };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let position = query.number("after", 0..=u64::MAX - 1)?;
        return Ok(position.map(|position| (None, Position(position))));
    }
    let id = EventId::parse(text, call.tenant())
        .map_err(|_| Error::invalid("after: it is the id of an event, or a position in the log"))?;
    Ok(Some((Some(id.epoch), id.position)))
}

async fn send(app: Arc<App>, mut backup: Backup, sender: Sender<Bytes>) -> Result<(), Error> {
    loop {
        let made = app.apart(Instant::now() + PIECE_TIMEOUT, move || {
            let piece = backup.next_piece()?;
            Ok((backup, piece))
        });
        let piece;
        (backup, piece) = made.await?;
        let Some(piece) = piece else {
            return Ok(());
        };
        let mut piece = Bytes::from(piece);
        while !piece.is_empty() {
            let item = piece.split_to(piece.len().min(stream::ITEM_BYTES_TYPICAL));
            sender.send(item).await?;
        }
    }
}
