//! What machines ask about the service itself: is it alive, is it ready, how does it do.

use guanxi_api::Time;
use guanxi_api::standby::{RoleName, StandbyView};
use serde::Serialize;
use utoipa::ToSchema;

use super::document::{HealthRefusals, ReadyRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};
use super::standby;

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
    /// How far a standby is behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_positions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_ms: Option<u64>,
    /// When a standby last heard of its primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_contact: Option<Time>,
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

/// The service takes reads and writes; a standby takes reads and follows.
#[utoipa::path(
    get, path = "/readyz", tag = "service", operation_id = "readyz",
    responses((status = 200, description = "It is ready.", body = Readiness), ReadyRefusals),
)]
pub async fn readyz(call: Call) -> Answered {
    call.query(&[])?;
    if let Some(why) = call.app.unready() {
        return Err(why.into());
    }
    let engine = call.app.deployment.embedded("")?;
    let StandbyView { role, following, .. } = standby::view(&engine.status());
    let following = following.as_ref();
    Reply::ok(&Readiness {
        status: "ready",
        role,
        lag_positions: following.map(|following| following.lag_positions),
        lag_ms: following.map(|following| following.lag_ms),
        last_contact: following.and_then(|following| following.last_contact),
    })
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
    let status = call.app.deployment.embedded("")?.status();
    let text = call.app.metrics.to_text(&status);
    Ok(Reply::text(METRICS_TYPE, text))
}
