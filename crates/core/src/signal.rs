//! What the threads of a part are told: that there is something to do, or that they are to end.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::backoff::Backoff;
use crate::crew::turn;

/// Wakes those who sleep by it. Clones are the same signal.
#[derive(Debug, Clone, Default)]
pub struct Signal(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    stopped: bool,
    /// There may be something to do that nobody has come for.
    woken: bool,
}

/// When the next turn of a work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Now,
    After(Duration),
    /// As soon as it is woken.
    Woken,
    /// The same, but after so long in any case.
    Within(Duration),
    /// There is none.
    Never,
}

impl Signal {
    pub fn stop(&self) {
        self.set(|state| state.stopped = true);
    }

    /// There may be something to do.
    pub fn wake(&self) {
        self.set(|state| state.woken = true);
    }

    pub fn is_stopped(&self) -> bool {
        self.0.state.lock().stopped
    }

    /// Sleeps until the time is over or it is stopped; true when it is.
    pub fn wait(&self, time: Duration) -> bool {
        turn();
        let mut state = self.0.state.lock();
        self.0.changed.wait_while_for(&mut state, |state| !state.stopped, time);
        state.stopped
    }

    /// Does a work turn by turn until it is stopped. What `trouble` calls it when a turn fails is
    /// told, and the next turn waits as `backoff` says.
    pub fn repeat<E: Display>(
        &self,
        trouble: &str,
        mut backoff: Backoff,
        mut work: impl FnMut() -> Result<Next, E>,
    ) {
        while !self.is_stopped() {
            turn();
            let next = match work() {
                Ok(next) => {
                    backoff.went_well();
                    next
                }
                Err(error) => {
                    if let Some(times) = backoff.failed() {
                        let thread = std::thread::current();
                        let thread = thread.name();
                        tracing::warn!(%error, thread, times, "{trouble}; it is tried again");
                    }
                    Next::After(backoff.left())
                }
            };
            match next {
                Next::Now => {}
                Next::After(time) => drop(self.wait(time)),
                Next::Woken => self.rest(None),
                Next::Within(time) => self.rest(Some(time)),
                Next::Never => return,
            }
        }
    }

    /// Sleeps until it is woken or stopped, or the time is over.
    fn rest(&self, time: Option<Duration>) {
        turn();
        let sleeps = |state: &mut SignalState| !state.stopped && !state.woken;
        let mut state = self.0.state.lock();
        match time {
            Some(time) => drop(self.0.changed.wait_while_for(&mut state, sleeps, time)),
            None => self.0.changed.wait_while(&mut state, sleeps),
        }
        state.woken = false;
    }

    fn set(&self, change: impl FnOnce(&mut SignalState)) {
        change(&mut self.0.state.lock());
        self.0.changed.notify_all();
    }
}
