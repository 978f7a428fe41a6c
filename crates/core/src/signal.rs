//! What threads that sleep between two pieces of work are woken by.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

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
        self.inner.lock().stopped
    }

    /// Sleeps until the time is over or the engine stops; true when it stops.
    pub fn wait(&self, time: Duration) -> bool {
        crew::turn();
        let mut flags = self.inner.lock();
        self.changed.wait_while_for(&mut flags, |flags| !flags.stopped, time);
        flags.stopped
    }

    /// Sleeps until there may be a job; false when the engine stops.
    pub fn wait_for_jobs(&self) -> bool {
        crew::turn();
        let mut flags = self.inner.lock();
        self.changed.wait_while(&mut flags, |flags| !flags.stopped && !flags.jobs);
        flags.jobs = false;
        !flags.stopped
    }

    fn set(&self, change: impl FnOnce(&mut Flags)) {
        change(&mut self.inner.lock());
        self.changed.notify_all();
    }
}
