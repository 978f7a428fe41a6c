//! Fills what was missed, behind those who missed it: few threads, so that a cold Redis is filled at a
//! pace that the database does not feel, and a bounded queue in which nothing waits twice. Who finds
//! no room does without.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::{fmt, io};

use guanxi_core::crew::{self, Crew, Workers};
use guanxi_core::signal::Signal;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// What is read at once.
const THREADS: usize = 2;
/// What may wait to be filled.
const WAITING_MAX: usize = 1_024;

/// Takes what is to be filled; ends with the last of its threads when dropped.
pub(super) struct FillThreads<K> {
    waiting: Option<SyncSender<K>>,
    shared: Arc<FillQueue<K>>,
    workers: Workers,
}

struct FillQueue<K> {
    wanted: Mutex<Receiver<K>>,
    /// What waits or is being filled.
    under_way: Mutex<FxHashSet<K>>,
}

impl<K> fmt::Debug for FillThreads<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FillThreads").finish_non_exhaustive()
    }
}

impl<K: Copy + Eq + Hash + Send + 'static> FillThreads<K> {
    pub fn start(
        crew: &Crew,
        name: &str,
        fill: impl Fn(&K) + Clone + Send + 'static,
    ) -> io::Result<FillThreads<K>> {
        let (waiting, wanted) = sync_channel(WAITING_MAX);
        let shared =
            Arc::new(FillQueue { wanted: Mutex::new(wanted), under_way: Mutex::default() });
        let workers = crew.workers();
        for _ in 0..THREADS {
            let (shared, fill) = (shared.clone(), fill.clone());
            workers.spawn(name, move |signal| shared.run(signal, fill))?;
        }
        Ok(FillThreads { waiting: Some(waiting), shared, workers })
    }

    /// Has it filled when there is time; a full queue forgets it, and the next who misses it asks
    /// again.
    pub fn want(&self, key: K) {
        let Some(waiting) = &self.waiting else { return };
        if self.shared.under_way.lock().insert(key) && waiting.try_send(key).is_err() {
            self.shared.under_way.lock().remove(&key);
        }
    }
}

impl<K: Copy + Eq + Hash> FillQueue<K> {
    fn run(&self, signal: &Signal, fill: impl Fn(&K)) {
        loop {
            let wanted = self.wanted.lock().recv();
            let Ok(key) = wanted else { return };
            // What still waits at the end is not worth the time that it takes.
            if signal.is_stopped() {
                return;
            }
            crew::turn();
            fill(&key);
            self.under_way.lock().remove(&key);
        }
    }
}

impl<K> Drop for FillThreads<K> {
    fn drop(&mut self) {
        self.workers.signal().stop();
        self.waiting = None;
        self.workers.finish();
    }
}
