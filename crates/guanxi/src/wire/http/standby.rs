//! Primary and standbys: shipping the log, acknowledging it, saying who follows whom, promoting.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use guanxi_api::Id;
use guanxi_api::standby::{AcknowledgeRequest, AcknowledgedView, Promotion, StandbyView};
use guanxi_embedded::Shipped;
use guanxi_model::{Epoch, Error, Position};

use super::document::{PromoteRefusals, ShipRefusals, Shipping, StandbyPath};
use super::query::Query;
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use super::stream;
use crate::service::standby;
use crate::service::streams::StreamPurpose;

/// How long a request for the log may wait for frames; also the default.
const WAIT_MS_MAX: u64 = 5_000;
/// What the answer itself may take of the request's time.
const ANSWER_RESERVE: Duration = Duration::from_millis(500);
const SHIPMENT_TYPE: &str = "application/octet-stream";

/// Ships the log to a standby.
///
/// Answers whole frames after a position, in a binary form of their own, as soon as there are
/// some. Asking acknowledges nothing. A standby that has acknowledged within the last minute and
/// names itself has a place beside all others who ask.
#[utoipa::path(
    get, path = "/v1/admin/log", tag = "admin", operation_id = "ship_log",
    params(Shipping),
    responses(
        (
            status = 200, description = "A piece of the log.",
            body = Vec<u8>, content_type = "application/octet-stream",
        ),
        ShipRefusals,
    ),
)]
pub async fn ship(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["after", "commit_ms", "standby", "wait_ms"])?;
    request.no_body()?;
    let shipped = shipped(&query)?;
    let standby = query.text("standby").map(|id| Id::parse(id, "standby")).transpose()?;
    let wait_ms = query.number("wait_ms", 0..=WAIT_MS_MAX)?.unwrap_or(WAIT_MS_MAX);
    let latest = request.context.deadline.checked_sub(ANSWER_RESERVE).unwrap_or_else(Instant::now);
    let until = latest.min(Instant::now() + Duration::from_millis(wait_ms));
    let app = request.app.clone();
    let engine = standby::engine(&app)?;
    // Writes may wait for a standby, so nobody else takes its place.
    let purpose = match standby.is_some_and(|id| engine.is_followed_by(id.0)) {
        true => StreamPurpose::Shipping,
        false => StreamPurpose::LogReaders,
    };
    let place = app.streams.place(purpose)?;
    let shipment = standby::ship(&app, shipped, until).await?;
    // A cut shipment is noticed by its reader, so there is no last item to tell it with.
    let untold = |error: &Error| {
        tracing::info!(%error, "a piece of the log was not sent to its end");
        None
    };
    let items = request.app.streams.start(place, untold, |sender| async move {
        standby::send(&app, shipment, sender.paced()).await
    });
    Ok(stream::reply(SHIPMENT_TYPE, HeaderMap::new(), items))
}

/// Takes note of what a standby has on disk.
///
/// A position that is not in this service's log, or is another record there, is refused with
/// `conflict`. A standby is a data directory, known by its id: however often it is started, it
/// counts once for `standby.required`.
#[utoipa::path(
    post, path = "/v1/admin/standbys/{standby}", tag = "admin", operation_id = "acknowledge_log",
    params(StandbyPath),
    request_body(content = AcknowledgeRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "It is noted.", body = AcknowledgedView),
        PromoteRefusals,
    ),
)]
pub async fn acknowledge(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let standby = request.id("standby")?;
    let said: AcknowledgeRequest = request.json()?;
    reply::ok(&standby::acknowledge(request.caller(&query).await?, standby, said).await?)
}

/// Shows the service's role, how far behind its primary it is, and who follows it.
#[utoipa::path(
    get, path = "/v1/admin/standby", tag = "admin", operation_id = "get_standby",
    responses(
        (status = 200, description = "The service's part in a pair.", body = StandbyView),
        ShipRefusals,
    ),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    reply::ok(&standby::get(request.caller(&query).await?).await?)
}

/// Makes a standby the primary: it ends following and takes writes, in an epoch of its own.
#[utoipa::path(
    post, path = "/v1/admin/promote", tag = "admin", operation_id = "promote",
    responses(
        (status = 200, description = "What it goes on from.", body = Promotion),
        PromoteRefusals,
    ),
)]
pub async fn promote(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    reply::ok(&standby::promote(request.caller(&query).await?).await?)
}

/// What the standby says of itself.
fn shipped(query: &Query<'_>) -> Result<Shipped, Error> {
    let after = query.text("after").and_then(|text| text.split_once('.'));
    let after = after.and_then(|(epoch, position)| {
        Some((Epoch(epoch.parse().ok()?), Position(position.parse().ok()?)))
    });
    let Some((epoch, position)) = after.filter(|(_, position)| position.0 < u64::MAX) else {
        let message = "after: it is <epoch>.<position>, the end of the standby's log";
        return Err(Error::invalid(message));
    };
    let commit_ms = query.number("commit_ms", 0..=u64::MAX)?;
    Ok(Shipped { epoch, position, commit_ms })
}
