//! Reads answers about pinned keys again, behind those who read them: one thread, woken by the first
//! who finds an answer's life over. Each answer is whole and of one moment, as a reader's own is.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guanxi_core::crew::{self, Crew, Workers};
use guanxi_core::read::{ListQuery, Page, Reader};
use guanxi_core::snapshot::{Direction, Snapshot, StoreError, Wanted};
use guanxi_model::{Error, KindId, NodeKey, Secret, TallyRow, View};

use super::{LIFE, PINNED_AGE_MAX, PageKey, ReadCache, TallyKey};
use crate::catalog::SharedCatalog;
use crate::snapshot::{SqlSnapshot, target_side};
use crate::sql::Database;

/// An answer that comes later helps nobody: by then readers read for themselves.
const READ_LIMIT: Duration = PINNED_AGE_MAX.saturating_sub(LIFE);
/// The pause after a read that failed, so that a database in trouble has no more of it.
const FAILED_PAUSE: Duration = Duration::from_millis(200);

/// Rung when there is something to read.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rung: bool,
    closed: bool,
}

impl Bell {
    pub fn ring(&self) {
        self.lock().rung = true;
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Sleeps until it is rung; false when it is closed.
    fn wait(&self) -> bool {
        let idle = |state: &mut State| !state.rung && !state.closed;
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.rung = false;
        !state.closed
    }

    fn pause(&self, time: Duration) {
        let goes_on = |state: &mut State| !state.closed;
        drop(self.changed.wait_timeout_while(self.lock(), time, goes_on));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct BehindParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub cache: Arc<ReadCache>,
    pub secret: Arc<Secret>,
}

/// The thread that reads; it stops when dropped.
#[derive(Debug)]
pub struct Behind {
    cache: Arc<ReadCache>,
    workers: Workers,
}

impl Behind {
    pub fn start(parts: BehindParts) -> io::Result<Behind> {
        let (cache, workers) = (parts.cache.clone(), parts.crew.workers());
        workers.spawn("guanxi-hot-reads", move || {
            while parts.cache.bell.wait() {
                crew::turn();
                if !parts.read_stale() {
                    parts.cache.bell.pause(FAILED_PAUSE);
                }
            }
        })?;
        Ok(Behind { cache, workers })
    }

    pub fn close(&self) {
        self.workers.stop(|| self.cache.bell.close());
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.close();
    }
}

impl BehindParts {
    /// Reads what was asked for; false when something failed.
    fn read_stale(&self) -> bool {
        let mut well = true;
        let mut by_kinds: BTreeMap<Box<[KindId]>, Vec<NodeKey>> = BTreeMap::new();
        for TallyKey { node, kinds } in self.cache.tallies.take_stale() {
            by_kinds.entry(kinds).or_default().push(node);
        }
        for (kinds, nodes) in by_kinds {
            let begun = Instant::now();
            let mut rows = self.tallies(&nodes, &kinds).map(Vec::into_iter);
            well &= rows.is_ok();
            for node in nodes {
                let row = rows.as_mut().ok().and_then(Iterator::next);
                self.cache.tallies.renew(&TallyKey { node, kinds: kinds.clone() }, row, begun);
            }
        }
        for key in self.cache.pages.take_stale() {
            let begun = Instant::now();
            let page = self.page(&key);
            well &= page.is_ok();
            self.cache.pages.renew(&key, page.ok().flatten().map(Arc::new), begun);
        }
        well
    }

    /// Target-side tallies of the nodes, in their order.
    fn tallies(&self, nodes: &[NodeKey], kinds: &[KindId]) -> Result<Vec<TallyRow>, StoreError> {
        let snapshot = self.snapshot();
        snapshot.prefetch(&mut |wanted: &mut Wanted| match kinds.is_empty() {
            true => wanted.nodes.extend_from_slice(nodes),
            false => {
                wanted.targets.extend_from_slice(nodes);
                wanted.kinds.extend_from_slice(kinds);
            }
        })?;
        let row = |node: &NodeKey| match kinds.is_empty() {
            true => snapshot.tallies(node).map(|row| target_side(&row)),
            false => snapshot.target_tallies(node, kinds),
        };
        nodes.iter().map(row).collect()
    }

    /// The page; none when its kind is not there any more.
    fn page(&self, key: &PageKey) -> Result<Option<Page>, Error> {
        let Some(kind) = self.catalog.current().kind(key.tenant, key.kind).cloned() else {
            return Ok(None);
        };
        let query = ListQuery {
            state: key.state,
            ..ListQuery::newest(key.tenant, &kind, Direction::Incoming, key.target, key.limit)
        };
        Reader::new(Box::new(self.snapshot()), &self.secret).list(&query).map(Some)
    }

    /// Keeps and takes nothing itself.
    fn snapshot(&self) -> SqlSnapshot {
        let deadline = Instant::now() + READ_LIMIT;
        SqlSnapshot::begin(&self.database, self.catalog.current(), deadline)
    }
}
