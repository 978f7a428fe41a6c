//! Pure counters of a cluster. A counter's value is the sum of its slots; an instance adds to one
//! slot of its own, so that instances do not wait for one another at a popular node.
//!
//! Changes are gathered in a bounded queue; one thread commits a batch's deltas, folded per node,
//! and their idempotency keys in one transaction, and acknowledges nothing before it. Each batch
//! raises the witness of the counters, which tells what became of a COMMIT in doubt.

mod batch;
mod rows;
mod view;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::clock::Clock;
use guanxi_core::crew::{self, Crew, Workers};
use guanxi_core::queue::{Pending, Queue};
use guanxi_model::idempotency::Answers;
use guanxi_model::{Catalog, Change, Code, Error, Millis, NodeKey, Request};

use self::batch::{CounterBatch, CounterRetry};
use super::catalog::SharedCatalog;
use super::commit::ClockCheck;
use super::memory::SharedMemory;
use super::sql::commit_deadline::CommitBy;
use super::sql::commit_in_doubt::{CommitFailure, Witness};
use super::sql::{Database, SqlError};

/// Slots of a counter.
pub const SLOTS: u16 = 16;
/// A slot's value, either sign: all slots together stay within what a counter may be.
pub const SLOT_ABS_MAX: i64 = 1 << 49;

/// Beyond the lanes of edges, which are few.
const LANE: u8 = u8::MAX;
/// How long a batch is tried again before its callers are told; most have left by then.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pauses between tries.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
pub struct CounterSettings {
    /// Changes that may wait; beyond, writes are refused as overloaded.
    pub queue_max: usize,
    /// Changes that are committed together.
    pub batch_changes_max: usize,
}

impl Default for CounterSettings {
    fn default() -> CounterSettings {
        CounterSettings { queue_max: 16_384, batch_changes_max: 1_024 }
    }
}

pub struct CountersParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    /// Does not follow a jump: it only tells when keys are forgotten.
    pub clock: Arc<dyn Clock>,
    /// Whether this instance may write.
    pub clock_check: Arc<ClockCheck>,
    pub settings: CounterSettings,
    /// Unique among the living instances; its slot follows from it.
    pub instance: u64,
    /// Told before and after counters are committed.
    pub memory: Option<Arc<SharedMemory>>,
}

impl std::fmt::Debug for CountersParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountersParts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Counters {
    queue: Arc<Queue<Answers>>,
    clock_check: Arc<ClockCheck>,
    workers: Workers,
}

impl Counters {
    pub fn start(parts: CountersParts) -> io::Result<Counters> {
        let queue = Arc::new(Queue::new(parts.settings.queue_max));
        let (waiting, workers) = (queue.clone(), parts.crew.workers());
        let clock_check = parts.clock_check.clone();
        workers.spawn("guanxi-counters", move |_| {
            while let Some(taken) = waiting.take(parts.settings.batch_changes_max) {
                crew::turn();
                serve(&parts, taken);
            }
        })?;
        Ok(Counters { queue, clock_check, workers })
    }

    /// Resolves when the request is committed, refused, or past its deadline. Its changes are
    /// counts, or counters brought to a value.
    pub async fn write(&self, request: Request, deadline: Instant) -> Result<Answers, Error> {
        self.clock_check.check()?;
        let mut ticket = self.queue.push(request, deadline, false)?;
        match tokio::time::timeout_at(deadline.into(), &mut ticket.reply).await {
            Ok(reply) => reply.unwrap_or_else(|_gone| Err(stopped().outcome_unknown())),
            Err(_elapsed) => Err(ticket.withdraw()),
        }
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.queue.changes()
    }

    /// Takes no more, serves what waits, and ends.
    pub fn close(&self) {
        self.workers.signal().stop();
        self.queue.close();
        self.workers.finish();
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.close();
    }
}

fn stopped() -> Error {
    Error::new(Code::Unavailable, "the service is stopping")
}

/// Commits what was taken and answers everyone.
fn serve(parts: &CountersParts, taken: VecDeque<Pending<Answers>>) {
    let requests: Vec<&Request> = taken.iter().map(|pending| &pending.request).collect();
    let answers = commit(parts, &requests);
    if let Some(tallies) = parts.memory.as_ref().and_then(|memory| memory.tallies()) {
        tallies.counted(counted(&parts.catalog.current(), &requests));
    }
    for (pending, answer) in taken.into_iter().zip(answers) {
        pending.answer(answer);
    }
}

/// The nodes whose counters these requests may have changed.
fn counted(catalog: &Catalog, requests: &[&Request]) -> Vec<NodeKey> {
    let changes = requests.iter().flat_map(|request| &request.changes);
    let node = |change: &Change| {
        let (tenant, kind, id) = match change {
            Change::Count(count) => (count.tenant, count.kind, count.id),
            Change::ImportCounter { tenant, kind, id, .. } => (*tenant, *kind, *id),
            _ => return None,
        };
        let node_type = catalog.kind(tenant, kind)?.fixed.target_type;
        Some(NodeKey { tenant, node_type, id })
    };
    changes.filter_map(node).collect()
}

/// One answer per request. What the database refuses is tried request by request, so that one
/// that it does not like spoils nothing for the others.
fn commit(parts: &CountersParts, requests: &[&Request]) -> Vec<Result<Answers, Error>> {
    let (error, unknown) = match commit_together(parts, requests) {
        Ok(answers) => return answers,
        Err(CommitFailure::Nothing(SqlError::Refused(_))) if requests.len() > 1 => {
            return requests.iter().flat_map(|request| commit(parts, &[request])).collect();
        }
        Err(CommitFailure::Nothing(error)) => (error, false),
        Err(CommitFailure::Unknown(error)) => (error, true),
    };
    tracing::error!(%error, "counters could not be written");
    let message = match (&error, unknown) {
        (_, true) => {
            "the database was lost while it committed the counters; whether it was done is not \
             known: look, or send it again with its idempotency key"
        }
        (SqlError::Refused(_), false) => "the database refuses the counters; the log says why",
        _ => "the database did not take the counters in time; nothing was done, try again",
    };
    let error = Error::new(Code::Unavailable, message);
    let error = if unknown { error.outcome_unknown() } else { error };
    vec![Err(error); requests.len()]
}

/// Before anything is locked, as it may have to wait.
fn tell_memory(
    parts: &CountersParts,
    requests: &[&Request],
    by: CommitBy,
) -> Result<CommitBy, SqlError> {
    match &parts.memory {
        Some(memory) => memory.let_commit(requests, by),
        None => Ok(by),
    }
}

fn commit_together(
    parts: &CountersParts,
    requests: &[&Request],
) -> Result<Vec<Result<Answers, Error>>, CommitFailure> {
    let until = Instant::now() + PATIENCE;
    let mut batch =
        CounterBatch::new(requests, parts.instance, Witness::of_lane(parts.instance, LANE));
    let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
    loop {
        let error = match try_once(parts, requests, &mut batch, until) {
            Ok(answers) => return Ok(answers),
            Err(CounterRetry::Wider) => continue,
            Err(CounterRetry::Failed(CommitFailure::Nothing(error))) => error,
            Err(CounterRetry::Failed(unknown)) => return Err(unknown),
        };
        if !error.may_pass() || Instant::now() >= until {
            return Err(CommitFailure::Nothing(error));
        }
        tracing::debug!(%error, "counters are tried again");
        backoff.failed();
        std::thread::sleep(backoff.left());
    }
}

fn try_once(
    parts: &CountersParts,
    requests: &[&Request],
    batch: &mut CounterBatch<'_>,
    until: Instant,
) -> Result<Vec<Result<Answers, Error>>, CounterRetry> {
    // Before the memory allows it to commit: those who take that back wait for this deadline.
    let by = tell_memory(parts, requests, parts.database.commit_by()?)?;
    let mut session = parts.database.session(until)?;
    Witness::of_lane(parts.instance, LANE).make_sure(&mut session, by, "")?;
    let now = Millis(parts.clock.now_ms());
    let done = batch.run(&mut session, parts.catalog.current(), by, now);
    if done.is_err() {
        // Whatever is open is undone with its connection.
        session.close();
    }
    done
}
