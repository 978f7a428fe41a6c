//! Audits: one that somebody asks for, and how it and the scrubber fare.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_api::Time;
use guanxi_api::audit::{
    AuditAnswer, AuditRequest, KindDrift, ReportView, RunningView, ScrubberView, StateView,
};
use guanxi_core::AuditQuery;
use guanxi_core::audit::{AuditEnd, AuditReport, AuditRun, AuditState, Drift, OfKind};
use guanxi_model::{Catalog, Code, Error};

use super::{Caller, kind_name};

/// How long before a request's deadline its caller hears that the audit goes on without it.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// Begins an audit and waits for its end; one that takes longer than the call may goes on without it.
pub async fn run(caller: Caller, request: AuditRequest<'_>) -> Result<AuditAnswer, Error> {
    let deployment = &caller.app.deployment;
    let mut kind = None;
    if let Some(name) = &request.kind {
        let found = caller.kind_named(name.as_str()).await?;
        found.require_edges()?;
        kind = Some((caller.tenant, found.id));
    }
    caller.meet().await?;
    let query = AuditQuery { kind, repair: request.repair };
    let number = deployment.begin_audit(query)?;
    let until = caller.context.deadline.checked_sub(ANSWER_MARGIN).unwrap_or_else(Instant::now);
    match tokio::time::timeout_at(until.into(), deployment.audit_ended(number)).await {
        Ok(Some(run)) => match &run.ended {
            Some(AuditEnd { result: Err(error), .. }) => Err(error.clone()),
            _ => {
                let report = report(&run, &caller.catalog());
                let lost = || Error::new(Code::Internal, "the audit has no report");
                report.map(AuditAnswer::Report).ok_or_else(lost)
            }
        },
        Ok(None) | Err(_) => Ok(AuditAnswer::GoesOn(state(&caller))),
    }
}

/// The last word on drift, the scrubber, and the last audit that was asked for.
pub async fn get(caller: Caller) -> Result<StateView, Error> {
    caller.meet().await?;
    Ok(state(&caller))
}

fn state(caller: &Caller) -> StateView {
    shown(&caller.app.deployment.audit_state(), &caller.catalog())
}

/// How audits fare, in words of the API.
fn shown(state: &AuditState, catalog: &Catalog) -> StateView {
    let run = state.run.as_ref();
    let running = run.filter(|run| run.ended.is_none()).map(|run| RunningView {
        kind: of_kind(run.query.kind, catalog),
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
        failed: failed.map(|error| error.message.clone()),
    }
}

/// The report of an audit that has ended well.
fn report(run: &AuditRun, catalog: &Catalog) -> Option<ReportView> {
    let AuditEnd { at, result: Ok(report) } = run.ended.as_ref()? else {
        return None;
    };
    let AuditReport { position, findings, repaired, left } = report;
    let kinds = findings.kinds.iter().map(|(kind, found)| KindDrift {
        kind: of_kind(*kind, catalog),
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
        kind: of_kind(run.query.kind, catalog),
        repair: run.query.repair,
        started_at: Time(run.begun),
        finished_at: Time(*at),
        rows: run.rows,
        kinds: kinds.collect(),
        examples: findings.examples.clone(),
    })
}

fn of_kind(kind: Option<OfKind>, catalog: &Catalog) -> Option<Arc<str>> {
    let (tenant, kind) = kind?;
    kind_name(catalog, tenant, kind)
}
