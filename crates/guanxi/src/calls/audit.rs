//! Audits: one that somebody asks for, and how it and the scrubber fare.

use std::time::{Duration, Instant};

use guanxi_api::Time;
use guanxi_api::audit::{KindDrift, ReportView, RunningView, ScrubberView, StateView};
use guanxi_engine::AuditQuery;
use guanxi_engine::audit::{AuditEnd, AuditReport, AuditRun, AuditState, Drift, OfKind};
use guanxi_model::{Catalog, Code, Error};

use super::Caller;

/// How long before a request's deadline its caller hears that the audit goes on without it.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// Begins an audit and waits for its end; none when it goes on longer than the call may take.
pub async fn run(
    caller: &Caller<'_>,
    kind: Option<&str>,
    repair: bool,
) -> Result<Option<AuditRun>, Error> {
    let deployment = &caller.app.deployment;
    let mut of_kind = None;
    if let Some(name) = kind {
        let found = caller.kind_named(name).await?;
        found.require_edges()?;
        of_kind = Some((caller.tenant, found.id));
    }
    caller.meet().await?;
    let number = deployment.begin_audit(AuditQuery { kind: of_kind, repair })?;
    let until = caller.context.deadline.checked_sub(ANSWER_MARGIN).unwrap_or_else(Instant::now);
    match tokio::time::timeout_at(until.into(), deployment.audit_ended(number)).await {
        Ok(Some(run)) => match &run.ended {
            Some(AuditEnd { result: Err(error), .. }) => Err(error.clone()),
            _ => Ok(Some(run)),
        },
        Ok(None) | Err(_) => Ok(None),
    }
}

/// What there is to say when an audit that is over has no report.
pub fn lost() -> Error {
    Error::new(Code::Internal, "the audit has no report")
}

/// How audits fare, in words of the API.
pub fn shown<'a>(state: &'a AuditState, catalog: &'a Catalog) -> StateView<'a> {
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
pub fn report<'a>(run: &'a AuditRun, catalog: &'a Catalog) -> Option<ReportView<'a>> {
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
