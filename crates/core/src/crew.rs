//! The threads of an instance, and those of its tasks that last: how they start, how they end, and
//! what follows when one is lost.
//!
//! A thread that panics, or ends though nobody asked it to, leaves its work undone while everything
//! around it looks well, and keeps the leases that would let another instance do it. So every thread
//! that lasts is started here. The first that is lost is noted for good: the instance is unready,
//! and those who asked to hear of it give back what it holds and end the process. A restart is known
//! to help; to go on without the thread is not.
//!
//! What a lost thread was changing may be half changed, or still locked. So whoever hears of a loss
//! waits for no lock without a bound, nor for another who does.

#[cfg(any(test, feature = "conformance"))]
mod planted;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::backoff::Backoff;
use crate::signal::{Next, Signal};

/// How long a stop waits for threads that may hang on a server that does not answer. They end when
/// their statement does, and own all that they use.
const STOP_WAIT: Duration = Duration::from_secs(2);
const STOP_LOOK: Duration = Duration::from_millis(5);
const UNASKED: &str = "ended, and nobody had asked it to";

/// The threads of one instance. Clones are the same crew.
#[derive(Debug, Clone, Default)]
pub struct Crew(Arc<CrewShared>);

#[derive(Default)]
struct CrewShared {
    lost: OnceLock<Lost>,
    listeners: Mutex<Vec<Listener>>,
    #[cfg(any(test, feature = "conformance"))]
    planted: planted::PlantedLosses,
}

type Listener = Box<dyn FnOnce(&Lost) + Send>;

impl std::fmt::Debug for CrewShared {
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
        self.workers_by(Signal::default())
    }

    /// The same, by a signal that others know already.
    pub fn workers_by(&self, signal: Signal) -> Workers {
        let panicked = Arc::default();
        Workers { crew: self.clone(), signal, panicked, threads: Mutex::default() }
    }

    /// A thread that lasts until it is stopped.
    pub fn spawn(
        &self,
        name: &str,
        work: impl FnOnce(&Signal) + Send + 'static,
    ) -> io::Result<Workers> {
        let workers = self.workers();
        workers.spawn(name, work)?;
        Ok(workers)
    }

    /// A thread that does a work turn by turn until it is stopped.
    pub fn repeat<E: Display>(
        &self,
        name: &str,
        trouble: &'static str,
        backoff: Backoff,
        work: impl FnMut(&Signal) -> Result<Next, E> + Send + 'static,
    ) -> io::Result<Workers> {
        let workers = self.workers();
        workers.repeat(name, trouble, backoff, work)?;
        Ok(workers)
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
        let mut listeners = self.0.listeners.lock();
        if let Some(lost) = self.lost().cloned() {
            drop(listeners);
            return tell(Box::new(listener), lost, start_telling);
        }
        listeners.push(Box::new(listener));
    }

    fn lose(&self, worker: String, how: &'static str) {
        let lost = Lost { worker, how };
        let mut listeners = self.0.listeners.lock();
        // Only the first one is told: the others may follow from it.
        let told = match self.0.lost.set(lost.clone()) {
            Ok(()) => std::mem::take(&mut *listeners),
            Err(_) => Vec::new(),
        };
        drop(listeners);
        for listener in told {
            tell(listener, lost.clone(), start_telling);
        }
        // Last, as it may hang with whatever reads the log.
        tracing::error!("{lost}: this instance cannot go on and has to be restarted");
    }

    /// Does the work; whether it panicked.
    fn panics(&self, worker: &str, work: impl FnOnce()) -> bool {
        #[cfg(any(test, feature = "conformance"))]
        planted::begin(self, worker);
        #[cfg(not(any(test, feature = "conformance")))]
        let _ = worker;
        catch_unwind(AssertUnwindSafe(work)).is_err()
    }
}

type Telling = Box<dyn FnOnce() + Send>;

fn start_telling(telling: Telling) -> io::Result<()> {
    aside("guanxi-lost", telling).map(drop)
}

/// A thread for each listener, so that none waits for another. Where there can be no more threads,
/// which may be why one was lost, the listener is called here.
fn tell(listener: Listener, lost: Lost, start: impl FnOnce(Telling) -> io::Result<()>) {
    let listener = Arc::new(Mutex::new(Some(listener)));
    let call = move || {
        let listener = listener.lock().take();
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

/// Threads of one part that start and end together, and last as long as the part does. Dropped, they
/// are stopped.
#[derive(Debug)]
pub struct Workers {
    crew: Crew,
    /// Stopped, they may end.
    signal: Signal,
    panicked: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// By which they are woken and stopped.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Starts a thread that lasts until it is stopped.
    pub fn spawn(
        &self,
        name: impl Into<String>,
        work: impl FnOnce(&Signal) + Send + 'static,
    ) -> io::Result<()> {
        self.start(name.into(), true, work)
    }

    /// Starts a thread that does a work turn by turn until it is stopped; `trouble` is what the log
    /// says of a turn that failed.
    pub fn repeat<E: Display>(
        &self,
        name: impl Into<String>,
        trouble: &'static str,
        backoff: Backoff,
        mut work: impl FnMut(&Signal) -> Result<Next, E> + Send + 'static,
    ) -> io::Result<()> {
        self.spawn(name, move |signal| signal.repeat(trouble, backoff, || work(signal)))
    }

    /// Starts a thread that ends when another of them has.
    pub fn spawn_behind(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.start(name.to_owned(), false, |_| work())
    }

    fn start(
        &self,
        worker: String,
        lasts: bool,
        work: impl FnOnce(&Signal) + Send + 'static,
    ) -> io::Result<()> {
        #[cfg(any(test, feature = "conformance"))]
        self.crew.0.planted.knows(&worker, &self.signal);
        let (crew, signal) = (self.crew.clone(), self.signal.clone());
        let (panicked, name) = (self.panicked.clone(), worker.clone());
        let thread = aside(&name, move || {
            if crew.panics(&worker, || work(&signal)) {
                panicked.store(true, Ordering::Release);
                crew.lose(worker, "panicked");
            } else if lasts && !signal.is_stopped() {
                crew.lose(worker, UNASKED);
            }
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Tells them to end, and waits a moment for it.
    pub fn stop(&self) {
        self.signal.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        let deadline = Instant::now() + STOP_WAIT;
        let own = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(STOP_LOOK);
            }
            if !thread.is_finished() {
                tracing::info!(thread = thread.thread().name(), "ends later: a server hangs");
            }
        }
    }

    /// Tells them to end; nobody waits for it.
    pub fn let_go(&self) {
        self.signal.stop();
        self.threads.lock().clear();
    }

    /// Tells them to end and waits until all that they still do is done; whether none panicked.
    pub fn finish(&self) -> bool {
        self.signal.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // Panics were caught where they were noted.
            let _caught = thread.join();
        }
        !self.panicked.load(Ordering::Acquire)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A thread beside the crew, for what has an end of its own and somebody who notices if it fails:
/// a caller's stream, an audit.
pub fn aside(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}

/// A thread that its starter joins, and that sees what it sees.
pub fn joined<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().name(name.to_owned()).spawn_scoped(scope, work)
}

/// Stands where a thread that lasts begins its next turn: there a test makes it panic.
#[inline]
pub fn turn() {
    #[cfg(any(test, feature = "conformance"))]
    planted::turn();
}
