//! One audit from beginning to end: a look at one picture of the store and, if it is wanted, the
//! repair of what was found, through the normal commit path, until a new look finds nothing more.

use std::collections::BTreeSet;

use guanxi_core::audit::{
    AuditError, AuditFinding, AuditQuery, AuditReport, AuditWatch, Drift, Findings, OfKind,
    STRIDE_ROWS,
};
use guanxi_model::limits::JOB_STEP_EDGES_MAX;
use guanxi_model::{Change, TenantId};

use super::exact::{COUNTED_TALLIES_MAX, CloseLook};
use super::pass::{AuditPass, Scope};
use super::sketch::Suspects;
use crate::background::Workbench;
use crate::store::{Applied, EmbeddedSnapshot, EmbeddedStore};

/// A write that rested on a wrong tally while it was being mended makes it wrong again; the second
/// round finds that. More would only say that something makes drift faster than it is mended.
const REPAIR_ROUNDS_MAX: usize = 3;

/// What one picture shows.
pub(crate) struct StoreLook {
    pub applied: Applied,
    pub findings: Findings,
    scope: Scope,
    suspects: Suspects,
}

/// Whoever can write mends too, where it is wanted.
pub(crate) fn run(
    bench: &Workbench,
    watch: &AuditWatch,
    query: AuditQuery,
) -> Result<AuditReport, AuditError> {
    let store = bench.store.as_ref();
    let first = look(store, watch, query.kind)?;
    let mut report = AuditReport {
        position: first.applied.position,
        left: first.findings.drift(),
        findings: first.findings.clone(),
        repaired: 0,
    };
    if !query.repair {
        return Ok(report);
    }
    let mut last = first;
    for _ in 0..REPAIR_ROUNDS_MAX {
        if last.findings.mendable() == 0 {
            break;
        }
        mend(bench, watch, &last)?;
        last = look(store, watch, query.kind)?;
    }
    report.position = last.applied.position;
    report.left = last.findings.drift();
    report.repaired = report.findings.gone_in(&last.findings);
    Ok(report)
}

/// Compares everything in one picture.
pub(crate) fn look(
    store: &dyn EmbeddedStore,
    watch: &AuditWatch,
    kind: Option<OfKind>,
) -> Result<StoreLook, AuditError> {
    let snapshot = store.picture_as_it_lies();
    let snapshot = snapshot.as_ref();
    let catalog = snapshot.catalog();
    let applied = snapshot.applied()?;
    let mut pass = AuditPass::new(kind, catalog);
    while !pass.is_done() {
        let rows = pass.take(snapshot, STRIDE_ROWS)?;
        watch.rows(rows)?;
    }
    let (scope, suspects, mut findings) = pass.into_parts();
    if !suspects.is_empty() {
        let close = close_look(snapshot, &scope, &suspects, watch);
        let mut note = |finding: AuditFinding| {
            findings.note(&finding, catalog);
            Ok(())
        };
        close.tallies(&mut note)?;
        close.entries(&mut note)?;
    }
    Ok(StoreLook { applied, findings, scope, suspects })
}

fn close_look<'a>(
    snapshot: &'a dyn EmbeddedSnapshot,
    scope: &'a Scope,
    suspects: &'a Suspects,
    watch: &'a AuditWatch,
) -> CloseLook<'a> {
    CloseLook { snapshot, scope, suspects, watch, tallies_max: COUNTED_TALLIES_MAX }
}

/// Mends what can be. Deciding whether an edge stands rests on its source's tallies, so they come
/// first, and entries are looked at anew when they are right.
fn mend(bench: &Workbench, watch: &AuditWatch, seen: &StoreLook) -> Result<(), AuditError> {
    let (scope, suspects) = (&seen.scope, &seen.suspects);
    // An edge that cannot be read may count all the same.
    let kinds = seen.findings.kinds.iter();
    let unsure = kinds.filter(|(_, found)| found.count(Drift::Unreadable) > 0);
    let unsure: BTreeSet<OfKind> = unsure.filter_map(|(kind, _)| *kind).collect();
    let mut repairs = Repairs { bench, unsure, changes: Vec::new() };
    let snapshot = bench.store.picture_as_it_lies();
    let close = close_look(snapshot.as_ref(), scope, suspects, watch);
    close.tallies(&mut |finding| repairs.take(finding))?;
    close.groups(&mut |finding| repairs.take(finding))?;
    repairs.write()?;
    let snapshot = bench.store.picture_as_it_lies();
    let close = close_look(snapshot.as_ref(), scope, suspects, watch);
    close.entries(&mut |finding| repairs.take(finding))?;
    repairs.write()
}

/// Repairs on their way to the committer, a step's worth at a time.
struct Repairs<'a> {
    bench: &'a Workbench,
    unsure: BTreeSet<OfKind>,
    changes: Vec<(TenantId, Change)>,
}

impl Repairs<'_> {
    fn take(&mut self, finding: AuditFinding) -> Result<(), AuditError> {
        let number = matches!(finding.drift, Drift::WrongTally | Drift::WrongGroupSize);
        if number && self.unsure.contains(&finding.kind) {
            return Ok(());
        }
        self.changes.push((finding.kind.0, finding.mend));
        match self.changes.len() < JOB_STEP_EDGES_MAX {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&mut self) -> Result<(), AuditError> {
        while let Some((tenant, _)) = self.changes.first() {
            let tenant = *tenant;
            let (mine, others) =
                std::mem::take(&mut self.changes).into_iter().partition(|(of, _)| *of == tenant);
            let mine: Vec<(TenantId, Change)> = mine;
            self.changes = others;
            let changes = mine.into_iter().map(|(_, change)| change).collect();
            let written = self.bench.write(tenant, changes).ok_or(AuditError::Refused)?;
            for error in written.answers.into_iter().filter_map(Result::err) {
                tracing::warn!(%error, "a repair was refused");
            }
        }
        Ok(())
    }
}
