//! A pass over everything that the store holds: edge rows say which index entries and tallies there
//! must be, and a sketch holds that against what is there. A pass may rest between two looks and go
//! on with a later picture of the store, if it is told every record in between.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use guanxi_core::audit::{Findings, OfKind};
use guanxi_core::snapshot::StoreError;
use guanxi_model::entry::entries;
use guanxi_model::kind::TimeIndex;
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupsKey, Index, Kind, KindId, Record, TenantId, Which,
};

use super::groups::compare_groups;
use super::sketch::{DifferenceSketch, Element, Suspects};
use crate::store::EmbeddedSnapshot;
use crate::store::inventory::{self, InventoryPiece, UnreadablePiece};

/// What is compared.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    kind: Option<OfKind>,
    /// The kinds' indexes of outgoing edges at the beginning. One that is being built cannot be
    /// compared, and one of a kind that came later waits for the next pass.
    indexes: BTreeMap<OfKind, TimeIndex>,
}

impl Scope {
    pub fn new(kind: Option<OfKind>, catalog: &Catalog) -> Scope {
        let kinds = catalog.tenants().flat_map(|tenant| {
            catalog.kinds(tenant).map(move |kind| ((tenant, kind.id), kind.time_index))
        });
        Scope { kind, indexes: kinds.collect() }
    }

    pub fn has(&self, kind: OfKind) -> bool {
        self.kind.is_none_or(|only| only == kind)
    }

    pub fn compares(&self, edge: &EdgeKey, index: Index) -> bool {
        let of_kind = (edge.tenant, edge.kind);
        let known = self.indexes.get(&of_kind);
        let steady = known.is_some_and(|index| *index != TimeIndex::Building);
        self.has(of_kind) && (steady || !matches!(index, Index::Outgoing { .. }))
    }

    /// Whether a tally of this kind has rows to be compared with.
    pub fn counts(&self, tenant: TenantId, kind: &Kind, which: Which) -> bool {
        self.has((tenant, kind.id)) && !(kind.fixed.counter && which == Which::Value)
    }
}

/// Why a pass cannot be told what happened, and must begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overtaken;

#[derive(Debug)]
pub(crate) struct AuditPass {
    scope: Scope,
    sketch: DifferenceSketch,
    /// The last key that was taken: all up to it is in the sketch.
    taken: Vec<u8>,
    /// The source whose groups were compared last.
    groups: Option<GroupsKey>,
    findings: Findings,
}

impl AuditPass {
    pub fn new(kind: Option<OfKind>, catalog: &Catalog) -> AuditPass {
        AuditPass {
            scope: Scope::new(kind, catalog),
            sketch: DifferenceSketch::new(),
            taken: inventory::EDGES.to_vec(),
            groups: None,
            findings: Findings::default(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.taken == inventory::END
    }

    /// Whether nothing wrong was seen.
    pub fn is_clean(&self) -> bool {
        self.findings.drift() == 0 && self.sketch.suspects().is_empty()
    }

    pub(super) fn into_parts(self) -> (Scope, Suspects, Findings) {
        (self.scope, self.sketch.suspects(), self.findings)
    }

    /// Takes the next rows, about so many; returns how many were read.
    pub fn take(
        &mut self,
        snapshot: &dyn EmbeddedSnapshot,
        rows_max: u64,
    ) -> Result<u64, StoreError> {
        let catalog = snapshot.catalog();
        let after = self.taken.clone();
        let mut rows = 0;
        let mut groups = Vec::new();
        snapshot.inventory(&after, &mut |key, kept| {
            self.take_one(catalog, key, &kept, &mut groups);
            self.taken.clear();
            self.taken.extend_from_slice(key);
            rows += 1;
            if rows < rows_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if rows < rows_max {
            self.taken = inventory::END.to_vec();
        }
        for groups in groups {
            rows += compare_groups(snapshot, &groups, &mut |finding| {
                self.findings.note(&finding, catalog);
            })?;
        }
        Ok(rows)
    }

    fn take_one(
        &mut self,
        catalog: &Catalog,
        key: &[u8],
        kept: &InventoryPiece,
        groups: &mut Vec<GroupsKey>,
    ) {
        let of_kind = kind_of(kept);
        if of_kind.is_some_and(|kind| !self.scope.has(kind)) {
            return;
        }
        if of_kind.is_some_and(|(tenant, kind)| catalog.kind(tenant, kind).is_none()) {
            self.findings.unreadable(None, &format!("{kept:?} is of a kind that does not exist"));
            return;
        }
        match kept {
            InventoryPiece::Edge(edge, row) => {
                let Some(kind) = catalog.kind(edge.tenant, edge.kind) else { return };
                self.findings.of(Some((edge.tenant, edge.kind))).edges += 1;
                self.imply(kind, edge, row, &mut |sketch, element, _| sketch.add(element, 1));
            }
            InventoryPiece::Entry(entry) if self.scope.compares(&entry.edge, entry.index) => {
                self.sketch.add(Element::entry(key), -1);
            }
            InventoryPiece::Entry(_) => {}
            InventoryPiece::Node(node, row) => {
                for (kind, which, value) in row.tallies.entries() {
                    let Some(known) = catalog.kind(node.tenant, kind) else {
                        let text = format!("{node:?} has a tally of a kind that does not exist");
                        self.findings.unreadable(None, &text);
                        continue;
                    };
                    if self.scope.counts(node.tenant, known, which) {
                        self.findings.of(Some((node.tenant, kind))).tallies += 1;
                        self.sketch.add(Element::tally(node, kind, which), value.wrapping_neg());
                    }
                }
            }
            InventoryPiece::Group(of, _) => {
                if self.groups != Some(*of) {
                    self.groups = Some(*of);
                    groups.push(*of);
                }
            }
            InventoryPiece::Unreadable(what) => {
                self.findings.unreadable(of_kind, &format!("{what:?} cannot be read"));
            }
        }
    }

    /// Shows each element that a row implies, with the key where it lies.
    fn imply(
        &mut self,
        kind: &Kind,
        edge: &EdgeKey,
        row: &EdgeRow,
        show: &mut dyn FnMut(&mut DifferenceSketch, Element, &[u8]),
    ) {
        for entry in entries(kind, edge, Some(row)) {
            if self.scope.compares(edge, entry.index) {
                let key = inventory::entry_key(&entry);
                show(&mut self.sketch, Element::entry(&key), &key);
            }
        }
        for counted in contribution(kind, edge, Some(row)) {
            if let CountedTally::Node { node, kind, which } = counted {
                let key = inventory::node_key(&node);
                show(&mut self.sketch, Element::tally(&node, kind, which), &key);
            }
        }
    }

    /// Moves what was taken on to after this record.
    pub fn follow(&mut self, record: &Record, catalog: &Catalog) -> Result<(), Overtaken> {
        match record {
            Record::Edge(record) => {
                let edge = &record.key;
                let Some(kind) = catalog.kind(edge.tenant, edge.kind) else {
                    return Err(Overtaken);
                };
                if !self.scope.has((edge.tenant, edge.kind)) {
                    return Ok(());
                }
                let taken = self.taken.clone();
                let edge_taken = inventory::edge_key(edge) <= taken;
                let rows = [(record.old.as_ref(), -1), (Some(&record.new), 1)];
                for (row, times) in rows {
                    let Some(row) = row else { continue };
                    self.imply(kind, edge, row, &mut |sketch, element, key| {
                        if edge_taken {
                            sketch.add(element, times);
                        }
                        if key <= taken.as_slice() {
                            sketch.add(element, -times);
                        }
                    });
                }
                Ok(())
            }
            Record::Kind { tenant, kind } => {
                let begun = self.scope.indexes.get(&(*tenant, kind.id));
                match begun.is_none_or(|index| *index == kind.time_index) {
                    true => Ok(()),
                    false => Err(Overtaken),
                }
            }
            // What stood before it is not in the record.
            Record::Repair(_) => Err(Overtaken),
            _ => Ok(()),
        }
    }
}

/// The kind that a piece of the inventory belongs to, as far as it belongs to one.
fn kind_of(kept: &InventoryPiece) -> Option<(TenantId, KindId)> {
    match kept {
        InventoryPiece::Edge(edge, _) | InventoryPiece::Unreadable(UnreadablePiece::Edge(edge)) => {
            Some((edge.tenant, edge.kind))
        }
        InventoryPiece::Entry(entry) => Some((entry.edge.tenant, entry.edge.kind)),
        InventoryPiece::Group(groups, _)
        | InventoryPiece::Unreadable(UnreadablePiece::Group(groups, _)) => {
            Some((groups.tenant, groups.kind))
        }
        InventoryPiece::Node(..) | InventoryPiece::Unreadable(_) => None,
    }
}

#[cfg(test)]
mod tests;
