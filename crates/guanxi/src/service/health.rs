//! What machines ask about the service itself: is it alive, is it ready.

use guanxi_api::health::{ClusterHealth, Readiness};
use guanxi_api::standby::{RoleName, StandbyView};
use guanxi_cluster::instance::ClusterStatus;
use guanxi_model::Error;

use super::{Caller, standby};
use crate::deployment::Deployment;

const READY: &str = "ready";

/// The service takes reads and writes; a standby takes reads and follows. One that has moved to a
/// cluster, and a standby of it, take reads.
pub fn ready(caller: &Caller) -> Result<Readiness, Error> {
    if let Some(why) = caller.app.unready() {
        return Err(why);
    }
    let engine = match &caller.app.deployment {
        Deployment::Embedded(engine) => engine,
        Deployment::Cluster(cluster) => return Ok(instance(&cluster.status())),
    };
    let status = engine.status();
    let StandbyView { role, following, .. } = standby::view(&status);
    let (following, moved) = (following.as_ref(), status.moved);
    Ok(Readiness {
        status: READY,
        role: if moved.is_some() { RoleName::Moved } else { role },
        now_at: moved.and_then(|moved| moved.now_at),
        clock_held_back_ms: status.clock_held_back_ms,
        cluster: None,
        lag_positions: following.map(|following| following.lag_positions),
        lag_ms: following.map(|following| following.lag_ms),
        last_contact: following.and_then(|following| following.last_contact),
    })
}

fn instance(status: &ClusterStatus) -> Readiness {
    Readiness {
        status: READY,
        role: RoleName::Instance,
        now_at: None,
        clock_held_back_ms: status.clock_held_back_ms,
        lag_positions: None,
        lag_ms: None,
        last_contact: None,
        cluster: Some(ClusterHealth {
            roles: status.roles.names(),
            log_reachable: status.log.reachable,
            relay_lag_ms: status.relay_lag_ms,
            applier_lag_records: status.applier_lag_records,
            dead_letters: status.dead_letters,
            clock_offset_ms: status.clock_offset_ms,
            redis_reachable: status.memory.map(|memory| memory.tier.reachable),
            filter_serves: status.memory.map(|memory| memory.serves),
            overloaded: status.reads.is_some_and(|reads| reads.overloaded),
        }),
    }
}
