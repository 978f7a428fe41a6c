//! What every call may use: the deployment, the metrics, and the places among those who do the same
//! at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::{Code, Error};
use tokio::sync::Semaphore;

use super::streams::Streams;
use crate::config::Http;
use crate::deployment::Deployment;
use crate::telemetry::Metrics;

/// Imports that run at once: each has some chunks of lines in memory.
const IMPORTS_MAX: usize = 8;
/// Exports that run at once: each walks the whole store and keeps what it replaces meanwhile.
const EXPORTS_MAX: usize = 4;
/// Pieces of copies that are read at once: enough for a disk, whatever callers read beside them.
const COPY_THREADS: usize = 2;
/// What standbys and moves make the service look up or write at once, none of which waits for
/// callers or copies: a write may wait for a standby's acknowledgement.
const STANDBY_THREADS: usize = 8;
/// The threads that operators' work may need beside callers'.
pub const OPERATOR_THREADS: usize = COPY_THREADS + STANDBY_THREADS;

#[derive(Debug)]
pub struct App {
    pub deployment: Deployment,
    pub metrics: Arc<Metrics>,
    /// How long a body, or the next lines of an import, are waited for.
    pub body_timeout: Duration,
    blocking: Arc<Semaphore>,
    copying: Arc<Semaphore>,
    standing_by: Arc<Semaphore>,
    pub streams: Streams,
    pub imports: Arc<Semaphore>,
    pub exports: Arc<Semaphore>,
    pub heartbeat: Duration,
    stopping: AtomicBool,
}

impl App {
    pub fn new(settings: &Http, deployment: Deployment, metrics: Arc<Metrics>) -> App {
        App {
            streams: Streams::new(settings, metrics.clone()),
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            exports: Arc::new(Semaphore::new(exports_max(&deployment))),
            heartbeat: Duration::from_millis(settings.watch_heartbeat_ms),
            metrics,
            body_timeout: Duration::from_millis(settings.body_timeout_ms),
            blocking: Arc::new(Semaphore::new(settings.blocking_reads_max)),
            copying: Arc::new(Semaphore::new(COPY_THREADS)),
            standing_by: Arc::new(Semaphore::new(STANDBY_THREADS)),
            stopping: AtomicBool::new(false),
            deployment,
        }
    }

    /// From here on nothing is ready, and streams end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.streams.stop();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Why the service is not ready, if it is not.
    pub fn unready(&self) -> Option<Error> {
        if self.is_stopping() {
            return Some(Error::new(Code::Unavailable, "the service is stopping"));
        }
        self.deployment.unready()
    }

    /// Runs what blocks off the workers that serve everyone. Whoever finds no place before its
    /// deadline is told so.
    pub async fn apart<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        among(&self.blocking, deadline, work).await
    }

    /// The same for a piece of a copy.
    pub async fn apart_for_copy<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        among(&self.copying, deadline, work).await
    }

    /// The same for what a standby, or a move, asks.
    pub async fn apart_for_standby<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        among(&self.standing_by, deadline, work).await
    }
}

/// Exports leave places to lists.
fn exports_max(deployment: &Deployment) -> usize {
    let places = deployment.budget().map(|budget| budget.figures().lists.places_max / 2);
    places.map_or(EXPORTS_MAX, |places| places.clamp(1, EXPORTS_MAX))
}

/// Runs what blocks when there is a place among these.
async fn among<T: Send + 'static>(
    places: &Arc<Semaphore>,
    deadline: Instant,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let closed = |_| Error::new(Code::Unavailable, "the service is stopping");
    let crowded = |_| {
        let message = "as many reads as the service does at once are under way; try again";
        Error::new(Code::DeadlineExceeded, message)
    };
    let place = tokio::time::timeout_at(deadline.into(), places.clone().acquire_owned());
    let place = place.await.map_err(crowded)?.map_err(closed)?;
    with_place(place, work).await
}

/// Runs what blocks off the workers. It keeps its place to its end, whether or not somebody waits
/// for it.
pub async fn with_place<T: Send + 'static>(
    place: impl Send + 'static,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let work = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(place);
        result
    });
    work.await.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the read failed; it was logged")))
}
