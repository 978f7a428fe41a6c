//! What machines ask about the service itself: is it alive, is it ready, how does it do.

use serde::Serialize;
use utoipa::ToSchema;

use super::document::{HealthRefusals, ReadyRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    #[schema(value_type = String)]
    status: &'static str,
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

/// The service takes reads and writes.
#[utoipa::path(
    get, path = "/readyz", tag = "service", operation_id = "readyz",
    responses((status = 200, description = "It is ready.", body = Health), ReadyRefusals),
)]
pub async fn readyz(call: Call) -> Answered {
    call.query(&[])?;
    match call.app.unready() {
        Some(why) => Err(why.into()),
        None => Reply::ok(&Health { status: "ready" }),
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
    let status = call.app.engine.status();
    let text = call.app.metrics.to_text(&status);
    Ok(Reply::text(METRICS_TYPE, text))
}
