//! The rows that a transaction holds: what it fetched under its heads, and what its changes have
//! made of them so far. `decide` looks at them; a row that was not fetched is asked for, never
//! guessed.

use std::fmt;
use std::sync::Arc;

use guanxi_model::apply::{EdgeEffect, apply_edge};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::record::{Cause, EdgeRecord, Repair};
use guanxi_model::tally::Counted;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupSet, GroupsKey, Index, Kind, NodeKey, NodeRow, Record,
    TallyRow, TenantId, Version, View, Which,
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
    /// The last version that was given out, without its region.
    pub given: u64,
    pub changed: bool,
}

/// A row before the transaction and as it stands now.
#[derive(Debug, Clone)]
pub(super) struct Cell<T> {
    pub before: T,
    pub after: T,
}

impl<T: Clone> Cell<T> {
    pub fn fetched(row: T) -> Cell<T> {
        Cell { before: row.clone(), after: row }
    }
}

#[derive(Debug, Default)]
pub(super) struct Held {
    pub catalog: Arc<Catalog>,
    pub catalog_changed: bool,
    /// The catalog's revision, as it stood when the heads were locked.
    pub revision: u64,
    pub heads: FxHashMap<HeadKey, HeadCell>,
    pub edges: FxHashMap<EdgeKey, Cell<Option<EdgeRow>>>,
    /// Rows that stand already, because they were foreseen, and why each would.
    pub foreseen: FxHashMap<EdgeKey, (EdgeRow, Cause)>,
    /// Why each edge changed last.
    pub causes: FxHashMap<EdgeKey, Cause>,
    pub nodes: FxHashMap<NodeKey, Cell<NodeRow>>,
    pub groups: FxHashMap<GroupsKey, Cell<GroupSet>>,
    /// Slots of a counter, and what is added to its value.
    pub counters: FxHashMap<GroupsKey, CounterCell>,
    pub keys: FxHashMap<(TenantId, IdempotencyKey), KeyCell>,
    pub jobs: FxHashMap<(TenantId, JobId), Cell<Option<Job>>>,
    pub imports: FxHashMap<(TenantId, ImportId), Cell<Option<ImportRow>>>,
    /// Expiry entries that an audit found wrong, and whether they must be there.
    pub entries: FxHashMap<guanxi_model::IndexEntry, bool>,
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

impl Held {
    pub fn new(catalog: Arc<Catalog>) -> Held {
        Held { catalog, ..Held::default() }
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

    /// The version after those that a head has given out.
    pub fn version_after(given: u64, region: u8) -> Version {
        Version(((given + 1) << 8) | u64::from(region))
    }

    /// Takes a record in. An error leaves the transaction of no use.
    pub fn absorb(&mut self, record: Record) -> Result<(), Missing> {
        match record {
            Record::Edge(record) => return self.absorb_edge(*record),
            Record::Group { groups, id, name } => {
                let cell = self.groups.get_mut(&groups).ok_or(Missing::Groups(groups))?;
                cell.after.set(id, name);
                let next = cell.after.next.0;
                let head = self.heads.get_mut(&groups).ok_or(Missing::Head(groups))?;
                if head.head.next_group != next {
                    head.head.next_group = next;
                    head.changed = true;
                }
            }
            Record::Node { node, row } => {
                self.nodes.get_mut(&node).ok_or(Missing::Node(node))?.after = row;
            }
            Record::NodeType { tenant, id, name } => {
                Arc::make_mut(&mut self.catalog).set_type(tenant, id, name);
                self.catalog_changed = true;
            }
            Record::Kind { tenant, kind } => {
                Arc::make_mut(&mut self.catalog).set_kind(tenant, Kind::clone(&kind));
                self.catalog_changed = true;
            }
            Record::Counter { tenant, kind, id, delta } => {
                let key = GroupsKey { tenant, kind, source: guanxi_model::SourceId(id) };
                let cell = self.counters.get_mut(&key).ok_or(Missing::Head(key))?;
                cell.value += delta;
                cell.delta += delta;
            }
            Record::Idempotency { tenant, key, row } => {
                let cell = self.keys.get_mut(&(tenant, key.clone()));
                let cell = cell.ok_or(Missing::Key(tenant, key))?;
                cell.row = Some(row);
                cell.changed = true;
            }
            Record::Import { tenant, id, row } => {
                let cell = self.imports.get_mut(&(tenant, id.clone()));
                cell.ok_or(Missing::Import(tenant, id))?.after = Some(row);
            }
            Record::Job { tenant, job } => {
                let cell = self.jobs.entry((tenant, job.id));
                cell.or_insert_with(|| Cell::fetched(None)).after = Some(Job::clone(&job));
            }
            // The table's index by time is always there.
            Record::BuildIndex { .. } => {}
            Record::Repair(repair) => return self.repair(repair),
        }
        Ok(())
    }

    fn absorb_edge(&mut self, record: EdgeRecord) -> Result<(), Missing> {
        let kind = self.catalog.kind(record.key.tenant, record.key.kind).cloned();
        let kind = kind.ok_or(Missing::Foreign("an edge of no kind"))?;
        let cell = self.edges.get_mut(&record.key).ok_or(Missing::Edge(record.key))?;
        let effect = apply_edge(&kind, &record, cell.after.as_ref());
        let EdgeEffect::Replace { tallies } = effect else {
            return Err(Missing::Foreign("a version that does not grow"));
        };
        let was_live = cell.after.as_ref().is_some_and(EdgeRow::is_live);
        cell.after = Some(record.new.clone());
        self.causes.insert(record.key, record.cause);
        // A change of one that was live, such as of its group, holds no other heads.
        if record.new.is_live() && !was_live {
            self.mark_excluded(&kind, &record.key)?;
        }
        let head_key = GroupsKey::of(&record.key);
        for (counted, delta) in tallies {
            match counted {
                Counted::Node { which, .. } => {
                    let head = self.heads.get_mut(&head_key).ok_or(Missing::Head(head_key))?;
                    match which {
                        Which::Outgoing => head.head.outgoing += delta,
                        Which::PendingOutgoing => head.head.pending_outgoing += delta,
                        // The target's side follows the log.
                        _ => continue,
                    }
                    head.changed = true;
                }
                Counted::Group { groups, id } => {
                    let cell = self.groups.get_mut(&groups).ok_or(Missing::Groups(groups))?;
                    cell.after.resize(id, delta);
                }
            }
        }
        self.records.push(record);
        Ok(())
    }

    /// Leaves word in the heads of what an edge excludes, both ways, so that puts under heads
    /// without it need not look.
    fn mark_excluded(&mut self, kind: &Kind, edge: &EdgeKey) -> Result<(), Missing> {
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

    /// The source's side; the target's is mended where it is kept, by the audit.
    fn repair(&mut self, repair: Repair) -> Result<(), Missing> {
        match repair {
            Repair::Tally { node, kind, which, value } => {
                let source = guanxi_model::SourceId(node.id);
                let key = GroupsKey { tenant: node.tenant, kind, source };
                let cell = self.heads.get_mut(&key).ok_or(Missing::Head(key))?;
                match which {
                    Which::Outgoing => cell.head.outgoing = value,
                    Which::PendingOutgoing => cell.head.pending_outgoing = value,
                    _ => return Err(Missing::Foreign("a repair of the target's side")),
                }
                cell.changed = true;
            }
            Repair::GroupSize { groups, id, size } => {
                let cell = self.groups.get_mut(&groups).ok_or(Missing::Groups(groups))?;
                cell.after.set_size(id, size);
            }
            Repair::Entry { entry, present } => match entry.index {
                Index::Expiry { .. } => {
                    self.entries.insert(entry, present);
                }
                _ => return Err(Missing::Foreign("a repair of an index of the database")),
            },
        }
        Ok(())
    }
}

impl View for Held {
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
            let source = guanxi_model::SourceId(node.id);
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
