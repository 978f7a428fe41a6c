//! Decided rows that the store does not have yet, and the view that lays them over it.
//!
//! `absorb` is the one place where a record becomes rows: the committer runs it to decide the
//! next change, replay runs it to bring the store up to the log, and the store writes its result.

use std::cell::RefCell;
use std::sync::Arc;

use guanxi_model::apply::{EdgeEffect, apply_edge};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::record::Repair;
use guanxi_model::tally::Counted;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, GroupSet, GroupsKey, IndexEntry, Kind, KindId, Node, NodeKey,
    NodeRow, Position, Record, TallyRow, TenantId, View, Which,
};
use rustc_hash::FxHashMap;

use guanxi_core::snapshot::{Snapshot, StoreError};

/// The rows that one batch changes, as they stand after it.
#[derive(Debug, Default)]
pub struct Dirty {
    pub edges: FxHashMap<EdgeKey, EdgeCell>,
    pub nodes: FxHashMap<NodeKey, Node>,
    pub groups: FxHashMap<GroupsKey, GroupCell>,
    pub idempotency: FxHashMap<(TenantId, IdempotencyKey), IdempotencyRow>,
    pub imports: FxHashMap<(TenantId, ImportId), ImportRow>,
    pub jobs: FxHashMap<(TenantId, JobId), Job>,
    /// Ranges of edges that enter their kind's outgoing index by time.
    pub indexed: Vec<IndexedRange>,
    /// Index entries that an audit found wrong, and whether they must be there.
    pub repaired: FxHashMap<IndexEntry, bool>,
    /// The catalog after the batch, when the batch changes it.
    pub catalog: Option<Arc<Catalog>>,
    /// The batch's last position.
    pub last: Position,
}

/// An edge before and after the batch: the store needs both to move its index entries.
#[derive(Debug, Clone)]
pub struct EdgeCell {
    pub before: Option<EdgeRow>,
    pub after: Option<EdgeRow>,
}

#[derive(Debug, Clone)]
pub struct GroupCell {
    pub before: GroupSet,
    pub after: GroupSet,
}

#[derive(Debug, Clone, Copy)]
pub struct IndexedRange {
    pub tenant: TenantId,
    pub kind: KindId,
    pub after: Option<Ends>,
    pub until: Ends,
}

/// A snapshot and what was read from it: deciding a change and taking in its records ask for the
/// same rows.
pub struct Base<'a> {
    snapshot: &'a dyn Snapshot,
    edges: RefCell<FxHashMap<EdgeKey, Option<EdgeRow>>>,
    nodes: RefCell<FxHashMap<NodeKey, Node>>,
}

impl<'a> Base<'a> {
    pub fn new(snapshot: &'a dyn Snapshot) -> Base<'a> {
        Base { snapshot, edges: RefCell::default(), nodes: RefCell::default() }
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        if let Some(row) = self.edges.borrow().get(key) {
            return Ok(row.clone());
        }
        let row = match self.surely_none(key)? {
            true => None,
            false => self.snapshot.edge(key)?,
        };
        self.edges.borrow_mut().insert(*key, row.clone());
        Ok(row)
    }

    /// Whether the source has no outgoing edge of the kind at all. Its tallies say so, which the
    /// same change mostly asks for anyway: few users have blocked anyone, and a new one follows
    /// nobody.
    fn surely_none(&self, key: &EdgeKey) -> Result<bool, StoreError> {
        let Some(kind) = self.snapshot.catalog().kind(key.tenant, key.kind) else {
            return Ok(false);
        };
        if !kind.fixed.outgoing_tally {
            return Ok(false);
        }
        let source =
            NodeKey { tenant: key.tenant, node_type: kind.fixed.source_type, id: key.source.0 };
        self.node(&source, |node| {
            [Which::Outgoing, Which::PendingOutgoing]
                .into_iter()
                .all(|which| node.tallies.get(key.kind, which) == 0)
        })
    }

    fn node<T>(&self, key: &NodeKey, read: impl FnOnce(&Node) -> T) -> Result<T, StoreError> {
        if let Some(node) = self.nodes.borrow().get(key) {
            return Ok(read(node));
        }
        let node = self.snapshot.whole_node(key)?;
        Ok(read(self.nodes.borrow_mut().entry(*key).or_insert(node)))
    }
}

/// A store's snapshot under the batches that are on their way to it, under the batch that is
/// being decided.
#[derive(Clone, Copy)]
pub struct Layers<'a> {
    pub current: &'a Dirty,
    /// Decided batches that the snapshot lacks, oldest first.
    pub inflight: &'a [Arc<Dirty>],
    pub base: &'a Base<'a>,
}

impl std::fmt::Debug for Layers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layers").field("inflight", &self.inflight.len()).finish_non_exhaustive()
    }
}

impl<'a> Layers<'a> {
    /// The newest batch that knows the row, if any does.
    fn newest<T>(&self, find: impl Fn(&'a Dirty) -> Option<T>) -> Option<T> {
        find(self.current).or_else(|| self.inflight.iter().rev().find_map(|dirty| find(dirty)))
    }

    fn whole_node<T>(&self, key: &NodeKey, read: impl FnOnce(&Node) -> T) -> Result<T, StoreError> {
        match self.newest(|dirty| dirty.nodes.get(key)) {
            Some(node) => Ok(read(node)),
            None => self.base.node(key, read),
        }
    }
}

impl View for Layers<'_> {
    type Error = StoreError;

    fn catalog(&self) -> &Catalog {
        let newest = self.newest(|dirty| dirty.catalog.as_deref());
        newest.unwrap_or_else(|| self.base.snapshot.catalog())
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        match self.newest(|dirty| dirty.edges.get(key)) {
            Some(cell) => Ok(cell.after.clone()),
            None => self.base.edge(key),
        }
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, StoreError> {
        self.whole_node(node, |node| node.tallies.clone())
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, StoreError> {
        match self.newest(|dirty| dirty.groups.get(key)) {
            Some(cell) => Ok(cell.after.clone()),
            None => self.base.snapshot.groups(key),
        }
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, StoreError> {
        self.whole_node(node, |node| node.settings)
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        let cell = (tenant, key.clone());
        match self.newest(|dirty| dirty.idempotency.get(&cell)) {
            Some(row) => Ok(Some(row.clone())),
            None => self.base.snapshot.idempotency(tenant, key),
        }
    }

    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, StoreError> {
        let cell = (tenant, id.clone());
        match self.newest(|dirty| dirty.imports.get(&cell)) {
            Some(row) => Ok(Some(row.clone())),
            None => self.base.snapshot.import(tenant, id),
        }
    }

    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, StoreError> {
        match self.newest(|dirty| dirty.jobs.get(&(tenant, id))) {
            Some(job) => Ok(Some(job.clone())),
            None => self.base.snapshot.job(tenant, id),
        }
    }
}

impl Dirty {
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
            && self.nodes.is_empty()
            && self.groups.is_empty()
            && self.idempotency.is_empty()
            && self.imports.is_empty()
            && self.jobs.is_empty()
            && self.indexed.is_empty()
            && self.repaired.is_empty()
            && self.catalog.is_none()
    }

    /// Takes one record in. After an error the batch is of no use.
    pub fn absorb(
        &mut self,
        record: &Record,
        inflight: &[Arc<Dirty>],
        base: &Base<'_>,
    ) -> Result<(), StoreError> {
        let view = Layers { current: self, inflight, base };
        match record {
            Record::Edge(record) => {
                let standing = view.edge(&record.key)?;
                let Some(kind) = view.catalog().kind(record.key.tenant, record.key.kind).cloned()
                else {
                    let kind = record.key.kind.0;
                    return Err(StoreError::Damaged(format!("an edge of unknown kind {kind}")));
                };
                let EdgeEffect::Replace { tallies } = apply_edge(&kind, record, standing.as_ref())
                else {
                    return Ok(());
                };
                for (counted, delta) in tallies {
                    self.add(counted, delta, inflight, base)?;
                }
                // The log is in order, so nothing comes late and a removed edge needs no row.
                let after = record.new.stands().then(|| record.new.clone());
                let cell = self.edges.entry(record.key);
                let cell = cell.or_insert(EdgeCell { before: standing, after: None });
                cell.after = after;
            }
            Record::Group { groups, id, name } => {
                let cell = self.group_cell(*groups, inflight, base)?;
                cell.after.set(*id, name.clone());
            }
            Record::Node { node, row } => {
                self.node(*node, inflight, base)?.settings = *row;
            }
            Record::NodeType { tenant, id, name } => {
                let mut catalog = view.catalog().clone();
                catalog.set_type(*tenant, *id, name.clone());
                self.catalog = Some(Arc::new(catalog));
            }
            Record::Kind { tenant, kind } => {
                let mut catalog = view.catalog().clone();
                catalog.set_kind(*tenant, Kind::clone(kind));
                self.catalog = Some(Arc::new(catalog));
            }
            Record::Counter { tenant, kind, id, delta } => {
                let Some(known) = view.catalog().kind(*tenant, *kind) else {
                    let kind = kind.0;
                    return Err(StoreError::Damaged(format!("a counter of unknown kind {kind}")));
                };
                let node = NodeKey { tenant: *tenant, node_type: known.fixed.target_type, id: *id };
                let counted = Counted::Node { node, kind: *kind, which: Which::Value };
                self.add(counted, *delta, inflight, base)?;
            }
            Record::Idempotency { tenant, key, row } => {
                self.idempotency.insert((*tenant, key.clone()), row.clone());
            }
            Record::Import { tenant, id, row } => {
                self.imports.insert((*tenant, id.clone()), row.clone());
            }
            Record::Job { tenant, job } => {
                self.jobs.insert((*tenant, job.id), Job::clone(job));
            }
            Record::BuildIndex { tenant, kind, after, until, .. } => {
                let (tenant, kind, after, until) = (*tenant, *kind, *after, *until);
                self.indexed.push(IndexedRange { tenant, kind, after, until });
            }
            Record::Repair(repair) => self.repair(repair, inflight, base)?,
        }
        Ok(())
    }

    fn repair(
        &mut self,
        repair: &Repair,
        inflight: &[Arc<Dirty>],
        base: &Base<'_>,
    ) -> Result<(), StoreError> {
        match *repair {
            Repair::Tally { node, kind, which, value } => {
                self.node(node, inflight, base)?.tallies.set(kind, which, value);
            }
            Repair::GroupSize { groups, id, size } => {
                self.group_cell(groups, inflight, base)?.after.set_size(id, size);
            }
            Repair::Entry { entry, present } => {
                self.repaired.insert(entry, present);
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        counted: Counted,
        delta: i64,
        inflight: &[Arc<Dirty>],
        base: &Base<'_>,
    ) -> Result<(), StoreError> {
        match counted {
            Counted::Node { node, kind, which } => {
                self.node(node, inflight, base)?.tallies.add(kind, which, delta);
            }
            Counted::Group { groups, id } => {
                self.group_cell(groups, inflight, base)?.after.resize(id, delta);
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        key: NodeKey,
        inflight: &[Arc<Dirty>],
        base: &Base<'_>,
    ) -> Result<&mut Node, StoreError> {
        let standing = match self.nodes.contains_key(&key) {
            true => Node::default(),
            false => Layers { current: self, inflight, base }.whole_node(&key, Node::clone)?,
        };
        Ok(self.nodes.entry(key).or_insert(standing))
    }

    fn group_cell(
        &mut self,
        key: GroupsKey,
        inflight: &[Arc<Dirty>],
        base: &Base<'_>,
    ) -> Result<&mut GroupCell, StoreError> {
        let before = match self.groups.contains_key(&key) {
            true => GroupSet::default(),
            false => Layers { current: self, inflight, base }.groups(&key)?,
        };
        Ok(self.groups.entry(key).or_insert_with(|| GroupCell { after: before.clone(), before }))
    }
}
