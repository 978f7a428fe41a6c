//! The reference: every row in plain maps, tombstones or not, with tallies kept by `apply_edge`
//! and counted anew from the rows, by a counting of its own, whenever a test asks.

use std::collections::BTreeMap;
use std::convert::Infallible;

use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::record::{EdgeRecord, Repair};
use guanxi_model::tally::CountedTally;
use guanxi_model::tally::apply_edge;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupSet, GroupsKey, Kind, KindId, NodeKey, NodeRow, Record, State,
    TallyRow, TenantId, View, Which,
};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    pub catalog: Catalog,
    pub edges: BTreeMap<EdgeKey, EdgeRow>,
    pub tallies: BTreeMap<NodeKey, TallyRow>,
    pub groups: BTreeMap<GroupsKey, GroupSet>,
    pub nodes: BTreeMap<NodeKey, NodeRow>,
    pub idempotency: BTreeMap<(TenantId, IdempotencyKey), IdempotencyRow>,
    pub imports: BTreeMap<(TenantId, ImportId), ImportRow>,
    pub jobs: BTreeMap<(TenantId, JobId), Job>,
    /// Sums of the deltas, apart from the tallies that they must agree with.
    counters: BTreeMap<(NodeKey, KindId), i64>,
    /// As the embedded store does: a removed edge has no row.
    drops_tombstones: bool,
}

impl Rows {
    pub fn without_tombstones() -> Rows {
        Rows { drops_tombstones: true, ..Rows::default() }
    }

    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Edge(record) => self.apply_edge(record),
            Record::Group { groups, id, name } => {
                self.groups.entry(*groups).or_default().set(*id, name.clone());
            }
            Record::Node { node, row } => {
                self.nodes.insert(*node, *row);
            }
            Record::NodeType { tenant, id, name } => {
                self.catalog.set_type(*tenant, *id, name.clone());
            }
            Record::Kind { tenant, kind } => self.catalog.set_kind(*tenant, Kind::clone(kind)),
            Record::Counter { tenant, kind, id, delta } => {
                let node = NodeKey {
                    tenant: *tenant,
                    node_type: self.kind(*tenant, *kind).fixed.target_type,
                    id: *id,
                };
                *self.counters.entry((node, *kind)).or_default() += delta;
                self.add(node, *kind, Which::Value, *delta);
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
            // The index by time follows from the edges; the reference has none.
            Record::BuildIndex { .. } => {}
            Record::Repair(repair) => self.repair(repair),
        }
    }

    fn repair(&mut self, repair: &Repair) {
        match *repair {
            Repair::Tally { node, kind, which, value } => {
                let row = self.tallies.entry(node).or_default();
                row.set(kind, which, value);
                if row.is_empty() {
                    self.tallies.remove(&node);
                }
            }
            Repair::GroupSize { groups, id, size } => {
                if let Some(set) = self.groups.get_mut(&groups) {
                    set.set_size(id, size);
                }
            }
            // As with the index by time.
            Repair::Entry { .. } => {}
        }
    }

    pub fn apply_edge(&mut self, record: &EdgeRecord) {
        let kind = self.kind(record.key.tenant, record.key.kind).clone();
        let standing = self.edges.get(&record.key);
        let Some(tallies) = apply_edge(&kind, record, standing) else {
            return;
        };
        for (counted, delta) in tallies {
            match counted {
                CountedTally::Node { node, kind, which } => self.add(node, kind, which, delta),
                CountedTally::Group { groups, id } => {
                    if let Some(set) = self.groups.get_mut(&groups) {
                        set.resize(id, delta);
                    }
                }
            }
        }
        if self.drops_tombstones && !record.new.stands() {
            self.edges.remove(&record.key);
        } else {
            self.edges.insert(record.key, record.new.clone());
        }
    }

    pub fn kind(&self, tenant: TenantId, id: KindId) -> &Kind {
        self.catalog.kind(tenant, id).expect("a known kind")
    }

    /// The row of an edge that is there, live or pending.
    pub fn standing(&self, key: &EdgeKey) -> Option<&EdgeRow> {
        self.edges.get(key).filter(|row| row.stands())
    }

    /// Mutual is derived from the two rows, never stored.
    pub fn mutual(&self, key: &EdgeKey) -> bool {
        let live = |key| self.edges.get(key).is_some_and(EdgeRow::is_live);
        live(key) && live(&key.reversed())
    }

    pub fn tally(&self, node: &NodeKey, kind: KindId, which: Which) -> i64 {
        self.tallies.get(node).map_or(0, |row| row.get(kind, which))
    }

    /// Tallies and group sizes are what the rows say, counted without `contribution`, so that a
    /// contribution which forgets something is found out.
    pub fn assert_tallies(&self) {
        assert_eq!(self.tallies, self.counted_anew(), "tallies differ from rows");
        for (key, set) in &self.groups {
            for group in &set.groups {
                let in_it = |edge: &EdgeKey, row: &EdgeRow| {
                    GroupsKey::of(edge) == *key
                        && row.state == State::Live
                        && row.group == Some(group.id)
                };
                let members = self.edges.iter().filter(|(edge, row)| in_it(edge, row));
                assert_eq!(group.size, members.count() as i64, "size of {group:?}");
            }
        }
    }

    fn counted_anew(&self) -> BTreeMap<NodeKey, TallyRow> {
        let mut anew: BTreeMap<NodeKey, TallyRow> = BTreeMap::new();
        let mut count = |tenant, node_type, id, kind, which, by| {
            let node = NodeKey { tenant, node_type, id };
            anew.entry(node).or_default().add(kind, which, by);
        };
        for (key, row) in &self.edges {
            let fixed = self.kind(key.tenant, key.kind).fixed;
            let (outgoing, incoming) = match row.state {
                State::Live => (Which::Outgoing, Which::Incoming),
                State::Pending => (Which::PendingOutgoing, Which::PendingIncoming),
                State::Removed => continue,
            };
            let mut count = |node_type, id, which| {
                count(key.tenant, node_type, id, key.kind, which, 1);
            };
            if fixed.outgoing_tally {
                count(fixed.source_type, key.source.0, outgoing);
            }
            if fixed.incoming_tally {
                count(fixed.target_type, key.target.0, incoming);
            }
            if let (State::Live, Some(owner), Some(owner_type)) =
                (row.state, row.owner, fixed.owner_type)
            {
                count(owner_type, owner, Which::Owned);
            }
        }
        for ((node, kind), value) in &self.counters {
            count(node.tenant, node.node_type, node.id, *kind, Which::Value, *value);
        }
        anew.retain(|_, row| !row.is_empty());
        anew
    }

    fn add(&mut self, node: NodeKey, kind: KindId, which: Which, delta: i64) {
        let row = self.tallies.entry(node).or_default();
        row.add(kind, which, delta);
        if row.is_empty() {
            self.tallies.remove(&node);
        }
    }
}

impl View for Rows {
    type Error = Infallible;

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, Infallible> {
        Ok(self.edges.get(key).cloned())
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, Infallible> {
        Ok(self.tallies.get(node).cloned().unwrap_or_default())
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, Infallible> {
        Ok(self.groups.get(key).cloned().unwrap_or_default())
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
