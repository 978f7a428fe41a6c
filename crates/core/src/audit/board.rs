//! What callers see of audits, in either deployment: one at a time, its report, and the last word
//! on drift, whether a command or the scrubber has it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use guanxi_model::{Code, Error, Millis};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    AuditEnd, AuditError, AuditQuery, AuditReport, AuditRun, AuditSettings, AuditState,
    AuditVerdict, AuditWatch, Scrubbing,
};
use crate::clock::Clock;
use crate::crew;

pub struct Board {
    clock: Arc<dyn Clock>,
    inner: Mutex<BoardState>,
    /// The number of the last audit that has ended.
    ended: watch::Sender<u64>,
}

struct BoardState {
    state: AuditState,
    running: Option<Arc<AuditWatch>>,
    thread: Option<JoinHandle<()>>,
}

impl Board {
    pub fn new(clock: Arc<dyn Clock>, settings: AuditSettings) -> Board {
        let rows_per_second = settings.scrub_rows_per_second;
        let scrubbing = Scrubbing { rows_per_second, ..Scrubbing::default() };
        let state = AuditState { verdict: None, scrubbing, run: None };
        let inner = Mutex::new(BoardState { state, running: None, thread: None });
        Board { clock, inner, ended: watch::Sender::new(0) }
    }

    /// Begins an audit, which is `work`, and returns its number. There is one at a time.
    pub fn begin(
        self: &Arc<Board>,
        query: AuditQuery,
        watch: AuditWatch,
        work: impl FnOnce(&AuditWatch) -> Result<AuditReport, AuditError> + Send + 'static,
    ) -> Result<u64, Error> {
        let mut inner = self.inner.lock();
        if inner.running.is_some() {
            return Err(running_already());
        }
        let number = inner.state.run.as_ref().map_or(1, |run| run.number + 1);
        let watch = Arc::new(watch);
        let (board, watched) = (self.clone(), watch.clone());
        let thread = crew::aside("guanxi-audit", move || {
            // Its end is told in any case: else no audit could ever begin again.
            let work = AssertUnwindSafe(|| work(&watched));
            let result = catch_unwind(work).unwrap_or(Err(AuditError::Panicked));
            board.end(number, query, &watched, result);
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
        watch: &AuditWatch,
        result: Result<AuditReport, AuditError>,
    ) {
        let at = self.now();
        if let (Ok(report), None) = (&result, query.kind) {
            self.publish(AuditVerdict { drift: report.left, position: report.position, at });
        }
        let result = result.map_err(|error| {
            tracing::error!(%error, "the audit came to no end");
            error.into_error()
        });
        let mut inner = self.inner.lock();
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
        let inner = self.inner.lock();
        let mut state = inner.state.clone();
        if let (Some(run), Some(watch)) = (&mut state.run, &inner.running) {
            run.rows = watch.rows_read();
        }
        state
    }

    pub fn verdict(&self) -> Option<AuditVerdict> {
        self.inner.lock().state.verdict
    }

    pub fn publish(&self, verdict: AuditVerdict) {
        if verdict.drift > 0 {
            tracing::error!(
                drift = verdict.drift,
                position = verdict.position.0,
                "the store differs from what its edges say; `guanxi audit --repair` mends it"
            );
        }
        self.inner.lock().state.verdict = Some(verdict);
    }

    pub fn scrubbed(&self, change: impl FnOnce(&mut Scrubbing)) {
        change(&mut self.inner.lock().state.scrubbing);
    }

    pub fn now(&self) -> Millis {
        Millis(self.clock.now_ms())
    }

    /// Waits for an audit that is running; it has been told to stop.
    pub fn join(&self) {
        let thread = self.inner.lock().thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the audit panicked");
        }
    }
}

fn running_already() -> Error {
    let message = "an audit is running already; ask for the audit's state to see how far it is";
    Error::new(Code::Conflict, message)
}
