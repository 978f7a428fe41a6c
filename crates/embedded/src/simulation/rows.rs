//! Plain rows: what a prefix of the records leads to, in maps, with every tally, size and list
//! counted out anew. Shares no code with the overlay, the store or `apply`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId, JobWork};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, GroupSet, GroupsKey, Kind, KindId, NodeKey, NodeRow, Record,
    State, TallyRow, TenantId, View, Which,
};

#[derive(Debug, Clone, Default)]
pub(super) struct ReferenceRows {
    pub catalog: Arc<Catalog>,
    pub edges: BTreeMap<EdgeKey, EdgeRow>,
    pub nodes: BTreeMap<NodeKey, NodeRow>,
    pub idempotency: BTreeMap<(TenantId, IdempotencyKey), IdempotencyRow>,
    pub imports: BTreeMap<(TenantId, ImportId), ImportRow>,
    pub jobs: BTreeMap<(TenantId, JobId), Job>,
    /// Without sizes, which `groups` counts.
    groups: BTreeMap<GroupsKey, GroupSet>,
    counters: BTreeMap<(NodeKey, KindId), i64>,
}

impl ReferenceRows {
    pub fn take(&mut self, record: &Record) {
        match record {
            Record::Edge(record) => {
                if record.new.state == State::Removed {
                    self.edges.remove(&record.key);
                } else {
                    self.edges.insert(record.key, record.new.clone());
                }
            }
            Record::Group { groups, id, name } => {
                let groups = self.groups.entry(*groups).or_default();
                groups.set(*id, name.clone());
            }
            Record::Node { node, row } => {
                self.nodes.insert(*node, *row);
            }
            Record::NodeType { tenant, id, name } => {
                Arc::make_mut(&mut self.catalog).set_type(*tenant, *id, name.clone());
            }
            Record::Kind { tenant, kind } => {
                Arc::make_mut(&mut self.catalog).set_kind(*tenant, Kind::clone(kind));
            }
            Record::Counter { tenant, kind, id, delta } => {
                if let Some(known) = self.catalog.kind(*tenant, *kind) {
                    let node =
                        NodeKey { tenant: *tenant, node_type: known.fixed.target_type, id: *id };
                    *self.counters.entry((node, *kind)).or_default() += delta;
                }
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
            // What it enters into the index follows from the rows and from its job.
            Record::BuildIndex { .. } => {}
            // Nothing is wrong here, so nothing is mended.
            Record::Repair(_) => {}
        }
    }

    /// Every number of every node.
    pub fn all_tallies(&self) -> BTreeMap<NodeKey, TallyRow> {
        let mut all: BTreeMap<NodeKey, TallyRow> = BTreeMap::new();
        self.count(|node, kind, which, number| {
            all.entry(node).or_default().add(kind, which, number);
        });
        all
    }

    fn count(&self, mut add: impl FnMut(NodeKey, KindId, Which, i64)) {
        for ((node, kind), value) in &self.counters {
            add(*node, *kind, Which::Value, *value);
        }
        for (key, row) in &self.edges {
            let Some(kind) = self.catalog.kind(key.tenant, key.kind) else {
                continue;
            };
            let tenant = key.tenant;
            let mut one = |node_type, id, which| {
                let node = NodeKey { tenant, node_type, id };
                add(node, key.kind, which, 1);
            };
            let (outgoing, incoming) = match row.state {
                State::Live => (Which::Outgoing, Which::Incoming),
                _ => (Which::PendingOutgoing, Which::PendingIncoming),
            };
            if kind.fixed.outgoing_tally {
                one(kind.fixed.source_type, key.source.0, outgoing);
            }
            if kind.fixed.incoming_tally {
                one(kind.fixed.target_type, key.target.0, incoming);
            }
            if let (State::Live, Some(owner_type), Some(owner)) =
                (row.state, kind.fixed.owner_type, row.owner)
            {
                one(owner_type, owner, Which::Owned);
            }
        }
    }

    /// A source's groups with their sizes.
    pub fn groups_of(&self, key: &GroupsKey) -> GroupSet {
        let mut groups = self.groups.get(key).cloned().unwrap_or_default();
        for group in &mut groups.groups {
            let members = self.edges.iter().filter(|(edge, row)| {
                row.group == Some(group.id) && row.is_live() && GroupsKey::of(edge) == *key
            });
            group.size = members.count() as i64;
        }
        groups
    }

    /// How far the job has come that fills this kind's index; none when there is no such job.
    pub fn index_built(&self, kind: KindId) -> Option<Option<Ends>> {
        self.jobs.values().find_map(|job| match job.work {
            JobWork::BuildIndex { kind: of, after } if of == kind && job.finished.is_none() => {
                Some(after)
            }
            _ => None,
        })
    }
}

impl View for ReferenceRows {
    type Error = Infallible;

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, Infallible> {
        Ok(self.edges.get(key).cloned())
    }

    fn tallies(&self, wanted: &NodeKey) -> Result<TallyRow, Infallible> {
        let mut row = TallyRow::default();
        self.count(|node, kind, which, number| {
            if node == *wanted {
                row.add(kind, which, number);
            }
        });
        Ok(row)
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, Infallible> {
        Ok(self.groups_of(key))
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, Infallible> {
        Ok(self.nodes.get(node).copied().unwrap_or_default())
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, Infallible> {
        Ok(self.idempotency.get(&(tenant, key.clone())).cloned())
    }

    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, Infallible> {
        Ok(self.imports.get(&(tenant, id.clone())).cloned())
    }

    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, Infallible> {
        Ok(self.jobs.get(&(tenant, id)).cloned())
    }
}
