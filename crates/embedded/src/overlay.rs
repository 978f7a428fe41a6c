//! Decided rows that the store does not have yet, laid over those that it has. The committer takes
//! records in to decide the next change, replay does to bring the store up to the log, and the store
//! writes the rows that came of them.

use std::cell::RefCell;
use std::sync::Arc;

use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::record::EdgeRecord;
use guanxi_model::tally::CountedTally;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, GroupSet, GroupsKey, IndexEntry, KindId, Node, NodeKey,
    NodeRow, Position, Sheet, TallyRow, TenantId, View, Which,
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
pub struct ReadRows<'a> {
    snapshot: &'a dyn Snapshot,
    edges: RefCell<FxHashMap<EdgeKey, Option<EdgeRow>>>,
    nodes: RefCell<FxHashMap<NodeKey, Node>>,
}

impl<'a> ReadRows<'a> {
    pub fn new(snapshot: &'a dyn Snapshot) -> ReadRows<'a> {
        ReadRows { snapshot, edges: RefCell::default(), nodes: RefCell::default() }
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
pub struct Layers<'a> {
    pub current: Dirty,
    /// Decided batches that the snapshot lacks, oldest first.
    inflight: &'a [Arc<Dirty>],
    base: &'a ReadRows<'a>,
}

impl std::fmt::Debug for Layers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layers").field("inflight", &self.inflight.len()).finish_non_exhaustive()
    }
}

impl<'a> Layers<'a> {
    pub fn new(inflight: &'a [Arc<Dirty>], base: &'a ReadRows<'a>) -> Layers<'a> {
        Layers { current: Dirty::default(), inflight, base }
    }

    /// The newest batch that knows the row, if any does.
    fn newest<'s, T>(&'s self, find: impl Fn(&'s Dirty) -> Option<T>) -> Option<T> {
        find(&self.current).or_else(|| self.inflight.iter().rev().find_map(|dirty| find(dirty)))
    }

    fn whole_node<T>(&self, key: &NodeKey, read: impl FnOnce(&Node) -> T) -> Result<T, StoreError> {
        match self.newest(|dirty| dirty.nodes.get(key)) {
            Some(node) => Ok(read(node)),
            None => self.base.node(key, read),
        }
    }

    fn node_cell(&mut self, key: NodeKey) -> Result<&mut Node, StoreError> {
        let standing = match self.current.nodes.contains_key(&key) {
            true => Node::default(),
            false => self.whole_node(&key, Node::clone)?,
        };
        Ok(self.current.nodes.entry(key).or_insert(standing))
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

    fn tally(&self, node: &NodeKey, kind: KindId, which: Which) -> Result<i64, StoreError> {
        self.whole_node(node, |node| node.tallies.get(kind, which))
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

/// The log is in order, so nothing comes late and a removed edge needs no row.
impl Sheet for Layers<'_> {
    fn foreign(&self, what: &'static str) -> StoreError {
        StoreError::Damaged(format!("the log has {what}"))
    }

    fn replace(&mut self, record: EdgeRecord, standing: Option<EdgeRow>) -> Result<(), StoreError> {
        let cell = self.current.edges.entry(record.key);
        let cell = cell.or_insert(EdgeCell { before: standing, after: None });
        cell.after = Some(record.new).filter(EdgeRow::stands);
        Ok(())
    }

    fn add(&mut self, counted: CountedTally, by: i64) -> Result<(), StoreError> {
        match counted {
            CountedTally::Node { node, kind, which } => {
                self.node_cell(node)?.tallies.add(kind, which, by);
                Ok(())
            }
            CountedTally::Group { groups, id } => {
                self.change_groups(groups, |set| set.resize(id, by))
            }
        }
    }

    fn set_tally(
        &mut self,
        node: NodeKey,
        kind: KindId,
        which: Which,
        value: i64,
    ) -> Result<(), StoreError> {
        self.node_cell(node)?.tallies.set(kind, which, value);
        Ok(())
    }

    fn change_groups(
        &mut self,
        key: GroupsKey,
        change: impl FnOnce(&mut GroupSet),
    ) -> Result<(), StoreError> {
        let before = match self.current.groups.contains_key(&key) {
            true => GroupSet::default(),
            false => self.groups(&key)?,
        };
        let cell = self.current.groups.entry(key);
        let cell = cell.or_insert_with(|| GroupCell { after: before.clone(), before });
        change(&mut cell.after);
        Ok(())
    }

    fn set_node(&mut self, node: NodeKey, row: NodeRow) -> Result<(), StoreError> {
        self.node_cell(node)?.settings = row;
        Ok(())
    }

    fn change_catalog(&mut self, change: impl FnOnce(&mut Catalog)) -> Result<(), StoreError> {
        let mut catalog = self.catalog().clone();
        change(&mut catalog);
        self.current.catalog = Some(Arc::new(catalog));
        Ok(())
    }

    fn keep_answers(
        &mut self,
        tenant: TenantId,
        key: IdempotencyKey,
        row: IdempotencyRow,
    ) -> Result<(), StoreError> {
        self.current.idempotency.insert((tenant, key), row);
        Ok(())
    }

    fn set_import(
        &mut self,
        tenant: TenantId,
        id: ImportId,
        row: ImportRow,
    ) -> Result<(), StoreError> {
        self.current.imports.insert((tenant, id), row);
        Ok(())
    }

    fn set_job(&mut self, tenant: TenantId, job: Job) -> Result<(), StoreError> {
        self.current.jobs.insert((tenant, job.id), job);
        Ok(())
    }

    fn index(
        &mut self,
        tenant: TenantId,
        kind: KindId,
        after: Option<Ends>,
        until: Ends,
    ) -> Result<(), StoreError> {
        self.current.indexed.push(IndexedRange { tenant, kind, after, until });
        Ok(())
    }

    fn set_entry(&mut self, entry: IndexEntry, present: bool) -> Result<(), StoreError> {
        self.current.repaired.insert(entry, present);
        Ok(())
    }
}
