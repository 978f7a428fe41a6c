//! What threads that sleep between two pieces of work are woken by.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::crew;

/// Wakes sleeping threads: to stop, or because there is work.
#[derive(Debug, Default)]
pub struct Signal {
    inner: Mutex<Flags>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Flags {
    stopped: bool,
    jobs: bool,
}

impl Signal {
    pub fn stop(&self) {
        self.set(|flags| flags.stopped = true);
    }

    /// There may be a new job.
    pub fn nudge(&self) {
        self.set(|flags| flags.jobs = true);
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Sleeps until the time is over or the engine stops; true when it stops.
    pub fn wait(&self, time: Duration) -> bool {
        crew::turn();
        let waited = self.changed.wait_timeout_while(self.lock(), time, |flags| !flags.stopped);
        waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0.stopped
    }

    /// Sleeps until there may be a job; false when the engine stops.
    pub fn wait_for_jobs(&self) -> bool {
        crew::turn();
        let idle = |flags: &mut Flags| !flags.stopped && !flags.jobs;
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut flags = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        flags.jobs = false;
        !flags.stopped
    }

    fn set(&self, change: impl FnOnce(&mut Flags)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Flags> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
