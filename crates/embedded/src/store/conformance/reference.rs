//! The plain model that every store is held against: maps filled from the records alone, with
//! tallies, sizes and lists counted out anew whenever they are asked for.

use std::collections::BTreeMap;

use guanxi_core::snapshot::{Direction, TimeRange, Timeline};
use guanxi_model::codec::decode_record;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId, JobWork};
use guanxi_model::kind::TimeIndex;
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, GroupId, GroupName, GroupSet, GroupsKey, Kind, KindId, Millis,
    NodeKey, NodeRow, Position, Record, State, TallyRow, TenantId, Version, Which,
};

use super::history::StoreBatch;

#[derive(Debug, Clone, Default)]
pub struct ReferenceStore {
    pub catalog: Catalog,
    pub edges: BTreeMap<EdgeKey, EdgeRow>,
    pub nodes: BTreeMap<NodeKey, NodeRow>,
    pub answers: BTreeMap<(TenantId, IdempotencyKey), IdempotencyRow>,
    pub imports: BTreeMap<(TenantId, ImportId), ImportRow>,
    pub jobs: BTreeMap<(TenantId, JobId), Job>,
    pub position: Position,
    pub commit: Millis,
    /// The highest version that a record carries.
    pub version: Version,
    groups: BTreeMap<GroupsKey, ReferenceGroups>,
    counters: BTreeMap<(NodeKey, KindId), i64>,
}

#[derive(Debug, Clone)]
struct ReferenceGroups {
    next: GroupId,
    names: BTreeMap<GroupId, GroupName>,
}

impl ReferenceStore {
    /// What the first batches lead to.
    pub fn after(history: &[StoreBatch]) -> Result<ReferenceStore, String> {
        let mut reference = ReferenceStore::default();
        for batch in history {
            reference.apply(batch)?;
        }
        Ok(reference)
    }

    pub fn apply(&mut self, batch: &StoreBatch) -> Result<(), String> {
        for encoded in &batch.frame.records {
            self.record(decode_record(encoded).map_err(|error| error.to_string())?);
        }
        self.position = batch.frame.last();
        self.commit = Millis(batch.frame.commit_ms);
        Ok(())
    }

    fn record(&mut self, record: Record) {
        match record {
            Record::Edge(record) => {
                self.version = self.version.max(record.new.version);
                match record.new.state {
                    State::Removed => self.edges.remove(&record.key),
                    _ => self.edges.insert(record.key, record.new),
                };
            }
            Record::Group { groups, id, name } => {
                let groups = self
                    .groups
                    .entry(groups)
                    .or_insert(ReferenceGroups { next: GroupId(1), names: BTreeMap::new() });
                groups.next = groups.next.max(GroupId(id.0 + 1));
                match name {
                    Some(name) => groups.names.insert(id, name),
                    None => groups.names.remove(&id),
                };
            }
            Record::Node { node, row } => {
                self.nodes.insert(node, row);
            }
            Record::NodeType { tenant, id, name } => self.catalog.set_type(tenant, id, name),
            Record::Kind { tenant, kind } => self.catalog.set_kind(tenant, *kind),
            Record::Counter { tenant, kind, id, delta } => {
                if let Some(known) = self.catalog.kind(tenant, kind) {
                    let node_type = known.fixed.target_type;
                    let node = NodeKey { tenant, node_type, id };
                    *self.counters.entry((node, kind)).or_default() += delta;
                }
            }
            Record::Idempotency { tenant, key, row } => {
                self.answers.insert((tenant, key), row);
            }
            Record::Import { tenant, id, row } => {
                self.imports.insert((tenant, id), row);
            }
            Record::Job { tenant, job } => {
                self.version = self.version.max(Version(job.id.0));
                self.jobs.insert((tenant, job.id), *job);
            }
            // What it enters follows from the rows and from the job's place.
            Record::BuildIndex { .. } => {}
            // Nothing is wrong here, so nothing is mended.
            Record::Repair(_) => {}
        }
    }

    pub fn kinds(&self) -> impl Iterator<Item = (TenantId, &Kind)> {
        self.catalog.tenants().flat_map(|tenant| {
            let kinds = self.catalog.kinds(tenant);
            kinds.map(move |kind| (tenant, kind.as_ref()))
        })
    }

    /// Every number of every node, counted over all rows.
    pub fn tallies(&self) -> BTreeMap<NodeKey, TallyRow> {
        let mut tallies: BTreeMap<NodeKey, TallyRow> = BTreeMap::new();
        for ((node, kind), value) in &self.counters {
            let row = tallies.entry(*node).or_default();
            row.add(*kind, Which::Value, *value);
        }
        for (key, row) in &self.edges {
            let Some(kind) = self.catalog.kind(key.tenant, key.kind) else {
                continue;
            };
            let live = row.state == State::Live;
            let mut count = |node_type, id, which| {
                let node = NodeKey { tenant: key.tenant, node_type, id };
                tallies.entry(node).or_default().add(key.kind, which, 1);
            };
            let fixed = &kind.fixed;
            if fixed.outgoing_tally {
                let which = [Which::PendingOutgoing, Which::Outgoing][usize::from(live)];
                count(fixed.source_type, key.source.0, which);
            }
            if fixed.incoming_tally {
                let which = [Which::PendingIncoming, Which::Incoming][usize::from(live)];
                count(fixed.target_type, key.target.0, which);
            }
            if let (true, Some(owner_type), Some(owner)) = (live, fixed.owner_type, row.owner) {
                count(owner_type, owner, Which::Owned);
            }
        }
        tallies
    }

    /// Every source's groups, with their sizes counted.
    pub fn group_sets(&self) -> impl Iterator<Item = (GroupsKey, GroupSet)> {
        self.groups.keys().map(|key| (*key, self.groups(key)))
    }

    /// A source's groups, with their sizes counted.
    pub fn groups(&self, key: &GroupsKey) -> GroupSet {
        let Some(groups) = self.groups.get(key) else {
            return GroupSet::default();
        };
        let size = |id: GroupId| {
            let members = self.edges.iter().filter(|(edge, row)| {
                GroupsKey::of(edge) == *key && row.is_live() && row.group == Some(id)
            });
            members.count() as i64
        };
        let groups_of = groups.names.iter().map(|(id, name)| {
            let (id, name, size) = (*id, name.clone(), size(*id));
            guanxi_model::group::Group { id, name, size }
        });
        GroupSet { next: groups.next, groups: groups_of.collect() }
    }

    /// One kind's edges by their ends.
    pub fn edges_of(
        &self,
        tenant: TenantId,
        kind: KindId,
    ) -> impl Iterator<Item = (&EdgeKey, &EdgeRow)> {
        self.edges.iter().filter(move |(key, _)| key.tenant == tenant && key.kind == kind)
    }

    /// The places that a list's index must have, the newest first.
    pub fn timeline(&self, list: &Timeline) -> Vec<PagePlace> {
        let Some(kind) = self.catalog.kind(list.tenant, list.kind) else {
            return Vec::new();
        };
        let kept = match list.direction {
            Direction::Incoming => kind.fixed.incoming_list,
            Direction::Outgoing => kind.time_index != TimeIndex::Absent,
        };
        if kept { self.edges_by_time(list) } else { Vec::new() }
    }

    /// The places of a list's edges, whatever the kind keeps, the newest first.
    pub fn edges_by_time(&self, list: &Timeline) -> Vec<PagePlace> {
        // A removed edge has no row here, so it is in no list.
        let edges = self.edges_of(list.tenant, list.kind);
        let of_list = edges.filter_map(|(key, row)| {
            let (whose, id) = match list.direction {
                Direction::Outgoing => (key.source.0, key.target.0),
                Direction::Incoming => (key.target.0, key.source.0),
            };
            let since = row.since;
            (whose == list.id && row.state == list.state).then_some(PagePlace { since, id })
        });
        let mut places: Vec<PagePlace> = of_list.collect();
        places.sort();
        places.reverse();
        places
    }

    /// How far the job has come that fills this kind's index; `None` when no job fills it.
    pub fn index_job(&self, tenant: TenantId, kind: KindId) -> Option<Option<Ends>> {
        self.jobs.iter().find_map(|((of, _), job)| match job.work {
            JobWork::BuildIndex { kind: built, after }
                if *of == tenant && built == kind && job.finished.is_none() =>
            {
                Some(after)
            }
            _ => None,
        })
    }

    /// What expires up to and at this time.
    pub fn due(&self, now: Millis) -> Vec<(Millis, EdgeKey)> {
        let expiring =
            self.edges.iter().filter_map(|(key, row)| row.expires_at.map(|at| (at, *key)));
        let mut due: Vec<(Millis, EdgeKey)> = expiring.filter(|(at, _)| *at <= now).collect();
        due.sort();
        due
    }
}

/// The part of a list, newest first, that a page asks for.
pub fn part(newest_first: &[PagePlace], range: &TimeRange) -> Vec<PagePlace> {
    let within = |place: &&PagePlace| {
        range.since.is_none_or(|since| place.since >= since)
            && range.until.is_none_or(|until| place.since < until)
            && range.after.is_none_or(|after| match range.order {
                Order::Newest => **place < after,
                Order::Oldest => **place > after,
            })
    };
    let mut part: Vec<PagePlace> = newest_first.iter().filter(within).copied().collect();
    if range.order == Order::Oldest {
        part.reverse();
    }
    part
}
