//! Audits: edge rows are held against everything that follows from them (index entries, tallies,
//! group sizes), and what differs is reported and, on demand, mended.
//!
//! This file owns what callers see: one audit at a time, its report, and the last word on drift,
//! whether a command or the scrubber has it.

mod exact;
mod findings;
mod groups;
mod pass;
mod run;
mod sketch;

pub use findings::{Drift, Findings, KindFindings, OfKind};

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use guanxi_model::{Code, Error, Millis, Position};
use tokio::sync::watch;

pub(crate) use self::pass::{Overtaken, Pass};
use self::run::Watch;
use crate::background::{Signal, Workbench};
use crate::clock::Clock;
use crate::log::Log;
use crate::store::{EmbeddedStore, StoreError};

#[derive(Debug, Clone, Copy)]
pub struct AuditSettings {
    /// Rows that the scrubber reads in a second, on average; 0 turns it off.
    pub scrub_rows_per_second: u64,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        AuditSettings { scrub_rows_per_second: 5_000 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditQuery {
    /// One kind of a tenant, or all of all.
    pub kind: Option<OfKind>,
    pub repair: bool,
}

/// What an audit found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// Where everything was compared, the last time.
    pub position: Position,
    /// What was wrong at first.
    pub findings: Findings,
    pub repaired: u64,
    /// What is wrong still.
    pub left: u64,
}

/// The last word on everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub drift: u64,
    pub position: Position,
    pub at: Millis,
}

/// An audit that somebody asked for.
#[derive(Debug, Clone)]
pub struct AuditRun {
    pub number: u64,
    pub query: AuditQuery,
    pub begun: Millis,
    pub rows: u64,
    /// None while it runs.
    pub ended: Option<AuditEnd>,
}

#[derive(Debug, Clone)]
pub struct AuditEnd {
    pub at: Millis,
    pub result: Result<AuditReport, Error>,
}

/// How the scrubber fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scrubbing {
    pub rows_per_second: u64,
    /// Passes that have ended.
    pub passes: u64,
    /// Rows that the present pass has read.
    pub rows: u64,
}

#[derive(Debug, Clone)]
pub struct AuditState {
    pub verdict: Option<Verdict>,
    pub scrubbing: Scrubbing,
    /// The last one that was asked for.
    pub run: Option<AuditRun>,
}

/// Why an audit has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuditError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the service is stopping")]
    Stopped,
    #[error("repairs are not taken, because writes are refused here")]
    Refused,
}

pub(crate) struct Auditor {
    pub store: Arc<dyn EmbeddedStore>,
    pub log: Arc<dyn Log>,
    pub signal: Arc<Signal>,
    clock: Arc<dyn Clock>,
    /// None where writes are not taken, as on a standby.
    writer: OnceLock<Workbench>,
    inner: Mutex<Inner>,
    /// The number of the last audit that has ended.
    ended: watch::Sender<u64>,
}

struct Inner {
    state: AuditState,
    running: Option<Arc<Watch>>,
    thread: Option<JoinHandle<()>>,
}

impl Auditor {
    pub fn new(
        store: Arc<dyn EmbeddedStore>,
        log: Arc<dyn Log>,
        clock: Arc<dyn Clock>,
        signal: Arc<Signal>,
        settings: AuditSettings,
    ) -> Auditor {
        let rows_per_second = settings.scrub_rows_per_second;
        let scrubbing = Scrubbing { rows_per_second, ..Scrubbing::default() };
        let state = AuditState { verdict: None, scrubbing, run: None };
        Auditor {
            store,
            log,
            signal,
            clock,
            writer: OnceLock::new(),
            inner: Mutex::new(Inner { state, running: None, thread: None }),
            ended: watch::Sender::new(0),
        }
    }

    /// From here on repairs can be written.
    pub fn take_writes(&self, bench: Workbench) {
        let _only_once = self.writer.set(bench);
    }

    /// Begins an audit and returns its number. There is one at a time.
    pub fn begin(self: &Arc<Auditor>, query: AuditQuery) -> Result<u64, Error> {
        if query.repair && self.writer.get().is_none() {
            let message =
                "a standby takes no writes; where its store differs, make it anew from its primary";
            return Err(Error::new(Code::ReadOnly, message));
        }
        let mut inner = self.lock();
        if inner.running.is_some() {
            let message = "an audit is running already; GET /v1/admin/audit shows how far it is";
            return Err(Error::new(Code::Conflict, message));
        }
        let number = inner.state.run.as_ref().map_or(1, |run| run.number + 1);
        let watch = Arc::new(Watch::new(self.signal.clone()));
        let (auditor, watched) = (self.clone(), watch.clone());
        let thread = std::thread::Builder::new().name("guanxi-audit".into());
        let thread = thread.spawn(move || {
            let result = run::run(auditor.store.as_ref(), auditor.writer.get(), &watched, query);
            auditor.end(number, query, &watched, result);
        });
        let thread = thread.map_err(|error| {
            Error::new(Code::Unavailable, format!("the audit could not begin: {error}"))
        })?;
        let begun = self.now();
        inner.state.run = Some(AuditRun { number, query, begun, rows: 0, ended: None });
        inner.running = Some(watch);
        inner.thread = Some(thread);
        Ok(number)
    }

    fn end(
        &self,
        number: u64,
        query: AuditQuery,
        watch: &Watch,
        result: Result<AuditReport, AuditError>,
    ) {
        let at = self.now();
        if let (Ok(report), None) = (&result, query.kind) {
            self.publish(Verdict { drift: report.left, position: report.position, at });
        }
        let result = result.map_err(|error| {
            tracing::error!(%error, "the audit came to no end");
            Error::new(Code::Unavailable, format!("the audit came to no end: {error}"))
        });
        let mut inner = self.lock();
        if let Some(run) = &mut inner.state.run {
            run.rows = watch.rows_read();
            run.ended = Some(AuditEnd { at, result });
        }
        inner.running = None;
        self.ended.send_replace(number);
    }

    /// The audit of this number, when it has ended.
    pub async fn ended(&self, number: u64) -> Option<AuditRun> {
        let mut ended = self.ended.subscribe();
        ended.wait_for(|last| *last >= number).await.ok()?;
        self.state().run.filter(|run| run.number == number)
    }

    pub fn state(&self) -> AuditState {
        let inner = self.lock();
        let mut state = inner.state.clone();
        if let (Some(run), Some(watch)) = (&mut state.run, &inner.running) {
            run.rows = watch.rows_read();
        }
        state
    }

    pub fn verdict(&self) -> Option<Verdict> {
        self.lock().state.verdict
    }

    pub fn publish(&self, verdict: Verdict) {
        if verdict.drift > 0 {
            tracing::error!(
                drift = verdict.drift,
                position = verdict.position.0,
                "the store differs from what its edges say; `guanxi audit --repair` mends it"
            );
        }
        self.lock().state.verdict = Some(verdict);
    }

    pub fn scrubbed(&self, change: impl FnOnce(&mut Scrubbing)) {
        change(&mut self.lock().state.scrubbing);
    }

    /// A look at everything in one picture, for the scrubber.
    pub fn look(&self) -> Result<Verdict, AuditError> {
        let look = run::look(self.store.as_ref(), &Watch::new(self.signal.clone()), None)?;
        let (drift, position) = (look.findings.drift(), look.applied.position);
        Ok(Verdict { drift, position, at: self.now() })
    }

    pub fn now(&self) -> Millis {
        Millis(self.clock.now_ms())
    }

    /// Waits for an audit that is running; it has been told to stop.
    pub fn join(&self) {
        let thread = self.lock().thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the audit panicked");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
