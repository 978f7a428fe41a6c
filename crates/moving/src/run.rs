//! A move: everything that an embedded service holds goes into the cluster's tables while it
//! serves. First a snapshot (`load`), then the log's frames from there on (`tail`), then, with the
//! service's writes at rest, the last of them. How snapshot and frames get here, and when writes
//! rest, is the caller's affair.
//!
//! The tables say how far a move is (`facts`), in the same transactions as its rows, so one that
//! was cut off at any moment goes on. Until it is finished no instance opens the tables: there is
//! one writer. It writes only into tables that were empty, and empties only what it has written.

mod facts;
mod load;
mod snapshot;
mod tail;

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::instance::{ClusterError, ClusterSettings, migrate};
use guanxi_cluster::kafka::{BrokerError, KafkaSettings, Offsets};
use guanxi_cluster::memory::epoch;
use guanxi_cluster::move_phase::Phase;
use guanxi_cluster::sql::{Database, Session, SqlError};
use guanxi_cluster::{audit, secret};
use guanxi_core::audit::{AuditError, AuditWatch, Findings};
use guanxi_core::random::random;
use guanxi_core::signal::Signal;
use guanxi_core::snapshot::StoreError;
use guanxi_embedded::archive::ArchiveError;
use guanxi_embedded::store::{Applied, Store};

use super::store::{OwnedSlots, SqlStore};

use self::facts::Facts;
pub use self::snapshot::SnapshotFile;

/// How often work that the database did not take is tried again, and the first pause before it.
const TRIES_MAX: u32 = 6;
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait for another run to be gone.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// The connection with the lock says nothing for as long as a move takes.
const LOCK_SILENCE_SECONDS: u32 = 7 * 24 * 60 * 60;
/// How often an audit tells how far it is.
const AUDIT_LOOK: Duration = Duration::from_millis(50);

/// Told how much of the work is done; may stop it.
pub type TellMoved<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] BrokerError),
    #[error("{} cannot be read: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the snapshot: {0}")]
    Archive(#[from] ArchiveError),
    /// It is not for a move to touch what it did not write.
    #[error(
        "the database is not empty: the table {0} has rows that this move did not write (an instance \
         that has run leaves some). Move into an empty database, or empty this one if nobody needs it"
    )]
    NotEmpty(&'static str),
    #[error(
        "the topic {0} has records already: a move needs a topic that nobody has written; name \
         another one in log.topic"
    )]
    TopicUsed(String),
    #[error(
        "instances of this cluster are running: stop them first, and start them after the move"
    )]
    Instances,
    #[error(
        "another guanxi move writes into this cluster: let it come to its end, or stop it and run \
         this one again"
    )]
    Running,
    #[error("{0}")]
    Unfit(String),
    #[error("stopped before its end")]
    Stopped,
    /// With what to do.
    #[error("the tables could not be audited: {0}")]
    Audit(String),
}

/// How far the tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStanding {
    /// No move has written here, or one has to begin anew.
    Nothing,
    /// So many rows of a snapshot are there; it is known by when and where it was taken.
    Loading {
        created_ms: u64,
        position: u64,
        rows: u64,
    },
    /// The rows are those of this place in the service's log.
    Following(Applied),
    Done(Applied),
}

/// A move into one cluster.
#[derive(Debug)]
pub struct ClusterMove {
    database: Arc<Database>,
    kafka: KafkaSettings,
    facts: Facts,
    store: Option<SqlStore>,
    /// This run has found every table empty.
    is_empty: bool,
    /// Holds the lock that keeps other runs away; it ends with the connection.
    _alone: Session<'static>,
}

impl ClusterMove {
    /// Makes the tables and topics where they are missing, and looks how far a move is. One run at
    /// a time.
    pub fn open(settings: &ClusterSettings) -> Result<ClusterMove, MoveError> {
        let alone = keep_others_away(settings)?;
        migrate(settings)?;
        let database = settings.database().map_err(ClusterError::from)?;
        let facts = Facts::read(&database)?;
        let kafka = settings.kafka.clone();
        let mut opened =
            ClusterMove { database, kafka, facts, store: None, is_empty: false, _alone: alone };
        if matches!(opened.facts.phase, Some(Phase::Following | Phase::Done)) {
            opened.open_store()?;
        }
        Ok(opened)
    }

    /// The move's own number; 0 before it has the tables.
    pub fn id(&self) -> u64 {
        self.facts.id
    }

    pub fn standing(&self) -> MoveStanding {
        let Facts { created_ms, position, rows, .. } = self.facts;
        match self.facts.phase {
            None | Some(Phase::Claiming | Phase::Clearing) => MoveStanding::Nothing,
            Some(Phase::Loading) => MoveStanding::Loading { created_ms, position, rows },
            Some(Phase::Following) => MoveStanding::Following(self.applied()),
            Some(Phase::Done) => MoveStanding::Done(self.applied()),
        }
    }

    /// The place in the service's log that the rows are of.
    pub fn applied(&self) -> Applied {
        self.store.as_ref().map_or(Applied::NOTHING, Store::applied)
    }

    /// Takes the tables, if they are new or a move's that is not finished: from now on they have
    /// its number, and no instance opens them.
    pub fn take_tables(&mut self) -> Result<(), MoveError> {
        if !matches!(self.facts.phase, None | Some(Phase::Claiming)) {
            return Ok(());
        }
        let claimed = self.claim();
        if claimed.is_err() && self.facts.phase.is_some() {
            self.facts = Facts::default();
            if let Err(error) = facts::forget(&self.database) {
                tracing::warn!(%error, "no instance starts until the move is run once more");
            }
        }
        claimed
    }

    /// Says first that the tables are taken, and then looks whether they may be: an instance that
    /// starts at the same moment says so too before it looks, so at least one sees the other. The
    /// look before spares those who use the tables a word that would have to be taken back.
    fn claim(&mut self) -> Result<(), MoveError> {
        self.refuse_used()?;
        self.facts =
            Facts { phase: Some(Phase::Claiming), id: random().max(1), ..Facts::default() };
        self.facts.write(&self.database)?;
        self.refuse_used()?;
        self.is_empty = true;
        self.facts.phase = Some(Phase::Clearing);
        self.facts.write(&self.database)
    }

    /// Gives tables back that this run took and has not written into: nobody waits for its end.
    pub fn give_back(&mut self) -> Result<(), MoveError> {
        if std::mem::take(&mut self.is_empty) {
            self.facts = Facts::default();
            facts::forget(&self.database)?;
        }
        Ok(())
    }

    /// Begins with this snapshot: what an unfinished move has written goes; anything else is
    /// refused.
    pub fn begin(&mut self, snapshot: &SnapshotFile) -> Result<(), MoveError> {
        if self.facts.phase == Some(Phase::Done) {
            return Err(MoveError::Unfit("the move into this cluster is done".into()));
        }
        self.take_tables()?;
        self.store = None;
        self.facts = Facts { phase: Some(Phase::Clearing), id: self.facts.id, ..Facts::default() };
        self.facts.write(&self.database)?;
        // The tokens of the service are to be good in the cluster.
        secret::adopt(&self.database, &snapshot.header().secret)?;
        if !std::mem::take(&mut self.is_empty) {
            facts::clear_tables(&self.database)?;
        }
        self.facts.phase = Some(Phase::Loading);
        self.facts.created_ms = snapshot.header().created.0;
        self.facts.position = snapshot.header().base.position().0;
        self.facts.write(&self.database)
    }

    /// Refuses a cluster that is not new.
    fn refuse_used(&self) -> Result<(), MoveError> {
        facts::refuse_rows(&self.database)?;
        let KafkaSettings { topic, partitions, .. } = &self.kafka;
        let ends = Offsets::open(&self.kafka)?.all_of_new(topic, *partitions)?;
        match ends.iter().any(|ends| ends.end > 0) {
            true => Err(MoveError::TopicUsed(topic.clone())),
            false => Ok(()),
        }
    }

    fn open_store(&mut self) -> Result<(), MoveError> {
        self.store = Some(SqlStore::open_with(&self.database, self.owned())?);
        Ok(())
    }

    fn owned(&self) -> OwnedSlots {
        OwnedSlots::ByTarget { partitions: self.kafka.partitions }
    }

    /// From now on every version that the cluster gives out is above those of the service.
    pub fn raise_floor(&self) -> Result<(), MoveError> {
        let floor = self.applied().version.head().plus(1);
        facts::raise_floor(&self.database, floor)
    }

    /// The service takes no more writes, and the tables have all of them: instances may serve.
    pub fn finish(&mut self) -> Result<(), MoveError> {
        // What instances on these tables, before they were filled, left in a Redis.
        epoch::raise(&self.database)?;
        self.facts.phase = Some(Phase::Done);
        self.facts.write(&self.database)
    }

    /// Holds everything in the tables against the edges, as the cluster's own audit does.
    pub fn audit(&self, progress: &mut TellMoved<'_>) -> Result<Findings, MoveError> {
        let catalog = SharedCatalog::open(&self.database)?;
        let signal = Signal::default();
        let watch = AuditWatch::new(signal.clone());
        let (topic, partitions) = (self.kafka.topic.clone(), self.kafka.partitions);
        let database = self.database.clone();
        std::thread::scope(|scope| {
            let looking =
                scope.spawn(|| audit::look_at(database, catalog, topic, partitions, &watch));
            while !looking.is_finished() {
                if progress(watch.rows_read()).is_break() {
                    signal.stop();
                }
                std::thread::sleep(AUDIT_LOOK);
            }
            match looking.join() {
                Ok(Ok(findings)) => Ok(findings),
                Ok(Err(AuditError::Stopped)) => Err(MoveError::Stopped),
                Ok(Err(error)) => Err(MoveError::Audit(error.to_string())),
                Err(_) => Err(MoveError::Audit("the audit panicked".into())),
            }
        })
    }
}

/// What is written is guarded by the place that stands in the tables; this tells whoever runs two
/// moves at once before both have worked for hours.
fn keep_others_away(settings: &ClusterSettings) -> Result<Session<'static>, MoveError> {
    let database =
        Database::open_with(&settings.url, &settings.tls, 1).map_err(ClusterError::from)?;
    let mut session = database.kept_session(Instant::now() + LOCK_WAIT)?;
    // A run that was killed a moment ago may not be gone yet at the database.
    let locked = session.run(&format!(
        "SET SESSION wait_timeout = {LOCK_SILENCE_SECONDS}; \
         SELECT GET_LOCK(CONCAT('guanxi.move.', MD5(DATABASE())), {})",
        LOCK_WAIT.as_secs()
    ))?;
    let locked = locked.last().and_then(|set| set.rows.first());
    match locked.and_then(|row| row.get::<i64, _>(0)) {
        Some(1) => Ok(session),
        _ => Err(MoveError::Running),
    }
}

/// The pause before a try after so many.
fn pause_before(tries: u32) -> Duration {
    RETRY_PAUSE * 2_u32.pow(tries.min(TRIES_MAX))
}
