//! A database with tables, kinds and positions; what it must hold, computed from `outgoing`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::applier::{BatchLog, BatchOutcome, LogKind, Slice, Way, apply_batch};
use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::sql::{Database, SqlError};
use guanxi_cluster::{rows, schema};
use guanxi_model::codec::encode_kind;
use guanxi_model::kind::{FixedRules, Rules, TimeIndex};
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{EdgeKey, EdgeRow, Kind, KindId, KindName, NodeTypeId, TenantId, Which, places};
use guanxi_services::{fresh_database, shared};

/// Everything here must happen within this, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(90);
pub const TENANT: TenantId = TenantId(1);
pub const FOLLOW: KindId = KindId(1);
/// With an owner's roll-up.
pub const LIKE: KindId = KindId(2);
/// Keeps no incoming tally.
pub const QUIET: KindId = KindId(3);

pub struct World {
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub place: BatchLog,
    pub url: String,
}

/// A fresh database on each server that is there.
pub fn each_server(test: &str, mut run: impl FnMut(&World)) {
    if let Some(server) = shared::mariadb_or_skip(test) {
        run(&World::on(&fresh_database(server)));
    }
    if let Some(server) = shared::tidb_or_skip(test) {
        run(&World::on(&fresh_database(server)));
    }
}

impl World {
    pub fn on(url: &str) -> World {
        let database = Database::open(url, 8).expect("the server was started");
        schema::migrate(&database).expect("an empty database");
        for id in [FOLLOW, LIKE, QUIET] {
            add_kind(&database, TENANT, id);
        }
        let catalog = SharedCatalog::open(&database).expect("the tables are there");
        let (source, topic) = (LogKind::Outbox, "records".to_owned());
        let place = BatchLog { source, topic, partitions: 4 };
        let world = World { database, catalog, place, url: url.to_owned() };
        for partition in 0..4 {
            world.run(&format!(
                "INSERT INTO applied (topic,part,next) VALUES ('records',{partition},0)"
            ));
        }
        world
    }

    pub fn run(&self, statements: &str) {
        self.session_run(&format!("BEGIN;{statements};COMMIT")).expect(statements);
    }

    pub fn session_run(&self, statements: &str) -> Result<(), SqlError> {
        self.database.session(Instant::now() + PATIENCE)?.run(statements).map(|_| ())
    }

    pub fn rows(&self, statement: &str) -> Vec<mysql::Row> {
        let session = self.database.session(Instant::now() + PATIENCE);
        session.and_then(|mut session| session.rows(statement)).expect(statement)
    }

    pub fn number(&self, statement: &str) -> i64 {
        self.rows(statement).first().map_or(0, |row| rows::cell(row, 0).expect("a number"))
    }

    /// As an applier's first try does.
    pub fn apply(&self, slices: &[Slice]) -> Result<BatchOutcome, SqlError> {
        self.apply_by(Way::Foreseeing, slices)
    }

    pub fn apply_by(&self, way: Way, slices: &[Slice]) -> Result<BatchOutcome, SqlError> {
        let mut session = self.database.session(Instant::now() + PATIENCE)?;
        apply_batch(&mut session, &self.place, slices, &self.catalog.current(), 1_000, way)
    }

    pub fn partition(&self, edge: &EdgeKey) -> u32 {
        places::partition(places::edge_shard(edge), self.place.partitions)
    }

    pub fn put_outgoing(&self, edges: &BTreeMap<EdgeKey, EdgeRow>) {
        let edges: Vec<_> = edges.iter().collect();
        for edges in edges.chunks(500) {
            let values: Vec<String> = edges
                .iter()
                .map(|(key, row)| {
                    let owner = row.owner.map_or("NULL".into(), |owner| owner.to_string());
                    format!(
                        "({},{},{},{},{},{},{},{owner})",
                        key.tenant.0,
                        key.kind.0,
                        key.source.0,
                        key.target.0,
                        row.version.0,
                        row.state as u8,
                        row.since.0
                    )
                })
                .collect();
            self.run(&format!(
                "REPLACE INTO outgoing (tenant,kind,source,target,version,state,since,owner) \
                 VALUES {}",
                values.join(",")
            ));
        }
    }

    /// The target's side is exactly what `outgoing` says and contributes.
    #[track_caller]
    pub fn assert_target_side(&self) {
        self.assert_incoming(&self.edges("outgoing"));
    }

    /// The target's side is exactly these edges and what they contribute.
    #[track_caller]
    pub fn assert_incoming(&self, edges: &BTreeMap<EdgeKey, EdgeRow>) {
        let incoming = self.edges("incoming");
        for (edge, row) in edges {
            assert_eq!(incoming.get(edge), Some(row), "{edge:?}");
        }
        assert_eq!(incoming.len(), edges.len(), "edges that no source has");
        self.assert_tallies(edges);
    }

    fn edges(&self, table: &str) -> BTreeMap<EdgeKey, EdgeRow> {
        let found = self.rows(&format!("SELECT {} FROM {table}", rows::INCOMING_COLUMNS));
        found.iter().map(|row| rows::incoming(row).expect("a row of ours")).collect()
    }

    #[track_caller]
    pub fn assert_tallies(&self, edges: &BTreeMap<EdgeKey, EdgeRow>) {
        type Number = (u32, u16, u64, u16, Which);
        let catalog = self.catalog.current();
        let mut expected: BTreeMap<Number, i64> = BTreeMap::new();
        for (edge, row) in edges {
            let kind = catalog.kind(edge.tenant, edge.kind).expect("a kind of ours");
            for counted in contribution(kind, edge, Some(row)) {
                let CountedTally::Node { node, kind, which } = counted else { continue };
                if !matches!(which, Which::Outgoing | Which::PendingOutgoing) {
                    let number = (node.tenant.0, node.node_type.0, node.id, kind.0, which);
                    *expected.entry(number).or_default() += 1;
                }
            }
        }
        let mut found: BTreeMap<Number, i64> = BTreeMap::new();
        let columns = "tenant,node_type,node,kind,incoming,pending_incoming,owned";
        for row in self.rows(&format!("SELECT {columns} FROM tally")) {
            let tallies = [Which::Incoming, Which::PendingIncoming, Which::Owned];
            for (index, which) in tallies.into_iter().enumerate() {
                let cell = |index| rows::cell::<u64>(&row, index).expect("a number");
                let (tenant, node_type) = (cell(0) as u32, cell(1) as u16);
                let number = (tenant, node_type, cell(2), cell(3) as u16, which);
                let value: i64 = rows::cell(&row, 4 + index).expect("a number");
                *found.entry(number).or_default() += value;
            }
        }
        found.retain(|_, value| *value != 0);
        assert_eq!(found, expected);
    }
}

pub fn add_kind(database: &Database, tenant: TenantId, id: KindId) {
    let kind = kind(id);
    let definition: String = encode_kind(&kind).iter().map(|byte| format!("{byte:02x}")).collect();
    let statement = format!(
        "BEGIN;INSERT INTO kinds (tenant,id,name,definition) \
         VALUES ({},{},'{}',x'{definition}');\
         INSERT INTO facts (name,value) VALUES ('catalog',1) \
         ON DUPLICATE KEY UPDATE value=value+1;COMMIT",
        tenant.0, id.0, kind.name
    );
    let session = database.session(Instant::now() + PATIENCE);
    session.and_then(|mut session| session.run(&statement)).expect("a kind");
}

/// Users are of type 1, posts of type 2.
pub fn kind(id: KindId) -> Kind {
    let to_post = id == LIKE;
    Kind {
        id,
        name: KindName::new(&format!("kind{}", id.0)).expect("a name"),
        fixed: FixedRules {
            source_type: NodeTypeId(1),
            target_type: NodeTypeId(if to_post { 2 } else { 1 }),
            counter: false,
            reconciled: false,
            owner_type: to_post.then_some(NodeTypeId(1)),
            outgoing_list: true,
            incoming_list: true,
            outgoing_tally: true,
            incoming_tally: id != QUIET,
        },
        rules: Rules::default(),
        time_index: TimeIndex::Absent,
    }
}

/// Waits for a condition, failing when it takes too long.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
