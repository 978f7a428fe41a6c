//! A primary and its standbys: the log's way to them, what they acknowledge, who follows whom, and
//! promoting.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use guanxi_api::standby::{
    AcknowledgeRequest, AcknowledgedView, FollowerView, FollowingView, Promotion, RoleName,
    StandbyView,
};
use guanxi_api::{Id, Time};
use guanxi_embedded::log::OutgoingShipment;
use guanxi_embedded::{Acknowledgement, Engine, EngineStatus, Shipped, unshipped};
use guanxi_model::{Code, Epoch, Error, Millis, Position};

use super::streams::{self, Paced};
use super::{App, Caller};

/// How long work for a standby may wait for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// What a cluster has in place of a standby.
const STANDBY_OF_A_CLUSTER: &str =
    "its instances stand in for each other, and its database keeps the copies";

/// The engine that follows or is followed.
pub fn engine(app: &App) -> Result<&Arc<Engine>, Error> {
    app.engine(STANDBY_OF_A_CLUSTER)
}

/// Takes note of what a standby has on disk.
pub async fn acknowledge(
    caller: Caller,
    standby: Id,
    request: AcknowledgeRequest,
) -> Result<AcknowledgedView, Error> {
    let AcknowledgeRequest { epoch, position, commit_ms } = request;
    let (epoch, position) = (Epoch(epoch), Position(position));
    let said = Acknowledgement { standby: standby.0, epoch, position, commit_ms };
    let counts = apart(&caller.app, move |engine| engine.acknowledge(&said)).await?;
    Ok(AcknowledgedView { counts })
}

/// The service's role, how far behind its primary it is, and who follows it.
pub async fn get(caller: Caller) -> Result<StandbyView, Error> {
    Ok(view(&engine(&caller.app)?.status()))
}

/// Waits for what follows in the log, until then at the latest, and begins to ship it.
pub async fn ship(app: &App, shipped: Shipped, until: Instant) -> Result<OutgoingShipment, Error> {
    apart(app, move |engine| engine.refuse_other_history(&shipped)).await?;
    wait_for_frames(app, engine(app)?, shipped.position, until).await;
    if app.is_stopping() {
        return Err(Error::new(Code::Unavailable, "the service is stopping"));
    }
    apart(app, move |engine| engine.shipment(shipped.position)).await
}

/// Sends a shipment to its end.
pub async fn send(
    app: &App,
    mut shipment: OutgoingShipment,
    mut sender: Paced<Bytes>,
) -> Result<(), Error> {
    loop {
        let made = apart(app, move |_| {
            let piece = shipment.next_piece().map_err(unshipped)?;
            Ok((shipment, piece))
        });
        let piece;
        (shipment, piece) = made.await?;
        let Some(piece) = piece else {
            return Ok(());
        };
        let mut piece = Bytes::from(piece);
        while !piece.is_empty() {
            let bytes = piece.len().min(streams::ITEM_BYTES_TYPICAL);
            sender.send(piece.split_to(bytes), bytes).await?;
        }
    }
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

/// Makes a standby the primary.
pub async fn promote(caller: Caller) -> Result<Promotion, Error> {
    let promoted = apart(&caller.app, |engine| engine.promote()).await?;
    let committed = promoted.committed;
    Ok(Promotion {
        position: promoted.position.0,
        epoch: promoted.epoch.0,
        committed_at: (committed > Millis(0)).then_some(Time(committed)),
        age_ms: promoted.age_ms,
    })
}

/// Runs what looks into files off the workers, apart from what callers read.
pub async fn apart<T: Send + 'static>(
    app: &App,
    work: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let engine = engine(app)?.clone();
    app.apart_for_operators(Instant::now() + TURN_TIMEOUT, move || work(&engine)).await
}

/// The service's part in a pair.
pub fn view(status: &EngineStatus) -> StandbyView {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let ago = |ms: u64| Time(Millis(now_ms.saturating_sub(ms)));
    let following = status.following.as_ref().map(|following| FollowingView {
        primary: following.primary.clone(),
        primary_position: following.primary_last.0,
        lag_positions: following.lag_positions,
        lag_ms: following.lag_ms,
        last_contact: following.last_contact_ms_ago.map(ago),
        trouble: following.trouble.clone(),
    });
    let standbys = status.standbys.iter().map(|standby| FollowerView {
        id: standby.id.to_string(),
        position: standby.position.0,
        lag_positions: status.durable.0.saturating_sub(standby.position.0),
        last_contact: ago(standby.silent_ms),
    });
    StandbyView {
        role: match (&following, &status.moved) {
            (Some(_), _) => RoleName::Standby,
            (None, Some(_)) => RoleName::Moved,
            (None, None) => RoleName::Primary,
        },
        epoch: status.epoch.0,
        position: status.applied.0,
        following,
        standbys: standbys.collect(),
    }
}
