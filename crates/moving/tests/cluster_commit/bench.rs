//! Databases with the cluster's tables, and instances that write to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::catalog::{CatalogWatch, SharedCatalog};
use guanxi_cluster::commit::{SqlCommitSettings, SqlCommitter, SqlCommitterParts, SqlWritten};
use guanxi_cluster::outbox::Unrelayed;
use guanxi_cluster::schema;
use guanxi_cluster::sql::Database;
use guanxi_core::clock::{Clock, SystemClock};
use guanxi_core::crew::Crew;
use guanxi_model::answer::EdgeAnswer;
use guanxi_model::change::Put;
use guanxi_model::{
    Answer, Change, EdgeKey, Error, KindId, NodeTypeId, Request, SourceId, TargetId, TenantId,
};
use guanxi_services::{fresh_database, shared};

pub const TENANT: TenantId = TenantId::DEFAULT;
pub const FOLLOW: KindId = KindId(1);
pub const BLOCK: KindId = KindId(4);
pub const USER: NodeTypeId = NodeTypeId(1);

/// Longer than any write takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 12;
pub const REGION: u8 = 7;

/// A fresh database on each server that is there.
pub fn databases(test: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if let Some(server) = shared::mariadb_or_skip(test) {
        found.push(("MariaDB", fresh_database(server)));
    }
    if let Some(server) = shared::tidb_or_skip(test) {
        found.push(("TiDB", fresh_database(server)));
    }
    for (_, url) in &found {
        schema::migrate(&connect(url)).expect("the tables");
    }
    found
}

pub fn connect(url: &str) -> Arc<Database> {
    Database::open(url, CONNECTIONS).expect("a database")
}

/// One process as the database sees it.
pub struct Instance {
    pub committer: SqlCommitter,
    pub catalog: Arc<SharedCatalog>,
    pub database: Arc<Database>,
    _watch: Option<CatalogWatch>,
}

impl Instance {
    pub fn start(url: &str) -> Instance {
        Instance::start_with(url, Arc::new(SystemClock), SqlCommitSettings::default())
    }

    /// One whose copy of the catalog nobody keeps fresh.
    pub fn start_unwatched(url: &str) -> Instance {
        Instance::begin(url, Arc::new(SystemClock), SqlCommitSettings::default())
    }

    pub fn start_with(url: &str, clock: Arc<dyn Clock>, settings: SqlCommitSettings) -> Instance {
        let begun = Instance::begin(url, clock, settings);
        let (catalog, database) = (begun.catalog.clone(), begun.database.clone());
        let watch = CatalogWatch::start(&Crew::default(), catalog, database).expect("a watch");
        Instance { _watch: Some(watch), ..begun }
    }

    fn begin(url: &str, clock: Arc<dyn Clock>, settings: SqlCommitSettings) -> Instance {
        let database = connect(url);
        let catalog = SharedCatalog::open(&database).expect("the catalog");
        let parts = SqlCommitterParts {
            crew: Crew::default(),
            database: database.clone(),
            catalog: catalog.clone(),
            steady: clock.clone(),
            clock,
            settings,
            region: REGION,
            outgoing: Arc::new(Unrelayed),
            memory: None,
            instance: fastrand::u64(..),
        };
        let committer = SqlCommitter::start(parts).expect("a committer");
        Instance { committer, catalog, database, _watch: None }
    }

    pub fn write(&self, request: Request) -> Result<SqlWritten, Error> {
        self.committer.write_waiting(request, Instant::now() + PATIENCE)
    }

    /// One change; a refusal of it and a failed request are both errors.
    pub fn change(&self, change: Change) -> Result<Answer, Error> {
        let mut written = self.write(Request::one(TENANT, change))?;
        written.answers.pop().expect("an answer")
    }

    pub fn put(&self, edge: EdgeKey) -> Result<EdgeAnswer, Error> {
        match self.change(Change::Put(Put::plain(edge)))? {
            Answer::Edge(answer) => Ok(answer),
            other => panic!("a put is answered {other:?}"),
        }
    }
}

pub fn edge(kind: KindId, source: u64, target: u64) -> EdgeKey {
    EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(target) }
}
