//! Stores between a stage and the real one: the seam at which the decider pauses, and the planted
//! bugs of replay and of the driver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guanxi_core::snapshot::{Snapshot, StoreError};
use guanxi_model::{Catalog, Position};
use parking_lot::Mutex;

use super::machine::Machine;
use super::{SimulationBug, life};
use crate::commit::DecidedBatch;
use crate::commit::pipeline::AwaitedBatch;
use crate::log::Log;
use crate::overlay::Dirty;
use crate::resident::{EdgeFilter, ResidentStatus};
use crate::store::{Applied, EmbeddedSnapshot, EmbeddedStore, KeyedStore, Store};

/// The store as the decider sees it: batches may be applied while it looks.
pub(super) struct PausingStore {
    store: Arc<KeyedStore<Machine>>,
    bug: Option<SimulationBug>,
    /// For the bug that looks at the rows before it asks where they stand.
    early: Mutex<Option<Box<dyn Snapshot>>>,
}

impl PausingStore {
    pub fn new(store: Arc<KeyedStore<Machine>>, bug: Option<SimulationBug>) -> PausingStore {
        PausingStore { store, bug, early: Mutex::default() }
    }
}

impl Store for PausingStore {
    fn snapshot(&self) -> Box<dyn Snapshot> {
        life::pause();
        let early = self.early.lock().take();
        early.unwrap_or_else(|| self.store.snapshot())
    }

    fn write(&self, dirty: &Dirty, applied: Applied) -> Result<(), StoreError> {
        self.store.write(dirty, applied)
    }

    fn applied(&self) -> Applied {
        if self.bug == Some(SimulationBug::DecideOnOldRows) {
            *self.early.lock() = Some(self.store.snapshot());
            life::pause();
        }
        self.store.applied()
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.store.catalog()
    }

    fn persist(&self) -> Result<Position, StoreError> {
        self.store.persist()
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}

/// Whoever keeps the filter may be interrupted between any two steps.
impl EmbeddedStore for PausingStore {
    fn picture(&self) -> Box<dyn EmbeddedSnapshot> {
        life::pause();
        self.store.picture()
    }

    fn picture_as_it_lies(&self) -> Box<dyn EmbeddedSnapshot> {
        self.store.picture_as_it_lies()
    }

    fn begin_filter(&self, filter: Arc<EdgeFilter>) {
        life::pause();
        self.store.begin_filter(filter);
        life::pause();
    }

    fn finish_filter(&self) {
        life::pause();
        life::alone_at_the_store(|| self.store.finish_filter());
        life::pause();
    }

    fn abandon_filter(&self) {
        self.store.abandon_filter();
    }

    fn filter(&self) -> Option<(Arc<EdgeFilter>, Applied)> {
        let filter = self.store.filter();
        life::pause();
        filter
    }

    fn resident(&self) -> ResidentStatus {
        self.store.resident()
    }
}

/// The store as a replay with a planted bug sees it.
pub(super) struct ReplayedStore<'a> {
    store: &'a KeyedStore<Machine>,
    bug: SimulationBug,
    /// Where it says that it stands until something is written.
    behind: Applied,
    written: AtomicBool,
}

impl<'a> ReplayedStore<'a> {
    pub fn new(
        store: &'a KeyedStore<Machine>,
        bug: SimulationBug,
        log: &dyn Log,
    ) -> ReplayedStore<'a> {
        let mut behind = store.applied();
        if bug == SimulationBug::ReplayTwice
            && let Ok(frames) = log.read(behind.position, 1)
            && let Some(frame) = frames.first()
        {
            behind.position = Position(frame.first.0 - 1);
        }
        ReplayedStore { store, bug, behind, written: AtomicBool::new(false) }
    }
}

impl Store for ReplayedStore<'_> {
    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.store.snapshot()
    }

    fn write(&self, dirty: &Dirty, applied: Applied) -> Result<(), StoreError> {
        self.written.store(true, Ordering::SeqCst);
        if self.bug != SimulationBug::TallyOnReplay {
            return self.store.write(dirty, applied);
        }
        let snapshot = self.store.snapshot();
        let mut nodes = dirty.nodes.clone();
        for (key, node) in &mut nodes {
            let once = node.tallies.clone();
            let before = snapshot.tallies(key)?;
            for (kind, which, number) in once.entries() {
                node.tallies.add(kind, which, number - before.get(kind, which));
            }
        }
        let twice = Dirty {
            edges: dirty.edges.clone(),
            nodes,
            groups: dirty.groups.clone(),
            idempotency: dirty.idempotency.clone(),
            imports: dirty.imports.clone(),
            jobs: dirty.jobs.clone(),
            indexed: dirty.indexed.clone(),
            repaired: dirty.repaired.clone(),
            catalog: dirty.catalog.clone(),
            last: dirty.last,
        };
        self.store.write(&twice, applied)
    }

    fn applied(&self) -> Applied {
        match self.written.load(Ordering::SeqCst) {
            true => self.store.applied(),
            false => self.behind,
        }
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.store.catalog()
    }

    fn persist(&self) -> Result<Position, StoreError> {
        self.store.persist()
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}

/// Splits a batch into one that only answers and one that nobody waits for.
pub(super) fn answers_alone(batch: AwaitedBatch) -> (AwaitedBatch, AwaitedBatch) {
    let AwaitedBatch { mut decision, waiting } = batch;
    let answers = DecidedBatch {
        frame: None,
        dirty: decision.dirty.clone(),
        applied: decision.applied,
        answers: std::mem::take(&mut decision.answers),
        changes: decision.changes,
    };
    let answering = AwaitedBatch { decision: answers, waiting };
    let rest = AwaitedBatch { decision, waiting: VecDeque::new() };
    (answering, rest)
}

/// Splits a batch into one that only writes rows and one that the store has nothing to do for.
pub(super) fn rows_alone(batch: AwaitedBatch) -> (AwaitedBatch, AwaitedBatch) {
    let AwaitedBatch { decision, waiting } = batch;
    let rows = DecidedBatch {
        frame: decision.frame.clone(),
        dirty: decision.dirty.clone(),
        applied: decision.applied,
        answers: Vec::new(),
        changes: decision.changes,
    };
    let writing = AwaitedBatch { decision: rows, waiting: VecDeque::new() };
    (writing, AwaitedBatch { decision, waiting })
}
