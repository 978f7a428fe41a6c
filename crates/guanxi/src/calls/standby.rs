//! A primary and its standbys: who follows whom, and promoting.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use guanxi_api::Time;
use guanxi_api::standby::{FollowerView, FollowingView, Promotion, RoleName, StandbyView};
use guanxi_engine::{Engine, Status};
use guanxi_model::{Code, Error, Millis};

use crate::http::App;

/// What a cluster has in place of a standby.
const STANDBY_OF_A_CLUSTER: &str =
    "its instances stand in for each other, and its database keeps the copies";

/// The engine that follows or is followed.
pub fn engine(app: &App) -> Result<&Arc<Engine>, Error> {
    app.deployment.embedded(STANDBY_OF_A_CLUSTER)
}

/// Makes a standby the primary.
pub async fn promote(app: &App) -> Result<Promotion, Error> {
    let promoted = apart(app, |engine| engine.promote()).await?;
    let committed = promoted.committed;
    Ok(Promotion {
        position: promoted.position.0,
        epoch: promoted.epoch.0,
        committed_at: (committed > Millis(0)).then_some(Time(committed)),
        age_ms: promoted.age_ms,
    })
}

/// Runs what looks into files off the workers. Standbys are few, so they need no queue.
pub async fn apart<T: Send + 'static>(
    app: &App,
    work: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let engine = engine(app)?.clone();
    let done = tokio::task::spawn_blocking(move || work(&engine)).await;
    done.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the work failed; it was logged")))
}

/// The service's part in a pair.
pub fn view(status: &Status) -> StandbyView {
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
