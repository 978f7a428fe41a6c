//! What the tables hold, as the model's types, and what must hold between them at any time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::outbox::unpack;
use guanxi_cluster::rows::{self, Head, cell};
use guanxi_cluster::sql::Database;
use guanxi_model::codec::decode_job;
use guanxi_model::group::Group;
use guanxi_model::job::{Job, JobId};
use guanxi_model::record::EdgeRecord;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupsKey, KindId, Millis, NodeKey, NodeRow, NodeTypeId, SourceId,
    State, TargetId, TenantId,
};
use mysql::Row;

use crate::bench::PATIENCE;

#[derive(Debug, Default)]
pub struct Tables {
    pub catalog: Arc<Catalog>,
    pub heads: BTreeMap<GroupsKey, Head>,
    /// Tombstones too.
    pub edges: BTreeMap<EdgeKey, EdgeRow>,
    pub groups: BTreeMap<GroupsKey, Vec<Group>>,
    pub nodes: BTreeMap<NodeKey, NodeRow>,
    pub counters: BTreeMap<GroupsKey, i64>,
    /// The largest number in a slot of a counter, either sign.
    pub slot_abs_max: u64,
    pub jobs: Vec<Job>,
    pub expiry: Vec<(EdgeKey, Millis)>,
    /// In the order of their versions.
    pub outbox: BTreeMap<EdgeKey, Vec<EdgeRecord>>,
    /// Heads need not tell of all that excludes.
    pub unmarked: bool,
}

impl Tables {
    pub fn read(database: &Database) -> Tables {
        let catalog = SharedCatalog::open(database).unwrap().current();
        let mut tables = Tables { catalog, ..Tables::default() };
        let mut session = database.session(Instant::now() + PATIENCE).unwrap();
        let mut all = |columns: &str, table: &str| -> Vec<Row> {
            session.rows(&format!("SELECT {columns} FROM {table}")).unwrap()
        };
        let head_rows = all(rows::HEAD_COLUMNS, "head");
        tables.heads = head_rows.iter().map(|row| rows::head(row).unwrap()).collect();
        let edge_rows = all(rows::OUTGOING_COLUMNS, "outgoing");
        tables.edges = edge_rows.iter().map(|row| rows::outgoing(row).unwrap()).collect();
        for row in all(rows::GROUP_COLUMNS, "`groups` ORDER BY tenant,kind,source,id") {
            let (key, group) = rows::group(&row).unwrap();
            tables.groups.entry(key).or_default().push(group);
        }
        for row in all("tenant,node_type,id,private,erased_by", "nodes") {
            let node_type = NodeTypeId(cell(&row, 1).unwrap());
            let tenant = TenantId(cell(&row, 0).unwrap());
            let node = NodeKey { tenant, node_type, id: cell(&row, 2).unwrap() };
            let erased_by = cell::<Option<u64>>(&row, 4).unwrap().map(JobId);
            let private = cell::<u8>(&row, 3).unwrap() == 1;
            tables.nodes.insert(node, NodeRow { private, erased_by });
        }
        for row in all("tenant,kind,node,value", "counter") {
            let tenant = TenantId(cell(&row, 0).unwrap());
            let source = SourceId(cell(&row, 2).unwrap());
            let key = GroupsKey { tenant, kind: KindId(cell(&row, 1).unwrap()), source };
            let value: i64 = cell(&row, 3).unwrap();
            tables.slot_abs_max = tables.slot_abs_max.max(value.unsigned_abs());
            *tables.counters.entry(key).or_default() += value;
        }
        for row in all("job", "jobs") {
            tables.jobs.push(decode_job(&cell::<Vec<u8>>(&row, 0).unwrap()).unwrap());
        }
        for row in all("tenant,kind,source,target,expires_at", "expiry") {
            let at = Millis(cell(&row, 4).unwrap());
            tables.expiry.push((rows::edge_key(&row).unwrap(), at));
        }
        tables.expiry.sort_unstable();
        tables.unmarked = !all("value", "facts WHERE name='unmarked'").is_empty();
        for row in all("version,barrier,records,value", "outbox") {
            let value: Vec<u8> = cell(&row, 3).unwrap();
            let (_, records) = unpack(&value).unwrap();
            assert_eq!(cell::<Option<u64>>(&row, 1).unwrap(), None);
            assert_eq!(cell::<usize>(&row, 2).unwrap(), records.len());
            let lowest = records.iter().map(|record| record.new.version.0).min();
            assert_eq!(Some(cell::<u64>(&row, 0).unwrap()), lowest);
            for record in records {
                tables.outbox.entry(record.key).or_default().push(record);
            }
        }
        for records in tables.outbox.values_mut() {
            records.sort_unstable_by_key(|record| record.new.version);
        }
        tables
    }

    pub fn standing(&self) -> impl Iterator<Item = (&EdgeKey, &EdgeRow)> {
        self.edges.iter().filter(|(_, row)| row.stands())
    }

    /// What holds after any history, whoever wrote.
    #[track_caller]
    pub fn check(&self) {
        self.check_heads();
        self.check_log();
        self.check_groups();
        self.check_exclusion();
        let mut expiry: Vec<_> =
            self.standing().filter_map(|(key, row)| Some((*key, row.expires_at?))).collect();
        expiry.sort_unstable();
        assert_eq!(self.expiry, expiry, "the index of what expires");
    }

    /// A head's tallies are what the source's rows contribute, and no version is above it.
    fn check_heads(&self) {
        let mut counted: BTreeMap<GroupsKey, (i64, i64)> = BTreeMap::new();
        for (key, row) in &self.edges {
            let head = &self.heads[&GroupsKey::of(key)];
            assert!(row.version.0 >> 8 <= head.version, "{key:?} is above its head");
            let kind = self.catalog.kind(key.tenant, key.kind).unwrap();
            let numbers = counted.entry(GroupsKey::of(key)).or_default();
            match row.state {
                State::Live if kind.fixed.outgoing_tally => numbers.0 += 1,
                State::Pending if kind.fixed.outgoing_tally => numbers.1 += 1,
                _ => {}
            }
        }
        for (key, head) in &self.heads {
            let numbers = counted.get(key).copied().unwrap_or_default();
            assert_eq!((head.outgoing, head.pending_outgoing), numbers, "the tallies of {key:?}");
        }
    }

    /// Each record says what stood before it, in the order of versions, and the last is the row.
    fn check_log(&self) {
        let logged: Vec<_> = self.outbox.keys().collect();
        assert_eq!(logged, self.edges.keys().collect::<Vec<_>>(), "edges that have records");
        for (key, records) in &self.outbox {
            let mut stood: Option<&EdgeRow> = None;
            for record in records {
                let before = stood.filter(|row| row.stands());
                assert_eq!(record.old.as_ref(), before, "what stood before {record:?}");
                assert!(stood.is_none_or(|row| row.version < record.new.version));
                stood = Some(&record.new);
            }
            assert_eq!(stood, self.edges.get(key), "the last record of {key:?}");
        }
    }

    fn check_groups(&self) {
        for (key, groups) in &self.groups {
            for group in groups {
                let inside = |(edge, row): &(&EdgeKey, &EdgeRow)| {
                    GroupsKey::of(edge) == *key && row.is_live() && row.group == Some(group.id)
                };
                let members = self.edges.iter().filter(inside).count();
                assert_eq!(group.size, members as i64, "the size of {group:?} of {key:?}");
                assert!(group.id.0 < self.heads[key].next_group);
            }
        }
    }

    fn check_exclusion(&self) {
        for (key, _) in self.edges.iter().filter(|(_, row)| row.is_live()) {
            let kind = self.catalog.kind(key.tenant, key.kind).unwrap();
            for excluded in &kind.rules.excludes {
                let there = key.of_kind(*excluded);
                let back = EdgeKey {
                    source: SourceId(there.target.0),
                    target: TargetId(there.source.0),
                    ..there
                };
                for edge in [there, back] {
                    let marked = self.heads.get(&GroupsKey::of(&edge));
                    let marked = self.unmarked || marked.is_some_and(|head| head.excluded);
                    assert!(marked, "no head tells {edge:?} of {key:?}");
                    let stands = self.edges.get(&edge).is_some_and(EdgeRow::stands);
                    assert!(!stands, "{key:?} and {edge:?} both stand");
                }
            }
        }
    }
}
