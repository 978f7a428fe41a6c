//! The close look: where a sketch says that something is wrong, each element is compared by itself.

use std::ops::ControlFlow;

use guanxi_core::audit::{AuditError, AuditFinding, AuditWatch, Drift};
use guanxi_core::snapshot::StoreError;
use guanxi_model::entry::entries;
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{Change, IndexEntry, KindId, NodeKey, Which};
use rustc_hash::FxHashMap;

use super::groups::compare_groups;
use super::pass::Scope;
use super::sketch::{Element, Suspects};
use crate::store::EmbeddedSnapshot;
use crate::store::inventory::{self, InventoryPiece, UnreadablePiece};

/// Tallies that are counted at once: about 64 MiB. Where more are suspected, the rows are walked
/// once more for the others.
pub(super) const COUNTED_TALLIES_MAX: usize = 1 << 20;

type TallyCounts = FxHashMap<(NodeKey, KindId, Which), i64>;
type TellFinding<'a> = dyn FnMut(AuditFinding) -> Result<(), AuditError> + 'a;

/// One picture, closely looked at.
pub(super) struct CloseLook<'a> {
    pub snapshot: &'a dyn EmbeddedSnapshot,
    pub scope: &'a Scope,
    pub suspects: &'a Suspects,
    pub watch: &'a AuditWatch,
    /// `COUNTED_TALLIES_MAX`, or fewer in a test.
    pub tallies_max: usize,
}

/// The suspects of one walk, how far their tallies differ, and the suspects of later walks.
struct SuspectCount {
    suspects: Suspects,
    counts: TallyCounts,
    later: Vec<Suspects>,
}

impl SuspectCount {
    /// Adds to a tally, if it is one of the suspects.
    fn add(&mut self, tally: (NodeKey, KindId, Which), value: i64, tallies_max: usize) {
        let element =
            |(node, kind, which): &(NodeKey, KindId, Which)| Element::tally(node, *kind, *which);
        if !self.suspects.have(element(&tally)) {
            return;
        }
        let count = self.counts.entry(tally).or_default();
        *count = count.wrapping_add(value);
        // Too many for one walk: some of them wait for the next.
        while self.counts.len() > tallies_max {
            let Some(later) = self.suspects.halve() else { break };
            self.later.push(later);
            let suspects = &self.suspects;
            self.counts.retain(|tally, _| suspects.have(element(tally)));
        }
    }
}

impl CloseLook<'_> {
    /// Tallies of nodes, counted anew from the edges.
    pub fn tallies(&self, found: &mut TellFinding<'_>) -> Result<(), AuditError> {
        let mut left = vec![self.suspects.clone()];
        while let Some(suspects) = left.pop() {
            let mut count =
                SuspectCount { suspects, counts: TallyCounts::default(), later: Vec::new() };
            self.count_edges(&mut count)?;
            self.count_nodes(&mut count)?;
            left.append(&mut count.later);
            for ((node, kind, which), delta) in count.counts {
                if delta != 0 {
                    let mend = Change::RepairTally { node, kind, which, delta };
                    let kind = (node.tenant, kind);
                    found(AuditFinding { kind, drift: Drift::WrongTally, mend })?;
                }
            }
        }
        Ok(())
    }

    /// Adds what the edges come to.
    fn count_edges(&self, count: &mut SuspectCount) -> Result<(), AuditError> {
        let catalog = self.snapshot.catalog();
        self.walk(inventory::EDGES, &mut |kept| {
            let (edge, row) = match kept {
                InventoryPiece::Edge(edge, row) => (edge, row),
                InventoryPiece::Unreadable(_) => return Ok(ControlFlow::Continue(())),
                _ => return Ok(ControlFlow::Break(())),
            };
            let kind = catalog.kind(edge.tenant, edge.kind);
            let Some(kind) = kind.filter(|kind| self.scope.has((edge.tenant, kind.id))) else {
                return Ok(ControlFlow::Continue(()));
            };
            for counted in contribution(kind, &edge, Some(&row)) {
                if let CountedTally::Node { node, kind, which } = counted {
                    count.add((node, kind, which), 1, self.tallies_max);
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Takes away what the nodes' rows say; one that cannot be read says nothing and is left alone.
    fn count_nodes(&self, count: &mut SuspectCount) -> Result<(), AuditError> {
        let catalog = self.snapshot.catalog();
        self.walk(inventory::NODES, &mut |kept| {
            match kept {
                InventoryPiece::Node(node, row) => {
                    for (kind, which, value) in row.tallies.entries() {
                        let known = catalog.kind(node.tenant, kind);
                        let compared = |kind| self.scope.counts(node.tenant, kind, which);
                        if known.is_some_and(|kind| compared(kind)) {
                            count.add((node, kind, which), value.wrapping_neg(), self.tallies_max);
                        }
                    }
                }
                InventoryPiece::Unreadable(UnreadablePiece::Node(node)) => {
                    count.counts.retain(|(of, _, _), _| *of != node);
                }
                InventoryPiece::Unreadable(UnreadablePiece::Key) => {}
                _ => return Ok(ControlFlow::Break(())),
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    pub fn groups(&self, found: &mut TellFinding<'_>) -> Result<(), AuditError> {
        let mut last = None;
        self.walk(inventory::GROUPS, &mut |kept| {
            let InventoryPiece::Group(groups, _) = kept else {
                return Ok(ControlFlow::Continue(()));
            };
            if last != Some(groups) && self.scope.has((groups.tenant, groups.kind)) {
                let mut all = Vec::new();
                compare_groups(self.snapshot, &groups, &mut |finding| all.push(finding))?;
                all.into_iter().try_for_each(&mut *found)?;
            }
            last = Some(groups);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Index entries that a row implies and that are not there, or that are there without one.
    pub fn entries(&self, found: &mut TellFinding<'_>) -> Result<(), AuditError> {
        let catalog = self.snapshot.catalog();
        self.walk(inventory::EDGES, &mut |kept| {
            match kept {
                InventoryPiece::Edge(edge, row) => {
                    let Some(kind) = catalog.kind(edge.tenant, edge.kind) else {
                        return Ok(ControlFlow::Continue(()));
                    };
                    for entry in entries(kind, &edge, Some(&row)) {
                        if self.suspects(&entry) && !self.snapshot.holds(&entry)? {
                            found(wrong(entry, true))?;
                        }
                    }
                }
                InventoryPiece::Entry(entry) => {
                    if self.suspects(&entry) && !self.is_implied(&entry)? {
                        found(wrong(entry, false))?;
                    }
                }
                InventoryPiece::Unreadable(_) => {}
                _ => return Ok(ControlFlow::Break(())),
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    fn suspects(&self, entry: &IndexEntry) -> bool {
        self.scope.compares(&entry.edge, entry.index)
            && self.suspects.have(Element::entry(&inventory::entry_key(entry)))
    }

    /// Whether an entry's edge wants it. One whose edge cannot be read may be all that is left of it.
    fn is_implied(&self, entry: &IndexEntry) -> Result<bool, AuditError> {
        let Some(kind) = self.snapshot.catalog().kind(entry.edge.tenant, entry.edge.kind) else {
            return Ok(true);
        };
        match self.snapshot.edge(&entry.edge) {
            Ok(row) => Ok(entries(kind, &entry.edge, row.as_ref()).any(|wanted| wanted == *entry)),
            Err(StoreError::Damaged(_)) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn walk(
        &self,
        after: &[u8],
        visit: &mut dyn FnMut(InventoryPiece) -> Result<ControlFlow<()>, AuditError>,
    ) -> Result<(), AuditError> {
        let mut halted = None;
        self.snapshot.inventory(after, &mut |_, kept| {
            let visited = self.watch.rows(1).and_then(|()| visit(kept));
            visited.unwrap_or_else(|error| {
                halted = Some(error);
                ControlFlow::Break(())
            })
        })?;
        halted.map_or(Ok(()), Err)
    }
}

fn wrong(entry: IndexEntry, missing: bool) -> AuditFinding {
    AuditFinding {
        kind: (entry.edge.tenant, entry.edge.kind),
        drift: Drift::of_entry(entry.index, missing),
        mend: Change::RepairEntry { entry },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use guanxi_core::signal::Signal;
    use guanxi_model::{NodeTypeId, TenantId};

    use super::*;
    use crate::audit::pass::AuditPass;
    use crate::store::conformance::random_history;
    use crate::store::memory::MemoryBackend;
    use crate::store::{EmbeddedStore, KeyedStore, Store};

    /// Many wrong tallies and room for few at a time: every one is found, once and by how much.
    #[test]
    fn tallies_are_found_however_few_are_counted_at_once() {
        let store = KeyedStore::open(MemoryBackend::default()).unwrap();
        for batch in random_history(3, 120).unwrap() {
            store.write(&batch.dirty, batch.applied).unwrap();
        }
        let mut planted = BTreeMap::new();
        for id in 1..=60u64 {
            let node = NodeKey { tenant: TenantId(1), node_type: NodeTypeId(1), id };
            let which = Which::ALL[id as usize % 5];
            let delta = if id % 2 == 0 { id as i64 } else { -(id as i64) };
            store.plant_tally(&node, KindId(1), which, delta).unwrap();
            planted.insert((node, KindId(1), which), -delta);
        }
        let snapshot = store.picture();
        let mut pass = AuditPass::new(None, snapshot.catalog());
        pass.take(snapshot.as_ref(), u64::MAX).unwrap();
        let (scope, suspects, _) = pass.into_parts();
        let watch = AuditWatch::new(Signal::default());
        for tallies_max in [1, 7, COUNTED_TALLIES_MAX] {
            let (snapshot, scope, suspects, watch) = (snapshot.as_ref(), &scope, &suspects, &watch);
            let close = CloseLook { snapshot, scope, suspects, watch, tallies_max };
            let mut found = BTreeMap::new();
            let note = &mut |finding: AuditFinding| {
                let Change::RepairTally { node, kind, which, delta } = finding.mend else {
                    panic!("{finding:?}");
                };
                assert_eq!(found.insert((node, kind, which), delta), None, "found twice");
                Ok(())
            };
            close.tallies(note).unwrap();
            assert_eq!(found, planted, "{tallies_max} at once");
        }
    }
}
