//! What calls wait for at the database: barriers that have not passed, and kinds that are new. One
//! thread looks for all who wait, so that the database is asked as often for a thousand of them as
//! for one; those who wait hold a place and no thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::{Next, Signal};
use guanxi_model::{BarrierId, Code, Error};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::barrier::{self, BarrierStanding};
use crate::catalog::SharedCatalog;
use crate::sql::{Database, SqlError};

/// Calls that may wait at a moment. Each is an open request, and a number in the one statement that
/// looks for all.
pub const WAITS_MAX: usize = 512;
/// Between two looks: while somebody has just come, and later.
const LOOK_SOON: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(100);
/// How long a look may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// A barrier of this id.
    Barrier(BarrierId),
    /// A catalog of at least this revision.
    Catalog(u64),
    /// The catalog as it stands, for names that this instance does not know.
    Names,
}

impl Awaited {
    fn too_late(self) -> &'static str {
        match self {
            Awaited::Barrier(_) | Awaited::Catalog(_) => {
                "what the token stands for is not here yet; try again shortly"
            }
            Awaited::Names => "the database did not tell in time which kinds there are; try again",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitOutcome {
    Met,
    /// The database has never heard of it.
    Never,
    /// It could not be asked.
    Unanswered,
}

#[derive(Debug)]
struct WaitingCall {
    awaited: Awaited,
    since: Instant,
    answer: oneshot::Sender<WaitOutcome>,
}

#[derive(Debug, Default)]
struct WaitingCalls {
    /// By the order in which they came.
    waiting: BTreeMap<u64, WaitingCall>,
    last: u64,
}

#[derive(Debug)]
struct WaitsShared {
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    partitions: u32,
    state: Mutex<WaitingCalls>,
    signal: Signal,
}

#[derive(Debug)]
pub(super) struct TokenWaits {
    shared: Arc<WaitsShared>,
    workers: Workers,
}

/// Given back when its holder waits no more.
struct WaitPermit<'a> {
    shared: &'a WaitsShared,
    number: u64,
}

impl Drop for WaitPermit<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().waiting.remove(&self.number);
    }
}

impl TokenWaits {
    pub fn start(
        crew: &Crew,
        database: Arc<Database>,
        catalog: Arc<SharedCatalog>,
        partitions: u32,
    ) -> io::Result<TokenWaits> {
        let workers = crew.workers();
        let (state, signal) = (Mutex::default(), workers.signal().clone());
        let shared = Arc::new(WaitsShared { database, catalog, partitions, state, signal });
        let own = shared.clone();
        let (trouble, backoff) = ("barriers and kinds could not be looked for", Backoff::default());
        workers.repeat("guanxi-tokens", trouble, backoff, move |_| own.look_for_all())?;
        Ok(TokenWaits { shared, workers })
    }

    pub async fn wait(&self, awaited: Awaited, until: Instant) -> Result<(), Error> {
        let (answer, found) = oneshot::channel();
        let _place = self.shared.enter(awaited, answer)?;
        match tokio::time::timeout_at(until.into(), found).await {
            Ok(Ok(WaitOutcome::Met)) => Ok(()),
            Ok(Ok(WaitOutcome::Never)) => Err(Error::new(
                Code::PositionExpired,
                "what the token stands for is not of this cluster, or of a later state of it than \
                 was restored; read without it",
            )),
            Ok(Ok(WaitOutcome::Unanswered)) => {
                Err(Error::new(Code::Unavailable, "the database did not answer; try again"))
            }
            Ok(Err(_closed)) => Err(Error::new(Code::Unavailable, "the service is stopping")),
            Err(_elapsed) => Err(Error::new(Code::Unavailable, awaited.too_late())),
        }
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.shared.signal.stop();
        self.shared.state.lock().waiting.clear();
        self.workers.stop();
    }
}

impl Drop for TokenWaits {
    fn drop(&mut self) {
        self.close();
    }
}

impl WaitsShared {
    fn enter(
        &self,
        awaited: Awaited,
        answer: oneshot::Sender<WaitOutcome>,
    ) -> Result<WaitPermit<'_>, Error> {
        let mut state = self.state.lock();
        if state.waiting.len() >= WAITS_MAX {
            let message = format!(
                "{WAITS_MAX} calls wait already for what the database knows; try again shortly"
            );
            return Err(Error::new(Code::Overloaded, message));
        }
        state.last += 1;
        let number = state.last;
        if !self.signal.is_stopped() {
            let since = Instant::now();
            state.waiting.insert(number, WaitingCall { awaited, since, answer });
        }
        drop(state);
        self.signal.wake();
        Ok(WaitPermit { shared: self, number })
    }

    /// Looks for all who wait; the next turn is when somebody does.
    fn look_for_all(&self) -> Result<Next, SqlError> {
        let wanted: Vec<(u64, Awaited)> = {
            let state = self.state.lock();
            let waiting = state.waiting.iter();
            waiting.map(|(number, waiting)| (*number, waiting.awaited)).collect()
        };
        if wanted.is_empty() {
            return Ok(Next::Woken);
        }
        let looked = self.look(&wanted);
        let unanswered =
            || wanted.iter().map(|(number, _)| (*number, WaitOutcome::Unanswered)).collect();
        let found = looked.as_ref().map_or_else(|_| unanswered(), Vec::clone);
        let mut state = self.state.lock();
        for (number, found) in found {
            if let Some(WaitingCall { answer, .. }) = state.waiting.remove(&number) {
                let _gone = answer.send(found);
            }
        }
        let soon = state.waiting.values().next_back();
        let soon = soon.is_none_or(|last| last.since.elapsed() < LOOK_LATER);
        looked.map(|_| Next::After(if soon { LOOK_SOON } else { LOOK_LATER }))
    }

    /// What there is to say now. It is all begun after those concerned have come: a catalog that is
    /// older than wanted is the newest there is.
    fn look(&self, wanted: &[(u64, Awaited)]) -> Result<Vec<(u64, WaitOutcome)>, SqlError> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let barrier = |(_, awaited): &(u64, Awaited)| match awaited {
            Awaited::Barrier(id) => Some(*id),
            Awaited::Catalog(_) | Awaited::Names => None,
        };
        let ids: BTreeSet<BarrierId> = wanted.iter().filter_map(barrier).collect();
        let standings = barrier::standings(&mut session, &ids, self.partitions)?;
        let of_catalog = |awaited| matches!(awaited, Awaited::Catalog(_) | Awaited::Names);
        if wanted.iter().any(|(_, awaited)| of_catalog(*awaited)) {
            self.catalog.refresh_if_old(&mut session)?;
        }
        let revision = self.catalog.revision();
        let found = |awaited: &Awaited| match awaited {
            Awaited::Barrier(id) => match standings.get(id) {
                Some(BarrierStanding::Passed) => Some(WaitOutcome::Met),
                Some(BarrierStanding::Raised) => None,
                Some(BarrierStanding::Unknown) | None => Some(WaitOutcome::Never),
            },
            Awaited::Catalog(wanted) if revision >= *wanted => Some(WaitOutcome::Met),
            Awaited::Catalog(_) => Some(WaitOutcome::Never),
            Awaited::Names => Some(WaitOutcome::Met),
        };
        Ok(wanted.iter().filter_map(|(n, awaited)| Some((*n, found(awaited)?))).collect())
    }
}
