//! One instance of a cluster: opens the database and the log, runs the parts that its roles name,
//! and is what the protocols ask. It keeps nothing of its own: any instance may end at any time.

mod probe;
mod token;

pub use self::probe::{ClusterStatus, Reach};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guanxi_model::idempotency::Answers;
use guanxi_model::{Catalog, Change, ClusterToken, Code, Error};

use self::probe::Probe;
use super::catalog::{CatalogWatch, SharedCatalog};
use super::commit::{SqlCommitSettings, SqlCommitter, SqlCommitterParts};
use super::kafka::{self, KafkaSettings, TopicError};
use super::leases::Leases;
use super::schema::{self, SchemaError};
use super::seen::{SeenEdge, wait_for_seen};
use super::snapshot::SqlSnapshot;
use super::sql::{Database, SqlError};
use super::value;
use crate::clock::{Clock, SystemClock};
use crate::commit::Request;
use crate::read::Reader;

/// How long a stop waits for the relay to move what was committed into the log. Another instance
/// moves what is left.
const LAST_RELAY_WAIT: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const LAST_RELAY_LOOK: Duration = Duration::from_millis(20);

/// What an instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Serves callers.
    pub api: bool,
    /// Moves the outbox into the log.
    pub relay: bool,
    /// Brings the log to the target's side.
    pub applier: bool,
    /// Expiry, jobs and clean-up.
    pub upkeep: bool,
}

impl Roles {
    pub const NONE: Roles = Roles { api: false, relay: false, applier: false, upkeep: false };

    pub fn names(self) -> Vec<&'static str> {
        let roles = [
            ("api", self.api),
            ("relay", self.relay),
            ("applier", self.applier),
            ("upkeep", self.upkeep),
        ];
        roles.into_iter().filter(|(_, plays)| *plays).map(|(name, _)| name).collect()
    }
}

#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// May hold a password: it is for the driver alone.
    pub url: String,
    pub connections_max: usize,
    pub kafka: KafkaSettings,
    /// The topic of a TiCDC changefeed, read in place of what our relay sends.
    pub ticdc_topic: Option<String>,
    pub roles: Roles,
    /// The low byte of versions: which region gave them out.
    pub region: u8,
    pub commit: SqlCommitSettings,
}

/// Why an instance could not start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("{0}; check store.url and that the database runs")]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Topics(#[from] TopicError),
    #[error("could not start: {0}")]
    Start(#[from] std::io::Error),
}

/// What `migrate` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The versions of the tables that it added.
    pub versions: Vec<u32>,
    /// The version that the tables have now.
    pub version: u32,
    /// The topics that it created.
    pub topics: Vec<String>,
}

/// Makes tables and topics, or brings them up to this release.
pub fn migrate(settings: &ClusterSettings) -> Result<Migrated, ClusterError> {
    let database = Database::open(&settings.url, settings.connections_max)?;
    let versions = schema::migrate(&database)?;
    let topics = kafka::create_topics(&settings.kafka)?;
    Ok(Migrated { versions, version: schema::known(), topics })
}

pub struct Cluster {
    settings: ClusterSettings,
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    catalog_watch: CatalogWatch,
    /// Where callers are served or chores done.
    committer: Option<Arc<SqlCommitter>>,
    leases: Arc<Leases>,
    probe: Probe,
    /// Transactions that were committed.
    batches: Arc<AtomicU64>,
    closed: Mutex<bool>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("roles", &self.settings.roles).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Connects, checks tables and topics, and starts what the roles name. The log may be away:
    /// writes and the source's side do without it for a while.
    pub fn open(settings: ClusterSettings) -> Result<Arc<Cluster>, ClusterError> {
        let database = Database::open(&settings.url, settings.connections_max)?;
        schema::check(&database)?;
        match kafka::check_topics(&settings.kafka) {
            Err(TopicError::Log(error)) if error.may_pass() => {
                tracing::warn!(%error, "the log cannot be reached; it is tried again and again");
            }
            checked => checked?,
        }
        let catalog = SharedCatalog::open(&database)?;
        let catalog_watch = CatalogWatch::start(catalog.clone(), database.clone())?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let instance = random_id();
        let leases = Leases::start(database.clone(), instance)?;
        let batches = Arc::new(AtomicU64::new(0));
        let committed = {
            let batches = batches.clone();
            Arc::new(move || {
                batches.fetch_add(1, Ordering::Relaxed);
            })
        };
        let roles = settings.roles;
        let committer = match roles.api || roles.upkeep {
            true => Some(Arc::new(SqlCommitter::start(SqlCommitterParts {
                database: database.clone(),
                catalog: catalog.clone(),
                clock: clock.clone(),
                settings: settings.commit,
                region: settings.region,
                committed,
                instance,
                encode: value::encode,
            })?)),
            false => None,
        };
        let probe = Probe::start(database.clone(), settings.kafka.clone())?;
        Ok(Arc::new(Cluster {
            settings,
            database,
            catalog,
            catalog_watch,
            committer,
            leases,
            probe,
            batches,
            closed: Mutex::new(false),
        }))
    }

    pub fn roles(&self) -> Roles {
        self.settings.roles
    }

    /// The kinds as this instance knows them, at most seconds old.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.current()
    }

    /// Does the request's changes; resolves when they are durable. The token names what others may
    /// not see yet.
    pub async fn write(
        &self,
        request: Request,
        deadline: Instant,
    ) -> Result<(Answers, ClusterToken), Error> {
        let mut token = token::of_changes(request.tenant, &request.changes);
        let of_catalog = request.changes.iter().any(changes_catalog);
        let Some(committer) = &self.committer else {
            return Err(Error::new(Code::Unavailable, "this instance does not take writes"));
        };
        let written = committer.write(request, deadline).await?;
        for seen in &written.seen {
            token.add_edge(guanxi_model::token::cluster::TokenEdge::of(&seen.edge, seen.version));
        }
        if of_catalog {
            token.add_catalog(self.catalog.revision());
        }
        Ok((written.answers, token))
    }

    /// One picture of the rows, with at least what the token stands for. Asks the database: for
    /// threads that may block.
    pub fn reader(
        &self,
        token: Option<&ClusterToken>,
        deadline: Instant,
    ) -> Result<Reader, Error> {
        let mut late = Vec::new();
        if let Some(token) = token {
            let seen = token.edges().iter();
            let seen: Vec<SeenEdge> = seen
                .map(|edge| SeenEdge { edge: edge.key(token.tenant), version: edge.version })
                .collect();
            let all = seen.is_empty()
                || wait_for_seen(&self.database, &seen, deadline).map_err(unanswered)?;
            if !all {
                late = seen;
            }
        }
        let snapshot = SqlSnapshot::begin(&self.database, self.catalog.current(), deadline);
        let snapshot = snapshot.map_err(unanswered)?.with_seen(&late);
        Ok(Reader::new(Box::new(snapshot)))
    }

    pub fn status(&self) -> ClusterStatus {
        let committer = self.committer.as_ref();
        ClusterStatus {
            roles: self.settings.roles,
            queue_len: committer.map_or(0, |committer| committer.queue_len()),
            queue_max: self.settings.commit.queue_max,
            batches: self.batches.load(Ordering::Relaxed),
            catalog_revision: self.catalog.revision(),
            ..self.probe.status()
        }
    }

    /// Takes no more writes, serves those that wait, lets the relay send what they left, and gives
    /// the leases back.
    pub fn close(&self) {
        let mut closed = self.closed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if std::mem::replace(&mut *closed, true) {
            return;
        }
        if let Some(committer) = &self.committer {
            committer.close();
        }
        self.leases.close();
        self.catalog_watch.close();
        self.probe.close();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

fn changes_catalog(change: &Change) -> bool {
    matches!(change, Change::CreateKind { .. } | Change::SetKind { .. })
}

/// The driver's words go to the log of the service, never to a caller.
fn unanswered(error: SqlError) -> Error {
    tracing::error!(%error, "the database did not answer");
    match error.may_pass() {
        true => Error::new(Code::Unavailable, "the database did not answer; try again"),
        false => Error::new(Code::Internal, "the database refused a statement; it was logged"),
    }
}

/// Unlike any other instance's.
fn random_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
