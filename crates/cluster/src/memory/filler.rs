//! Fills what was missed, behind those who missed it: few threads, so that a cold Redis is filled at a
//! pace that the database does not feel, and a bounded queue in which nothing waits twice. Who finds
//! no room does without.

use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use guanxi_core::crew::{self, Crew, Workers};
use rustc_hash::FxHashSet;

/// What is read at once.
const THREADS: usize = 2;
/// What may wait to be filled.
const WAITING_MAX: usize = 1_024;

/// Takes what is to be filled; ends with the last of its threads when dropped.
pub(super) struct Filler<K> {
    waiting: Option<SyncSender<K>>,
    shared: Arc<Shared<K>>,
    workers: Workers,
}

struct Shared<K> {
    wanted: Mutex<Receiver<K>>,
    /// What waits or is being filled.
    under_way: Mutex<FxHashSet<K>>,
    closed: AtomicBool,
}

impl<K> fmt::Debug for Filler<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filler").finish_non_exhaustive()
    }
}

impl<K: Copy + Eq + Hash + Send + 'static> Filler<K> {
    pub fn start(
        crew: &Crew,
        name: &str,
        fill: impl Fn(&K) + Clone + Send + 'static,
    ) -> io::Result<Filler<K>> {
        let (waiting, wanted) = sync_channel(WAITING_MAX);
        let shared = Arc::new(Shared {
            wanted: Mutex::new(wanted),
            under_way: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let workers = crew.workers();
        for _ in 0..THREADS {
            let (shared, fill) = (shared.clone(), fill.clone());
            workers.spawn(name, move || shared.run(fill))?;
        }
        Ok(Filler { waiting: Some(waiting), shared, workers })
    }

    /// Has it filled when there is time; a full queue forgets it, and the next who misses it asks
    /// again.
    pub fn want(&self, key: K) {
        let Some(waiting) = &self.waiting else { return };
        if self.shared.under_way().insert(key) && waiting.try_send(key).is_err() {
            self.shared.under_way().remove(&key);
        }
    }
}

impl<K: Copy + Eq + Hash> Shared<K> {
    fn run(&self, fill: impl Fn(&K)) {
        loop {
            let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(key) = wanted else { return };
            // What still waits at the end is not worth the time that it takes.
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            crew::turn();
            fill(&key);
            self.under_way().remove(&key);
        }
    }

    fn under_way(&self) -> MutexGuard<'_, FxHashSet<K>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Drop for Filler<K> {
    fn drop(&mut self) {
        let Filler { waiting, shared, workers } = self;
        workers.finish(|| {
            shared.closed.store(true, Ordering::Relaxed);
            *waiting = None;
        });
    }
}
