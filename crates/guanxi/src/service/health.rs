//! What machines ask about the service itself: is it alive, is it ready.

use guanxi_api::health::{ClusterHealth, Readiness};
use guanxi_api::standby::{RoleName, StandbyView};
use guanxi_core::deployment::InstanceHealth;
use guanxi_model::Error;

use super::{Caller, standby};

const READY: &str = "ready";

/// The service takes reads and writes; a standby takes reads and follows. One that has moved to a
/// cluster, and a standby of it, take reads.
pub fn ready(caller: &Caller) -> Result<Readiness, Error> {
    if let Some(why) = caller.app.unready() {
        return Err(why);
    }
    let Some(engine) = &caller.app.engine else {
        return Ok(instance(caller.app.deployment.instance()));
    };
    let status = engine.status();
    let StandbyView { role, following, .. } = standby::view(&status);
    let (following, moved) = (following.as_ref(), status.moved);
    Ok(Readiness {
        status: READY.into(),
        role: if moved.is_some() { RoleName::Moved } else { role },
        now_at: moved.and_then(|moved| moved.now_at),
        clock_held_back_ms: status.clock_held_back_ms,
        cluster: None,
        lag_positions: following.map(|following| following.lag_positions),
        lag_ms: following.map(|following| following.lag_ms),
        last_contact: following.and_then(|following| following.last_contact),
    })
}

fn instance(health: Option<InstanceHealth>) -> Readiness {
    Readiness {
        status: READY.into(),
        role: RoleName::Instance,
        now_at: None,
        clock_held_back_ms: health.as_ref().and_then(|health| health.clock_held_back_ms),
        lag_positions: None,
        lag_ms: None,
        last_contact: None,
        cluster: health.map(|health| ClusterHealth {
            roles: health.roles.into_iter().map(Into::into).collect(),
            log_reachable: health.log_reachable,
            relay_lag_ms: health.relay_lag_ms,
            applier_lag_records: health.applier_lag_records,
            dead_letters: health.dead_letters,
            clock_offset_ms: health.clock_offset_ms,
            redis_reachable: health.redis_reachable,
            filter_serves: health.filter_serves,
            overloaded: health.overloaded,
        }),
    }
}
