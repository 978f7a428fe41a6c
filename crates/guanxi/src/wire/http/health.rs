//! What machines ask about the service itself: is it alive, is it ready, how does it do.

use guanxi_api::health::{Health, Readiness};

use super::document::{HealthRefusals, ReadyRefusals};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::health;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The process is alive.
#[utoipa::path(
    get, path = "/healthz", tag = "service", operation_id = "healthz",
    responses((status = 200, description = "It is alive.", body = Health), HealthRefusals),
)]
pub async fn healthz(request: HttpRequest) -> HttpAnswered {
    request.query(&[])?;
    reply::ok(&Health { status: "ok".into() })
}

/// The service takes reads and writes; a standby takes reads and follows. One that has moved to a
/// cluster, and a standby of it, take reads.
#[utoipa::path(
    get, path = "/readyz", tag = "service", operation_id = "readyz",
    responses((status = 200, description = "It is ready.", body = Readiness), ReadyRefusals),
)]
pub async fn readyz(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    reply::ok(&health::ready(&request.caller(&query).await?)?)
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
pub async fn metrics(request: HttpRequest) -> HttpAnswered {
    request.query(&[])?;
    reply::text(METRICS_TYPE, request.app.metrics.to_text())
}
