//! The close look: where a sketch says that something is wrong, each element is compared by itself.

use std::ops::ControlFlow;

use guanxi_model::entry::entries;
use guanxi_model::tally::{Counted, contribution};
use guanxi_model::{Change, IndexEntry, KindId, NodeKey, Which};
use rustc_hash::FxHashMap;

use super::AuditError;
use super::findings::{Drift, Finding};
use super::groups::compare_groups;
use super::pass::Scope;
use super::run::Watch;
use super::sketch::{Element, Suspects};
use crate::store::inventory::{self, Kept, Unreadable};
use crate::store::{Snapshot, StoreError};

/// Tallies that are counted at once: about 64 MiB. Where more are suspected, the rows are walked
/// once more for the others.
const COUNTED_TALLIES_MAX: usize = 1 << 20;

type Found<'a> = dyn FnMut(Finding) -> Result<(), AuditError> + 'a;

/// One picture, closely looked at.
pub(super) struct CloseLook<'a> {
    pub snapshot: &'a dyn Snapshot,
    pub scope: &'a Scope,
    pub suspects: &'a Suspects,
    pub watch: &'a Watch,
}

impl CloseLook<'_> {
    /// Tallies of nodes, counted anew from the edges.
    pub fn tallies(&self, found: &mut Found<'_>) -> Result<(), AuditError> {
        let mut left = vec![self.suspects.clone()];
        while let Some(mut suspects) = left.pop() {
            if suspects.is_empty() {
                continue;
            }
            let mut counted = self.count(&mut suspects, &mut left)?;
            self.subtract(&suspects, &mut counted)?;
            for ((node, kind, which), delta) in counted {
                if delta != 0 {
                    let mend = Change::RepairTally { node, kind, which, delta };
                    let kind = (node.tenant, kind);
                    found(Finding { kind, drift: Drift::WrongTally, mend })?;
                }
            }
        }
        Ok(())
    }

    /// What the edges add up to. Suspects that are too many for one walk are put back.
    fn count(
        &self,
        suspects: &mut Suspects,
        left: &mut Vec<Suspects>,
    ) -> Result<FxHashMap<(NodeKey, KindId, Which), i64>, AuditError> {
        let catalog = self.snapshot.catalog();
        let mut counted: FxHashMap<(NodeKey, KindId, Which), i64> = FxHashMap::default();
        self.walk(inventory::EDGES, &mut |kept| {
            let (edge, row) = match kept {
                Kept::Edge(edge, row) => (edge, row),
                Kept::Unreadable(_) => return Ok(ControlFlow::Continue(())),
                _ => return Ok(ControlFlow::Break(())),
            };
            let kind = catalog.kind(edge.tenant, edge.kind);
            let Some(kind) = kind.filter(|kind| self.scope.has((edge.tenant, kind.id))) else {
                return Ok(ControlFlow::Continue(()));
            };
            for counts in contribution(kind, &edge, Some(&row)) {
                let Counted::Node { node, kind, which } = counts else { continue };
                if suspects.have(Element::tally(&node, kind, which)) {
                    *counted.entry((node, kind, which)).or_default() += 1;
                }
            }
            while counted.len() > COUNTED_TALLIES_MAX {
                let Some(rest) = suspects.halve() else { break };
                counted.retain(|(node, kind, which), _| {
                    suspects.have(Element::tally(node, *kind, *which))
                });
                left.push(rest);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(counted)
    }

    /// Takes away what the nodes' rows say; what cannot be read says nothing, and is left alone.
    fn subtract(
        &self,
        suspects: &Suspects,
        counted: &mut FxHashMap<(NodeKey, KindId, Which), i64>,
    ) -> Result<(), AuditError> {
        let catalog = self.snapshot.catalog();
        self.walk(inventory::NODES, &mut |kept| {
            match kept {
                Kept::Node(node, row) => {
                    for (kind, which, value) in row.tallies.entries() {
                        let known = catalog.kind(node.tenant, kind);
                        let compared =
                            known.is_some_and(|known| self.scope.counts(node.tenant, known, which));
                        if compared && suspects.have(Element::tally(&node, kind, which)) {
                            let counted = counted.entry((node, kind, which)).or_default();
                            *counted = counted.wrapping_sub(value);
                        }
                    }
                }
                Kept::Unreadable(Unreadable::Node(node)) => {
                    counted.retain(|(of, _, _), _| *of != node);
                }
                Kept::Unreadable(Unreadable::Key) => {}
                _ => return Ok(ControlFlow::Break(())),
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    pub fn groups(&self, found: &mut Found<'_>) -> Result<(), AuditError> {
        let mut last = None;
        self.walk(inventory::GROUPS, &mut |kept| {
            let Kept::Group(groups, _) = kept else {
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
    pub fn entries(&self, found: &mut Found<'_>) -> Result<(), AuditError> {
        let catalog = self.snapshot.catalog();
        self.walk(inventory::EDGES, &mut |kept| {
            match kept {
                Kept::Edge(edge, row) => {
                    let Some(kind) = catalog.kind(edge.tenant, edge.kind) else {
                        return Ok(ControlFlow::Continue(()));
                    };
                    for entry in entries(kind, &edge, Some(&row)) {
                        if self.suspects(&entry) && !self.snapshot.holds(&entry)? {
                            found(wrong(entry, true))?;
                        }
                    }
                }
                Kept::Entry(entry) => {
                    if self.suspects(&entry) && !self.is_implied(&entry)? {
                        found(wrong(entry, false))?;
                    }
                }
                Kept::Unreadable(_) => {}
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
        visit: &mut dyn FnMut(Kept) -> Result<ControlFlow<()>, AuditError>,
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

fn wrong(entry: IndexEntry, missing: bool) -> Finding {
    Finding {
        kind: (entry.edge.tenant, entry.edge.kind),
        drift: Drift::of_entry(entry.index, missing),
        mend: Change::RepairEntry { entry },
    }
}
