//! Audits as messages.

use super::{AuditReport, AuditState, KindDrift, RunningAudit, Scrubber, timestamp};
use crate::audit;

impl From<audit::ReportView<'_>> for AuditReport {
    fn from(report: audit::ReportView<'_>) -> AuditReport {
        AuditReport {
            position: report.position,
            edges: report.edges,
            tallies: report.tallies,
            drift: report.drift,
            repaired: report.repaired,
            left: report.left,
            kind: report.kind.map(str::to_owned),
            repair: report.repair,
            started_at: Some(timestamp(report.started_at.0)),
            finished_at: Some(timestamp(report.finished_at.0)),
            rows: report.rows,
            kinds: report.kinds.into_iter().map(KindDrift::from).collect(),
            examples: report.examples.to_vec(),
        }
    }
}

impl From<audit::KindDrift<'_>> for KindDrift {
    fn from(found: audit::KindDrift<'_>) -> KindDrift {
        KindDrift {
            kind: found.kind.map(str::to_owned),
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

impl From<audit::StateView<'_>> for AuditState {
    fn from(state: audit::StateView<'_>) -> AuditState {
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
                kind: running.kind.map(str::to_owned),
                repair: running.repair,
                started_at: Some(timestamp(running.started_at.0)),
                rows: running.rows,
            }),
            last: state.last.map(AuditReport::from),
            failed: state.failed.map(str::to_owned),
        }
    }
}
