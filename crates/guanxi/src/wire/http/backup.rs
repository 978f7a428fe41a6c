//! Backups over HTTP: the archive as a stream of bytes.

use axum::http::HeaderMap;
use guanxi_model::Error;

use super::document::{BackedUp, ShipRefusals};
use super::reply::HttpAnswered;
use super::request::HttpRequest;
use super::stream;
use crate::service::streams::StreamPurpose;
use crate::service::{backup, moving};

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
pub async fn backup(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["after", "standby", "move"])?;
    request.no_body()?;
    let run = query.number("move", 0..=u64::MAX)?;
    let is_copy = run.is_some() || query.number("standby", 0..=u64::MAX)?.is_some();
    let (app, after) = (request.app.clone(), query.text("after"));
    let place = app.streams.place(StreamPurpose::Copies)?;
    let backup = backup::begin(&request.caller(&query).await?, after).await?;
    if let Some(run) = run {
        moving::reads(&app, run, after.is_some())?;
    }
    // A cut archive is noticed by its reader, so there is no last item to tell it with.
    let untold = |error: &Error| {
        tracing::warn!(%error, "a backup was cut off");
        None
    };
    let items = request.app.streams.start(place, untold, |sender| async move {
        let sent = backup::send(&app, backup, &mut sender.paced(), |piece| piece).await?;
        // A standby's first copy, or a move's, is not counted: nobody can restore from it.
        if !is_copy {
            app.metrics.backed_up(sent.bytes);
        }
        Ok(())
    });
    Ok(stream::reply(CONTENT_TYPE, HeaderMap::new(), items))
}
