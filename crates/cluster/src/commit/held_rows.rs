//! The rows that a transaction holds: what it fetched under its heads, and what its changes have
//! made of them so far. `decide` looks at them; a row that was not fetched is asked for, never
//! guessed.

use std::fmt;
use std::sync::Arc;

use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::tally::CountedTally;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, GroupSet, GroupsKey, HeadVersion, Index, IndexEntry, KindId,
    NodeKey, NodeRow, Sheet, SourceId, TallyRow, TenantId, View, Which,
};
use rustc_hash::FxHashMap;

use crate::rows::{Head, HeadKey};

/// What a change turned out to need beyond what was fetched.
#[derive(Debug, Clone)]
pub(super) enum Missing {
    Edge(EdgeKey),
    Node(NodeKey),
    Groups(GroupsKey),
    Job(TenantId, JobId),
    Import(TenantId, ImportId),
    /// Cannot be fetched later: locks are taken in order, at the beginning.
    Head(HeadKey),
    Key(TenantId, IdempotencyKey),
    /// The record is none that this deployment writes.
    Foreign(&'static str),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Edge(key) => write!(f, "{key:?}"),
            Missing::Node(node) => write!(f, "{node:?}"),
            Missing::Groups(key) => write!(f, "the groups of {key:?}"),
            Missing::Job(tenant, id) => write!(f, "job {} of {tenant:?}", id.0),
            Missing::Import(tenant, id) => write!(f, "import {} of {tenant:?}", id.as_str()),
            Missing::Head(key) => write!(f, "the head {key:?}"),
            Missing::Key(tenant, key) => write!(f, "key {} of {tenant:?}", key.as_str()),
            Missing::Foreign(what) => f.write_str(what),
        }
    }
}

/// A head under our lock, and the versions that this transaction may still give out.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadCell {
    pub head: Head,
    /// As the row stands by now: what was foreseen is written in it.
    pub written: Head,
    /// The last version that was given out.
    pub given: HeadVersion,
    pub changed: bool,
}

/// A row before the transaction and as it stands now.
#[derive(Debug, Clone)]
pub(super) struct HeldRow<T> {
    pub before: T,
    pub after: T,
}

impl<T: Clone> HeldRow<T> {
    pub fn fetched(row: T) -> HeldRow<T> {
        HeldRow { before: row.clone(), after: row }
    }
}

#[derive(Debug, Default)]
pub(super) struct HeldRows {
    pub catalog: Arc<Catalog>,
    pub catalog_changed: bool,
    /// The catalog's revision, as it stood when the heads were locked.
    pub revision: u64,
    pub heads: FxHashMap<HeadKey, HeadCell>,
    pub edges: FxHashMap<EdgeKey, HeldRow<Option<EdgeRow>>>,
    /// Rows that stand already, because they were foreseen, and why each would.
    pub foreseen: FxHashMap<EdgeKey, (EdgeRow, Cause)>,
    /// Why each edge changed last.
    pub causes: FxHashMap<EdgeKey, Cause>,
    pub nodes: FxHashMap<NodeKey, HeldRow<NodeRow>>,
    pub groups: FxHashMap<GroupsKey, HeldRow<GroupSet>>,
    /// Slots of a counter, and what is added to its value.
    pub counters: FxHashMap<GroupsKey, CounterCell>,
    pub keys: FxHashMap<(TenantId, IdempotencyKey), KeyCell>,
    pub jobs: FxHashMap<(TenantId, JobId), HeldRow<Option<Job>>>,
    pub imports: FxHashMap<(TenantId, ImportId), HeldRow<Option<ImportRow>>>,
    /// Expiry entries that an audit found wrong, and whether they must be there.
    pub entries: FxHashMap<IndexEntry, bool>,
    /// Records for the log, in order.
    pub records: Vec<EdgeRecord>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct CounterCell {
    pub slots: FxHashMap<u16, i64>,
    pub value: i64,
    pub delta: i64,
}

/// An idempotency key that this transaction took or found taken.
#[derive(Debug, Clone)]
pub(super) struct KeyCell {
    pub row: Option<IdempotencyRow>,
    /// The row carries our mark.
    pub ours: bool,
    pub changed: bool,
}

impl HeldRows {
    pub fn new(catalog: Arc<Catalog>) -> HeldRows {
        HeldRows { catalog, ..HeldRows::default() }
    }

    /// Whether anything is to be written.
    pub fn is_changed(&self) -> bool {
        self.catalog_changed
            || !self.records.is_empty()
            || !self.entries.is_empty()
            || self.heads.values().any(|cell| cell.changed)
            || self.nodes.values().any(|cell| cell.before != cell.after)
            || self.groups.values().any(|cell| cell.before != cell.after)
            || self.counters.values().any(|cell| cell.delta != 0)
            || self.keys.values().any(|cell| cell.changed)
            || self.jobs.values().any(|cell| cell.before != cell.after)
            || self.imports.values().any(|cell| cell.before != cell.after)
    }

    /// A head that is about to change.
    fn head(&mut self, key: HeadKey) -> Result<&mut Head, Missing> {
        let cell = self.heads.get_mut(&key).ok_or(Missing::Head(key))?;
        cell.changed = true;
        Ok(&mut cell.head)
    }

    /// Leaves word in the heads of what an edge excludes, both ways, so that puts under heads
    /// without it need not look.
    fn mark_excluded(&mut self, edge: &EdgeKey) -> Result<(), Missing> {
        let Some(kind) = self.catalog.kind(edge.tenant, edge.kind).cloned() else {
            return Ok(());
        };
        for excluded in &kind.rules.excludes {
            let there = edge.of_kind(*excluded);
            for head in [GroupsKey::of(&there), GroupsKey::of(&there.reversed())] {
                let cell = self.heads.get_mut(&head).ok_or(Missing::Head(head))?;
                cell.changed |= !cell.head.excluded;
                cell.head.excluded = true;
            }
        }
        Ok(())
    }
}

impl View for HeldRows {
    type Error = Missing;

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, Missing> {
        self.edges.get(key).map(|cell| cell.after.clone()).ok_or(Missing::Edge(*key))
    }

    /// The numbers of the heads that are held, and the counters: all that `decide` asks for under
    /// its footprint.
    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, Missing> {
        let mut row = TallyRow::default();
        for kind in self.catalog.kinds(node.tenant) {
            let source = SourceId(node.id);
            let key = GroupsKey { tenant: node.tenant, kind: kind.id, source };
            if kind.fixed.counter {
                if kind.fixed.target_type == node.node_type
                    && let Some(cell) = self.counters.get(&key)
                {
                    row.set(kind.id, Which::Value, cell.value);
                }
            } else if kind.fixed.source_type == node.node_type
                && let Some(HeadCell { head, .. }) = self.heads.get(&key)
            {
                row.set(kind.id, Which::Outgoing, head.outgoing);
                row.set(kind.id, Which::PendingOutgoing, head.pending_outgoing);
            }
        }
        Ok(row)
    }

    fn tally(&self, node: &NodeKey, kind: KindId, which: Which) -> Result<i64, Missing> {
        let head = || self.heads.get(&head_of(node, kind)).map(|cell| cell.head);
        match which {
            Which::Outgoing => Ok(head().map_or(0, |head| head.outgoing)),
            Which::PendingOutgoing => Ok(head().map_or(0, |head| head.pending_outgoing)),
            _ => Ok(self.tallies(node)?.get(kind, which)),
        }
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, Missing> {
        self.groups.get(key).map(|cell| cell.after.clone()).ok_or(Missing::Groups(*key))
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, Missing> {
        self.nodes.get(node).map(|cell| cell.after).ok_or(Missing::Node(*node))
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, Missing> {
        let cell = self.keys.get(&(tenant, key.clone()));
        cell.map(|cell| cell.row.clone()).ok_or_else(|| Missing::Key(tenant, key.clone()))
    }

    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, Missing> {
        let cell = self.imports.get(&(tenant, id.clone()));
        cell.map(|cell| cell.after.clone()).ok_or_else(|| Missing::Import(tenant, id.clone()))
    }

    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, Missing> {
        let cell = self.jobs.get(&(tenant, id));
        cell.map(|cell| cell.after.clone()).ok_or(Missing::Job(tenant, id))
    }
}

/// The source's side, with tombstones. The target's follows the log, and is mended where it is kept,
/// by the audit.
impl Sheet for HeldRows {
    fn foreign(&self, what: &'static str) -> Missing {
        Missing::Foreign(what)
    }

    fn replace(&mut self, record: EdgeRecord, standing: Option<EdgeRow>) -> Result<(), Missing> {
        let EdgeRecord { key, cause, .. } = record;
        let cell = self.edges.get_mut(&key).ok_or(Missing::Edge(key))?;
        cell.after = Some(record.new.clone());
        self.causes.insert(key, cause);
        // A change of one that was live, such as of its group, holds no other heads.
        if record.new.is_live() && !standing.is_some_and(|row| row.is_live()) {
            self.mark_excluded(&key)?;
        }
        self.records.push(record);
        Ok(())
    }

    fn pass_over(&mut self, _: &EdgeKey) -> Result<(), Missing> {
        Err(Missing::Foreign("a version that does not grow"))
    }

    fn add(&mut self, counted: CountedTally, by: i64) -> Result<(), Missing> {
        let (key, which) = match counted {
            CountedTally::Node { node, kind, which } => (head_of(&node, kind), which),
            CountedTally::Group { groups, id } => {
                return self.change_groups(groups, |set| set.resize(id, by));
            }
        };
        match which {
            Which::Outgoing => self.head(key)?.outgoing += by,
            Which::PendingOutgoing => self.head(key)?.pending_outgoing += by,
            Which::Value => {
                let cell = self.counters.get_mut(&key).ok_or(Missing::Head(key))?;
                cell.value += by;
                cell.delta += by;
            }
            Which::Incoming | Which::PendingIncoming | Which::Owned => {}
        }
        Ok(())
    }

    fn set_tally(
        &mut self,
        node: NodeKey,
        kind: KindId,
        which: Which,
        value: i64,
    ) -> Result<(), Missing> {
        let key = head_of(&node, kind);
        match which {
            Which::Outgoing => self.head(key)?.outgoing = value,
            Which::PendingOutgoing => self.head(key)?.pending_outgoing = value,
            _ => return Err(Missing::Foreign("a repair of the target's side")),
        }
        Ok(())
    }

    fn change_groups(
        &mut self,
        key: GroupsKey,
        change: impl FnOnce(&mut GroupSet),
    ) -> Result<(), Missing> {
        let cell = self.groups.get_mut(&key).ok_or(Missing::Groups(key))?;
        change(&mut cell.after);
        let next = cell.after.next.0;
        if next != cell.before.next.0 {
            self.head(key)?.next_group = next;
        }
        Ok(())
    }

    fn set_node(&mut self, node: NodeKey, row: NodeRow) -> Result<(), Missing> {
        self.nodes.get_mut(&node).ok_or(Missing::Node(node))?.after = row;
        Ok(())
    }

    fn change_catalog(&mut self, change: impl FnOnce(&mut Catalog)) -> Result<(), Missing> {
        change(Arc::make_mut(&mut self.catalog));
        self.catalog_changed = true;
        Ok(())
    }

    fn keep_answers(
        &mut self,
        tenant: TenantId,
        key: IdempotencyKey,
        row: IdempotencyRow,
    ) -> Result<(), Missing> {
        let cell = self.keys.get_mut(&(tenant, key.clone())).ok_or(Missing::Key(tenant, key))?;
        cell.row = Some(row);
        cell.changed = true;
        Ok(())
    }

    fn set_import(
        &mut self,
        tenant: TenantId,
        id: ImportId,
        row: ImportRow,
    ) -> Result<(), Missing> {
        let cell =
            self.imports.get_mut(&(tenant, id.clone())).ok_or(Missing::Import(tenant, id))?;
        cell.after = Some(row);
        Ok(())
    }

    fn set_job(&mut self, tenant: TenantId, job: Job) -> Result<(), Missing> {
        let cell = self.jobs.entry((tenant, job.id)).or_insert_with(|| HeldRow::fetched(None));
        cell.after = Some(job);
        Ok(())
    }

    /// The table's index by time is always there.
    fn index(&mut self, _: TenantId, _: KindId, _: Option<Ends>, _: Ends) -> Result<(), Missing> {
        Ok(())
    }

    fn set_entry(&mut self, entry: IndexEntry, present: bool) -> Result<(), Missing> {
        match entry.index {
            Index::Expiry { .. } => {
                self.entries.insert(entry, present);
                Ok(())
            }
            _ => Err(Missing::Foreign("a repair of an index of the database")),
        }
    }
}

/// Where a node's outgoing edges of a kind are counted; for a counter, its key.
fn head_of(node: &NodeKey, kind: KindId) -> GroupsKey {
    GroupsKey { tenant: node.tenant, kind, source: SourceId(node.id) }
}
