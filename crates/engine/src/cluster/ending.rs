//! How the cluster's threads end: soon, or left to themselves.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::background::Signal;

/// How long a close waits for its thread. One that hangs on a server that does not answer ends
/// when its statement does, and owns all that it uses.
const WAIT: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A thread that is told to end by a signal, at the latest when this is dropped.
#[derive(Debug)]
pub(crate) struct Ending {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ending {
    pub fn start(
        name: String,
        signal: Arc<Signal>,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Ending> {
        let thread = std::thread::Builder::new().name(name).spawn(work)?;
        Ok(Ending { signal, thread: Mutex::new(Some(thread)) })
    }

    pub fn close(&self) {
        self.signal.stop();
        join(&self.thread);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits for a thread that was told to end.
pub(crate) fn join(thread: &Mutex<Option<JoinHandle<()>>>) {
    let thread = thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let Some(thread) = thread else { return };
    let deadline = Instant::now() + WAIT;
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            tracing::info!(thread = thread.thread().name(), "ends later: a server hangs");
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let _ = thread.join();
}
