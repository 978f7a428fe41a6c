//! Primary and standbys: shipping the log, saying who follows whom, promoting.

use std::time::{Duration, Instant};

use guanxi_api::standby::{Promotion, StandbyView};
use guanxi_engine::{Engine, Shipped};
use guanxi_model::{Epoch, Error, Position};

use super::App;
use super::document::{PromoteRefusals, ShipRefusals, Shipping};
use super::extract::Call;
use super::query::Query;
use super::reply::{Answered, Reply};
use crate::calls::standby::{self, apart};

/// How long a request for the log may wait for frames; also the default.
const WAIT_MS_MAX: u64 = 5_000;
/// What the answer itself may take of the request's time.
const ANSWER_RESERVE: Duration = Duration::from_millis(500);
const SHIPMENT_TYPE: &str = "application/octet-stream";

/// Ships the log to a standby.
///
/// Answers whole frames after a position, in a binary form of their own, as soon as there are
/// some. Asking says that the standby has everything up to that position on disk.
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
pub async fn ship(call: Call) -> Answered {
    let query = call.query(&["after", "commit_ms", "standby", "wait_ms"])?;
    call.no_body()?;
    let shipped = shipped(&query)?;
    let wait_ms = query.number("wait_ms", 0..=WAIT_MS_MAX)?.unwrap_or(WAIT_MS_MAX);
    let latest = call.context.deadline.checked_sub(ANSWER_RESERVE).unwrap_or_else(Instant::now);
    let until = latest.min(Instant::now() + Duration::from_millis(wait_ms));
    let app = &call.app;
    apart(app, move |engine| engine.acknowledge(&shipped)).await?;
    let engine = standby::engine(app)?;
    wait_for_frames(app, engine, shipped.position, until).await;
    let shipment = apart(app, move |engine| engine.shipment(shipped.position)).await?;
    Ok(Reply::text(SHIPMENT_TYPE, shipment.encode()))
}

/// Shows the service's role, how far behind its primary it is, and who follows it.
#[utoipa::path(
    get, path = "/v1/admin/standby", tag = "admin", operation_id = "get_standby",
    responses(
        (status = 200, description = "The service's part in a pair.", body = StandbyView),
        ShipRefusals,
    ),
)]
pub async fn get(call: Call) -> Answered {
    call.query(&[])?;
    call.no_body()?;
    Reply::ok(&standby::view(&standby::engine(&call.app)?.status()))
}

/// Makes a standby the primary: it ends following and takes writes, in an epoch of its own.
#[utoipa::path(
    post, path = "/v1/admin/promote", tag = "admin", operation_id = "promote",
    responses(
        (status = 200, description = "What it goes on from.", body = Promotion),
        PromoteRefusals,
    ),
)]
pub async fn promote(call: Call) -> Answered {
    call.query(&[])?;
    call.no_body()?;
    Reply::ok(&standby::promote(&call.app).await?)
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
    let Some(standby) = query.number("standby", 0..=u64::MAX)? else {
        return Err(Error::invalid("standby: it is the standby's id, a whole number"));
    };
    let commit_ms = query.number("commit_ms", 0..=u64::MAX)?;
    Ok(Shipped { standby, epoch, position, commit_ms })
}

/// Returns when the log goes on after the position, or has ended for good meanwhile, or the time is
/// over, or the service stops.
async fn wait_for_frames(app: &App, engine: &Engine, after: Position, until: Instant) {
    let mut durable = engine.durable();
    let known = engine.moved().is_some();
    let arrived = durable.wait_for(|last| *last > after || (!known && engine.moved().is_some()));
    tokio::select! {
        _ = arrived => {}
        () = app.streams.stopped() => {}
        () = tokio::time::sleep_until(until.into()) => {}
    }
}
