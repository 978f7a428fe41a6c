//! Audits over the admin API: one that somebody asks for, and how it and the scrubber fare.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use guanxi_api::Time;
use guanxi_api::audit::{
    AuditRequest, KindDrift, ReportView, RunningView, ScrubberView, StateView,
};
use guanxi_engine::AuditQuery;
use guanxi_engine::audit::{AuditEnd, AuditReport, AuditRun, AuditState, Drift, OfKind};
use guanxi_model::{Catalog, Code, Error};

use super::document::{AdminReadRefusals, AuditRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};

/// How long before a request's deadline its caller hears that the audit goes on without it.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

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
    let deployment = &call.app.deployment;
    let catalog = deployment.catalog();
    let mut kind = None;
    if let Some(name) = &request.kind {
        let found = catalog.named(call.tenant(), name.as_str())?;
        found.require_edges()?;
        kind = Some((call.tenant(), found.id));
    }
    call.meet(&query).await?;
    let number = deployment.begin_audit(AuditQuery { kind, repair: request.repair })?;
    let until = call.context.deadline.checked_sub(ANSWER_MARGIN).unwrap_or_else(Instant::now);
    let ended = tokio::time::timeout_at(until.into(), deployment.audit_ended(number)).await;
    match ended {
        Ok(Some(run)) => match &run.ended {
            Some(AuditEnd { result: Err(error), .. }) => Err(error.clone().into()),
            _ => {
                let lost = || Error::new(Code::Internal, "the audit has no report");
                Reply::ok(&report(&run, &deployment.catalog()).ok_or_else(lost)?)
            }
        },
        Ok(None) | Err(_) => {
            let state = deployment.audit_state();
            Reply::json(StatusCode::ACCEPTED, &shown(&state, &deployment.catalog()))
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
    Reply::ok(&shown(&state, &call.app.deployment.catalog()))
}

fn shown<'a>(state: &'a AuditState, catalog: &'a Catalog) -> StateView<'a> {
    let run = state.run.as_ref();
    let running = run.filter(|run| run.ended.is_none()).map(|run| RunningView {
        kind: kind_name(run.query.kind, catalog),
        repair: run.query.repair,
        started_at: Time(run.begun),
        rows: run.rows,
    });
    let failed = run.and_then(|run| run.ended.as_ref()?.result.as_ref().err());
    StateView {
        drift: state.verdict.map(|verdict| verdict.drift),
        position: state.verdict.map(|verdict| verdict.position.0),
        finished_at: state.verdict.map(|verdict| Time(verdict.at)),
        scrubber: ScrubberView {
            rows_per_second: state.scrubbing.rows_per_second,
            passes: state.scrubbing.passes,
            rows: state.scrubbing.rows,
        },
        running,
        last: run.and_then(|run| report(run, catalog)),
        failed: failed.map(|error| error.message.as_str()),
    }
}

/// The report of an audit that has ended well.
fn report<'a>(run: &'a AuditRun, catalog: &'a Catalog) -> Option<ReportView<'a>> {
    let AuditEnd { at, result: Ok(report) } = run.ended.as_ref()? else {
        return None;
    };
    let AuditReport { position, findings, repaired, left } = report;
    let kinds = findings.kinds.iter().map(|(kind, found)| KindDrift {
        kind: kind_name(*kind, catalog),
        edges: found.edges,
        tallies: found.tallies,
        drift: found.drift(),
        missing_incoming: found.count(Drift::MissingIncoming),
        surplus_incoming: found.count(Drift::SurplusIncoming),
        missing_outgoing: found.count(Drift::MissingOutgoing),
        surplus_outgoing: found.count(Drift::SurplusOutgoing),
        missing_expiry: found.count(Drift::MissingExpiry),
        surplus_expiry: found.count(Drift::SurplusExpiry),
        wrong_tallies: found.count(Drift::WrongTally),
        wrong_group_sizes: found.count(Drift::WrongGroupSize),
        unreadable: found.count(Drift::Unreadable),
    });
    Some(ReportView {
        position: position.0,
        edges: findings.edges(),
        tallies: findings.tallies(),
        drift: findings.drift(),
        repaired: *repaired,
        left: *left,
        kind: kind_name(run.query.kind, catalog),
        repair: run.query.repair,
        started_at: Time(run.begun),
        finished_at: Time(*at),
        rows: run.rows,
        kinds: kinds.collect(),
        examples: &findings.examples,
    })
}

fn kind_name(kind: Option<OfKind>, catalog: &Catalog) -> Option<&str> {
    let (tenant, kind) = kind?;
    catalog.kind(tenant, kind).map(|kind| kind.name.as_str())
}
