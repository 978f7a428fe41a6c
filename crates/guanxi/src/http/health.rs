//! What machines ask about the service itself: is it alive, is it ready, how does it do.

use guanxi_api::Time;
use guanxi_api::standby::{RoleName, StandbyView};
use guanxi_engine::cluster::instance::ClusterStatus;
use serde::Serialize;
use utoipa::ToSchema;

use super::document::{HealthRefusals, ReadyRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::standby;
use crate::deployment::Deployment;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    #[schema(value_type = String)]
    status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Readiness {
    #[schema(value_type = String)]
    status: &'static str,
    #[schema(inline)]
    role: RoleName,
    /// Where the cluster is that a service, or a standby's primary, has moved to, if somebody said
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    now_at: Option<String>,
    /// How far ahead this machine's clock is since it jumped. It is not believed: nothing expires
    /// or is trimmed early. Absent when all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_held_back_ms: Option<u64>,
    /// How far a standby is behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_positions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_ms: Option<u64>,
    /// When a standby last heard of its primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_contact: Option<Time>,
    /// How the cluster fares, as this instance of it sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    cluster: Option<ClusterHealth>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterHealth {
    /// The parts that this instance plays.
    #[schema(value_type = Vec<String>)]
    roles: Vec<&'static str>,
    /// Without the log, writes and what they changed on the source's side go on; the target's
    /// side stands still.
    log_reachable: bool,
    /// Age of the oldest record that the log does not have.
    relay_lag_ms: u64,
    /// Records of the log that the target's side does not have; null while this instance does not
    /// know, because the log does not answer it.
    applier_lag_records: Option<u64>,
    dead_letters: u64,
    /// The database's clock less that of this instance.
    clock_offset_ms: i64,
    /// Whether Redis answers this instance; absent where none is set. Without it reads ask the
    /// database.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis_reachable: Option<bool>,
    /// Whether checks may end in the filter; it is filled anew after Redis was away.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_serves: Option<bool>,
    /// Whether reads found no place at the database, or no answer, in the last seconds. They are
    /// refused or degraded, as their kinds say.
    overloaded: bool,
}

/// The process is alive.
#[utoipa::path(
    get, path = "/healthz", tag = "service", operation_id = "healthz",
    responses((status = 200, description = "It is alive.", body = Health), HealthRefusals),
)]
pub async fn healthz(call: Call) -> Answered {
    call.query(&[])?;
    Reply::ok(&Health { status: "ok" })
}

/// The service takes reads and writes; a standby takes reads and follows. One that has moved to a
/// cluster, and a standby of it, take reads.
#[utoipa::path(
    get, path = "/readyz", tag = "service", operation_id = "readyz",
    responses((status = 200, description = "It is ready.", body = Readiness), ReadyRefusals),
)]
pub async fn readyz(call: Call) -> Answered {
    call.query(&[])?;
    if let Some(why) = call.app.unready() {
        return Err(why.into());
    }
    let engine = match &call.app.deployment {
        Deployment::Embedded(engine) => engine,
        Deployment::Cluster(cluster) => return Reply::ok(&instance(&cluster.status())),
    };
    let status = engine.status();
    let StandbyView { role, following, .. } = standby::view(&status);
    let (following, moved) = (following.as_ref(), status.moved);
    Reply::ok(&Readiness {
        status: "ready",
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
        status: "ready",
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

/// Metrics in the OpenMetrics text form.
#[utoipa::path(
    get, path = "/metrics", tag = "service", operation_id = "metrics",
    responses(
        (
            status = 200, description = "The metrics.",
            body = String, content_type = "application/openmetrics-text",
        ),
        HealthRefusals,
    ),
)]
pub async fn metrics(call: Call) -> Answered {
    call.query(&[])?;
    let text = call.app.metrics.to_text(&call.app.deployment);
    Ok(Reply::text(METRICS_TYPE, text))
}
