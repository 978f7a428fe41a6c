//! A world that takes changes: the reference's rows, a clock that only tests move, and the
//! versions of either deployment. It checks at every change what must hold at every change.

use std::collections::BTreeMap;

use guanxi_model::answer::EdgeAnswer;
use guanxi_model::codec::{decode_record, encode_record};
use guanxi_model::decide::{Decided, Stamp, Undecided, built_in_kinds, decide};
use guanxi_model::record::EdgeRecord;
use guanxi_model::{
    Answer, Change, EdgeKey, EdgeRow, Error, GroupName, GroupSet, GroupsKey, KindId, KindName,
    Millis, NodeKey, NodeTypeId, Origin, Record, Region, SourceId, State, TargetId, TenantId,
    Version,
};

use crate::footprint::Bounded;
use crate::reference::Rows;

pub const TENANT: TenantId = TenantId::DEFAULT;

// What the built-in kinds and their node types are numbered; `kinds` holds the catalog to it.
pub const FOLLOW: KindId = KindId(1);
pub const LIKE: KindId = KindId(2);
pub const BLOCK: KindId = KindId(4);
pub const VIEW: KindId = KindId(5);
pub const USER: NodeTypeId = NodeTypeId(1);
pub const POST: NodeTypeId = NodeTypeId(2);

type Head = (TenantId, KindId, SourceId);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deployment {
    /// One last version for the whole log; removed edges have no row.
    Embedded,
    /// A last version per source and kind; removed edges leave tombstones.
    Cluster,
}

#[derive(Debug, Clone)]
pub struct World {
    pub rows: Rows,
    pub now: Millis,
    pub log: Vec<Record>,
    deployment: Deployment,
    heads: BTreeMap<Head, Version>,
}

impl World {
    /// A world with the built-in kinds, at 1,000 ms.
    pub fn new(deployment: Deployment) -> World {
        let rows = match deployment {
            Deployment::Embedded => Rows::without_tombstones(),
            Deployment::Cluster => Rows::default(),
        };
        let mut world =
            World { rows, now: Millis(1_000), log: Vec::new(), deployment, heads: BTreeMap::new() };
        for spec in built_in_kinds().unwrap() {
            let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
            world.change(&create).expect("a built-in kind");
        }
        world
    }

    /// Decides a change and applies its records.
    pub fn change(&mut self, change: &Change) -> Result<Decided, Error> {
        let (now, deployment, heads) = (self.now, self.deployment, &mut self.heads);
        let mut given: Vec<(Head, Version)> = Vec::new();
        let mut versions = |GroupsKey { tenant, kind, source }| {
            let head = (tenant, kind, source);
            let of_log = (TENANT, KindId(0), SourceId(0));
            let last = heads.entry(match deployment {
                Deployment::Embedded => of_log,
                Deployment::Cluster => head,
            });
            let last = last.or_default();
            *last = Version::next(*last, now, Region::default());
            given.push((head, *last));
            *last
        };
        let mut stamp = Stamp { now, keys_age_by: now, versions: &mut versions };
        let bounded = Bounded::new(&self.rows, change);
        let decided = match decide(change, &bounded, &mut stamp) {
            Ok(decided) => decided,
            Err(Undecided::Refused(error)) => {
                assert_eq!(given, [], "a refusal takes no version: {change:?}");
                return Err(error);
            }
            Err(Undecided::Failed(never)) => match never {},
        };
        bounded.assert_drawn(given.iter().map(|(head, _)| *head));
        for record in &decided.records {
            if let Record::Edge(edge) = record {
                self.assert_record(edge, &given);
            }
            assert_eq!(
                decode_record(&encode_record(record, &Origin::default())).as_ref(),
                Ok(record)
            );
            self.rows.apply(record);
            self.log.push(record.clone());
        }
        self.assert_answer(change, &decided);
        self.rows.assert_tallies();
        Ok(decided)
    }

    /// An edge record says what stood, and takes a version of its own source and kind that is
    /// above the one that stood.
    fn assert_record(&self, record: &EdgeRecord, given: &[(Head, Version)]) {
        let key = &record.key;
        assert_eq!(record.old.as_ref(), self.rows.standing(key), "{record:?}");
        let head = (key.tenant, key.kind, key.source);
        assert!(
            given.contains(&(head, record.new.version)),
            "a version of another source or kind: {record:?}"
        );
        let stood = self.rows.edges.get(key).map(|row| row.version);
        assert!(stood < Some(record.new.version), "not above: {record:?}");
        let groups = self.groups(key.kind, key.source.0);
        let name = |row: Option<&EdgeRow>| groups.name_of(row.and_then(|row| row.group)).cloned();
        assert_eq!(record.old_group, name(record.old.as_ref()), "{record:?}");
        assert_eq!(record.new_group, name(Some(&record.new)), "{record:?}");
    }

    /// The answer about an edge is what stands after it; `changed` exactly when there are records.
    fn assert_answer(&self, change: &Change, decided: &Decided) {
        let edge = match change {
            Change::Put(put) => &put.edge,
            Change::ImportEdge(line) => &line.put.edge,
            Change::Delete { edge, .. }
            | Change::Approve { edge }
            | Change::Decline { edge }
            | Change::Expire { edge, .. } => edge,
            _ => return,
        };
        let last = decided.records.last().map(|record| match record {
            Record::Edge(record) => &record.new,
            other => panic!("a change of an edge ends in {other:?}"),
        });
        let stands = last.or(self.rows.standing(edge));
        let expected = EdgeAnswer {
            changed: last.is_some(),
            state: stands.map_or(State::Removed, |row| row.state),
            since: stands.map(|row| row.since),
            version: stands.map(|row| row.version),
        };
        assert_eq!(decided.answer, Answer::Edge(expected), "{change:?}");
    }

    pub fn groups(&self, kind: KindId, source: u64) -> GroupSet {
        let key = groups_of(kind, source);
        self.rows.groups.get(&key).cloned().unwrap_or_default()
    }
}

pub fn edge(kind: KindId, source: u64, target: u64) -> EdgeKey {
    EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(target) }
}

pub fn groups_of(kind: KindId, source: u64) -> GroupsKey {
    GroupsKey { tenant: TENANT, kind, source: SourceId(source) }
}

pub fn node(node_type: NodeTypeId, id: u64) -> NodeKey {
    NodeKey { tenant: TENANT, node_type, id }
}

pub fn group_name(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

pub fn kind_name(name: &str) -> KindName {
    KindName::new(name).unwrap()
}
