//! Audits as messages.

use super::{
    AuditReport, AuditState, KindDrift, RunAuditAnswer, RunAuditRequest, RunningAudit, Scrubber,
    owned, run_audit_answer, timestamp,
};
use crate::audit::{self, AuditAnswer, AuditRequest};
use crate::name::Name;

impl From<audit::ReportView> for AuditReport {
    fn from(report: audit::ReportView) -> AuditReport {
        AuditReport {
            position: report.position,
            edges: report.edges,
            tallies: report.tallies,
            drift: report.drift,
            repaired: report.repaired,
            left: report.left,
            kind: report.kind.map(owned),
            repair: report.repair,
            started_at: Some(timestamp(report.started_at.0)),
            finished_at: Some(timestamp(report.finished_at.0)),
            rows: report.rows,
            kinds: report.kinds.into_iter().map(KindDrift::from).collect(),
            examples: report.examples,
        }
    }
}

impl From<audit::KindDrift> for KindDrift {
    fn from(found: audit::KindDrift) -> KindDrift {
        KindDrift {
            kind: found.kind.map(owned),
            edges: found.edges,
            tallies: found.tallies,
            drift: found.drift,
            missing_incoming: found.missing_incoming,
            surplus_incoming: found.surplus_incoming,
            missing_outgoing: found.missing_outgoing,
            surplus_outgoing: found.surplus_outgoing,
            missing_expiry: found.missing_expiry,
            surplus_expiry: found.surplus_expiry,
            wrong_tallies: found.wrong_tallies,
            wrong_group_sizes: found.wrong_group_sizes,
            unreadable: found.unreadable,
        }
    }
}

impl From<audit::StateView> for AuditState {
    fn from(state: audit::StateView) -> AuditState {
        AuditState {
            drift: state.drift,
            position: state.position,
            finished_at: state.finished_at.map(|at| timestamp(at.0)),
            scrubber: Some(Scrubber {
                rows_per_second: state.scrubber.rows_per_second,
                passes: state.scrubber.passes,
                rows: state.scrubber.rows,
            }),
            running: state.running.map(|running| RunningAudit {
                kind: running.kind.map(owned),
                repair: running.repair,
                started_at: Some(timestamp(running.started_at.0)),
                rows: running.rows,
            }),
            last: state.last.map(AuditReport::from),
            failed: state.failed,
        }
    }
}

impl From<RunAuditRequest> for AuditRequest<'static> {
    fn from(request: RunAuditRequest) -> AuditRequest<'static> {
        AuditRequest { kind: request.kind.map(Name::from), repair: request.repair }
    }
}

impl From<AuditAnswer> for RunAuditAnswer {
    fn from(answer: AuditAnswer) -> RunAuditAnswer {
        let result = match answer {
            AuditAnswer::Report(report) => run_audit_answer::Result::Report(report.into()),
            AuditAnswer::GoesOn(state) => run_audit_answer::Result::GoesOn(state.into()),
        };
        RunAuditAnswer { result: Some(result) }
    }
}
