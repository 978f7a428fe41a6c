//! The threads of an instance, and those of its tasks that last: how they start, how they end, and
//! what follows when one is lost.
//!
//! A thread that panics, or ends though nobody asked it to, leaves its work undone while everything
//! around it looks well, and keeps the leases that would let another instance do it. So every thread
//! that lasts is started here. The first that is lost is noted for good: the instance is unready,
//! and those who asked to hear of it give back what it holds and end the process. A restart is known
//! to help; to go on without the thread is not.

#[cfg(any(test, feature = "conformance"))]
mod planted;
#[cfg(test)]
mod tests;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// How long a stop waits for threads that may hang on a server that does not answer. They end when
/// their statement does, and own all that they use.
const STOP_WAIT: Duration = Duration::from_secs(2);
const STOP_LOOK: Duration = Duration::from_millis(5);
const UNASKED: &str = "ended, and nobody had asked it to";

/// The threads of one instance. Clones are the same crew.
#[derive(Debug, Clone, Default)]
pub struct Crew(Arc<Shared>);

#[derive(Default)]
struct Shared {
    lost: OnceLock<Lost>,
    listeners: Mutex<Vec<Listener>>,
    #[cfg(any(test, feature = "conformance"))]
    planted: planted::Planted,
}

type Listener = Box<dyn FnOnce(&Lost) + Send>;

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// A thread that is no more, though its work is not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the thread {worker} {how}")]
pub struct Lost {
    pub worker: String,
    how: &'static str,
}

impl Crew {
    /// Threads that start and end together.
    pub fn workers(&self) -> Workers {
        let asked = Arc::new(AtomicBool::new(false));
        let panicked = Arc::new(AtomicBool::new(false));
        Workers { crew: self.clone(), asked, panicked, threads: Mutex::default() }
    }

    /// A thread that ends when its work is done. A panic counts as with those that last.
    pub fn errand(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (crew, worker) = (self.clone(), name.to_owned());
        aside(name, move || {
            if crew.panics(&worker, work) {
                crew.lose(worker, "panicked");
            }
        })
    }

    /// A task that lasts: it is aborted, or ends when nobody needs it any more. An end while somebody
    /// does, as `is_needed` says, counts as a thread's, and a panic too.
    pub fn task(
        &self,
        name: &str,
        runtime: &Handle,
        is_needed: impl FnOnce() -> bool + Send + 'static,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let (crew, worker) = (self.clone(), name.to_owned());
        let working = runtime.spawn(work);
        let abort = working.abort_handle();
        runtime.spawn(async move {
            match working.await {
                Err(error) if error.is_panic() => crew.lose(worker, "panicked"),
                Ok(()) if is_needed() => crew.lose(worker, UNASKED),
                _ => {}
            }
        });
        abort
    }

    /// The first thread that was lost.
    pub fn lost(&self) -> Option<&Lost> {
        self.0.lost.get()
    }

    /// Has this called, on a thread of its own, when a thread is lost; at once when one already is.
    pub fn when_lost(&self, listener: impl FnOnce(&Lost) + Send + 'static) {
        let mut listeners = self.listeners();
        match self.lost().cloned() {
            None => listeners.push(Box::new(listener)),
            Some(lost) => tell(Box::new(listener), lost, start_telling),
        }
    }

    fn lose(&self, worker: String, how: &'static str) {
        let lost = Lost { worker, how };
        tracing::error!("{lost}: this instance cannot go on and has to be restarted");
        let mut listeners = self.listeners();
        // Only the first one is told: the others may follow from it.
        if self.0.lost.set(lost.clone()).is_ok() {
            let told = std::mem::take(&mut *listeners);
            drop(listeners);
            for listener in told {
                tell(listener, lost.clone(), start_telling);
            }
        }
    }

    /// Does the work; whether it panicked.
    fn panics(&self, worker: &str, work: impl FnOnce()) -> bool {
        #[cfg(any(test, feature = "conformance"))]
        planted::begin(self, worker);
        #[cfg(not(any(test, feature = "conformance")))]
        let _ = worker;
        catch_unwind(AssertUnwindSafe(work)).is_err()
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Work = Box<dyn FnOnce() + Send>;

fn start_telling(work: Work) -> io::Result<()> {
    aside("guanxi-lost", work).map(drop)
}

/// A thread for each listener, so that none waits for another. Where there can be no more threads,
/// which may be why one was lost, the listener is called here.
fn tell(listener: Listener, lost: Lost, start: impl FnOnce(Work) -> io::Result<()>) {
    let listener = Arc::new(Mutex::new(Some(listener)));
    let call = move || {
        let listener = listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            listener(&lost);
        }
    };
    let again = call.clone();
    if let Err(error) = start(Box::new(call)) {
        tracing::warn!(%error, "no thread could be started to tell of the loss");
        again();
    }
}

/// Threads of one part that start and end together, and last as long as the part does.
#[derive(Debug)]
pub struct Workers {
    crew: Crew,
    /// They may end.
    asked: Arc<AtomicBool>,
    panicked: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts a thread that ends when it is asked to.
    pub fn spawn(
        &self,
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.start(name.into(), true, work)
    }

    /// Starts a thread that ends when another of them has.
    pub fn spawn_behind(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.start(name.to_owned(), false, work)
    }

    fn start(
        &self,
        worker: String,
        lasts: bool,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let (crew, asked) = (self.crew.clone(), self.asked.clone());
        let (panicked, name) = (self.panicked.clone(), worker.clone());
        let thread = aside(&name, move || {
            if crew.panics(&worker, work) {
                panicked.store(true, Ordering::Release);
                crew.lose(worker, "panicked");
            } else if lasts && !asked.load(Ordering::Acquire) {
                crew.lose(worker, UNASKED);
            }
        })?;
        self.threads().push(thread);
        Ok(())
    }

    /// Tells them to end, which `tell` does, and waits a moment for it.
    pub fn stop(&self, tell: impl FnOnce()) {
        self.let_go(tell);
        let threads = std::mem::take(&mut *self.threads());
        let deadline = Instant::now() + STOP_WAIT;
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(STOP_LOOK);
            }
            if !thread.is_finished() {
                tracing::info!(thread = thread.thread().name(), "ends later: a server hangs");
            }
        }
    }

    /// Tells them to end and waits until all that they still do is done; whether none panicked.
    pub fn finish(&self, tell: impl FnOnce()) -> bool {
        self.let_go(tell);
        for thread in std::mem::take(&mut *self.threads()) {
            // Panics were caught where they were noted.
            let _caught = thread.join();
        }
        !self.panicked.load(Ordering::Acquire)
    }

    /// Tells them to end; nobody waits for it.
    pub fn let_go(&self, tell: impl FnOnce()) {
        self.asked.store(true, Ordering::Release);
        tell();
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.let_go(|| {});
    }
}

/// A thread beside the crew, for what has an end of its own and somebody who notices if it fails:
/// a caller's stream, an audit.
pub fn aside(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}

/// Stands where a thread that lasts begins its next turn: there a test makes it panic.
#[inline]
pub fn turn() {
    #[cfg(any(test, feature = "conformance"))]
    planted::turn();
}
