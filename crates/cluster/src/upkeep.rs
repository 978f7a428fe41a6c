//! Upkeep: the chores of a cluster. Each is leased, so that one instance does it; each goes in
//! small steps with pauses between, and stops within one of them. A chore that two instances did
//! at once, because a lease ran out unseen, would only be work done twice. An instance whose clock is
//! off could do none of them rightly, and leaves them to the others.

mod expiry;
mod jobs;
mod leftovers;
mod tombstones;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::audit::AuditWatch;
use guanxi_core::backoff::Backoff;
use guanxi_core::clock::{Clock, SteadyClock};
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::{Next, Signal};
use guanxi_model::{Change, Code, Error, Request, TenantId};

use super::audit::SqlAuditor;
use super::catalog::SharedCatalog;
use super::commit::{SqlCommitter, SqlWritten};
use super::kafka::KafkaSettings;
use super::leases::{Leases, Share};
use super::rows::cell;
use super::sql::text::NOW_MS;
use super::sql::{Database, Session, SqlError};

/// The chores, as their leases are named.
const CHORES: [&str; 5] = ["expiry", "jobs", "tombstones", "leftovers", "scrub"];
/// The group of their leases.
const GROUP: &str = "upkeep";
/// How long a chore's write may wait in the queue, and a statement for a connection.
const CHORE_DEADLINE: Duration = Duration::from_secs(10);
/// Between two passes of the scrubber.
const SCRUB_INTERVAL: Duration = Duration::from_secs(60);
/// How often the others look what the scrubber has found, and whether it is their turn.
const HEAR_INTERVAL: Duration = Duration::from_secs(2);
/// How often an instance looks whether a chore has become its own.
const LEASE_LOOK: Duration = Duration::from_millis(500);

pub struct UpkeepParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub committer: Arc<SqlCommitter>,
    pub leases: Arc<Leases>,
    pub clock: Arc<SteadyClock>,
    pub auditor: Arc<SqlAuditor>,
    /// The log, whose topics' retention says for how long late records may come.
    pub kafka: KafkaSettings,
    /// A changefeed's topic that is applied too, or instead.
    pub changefeed: Option<String>,
    pub settings: UpkeepSettings,
}

impl std::fmt::Debug for UpkeepParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpkeepParts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct UpkeepSettings {
    /// Rows that the clean-up of tombstones looks at in a second.
    pub clean_rows_per_second: u64,
    /// Between two passes of the clean-up.
    pub clean_interval: Duration,
}

impl Default for UpkeepSettings {
    fn default() -> UpkeepSettings {
        let clean_interval = Duration::from_secs(600);
        UpkeepSettings { clean_rows_per_second: 5_000, clean_interval }
    }
}

/// What one chore works with.
struct Chore {
    parts: Arc<UpkeepParts>,
    share: Arc<Share>,
    signal: Signal,
    /// Its place among the chores.
    index: usize,
}

/// Starts all chores. Finished, each ends after its present step.
pub fn start(parts: UpkeepParts) -> io::Result<Workers> {
    let names = CHORES.map(str::to_owned).to_vec();
    let share = Arc::new(parts.leases.share(GROUP, names));
    let workers = parts.crew.workers();
    let parts = Arc::new(parts);
    let works: [fn(&Chore); 5] = [expiry::run, jobs::run, tombstones::run, leftovers::run, scrub];
    for (index, work) in works.into_iter().enumerate() {
        let (parts, share, signal) = (parts.clone(), share.clone(), workers.signal().clone());
        let chore = Chore { parts, share, signal, index };
        workers.spawn(format!("guanxi-{}", CHORES[index]), move |_| work(&chore))?;
    }
    Ok(workers)
}

/// Why a chore does not go on for now.
#[derive(Debug, thiserror::Error)]
enum ChoreHalt {
    #[error("the service stops, or another instance has taken over")]
    Over,
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error("{0}")]
    Refused(Error),
    #[error("{0}")]
    Log(String),
}

impl Chore {
    /// Does `work` every `interval` for as long as this instance holds the chore's lease; `work`
    /// says whether there is more to do at once.
    fn repeat(&self, interval: Duration, mut work: impl FnMut(&Chore) -> Result<bool, ChoreHalt>) {
        self.signal.repeat("a chore could not go on", Backoff::default(), || {
            self.step_aside_if_off();
            if !self.is_mine() {
                return Ok(Next::After(LEASE_LOOK));
            }
            match work(self) {
                Ok(true) => Ok(Next::Now),
                Ok(false) => Ok(Next::After(interval)),
                Err(ChoreHalt::Over) => Ok(Next::After(LEASE_LOOK)),
                Err(error) => Err(error),
            }
        });
    }

    /// Leaves the chores to the others while this instance's clock is off: it may not write, or
    /// would remove late what is due.
    fn step_aside_if_off(&self) {
        let UpkeepParts { committer, clock, leases, .. } = &*self.parts;
        let off = committer.clock_check().check().is_err() || clock.held_back_ms().is_some();
        leases.step_aside(&[GROUP], off);
    }

    fn is_mine(&self) -> bool {
        self.share.lease(self.index).is_some()
    }

    /// Between two steps.
    fn go_on(&self) -> Result<(), ChoreHalt> {
        match self.is_mine() && !self.signal.is_stopped() {
            true => Ok(()),
            false => Err(ChoreHalt::Over),
        }
    }

    fn pause(&self, time: Duration) -> Result<(), ChoreHalt> {
        match self.signal.wait(time) {
            true => Err(ChoreHalt::Over),
            false => self.go_on(),
        }
    }

    /// The time by which something may be removed: no later than the database's clock says, so
    /// that one of the two may be wrong.
    fn now_ms(&self) -> Result<u64, ChoreHalt> {
        let rows = self.session()?.rows(&format!("SELECT {NOW_MS}"))?;
        let theirs: u64 = rows.first().map_or(Ok(0), |row| cell(row, 0))?;
        Ok(theirs.min(self.parts.clock.now_ms()))
    }

    fn session(&self) -> Result<Session<'_>, SqlError> {
        self.parts.database.session(Instant::now() + CHORE_DEADLINE)
    }

    /// Writes through the normal path.
    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> Result<SqlWritten, ChoreHalt> {
        let request = Request::new(tenant, changes);
        loop {
            let deadline = Instant::now() + CHORE_DEADLINE;
            match self.parts.committer.write_waiting(request.clone(), deadline) {
                Ok(written) => return Ok(written),
                Err(error) if error.code == Code::Overloaded => {
                    self.pause(Duration::from_millis(100))?;
                }
                Err(error) => return Err(ChoreHalt::Refused(error)),
            }
        }
    }

    /// Statements in a transaction of their own, tried again when others were in the way.
    fn transact(&self, statements: &str) -> Result<u64, ChoreHalt> {
        loop {
            let done = self.session()?.run(&format!("BEGIN;{statements};COMMIT"));
            match done {
                Ok(sets) => return Ok(sets.iter().map(|set| set.changed).sum()),
                Err(SqlError::Busy(_)) => {
                    self.pause(Duration::from_millis(fastrand::u64(5..50)))?
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The scrubber: a slow audit of everything, always on. Who does not do it hears of it.
fn scrub(chore: &Chore) {
    let auditor = &chore.parts.auditor;
    let backoff = Backoff::new(HEAR_INTERVAL, SCRUB_INTERVAL);
    chore.signal.repeat("the scrubber could not go on", backoff, || {
        if chore.is_mine() && auditor.scrubs() {
            let watch = AuditWatch::new(chore.signal.clone());
            return auditor.scrub(&watch).map(|_| Next::After(SCRUB_INTERVAL));
        }
        auditor.hear().map(|_| Next::After(HEAR_INTERVAL))
    });
}
