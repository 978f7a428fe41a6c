//! What every call may use: the deployment, the metrics, and the places among those who do the same
//! at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_core::deployment::{Deployment, WorkPermits};
use guanxi_embedded::Engine;
use guanxi_model::{Code, Error};
use tokio::sync::Semaphore;

use super::context::CallContext;
use super::streams::Streams;
use crate::config::HttpSection;
use crate::telemetry::Metrics;

/// Imports that run at once: each has some chunks of lines in memory.
const IMPORTS_MAX: usize = 8;
/// Exports that run at once: each walks the whole store and keeps what it replaces meanwhile.
const EXPORTS_MAX: usize = 4;
/// Pieces of copies that are read at once: enough for a disk, whatever callers read beside them.
const COPY_THREADS: usize = 2;
/// What standbys, moves and whoever looks after dead letters make the service look up or write at
/// once, none of which waits for callers or copies: a write may wait for a standby's acknowledgement.
const ASKING_THREADS: usize = 8;
/// The threads that operators' work may need beside callers'.
pub const OPERATOR_THREADS: usize = COPY_THREADS + ASKING_THREADS;

/// What a process serves, chosen when it starts.
#[derive(Debug)]
pub struct Served {
    pub deployment: Arc<dyn Deployment>,
    /// The embedded engine, if that is the deployment.
    pub engine: Option<Arc<Engine>>,
    pub metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub struct App {
    pub deployment: Arc<dyn Deployment>,
    /// The embedded engine, for what only it can do; none in a cluster.
    pub engine: Option<Arc<Engine>>,
    pub metrics: Arc<Metrics>,
    /// How long a body, or the next lines of an import, are waited for.
    pub body_timeout: Duration,
    copying: WorkPermits,
    operators: WorkPermits,
    pub streams: Streams,
    pub imports: Arc<Semaphore>,
    pub exports: Arc<Semaphore>,
    pub heartbeat: Duration,
    stopping: AtomicBool,
}

impl App {
    pub fn new(settings: &HttpSection, served: Served) -> App {
        let Served { deployment, engine, metrics } = served;
        App {
            streams: Streams::new(settings, metrics.clone()),
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            exports: Arc::new(Semaphore::new(exports_max(&*deployment))),
            heartbeat: Duration::from_millis(settings.watch_heartbeat_ms),
            metrics,
            body_timeout: Duration::from_millis(settings.body_timeout_ms),
            copying: WorkPermits::new(COPY_THREADS),
            operators: WorkPermits::new(ASKING_THREADS),
            stopping: AtomicBool::new(false),
            deployment,
            engine,
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
        if let Some(lost) = self.deployment.crew().lost() {
            return Some(Error::new(Code::Unavailable, format!("{lost}; the process ends")));
        }
        self.deployment.unready()
    }

    /// A request was answered: with an error of this code, or with none.
    pub fn answered(&self, context: &CallContext, code: Option<Code>, took: Duration) {
        let name = context.call.map_or("none", |call| call.name);
        if code == Some(Code::Internal) {
            tracing::error!(call = name, request_id = &*context.request_id, "a request failed");
        }
        tracing::debug!(
            call = name,
            code = code.map_or("ok", Code::name),
            request_id = &*context.request_id,
            took_us = took.as_micros() as u64,
            "answered"
        );
        let call = context.call.map(|call| call.call);
        self.metrics.answered(call, context.kind_label(), code, took);
    }

    /// The engine of an embedded service, for calls that only it has; `instead` says what to do
    /// in a cluster.
    pub fn engine(&self, instead: &str) -> Result<&Arc<Engine>, Error> {
        self.engine.as_ref().ok_or_else(|| {
            let message = format!("a cluster does not have this call: {instead}");
            Error::new(Code::Conflict, message)
        })
    }

    /// Reads a piece of a copy off the workers that serve everyone. Whoever finds no place before its
    /// deadline is told so.
    pub async fn apart_for_copy<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.copying.run(deadline, work).await
    }

    /// The same for what a standby, a move, or whoever looks after dead letters asks.
    pub async fn apart_for_operators<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.operators.run(deadline, work).await
    }
}

/// Exports leave places to lists.
fn exports_max(deployment: &dyn Deployment) -> usize {
    let half = deployment.long_reads_max().map(|reads_max| reads_max / 2);
    half.map_or(EXPORTS_MAX, |half| half.clamp(1, EXPORTS_MAX))
}
