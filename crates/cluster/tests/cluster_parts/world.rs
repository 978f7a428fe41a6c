//! What the tests of the cluster's chores share: real databases, instances on them, and a look at
//! their tables.
#![allow(dead_code, reason = "each test program uses its part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::commit::{SqlCommitSettings, SqlCommitter, SqlCommitterParts};
use guanxi_cluster::memory::SharedMemory;
use guanxi_cluster::outbox::Unrelayed;
use guanxi_cluster::schema;
use guanxi_cluster::sql::{Database, SqlError};
use guanxi_core::clock::{Clock, SystemClock};
use guanxi_core::crew::Crew;
use guanxi_model::change::Put;
use guanxi_model::{
    Answer, Change, EdgeKey, Error, KindId, NodeTypeId, Region, Request, SourceId, TargetId,
    TenantId,
};
use guanxi_services::{fresh_database, shared};

pub const TENANT: TenantId = TenantId::DEFAULT;
pub const FOLLOW: KindId = KindId(1);
pub const LIKE: KindId = KindId(2);
pub const VIEW: KindId = KindId(5);
pub const USER: NodeTypeId = NodeTypeId(1);
pub const POST: NodeTypeId = NodeTypeId(2);

/// Connections of one instance.
const CONNECTIONS_MAX: usize = 8;
/// Connections that a killed one may have to be told from, all of a pool and a new one.
const CONNECTIONS_ASKED_MAX: usize = CONNECTIONS_MAX + 1;
/// How long a condition is waited for: a filter is filled in half a minute, and anew where a busy
/// machine loses the lease meanwhile.
const PATIENCE: Duration = Duration::from_secs(180);

/// An empty, migrated database on each server that is there: its name and its URL.
pub fn databases(test: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if let Some(server) = shared::mariadb_or_skip(test) {
        found.push(("MariaDB", fresh_database(server)));
    }
    if let Some(server) = shared::tidb_or_skip(test) {
        found.push(("TiDB", fresh_database(server)));
    }
    for (_, url) in &found {
        schema::migrate(&open(url)).unwrap();
    }
    found
}

pub fn open(url: &str) -> Arc<Database> {
    Database::open(url, CONNECTIONS_MAX).unwrap()
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub fn now_ms() -> u64 {
    SystemClock.now_ms()
}

/// The machine's clock, set forward.
#[derive(Debug, Default)]
pub struct AheadClock(AtomicU64);

impl AheadClock {
    pub fn set(&self, by_ms: u64) {
        self.0.store(by_ms, Ordering::SeqCst);
    }
}

impl Clock for AheadClock {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms() + self.0.load(Ordering::SeqCst)
    }

    fn since_boot_ms(&self) -> u64 {
        SystemClock.since_boot_ms()
    }

    fn boot_id(&self) -> String {
        SystemClock.boot_id()
    }
}

/// An instance that takes writes.
pub struct Instance {
    pub number: u64,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub committer: Arc<SqlCommitter>,
}

impl Instance {
    pub fn start(url: &str, number: u64) -> Instance {
        Instance::start_with(url, number, None)
    }

    /// With a memory that is told of edges.
    pub fn start_with(url: &str, number: u64, memory: Option<Arc<SharedMemory>>) -> Instance {
        Instance::begin(url, number, memory, Arc::new(SystemClock))
    }

    /// By another clock than the machine's.
    pub fn start_by(url: &str, number: u64, clock: Arc<dyn Clock>) -> Instance {
        Instance::begin(url, number, None, clock)
    }

    fn begin(
        url: &str,
        number: u64,
        memory: Option<Arc<SharedMemory>>,
        clock: Arc<dyn Clock>,
    ) -> Instance {
        let database = open(url);
        let catalog = SharedCatalog::open(&database).unwrap();
        let committer = SqlCommitter::start(SqlCommitterParts {
            crew: Crew::default(),
            database: database.clone(),
            catalog: catalog.clone(),
            steady: clock.clone(),
            clock,
            settings: SqlCommitSettings::default(),
            region: Region::default(),
            outgoing: Arc::new(Unrelayed),
            memory,
            instance: number,
        });
        let committer = Arc::new(committer.unwrap());
        Instance { number, database, catalog, committer }
    }

    pub fn write(&self, change: Change) -> Result<Answer, Error> {
        let written = self.committer.write_waiting(Request::one(TENANT, change), soon())?;
        written.answers.into_iter().next().unwrap()
    }

    pub fn write_all(&self, changes: Vec<Change>) {
        for changes in changes.chunks(200) {
            let request = Request::new(TENANT, changes.to_vec());
            let written = self.committer.write_waiting(request, soon()).unwrap();
            for answer in written.answers {
                answer.unwrap();
            }
        }
    }
}

pub fn edge(kind: KindId, source: u64, target: u64) -> EdgeKey {
    EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(target) }
}

pub fn put(kind: KindId, source: u64, target: u64) -> Change {
    Change::Put(Put::plain(edge(kind, source, target)))
}

/// The first column of the first row, as a number. A connection that a test has killed while it was
/// idle says so only when it is used, so another one is asked then.
pub fn number(database: &Database, statement: &str) -> i64 {
    let mut asked = (0..CONNECTIONS_ASKED_MAX).map(|_| {
        let mut session = database.session(soon())?;
        session.rows(statement)
    });
    let rows = loop {
        match asked.next().expect("a connection that was not killed") {
            Err(SqlError::Lost(_)) => {}
            rows => break rows.unwrap(),
        }
    };
    let row = rows.first().unwrap_or_else(|| panic!("no row: {statement}"));
    row.get_opt::<i64, _>(0).unwrap().unwrap_or_else(|_| panic!("no number: {statement}"))
}

/// Statements of a test's own, in one transaction.
pub fn run(database: &Database, statements: &str) {
    database.session(soon()).unwrap().run(&format!("BEGIN;{statements};COMMIT")).unwrap();
}

/// Waits for a condition; fails the test when it does not come.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
