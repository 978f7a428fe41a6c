//! Reads from the cluster's tables, on each database: the embedded store's answers, a token's
//! edges before the appliers have them, the servers' plans, and what concurrent writes do to a
//! walk.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::cache::ReadCache;
use guanxi_cluster::schema;
use guanxi_cluster::snapshot::{SqlSnapshot, list_statements};
use guanxi_cluster::sql::{Database, Dialect};
use guanxi_cluster::token_edges::{SEEN_WAIT, SeenEdge, wait_for_seen};
use guanxi_core::snapshot::{TimeRange, Timeline};
use guanxi_core::{
    Direction, GroupFilter, HydrateQuery, ListQuery, ListedEdge, Page, ReadObject, Reader,
};
use guanxi_embedded::store::conformance::{IDS, TENANTS, random_history};
use guanxi_embedded::store::memory::MemoryBackend;
use guanxi_embedded::store::{KeyedStore, Store};
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Kind, Millis, NodeKey, Secret, SourceId, State, TargetId, TenantId,
    Version, View,
};
use guanxi_moving::store::SqlStore;
use guanxi_services::{SqlServer, fresh_database, shared};

const TENANT: TenantId = TenantId::DEFAULT;
const CONNECTIONS_MAX: usize = 6;
/// Far more than any of this takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What cursors are sealed with here.
fn secret() -> Arc<Secret> {
    Arc::new(Secret::new([3; 32]))
}

/// Runs a test on each database that is there.
fn on_each(test: &str, run: impl Fn(&Bench)) {
    if let Some(server) = shared::mariadb_or_skip(test) {
        run(&Bench::on(server));
    }
    if let Some(server) = shared::tidb_or_skip(test) {
        run(&Bench::on(server));
    }
}

/// Tables with the built-in kinds.
struct Bench {
    database: Arc<Database>,
    store: SqlStore,
    embedded: KeyedStore<MemoryBackend>,
}

impl Bench {
    fn on(server: &impl SqlServer) -> Bench {
        let database = Database::open(&fresh_database(server), CONNECTIONS_MAX).unwrap();
        schema::migrate(&database).unwrap();
        let store = SqlStore::open(&database).unwrap();
        let embedded = KeyedStore::open(MemoryBackend::default()).unwrap();
        let bench = Bench { database, store, embedded };
        bench.load(0, 1);
        bench
    }

    /// Writes a random history into both stores; its first batch has the kinds.
    fn load(&self, seed: u64, batches: usize) {
        for batch in random_history(seed, batches).unwrap() {
            if batch.applied.position > self.store.applied().position {
                self.store.write(&batch.dirty, batch.applied).unwrap();
                self.embedded.write(&batch.dirty, batch.applied).unwrap();
            }
        }
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.store.catalog()
    }

    fn kind(&self, name: &str) -> Arc<Kind> {
        self.catalog().named(TENANT, name).unwrap().clone()
    }

    fn snapshot(&self) -> SqlSnapshot {
        SqlSnapshot::begin(&self.database, self.catalog(), Instant::now() + PATIENCE)
    }

    fn reader(&self) -> Reader {
        Reader::new(Box::new(self.snapshot()), &secret())
    }

    fn reader_with(&self, seen: &[SeenEdge]) -> Reader {
        Reader::new(Box::new(self.snapshot().with_seen(seen)), &secret())
    }

    fn run(&self, statements: &str) {
        self.database.session(Instant::now() + PATIENCE).unwrap().run(statements).unwrap();
    }

    /// Puts a row of one side as it is, without its tallies.
    fn put(&self, table: &str, key: &EdgeKey, row: &EdgeRow) {
        let owner = row.owner.map_or("NULL".into(), |owner| owner.to_string());
        self.run(&format!(
            "REPLACE INTO {table} (tenant,kind,source,target,version,state,since,owner) \
             VALUES ({},{},{},{},{},{},{},{owner})",
            key.tenant.0,
            key.kind.0,
            key.source.0,
            key.target.0,
            row.version.0,
            row.state as u8,
            row.since.0
        ));
    }

    /// What an applier does with a row: the incoming row and the target side's tallies.
    fn apply(&self, kind: &Kind, key: &EdgeKey, old: Option<&EdgeRow>, new: &EdgeRow) {
        self.put("incoming", key, new);
        for (row, delta) in [(old, -1), (Some(new), 1)] {
            for counted in contribution(kind, key, row) {
                let CountedTally::Node { node, kind, which } = counted else { continue };
                let column = match which {
                    guanxi_model::Which::Incoming => "incoming",
                    guanxi_model::Which::PendingIncoming => "pending_incoming",
                    guanxi_model::Which::Owned => "owned",
                    _ => continue,
                };
                self.run(&format!(
                    "INSERT INTO tally (tenant,node_type,node,kind,slot,{column}) VALUES \
                     ({},{},{},{},0,{delta}) ON DUPLICATE KEY UPDATE {column}={column}+{delta}",
                    node.tenant.0, node.node_type.0, node.id, kind.0
                ));
            }
        }
    }
}

fn edge(kind: &Kind, source: u64, target: u64) -> EdgeKey {
    let (source, target) = (SourceId(source), TargetId(target));
    EdgeKey { tenant: TENANT, kind: kind.id, source, target }
}

fn row(version: u64, state: State, since: u64) -> EdgeRow {
    EdgeRow { state, ..EdgeRow::removed(Version(version), Millis(since)) }
}

fn list(tenant: TenantId, kind: &Arc<Kind>, direction: Direction, id: u64) -> ListQuery {
    ListQuery::newest(tenant, kind, direction, id, 3)
}

/// Every page of a call.
fn pages<E: std::fmt::Debug + PartialEq>(
    query: &ListQuery,
    read: impl Fn(&ListQuery) -> Result<Page, E>,
) -> Result<Vec<Page>, E> {
    let mut pages: Vec<Page> = Vec::new();
    let mut query = query.clone();
    loop {
        let page = read(&query)?;
        query.cursor.clone_from(&page.next);
        pages.push(page);
        if query.cursor.is_none() {
            return Ok(pages);
        }
    }
}

#[test]
fn answers_are_those_of_an_embedded_store() {
    on_each("answers_are_those_of_an_embedded_store", |bench| {
        bench.load(7, 100);
        let embedded = Reader::new(bench.embedded.snapshot(), &secret());
        let catalog = bench.catalog();
        let mut items = 0;
        for tenant in TENANTS {
            for kind in catalog.kinds(tenant) {
                for id in IDS {
                    items += same_lists(&embedded, bench, tenant, kind, id);
                }
                same_checks(&embedded, bench, tenant, kind);
            }
            same_exports(&embedded, &bench.reader(), tenant);
        }
        assert!(items > 100, "only {items} items were compared");
        same_hydrates(&embedded, bench);
    });
}

fn same_lists(
    embedded: &Reader,
    bench: &Bench,
    tenant: TenantId,
    kind: &Arc<Kind>,
    id: u64,
) -> usize {
    let mut items = 0;
    for direction in [Direction::Outgoing, Direction::Incoming] {
        let plain = list(tenant, kind, direction, id);
        let oldest = ListQuery { order: Order::Oldest, ..plain.clone() };
        let pending = ListQuery { state: State::Pending, ..plain.clone() };
        let mutual = ListQuery { mutual: true, ..plain.clone() };
        let ungrouped = ListQuery { group: Some(GroupFilter::Ungrouped), ..plain.clone() };
        let numbered = ListQuery { page: Some(2), limit: 2, ..plain.clone() };
        for query in [&plain, &oldest, &pending, &mutual, &ungrouped, &numbered] {
            let expected = pages(query, |query| embedded.list(query));
            let found = pages(query, |query| bench.reader().list(query));
            assert_eq!(found, expected, "{query:?}");
            items += found.iter().flatten().map(|page| page.items.len()).sum::<usize>();
        }
        let read = |reader: &Reader| {
            [
                pages(&plain, |query| reader.scan(query)),
                pages(&plain, |query| reader.mutual(query)),
                pages(&plain, |query| reader.common(query, 2)),
                pages(&plain, |query| reader.known(query, 2)),
            ]
        };
        assert_eq!(read(&bench.reader()), read(embedded), "{plain:?}");
    }
    items
}

fn same_checks(embedded: &Reader, bench: &Bench, tenant: TenantId, kind: &Arc<Kind>) {
    let targets = IDS.map(TargetId);
    for id in IDS {
        let check = |reader: &Reader| {
            let kinds = std::slice::from_ref(kind);
            reader.check(tenant, SourceId(id), &targets, kinds, true)
        };
        assert_eq!(check(&bench.reader()), check(embedded), "{} of {id}", kind.name);
        for node_type in [kind.fixed.source_type, kind.fixed.target_type] {
            let node = NodeKey { tenant, node_type, id };
            let read = |reader: &Reader| (reader.tallies(&node), reader.node(&node));
            assert_eq!(read(&bench.reader()), read(embedded), "{node:?}");
        }
    }
}

fn same_exports(embedded: &Reader, reader: &Reader, tenant: TenantId) {
    let lines = |reader: &Reader| {
        let mut lines = Vec::new();
        let visit = &mut |line: guanxi_core::Exported<'_>| {
            lines.push(format!("{line:?}"));
            std::ops::ControlFlow::Continue(())
        };
        reader.export(tenant, None, visit).unwrap();
        lines
    };
    assert_eq!(lines(reader), lines(embedded));
}

fn same_hydrates(embedded: &Reader, bench: &Bench) {
    let (follow, like, view) = (bench.kind("follow"), bench.kind("like"), bench.kind("view"));
    let cache = Arc::new(ReadCache::default());
    for viewer in IDS {
        let query = HydrateQuery {
            tenant: TENANT,
            viewer,
            objects: IDS.map(|id| ReadObject { id, author: Some(id / 2) }).to_vec(),
            kinds: vec![like.clone(), follow.clone()],
            tallies: vec![like.clone(), view.clone(), follow.clone()],
            reverse: vec![follow.clone()],
            object_type: like.fixed.target_type,
            author_type: follow.fixed.target_type,
        };
        let expected = embedded.hydrate(&query).unwrap();
        assert_eq!(bench.reader().hydrate(&query).unwrap(), expected);
        for _ in 0..2 {
            let cached = Reader::new(Box::new(bench.snapshot().with_cache(&cache)), &secret());
            assert_eq!(cached.hydrate(&query).unwrap(), expected);
            for object in &query.objects {
                let node_type = follow.fixed.source_type;
                let node = NodeKey { tenant: TENANT, node_type, id: object.id };
                assert_eq!(cached.tallies(&node), embedded.tallies(&node));
            }
        }
    }
}

/// Whatever the appliers lack, with a token the answers are those after they have caught up.
#[test]
fn a_tokens_edges_are_shown_before_the_appliers_have_them() {
    on_each("a_tokens_edges_are_shown_before_the_appliers_have_them", |bench| {
        let like = bench.kind("like");
        let mut random = fastrand::Rng::with_seed(3);
        let mut standing: BTreeMap<EdgeKey, EdgeRow> = BTreeMap::new();
        let mut version = 0;
        for round in 0..12 {
            let mut late: BTreeMap<EdgeKey, EdgeRow> = BTreeMap::new();
            for _ in 0..random.usize(1..8) {
                version += 256;
                let key = edge(&like, random.u64(1..10), 5);
                let state = [State::Live, State::Live, State::Removed, State::Pending];
                let mut new = row(version, state[random.usize(..4)], random.u64(1..6));
                new.owner = Some(random.u64(70..72)).filter(|_| new.state != State::Removed);
                bench.put("outgoing", &key, &new);
                late.insert(key, new);
            }
            // Some have been applied before the read, which the token does not know.
            for (key, new) in late.iter().filter(|_| random.u8(..4) == 0) {
                bench.apply(&like, key, standing.get(key), new);
                standing.insert(*key, new.clone());
            }
            let seen: Vec<SeenEdge> = late
                .iter()
                .map(|(edge, row)| SeenEdge { edge: *edge, version: row.version })
                .collect();
            let met = wait_for_seen(&bench.database, &seen, Instant::now() + PATIENCE).unwrap();
            let all = late.iter().all(|(key, row)| standing.get(key) == Some(row));
            assert_eq!(met, all);
            let early = target_answers(bench, &seen);
            for (key, new) in &late {
                if standing.get(key) != Some(new) {
                    bench.apply(&like, key, standing.get(key), new);
                    standing.insert(*key, new.clone());
                }
            }
            assert_eq!(early, target_answers(bench, &[]), "round {round}: {late:?}");
        }
        let live = standing.values().filter(|row| row.is_live()).count();
        assert!(live > 1, "the last list has no order to be wrong in");
    });
}

type TargetAnswers = (Vec<Vec<Page>>, Vec<guanxi_model::TallyRow>);

/// Lists in small pages, and the tallies of the target and the owners.
fn target_answers(bench: &Bench, seen: &[SeenEdge]) -> TargetAnswers {
    let like = bench.kind("like");
    let mut lists = Vec::new();
    for (order, state) in [
        (Order::Newest, State::Live),
        (Order::Oldest, State::Live),
        (Order::Newest, State::Pending),
    ] {
        let query =
            ListQuery { order, state, limit: 2, ..list(TENANT, &like, Direction::Incoming, 5) };
        let part = ListQuery { since: Some(Millis(2)), until: Some(Millis(4)), ..query.clone() };
        for query in [query, part] {
            lists.push(pages(&query, |query| bench.reader_with(seen).list(query)).unwrap());
        }
    }
    let node = |node_type, id| NodeKey { tenant: TENANT, node_type, id };
    let owner_type = like.fixed.owner_type.unwrap();
    let nodes = [node(like.fixed.target_type, 5), node(owner_type, 70), node(owner_type, 71)];
    let reader = bench.reader_with(seen);
    (lists, nodes.iter().map(|node| reader.tallies(node).unwrap()).collect())
}

#[test]
fn a_token_waits_for_the_appliers_and_not_for_long() {
    on_each("a_token_waits_for_the_appliers_and_not_for_long", |bench| {
        let key = edge(&bench.kind("like"), 1, 2);
        let seen = [SeenEdge { edge: key, version: Version(512) }];
        let begun = Instant::now();
        assert!(!wait_for_seen(&bench.database, &seen, Instant::now() + PATIENCE).unwrap());
        assert!(begun.elapsed() >= SEEN_WAIT);
        bench.put("incoming", &key, &row(256, State::Live, 1));
        assert!(!wait_for_seen(&bench.database, &seen, Instant::now() + PATIENCE).unwrap());
        bench.put("incoming", &key, &row(512, State::Removed, 1));
        assert!(wait_for_seen(&bench.database, &seen, Instant::now() + PATIENCE).unwrap());
    });
}

const TOMBSTONES: u64 = 100_000;

/// Tombstones newer than everything live, and ties: a page reads what it shows.
#[test]
fn a_page_passes_tombstones_and_ties_unread() {
    on_each("a_page_passes_tombstones_and_ties_unread", |bench| {
        let like = bench.kind("like");
        for (table, whose, other) in
            [("incoming", "target", "source"), ("outgoing", "source", "target")]
        {
            let of = format!("{},{},9", TENANT.0, like.id.0);
            let insert = |rows: &[String]| {
                for rows in rows.chunks(5_000) {
                    bench.run(&format!(
                        "INSERT INTO {table} (tenant,kind,{whose},{other},version,state,since) \
                         VALUES {}",
                        rows.join(",")
                    ));
                }
            };
            let tombstone = |n| format!("({of},{n},256,2,{})", 1_000_000 + n);
            insert(&(0..TOMBSTONES).map(tombstone).collect::<Vec<String>>());
            // One time for all: an import gives many edges the same.
            let live = |n| format!("({of},{},256,0,500)", TOMBSTONES + n);
            insert(&(0..5_000).map(live).collect::<Vec<String>>());
        }
        bench.run("ANALYZE TABLE incoming; ANALYZE TABLE outgoing");
        let middle = PagePlace { since: Millis(500), id: TOMBSTONES + 2_500 };
        for direction in [Direction::Outgoing, Direction::Incoming] {
            let (tenant, kind, state) = (TENANT, like.id, State::Live);
            let timeline = Timeline { tenant, kind, direction, id: 9, state };
            for order in [Order::Newest, Order::Oldest] {
                for after in [None, Some(middle)] {
                    let range = TimeRange { order, after, ..TimeRange::default() };
                    for statement in list_statements(&timeline, &range, 20) {
                        reads_little(bench, &statement);
                    }
                }
            }
        }
        let query = ListQuery { limit: 20, ..list(TENANT, &like, Direction::Incoming, 9) };
        let page = bench.reader().list(&query).unwrap();
        let ids: Vec<u64> = page.items.iter().map(|item| item.id).collect();
        let newest: Vec<u64> = (0..20).map(|n| TOMBSTONES + 4_999 - n).collect();
        assert_eq!(ids, newest);
    });
}

/// At most about the rows that it shows, along the index and without a sort.
fn reads_little(bench: &Bench, statement: &str) {
    let mut session = bench.database.session(Instant::now() + PATIENCE).unwrap();
    let text = |row: &mysql_row::Row| mysql_row::text(row);
    if bench.database.dialect() == Dialect::TiDb {
        let plan = session.rows(&format!("EXPLAIN ANALYZE {statement}")).unwrap();
        let plan: Vec<Vec<String>> = plan.iter().map(text).collect();
        let scan = plan.iter().find(|line| line[0].contains("IndexRangeScan"));
        let scan = scan.unwrap_or_else(|| panic!("no range of the index: {plan:?}"));
        assert!(scan.join(" ").contains("by_time"), "{plan:?}");
        assert!(scan.join(" ").contains("keep order:true"), "{plan:?}");
        // The storage gives rows in blocks, of which a limit takes what it needs.
        let read: u64 = scan[2].parse().unwrap();
        assert!(read <= 1_024, "{read} rows were read: {plan:?}");
        assert!(!plan.iter().any(|line| line[0].contains("Sort")), "{plan:?}");
        return;
    }
    let plan = session.rows(&format!("EXPLAIN {statement}")).unwrap();
    let plan: Vec<String> = plan.iter().flat_map(text).collect();
    assert!(plan.contains(&"by_time".to_owned()), "{statement}: {plan:?}");
    assert!(!plan.iter().any(|cell| cell.contains("filesort")), "{statement}: {plan:?}");
    session.run(&format!("FLUSH STATUS;{statement}")).unwrap();
    let read = session.rows("SHOW SESSION STATUS LIKE 'Handler_read%'").unwrap();
    let read: u64 = read.iter().map(|row| text(row)[1].parse::<u64>().unwrap()).sum();
    assert!(read <= 40, "{read} rows were read by {statement}");
}

/// Rows of the driver, without naming it as a dependency of the tests.
mod mysql_row {
    pub use guanxi_cluster::sql::Row;

    pub fn text(row: &Row) -> Vec<String> {
        let cell = |index| row.get_opt::<Option<String>, usize>(index);
        (0..row.len())
            .map(|index| cell(index).and_then(Result::ok).flatten().unwrap_or_default())
            .collect()
    }
}

/// Edges that nobody touches appear exactly once on a walk beside writes.
#[test]
fn a_walk_beside_writes_shows_each_standing_edge_once() {
    on_each("a_walk_beside_writes_shows_each_standing_edge_once", |bench| {
        let like = bench.kind("like");
        for id in 0..60 {
            bench.put("incoming", &edge(&like, 1_000 + id, 5), &row(256, State::Live, 10 + id / 7));
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = fastrand::Rng::with_seed(1);
                while !done.load(Ordering::Acquire) {
                    let state = [State::Live, State::Removed][random.usize(..2)];
                    let moved = row(512, state, random.u64(8..22));
                    bench.put("incoming", &edge(&like, random.u64(1..40), 5), &moved);
                }
            });
            let query = ListQuery { limit: 7, ..list(TENANT, &like, Direction::Incoming, 5) };
            for order in [Order::Newest, Order::Oldest, Order::Newest] {
                let query = ListQuery { order, ..query.clone() };
                let walked = pages(&query, |query| bench.reader().list(query));
                let items: Vec<ListedEdge> =
                    walked.into_iter().flatten().flat_map(|page| page.items).collect();
                let mut standing: Vec<u64> =
                    items.iter().map(|item| item.id).filter(|id| *id >= 1_000).collect();
                standing.sort_unstable();
                let expected: Vec<u64> = (1_000..1_060).collect();
                if standing != expected {
                    done.store(true, Ordering::Release);
                    assert_eq!(standing, expected);
                }
            }
            done.store(true, Ordering::Release);
        });
    });
}

/// A page's total is of the same moment as its items.
#[test]
fn a_page_and_its_total_agree_beside_writes() {
    on_each("a_page_and_its_total_agree_beside_writes", |bench| {
        let like = bench.kind("like");
        let (kind, post) = (like.id.0, like.fixed.target_type.0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for id in 1..=60 {
                    bench.run(&format!(
                        "BEGIN;REPLACE INTO incoming (tenant,kind,target,source,version,state,since) \
                         VALUES (1,{kind},5,{id},256,0,{id});\
                         INSERT INTO tally (tenant,node_type,node,kind,slot,incoming) \
                         VALUES (1,{post},5,{kind},0,1) ON DUPLICATE KEY UPDATE incoming=incoming+1;\
                         COMMIT"
                    ));
                }
                done.store(true, Ordering::Release);
            });
            // Forward: see the module about backward scans in TiDB's embedded storage.
            let query = ListQuery {
                limit: 100,
                order: Order::Oldest,
                ..list(TENANT, &like, Direction::Incoming, 5)
            };
            while !done.load(Ordering::Acquire) && !writer.is_finished() {
                let page = bench.reader().list(&query).unwrap();
                assert_eq!(page.total, Some(page.items.len() as i64));
            }
        });
        let page = list(TENANT, &like, Direction::Incoming, 5);
        assert_eq!(bench.reader().list(&page).unwrap().total, Some(60));
    });
}

/// What is told before is read in one round trip, which leaves no connection behind.
#[test]
fn calls_of_one_round_trip_keep_no_connection() {
    on_each("calls_of_one_round_trip_keep_no_connection", |bench| {
        bench.load(4, 40);
        let follow = bench.kind("follow");
        let node = NodeKey { tenant: TENANT, node_type: follow.fixed.source_type, id: 1 };
        let readers: Vec<Reader> = (0..2 * CONNECTIONS_MAX).map(|_| bench.reader()).collect();
        let embedded = Reader::new(bench.embedded.snapshot(), &secret());
        for reader in &readers {
            assert_eq!(reader.tallies(&node), embedded.tallies(&node));
            let targets: Vec<TargetId> = (1..600).map(TargetId).collect();
            let kinds = [follow.clone()];
            let check = |reader: &Reader| reader.check(TENANT, SourceId(1), &targets, &kinds, true);
            assert_eq!(check(reader), check(&embedded));
        }
    });
}

/// The connection of a read whose time was over within its transaction is met by nobody: the next
/// would read that old moment, or could not begin.
#[test]
fn a_read_that_took_too_long_leaves_its_moment_to_nobody() {
    on_each("a_read_that_took_too_long_leaves_its_moment_to_nobody", |bench| {
        const LIMIT: Duration = Duration::from_secs(5);
        let follow = bench.kind("follow");
        let (late, never) = (edge(&follow, 70_001, 70_002), edge(&follow, 70_001, 70_003));
        let deadline = Instant::now() + LIMIT;
        let slow = SqlSnapshot::begin(&bench.database, bench.catalog(), deadline);
        assert_eq!(slow.edge(&late).unwrap(), None);
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        assert!(slow.edge(&never).is_err(), "its time is over");
        drop(slow);
        bench.put("outgoing", &late, &row(Version::at(Millis(1)).0, State::Live, 1));
        for _ in 0..CONNECTIONS_MAX {
            assert!(bench.snapshot().edge(&late).unwrap().is_some());
        }
    });
}
