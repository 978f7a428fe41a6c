//! Audits over the admin API: one that somebody asks for, and how it and the scrubber fare.

use axum::http::StatusCode;
use guanxi_api::audit::{AuditAnswer, AuditRequest, ReportView, StateView};

use super::document::{AdminReadRefusals, AuditRefusals};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::audit;

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
pub async fn run(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let asked: AuditRequest<'_> = request.optional_json()?;
    match audit::run(request.caller(&query).await?, asked).await? {
        AuditAnswer::Report(report) => reply::ok(&report),
        AuditAnswer::GoesOn(state) => reply::json(StatusCode::ACCEPTED, &state),
    }
}

/// Shows the last word on drift, the scrubber, and the last audit that was asked for.
#[utoipa::path(
    get, path = "/v1/admin/audit", tag = "admin", operation_id = "get_audit",
    responses((status = 200, description = "How audits fare.", body = StateView), AdminReadRefusals),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    reply::ok(&audit::get(request.caller(&query).await?).await?)
}
