//! What calls wait for at the database: barriers that have not passed, and kinds that are new. One
//! thread looks for all who wait, so that the database is asked as often for a thousand of them as
//! for one; those who wait hold a place and no thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guanxi_core::crew::{self, Crew, Workers};
use guanxi_model::{Code, Error};
use tokio::sync::oneshot;

use crate::barrier::{self, Standing};
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
    Barrier(u64),
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
enum Found {
    Met,
    /// The database has never heard of it.
    Never,
    /// It could not be asked.
    Unanswered,
}

#[derive(Debug)]
struct Waiting {
    awaited: Awaited,
    since: Instant,
    answer: oneshot::Sender<Found>,
}

#[derive(Debug, Default)]
struct State {
    /// By the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    last: u64,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    partitions: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub(super) struct TokenWaits {
    shared: Arc<Shared>,
    workers: Workers,
}

/// Given back when its holder waits no more.
struct Place<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.lock().waiting.remove(&self.number);
    }
}

impl TokenWaits {
    pub fn start(
        crew: &Crew,
        database: Arc<Database>,
        catalog: Arc<SharedCatalog>,
        partitions: u32,
    ) -> io::Result<TokenWaits> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { database, catalog, partitions, state, changed });
        let own = shared.clone();
        let workers = crew.workers();
        workers.spawn("guanxi-tokens", move || own.look_until_closed())?;
        Ok(TokenWaits { shared, workers })
    }

    pub async fn wait(&self, awaited: Awaited, until: Instant) -> Result<(), Error> {
        let (answer, found) = oneshot::channel();
        let _place = self.shared.enter(awaited, answer)?;
        match tokio::time::timeout_at(until.into(), found).await {
            Ok(Ok(Found::Met)) => Ok(()),
            Ok(Ok(Found::Never)) => Err(Error::new(
                Code::PositionExpired,
                "what the token stands for is not of this cluster, or of a later state of it than \
                 was restored; read without it",
            )),
            Ok(Ok(Found::Unanswered)) => {
                Err(Error::new(Code::Unavailable, "the database did not answer; try again"))
            }
            Ok(Err(_closed)) => Err(Error::new(Code::Unavailable, "the service is stopping")),
            Err(_elapsed) => Err(Error::new(Code::Unavailable, awaited.too_late())),
        }
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.workers.stop(|| {
            let mut state = self.shared.lock();
            state.closed = true;
            state.waiting.clear();
            drop(state);
            self.shared.changed.notify_all();
        });
    }
}

impl Drop for TokenWaits {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn enter(&self, awaited: Awaited, answer: oneshot::Sender<Found>) -> Result<Place<'_>, Error> {
        let mut state = self.lock();
        if state.waiting.len() >= WAITS_MAX {
            let message = format!(
                "{WAITS_MAX} calls wait already for what the database knows; try again shortly"
            );
            return Err(Error::new(Code::Overloaded, message));
        }
        state.last += 1;
        let number = state.last;
        if !state.closed {
            let since = Instant::now();
            state.waiting.insert(number, Waiting { awaited, since, answer });
        }
        drop(state);
        self.changed.notify_all();
        Ok(Place { shared: self, number })
    }

    fn look_until_closed(&self) {
        while let Some(wanted) = self.wanted() {
            crew::turn();
            let found = self.look(&wanted).unwrap_or_else(|error| {
                tracing::error!(%error, "the database did not tell how barriers and kinds fare");
                wanted.iter().map(|(number, _)| (*number, Found::Unanswered)).collect()
            });
            let mut state = self.lock();
            for (number, found) in found {
                if let Some(Waiting { answer, .. }) = state.waiting.remove(&number) {
                    let _gone = answer.send(found);
                }
            }
            let soon = state.waiting.values().next_back();
            let soon = soon.is_none_or(|last| last.since.elapsed() < LOOK_LATER);
            let pause = if soon { LOOK_SOON } else { LOOK_LATER };
            let open = |state: &mut State| !state.closed;
            drop(self.changed.wait_timeout_while(state, pause, open));
        }
    }

    /// What is waited for, once something is; none at the end.
    fn wanted(&self) -> Option<Vec<(u64, Awaited)>> {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.closed;
        let waited = self.changed.wait_while(self.lock(), idle);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let wanted = state.waiting.iter().map(|(number, waiting)| (*number, waiting.awaited));
        (!state.closed).then(|| wanted.collect())
    }

    /// What there is to say now. It is all begun after those concerned have come: a catalog that is
    /// older than wanted is the newest there is.
    fn look(&self, wanted: &[(u64, Awaited)]) -> Result<Vec<(u64, Found)>, SqlError> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let barrier = |(_, awaited): &(u64, Awaited)| match awaited {
            Awaited::Barrier(id) => Some(*id),
            Awaited::Catalog(_) | Awaited::Names => None,
        };
        let ids: BTreeSet<u64> = wanted.iter().filter_map(barrier).collect();
        let standings = barrier::standings(&mut session, &ids, self.partitions)?;
        let of_catalog = |awaited| matches!(awaited, Awaited::Catalog(_) | Awaited::Names);
        if wanted.iter().any(|(_, awaited)| of_catalog(*awaited)) {
            self.catalog.refresh_if_old(&mut session)?;
        }
        let revision = self.catalog.revision();
        let found = |awaited: &Awaited| match awaited {
            Awaited::Barrier(id) => match standings.get(id) {
                Some(Standing::Passed) => Some(Found::Met),
                Some(Standing::Raised) => None,
                Some(Standing::Unknown) | None => Some(Found::Never),
            },
            Awaited::Catalog(wanted) if revision >= *wanted => Some(Found::Met),
            Awaited::Catalog(_) => Some(Found::Never),
            Awaited::Names => Some(Found::Met),
        };
        Ok(wanted.iter().filter_map(|(n, awaited)| Some((*n, found(awaited)?))).collect())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
