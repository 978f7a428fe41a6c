//! Audits over the admin API: one that somebody asks for, and how it and the scrubber fare.

use axum::http::StatusCode;
use guanxi_api::audit::{AuditRequest, ReportView, StateView};

use super::document::{AdminReadRefusals, AuditRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::audit;

/// Compares everything with the edges, and mends it on demand. An audit that takes longer than a
/// request goes on: the answer is then 202 and what GET shows, which has the report at the end.
#[utoipa::path(
    post, path = "/v1/admin/audit", tag = "admin", operation_id = "run_audit",
    request_body(content = AuditRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "It is done: the report.", body = ReportView),
        (status = 202, description = "It goes on.", body = StateView),
        AuditRefusals,
    ),
)]
pub async fn run(call: Call) -> Answered {
    let query = call.query(&[])?;
    let request: AuditRequest<'_> = call.optional_json()?;
    let kind = request.kind.as_ref().map(|kind| kind.as_str());
    let run = audit::run(&call.caller(&query)?, kind, request.repair).await?;
    let deployment = &call.app.deployment;
    let catalog = deployment.catalog();
    match run {
        Some(run) => Reply::ok(&audit::report(&run, &catalog).ok_or_else(audit::lost)?),
        None => {
            let state = deployment.audit_state();
            Reply::json(StatusCode::ACCEPTED, &audit::shown(&state, &catalog))
        }
    }
}

/// Shows the last word on drift, the scrubber, and the last audit that was asked for.
#[utoipa::path(
    get, path = "/v1/admin/audit", tag = "admin", operation_id = "get_audit",
    responses((status = 200, description = "How audits fare.", body = StateView), AdminReadRefusals),
)]
pub async fn get(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    call.meet(&query).await?;
    let state = call.app.deployment.audit_state();
    Reply::ok(&audit::shown(&state, &call.app.deployment.catalog()))
}
