//! The three stages of the commit path and the threads that run them. Each stage's work on one
//! batch is a function of its own, which the simulator runs in any order that threads could take.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use guanxi_core::clock::Clock;
use guanxi_core::crew::{self, Crew, Workers};
use guanxi_core::queue::{self, Pending, Queue, Ticket};
use guanxi_core::snapshot::StoreError;
use guanxi_model::{Code, Error, Millis, Position, Region, Request, TenantId, Token};
use tokio::sync::watch;

use super::{CommitSettings, DecidedBatch, Decider, Meter, Written};
use crate::disk_room::{DiskRoom, Stall, disk_full};
use crate::log::{Log, LogError};
use crate::overlay::Dirty;
use crate::reopening::ReopeningWriter;
use crate::shipping::{Confirmation, Shipping};
use crate::store::{Applied, Store};

/// Decided batches that may wait before a stage; one, so that a stage never idles and a batch
/// that is still being gathered grows meanwhile.
const STAGE_BATCHES_MAX: usize = 1;
/// The pause before a batch that found the disk full is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(200);
/// How long the store's stage waits for a batch before it looks after the store.
const REST_INTERVAL: Duration = Duration::from_millis(500);

/// What a committer works on.
pub struct CommitterParts {
    pub crew: Crew,
    pub log: Arc<dyn Log>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub meter: Arc<dyn Meter>,
    pub settings: CommitSettings,
    pub region: Region,
    pub shipping: Arc<Shipping>,
    pub(crate) room: Arc<DiskRoom>,
    /// Where readers learn what is visible.
    pub applied: Arc<watch::Sender<Position>>,
    /// Called when a batch that touches a job is visible.
    pub job_changed: Box<dyn Fn() + Send>,
}

impl std::fmt::Debug for CommitterParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitterParts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Committer {
    shared: Arc<PipelineShared>,
    workers: Workers,
}

/// What callers and stages share.
#[derive(Debug)]
pub(crate) struct PipelineShared {
    pub queue: Queue<Written>,
    /// Why writes are refused until a restart.
    pub refusing: OnceLock<String>,
    shipping: Arc<Shipping>,
    room: Arc<DiskRoom>,
    applied: Arc<watch::Sender<Position>>,
}

/// A decided batch with those who wait for it.
#[derive(Debug)]
pub(crate) struct AwaitedBatch {
    pub decision: DecidedBatch,
    pub waiting: VecDeque<Pending<Written>>,
}

impl PipelineShared {
    pub fn new(
        queue_max: usize,
        shipping: Arc<Shipping>,
        room: Arc<DiskRoom>,
        applied: Arc<watch::Sender<Position>>,
    ) -> PipelineShared {
        let queue = Queue::new(queue_max);
        PipelineShared { queue, refusing: OnceLock::new(), shipping, room, applied }
    }

    #[cfg(any(test, feature = "conformance"))]
    pub fn room(&self) -> &Arc<DiskRoom> {
        &self.room
    }

    pub fn push(&self, request: Request, deadline: Instant) -> Result<Ticket<Written>, Error> {
        self.shipping.refuse_stalled()?;
        self.queue_up(request, deadline, false)
    }

    /// Takes a request that may wait for a standby as long as it must.
    fn push_patient(&self, request: Request, deadline: Instant) -> Result<Ticket<Written>, Error> {
        self.queue_up(request, deadline, true)
    }

    fn queue_up(
        &self,
        request: Request,
        deadline: Instant,
        patient: bool,
    ) -> Result<Ticket<Written>, Error> {
        if self.refusing.get().is_some() {
            return Err(refused());
        }
        self.room.refuse(&request.changes)?;
        self.queue.push(request, deadline, patient)
    }
}

impl Committer {
    pub fn start(parts: CommitterParts) -> io::Result<Committer> {
        let applied = parts.store.applied();
        let (shipping, room) = (parts.shipping, parts.room);
        let shared = PipelineShared::new(parts.settings.queue_max, shipping, room, parts.applied);
        let shared = Arc::new(shared);
        let decider = Decider::new(parts.log.epoch(), applied, parts.region);
        let (to_log, from_decider) = sync_channel(STAGE_BATCHES_MAX);
        let (to_store, from_log) = sync_channel(STAGE_BATCHES_MAX);
        let CommitterParts { log, store, clock, meter, settings, job_changed, .. } = parts;
        let deciding = Deciding {
            decider,
            shared: shared.clone(),
            store: store.clone(),
            clock,
            meter: meter.clone(),
            batch_changes_max: settings.batch_changes_max,
        };
        let (logging, storing) = (shared.clone(), shared.clone());
        let store_meter = meter.clone();
        let writer = ReopeningWriter::new(store, log.clone(), shared.room.clone());
        // A stage that panics leaves a batch half done. The stages beside it end with it, nobody is
        // told that anything was done, and the next start goes on from what the log has.
        let workers = parts.crew.workers();
        workers.spawn("guanxi-decide", move |_| deciding.run(&to_log))?;
        workers.spawn_behind("guanxi-log", move || {
            append_all(&logging, log.as_ref(), meter.as_ref(), &from_decider, &to_store);
        })?;
        workers.spawn_behind("guanxi-store", move || {
            write_all(&storing, writer, store_meter.as_ref(), &job_changed, &from_log);
        })?;
        Ok(Committer { shared, workers })
    }

    /// Resolves when the request is durable and visible, refused, or past its deadline.
    pub async fn write(&self, request: Request, deadline: Instant) -> Result<Written, Error> {
        let mut ticket = self.shared.push(request, deadline)?;
        match tokio::time::timeout_at(deadline.into(), &mut ticket.reply).await {
            Ok(reply) => reply.unwrap_or_else(|_gone| Err(stopped())),
            Err(_elapsed) => Err(ticket.withdraw()),
        }
    }

    /// As `write`, for threads of the engine's own. Every taken request is answered, so it waits
    /// without a deadline of its own.
    pub fn write_blocking(&self, request: Request, deadline: Instant) -> Result<Written, Error> {
        let ticket = self.shared.push_patient(request, deadline)?;
        ticket.reply.blocking_recv().unwrap_or_else(|_gone| Err(stopped()))
    }

    /// Takes nothing more until then, the engine's own threads' changes neither; resolves when all
    /// that was taken before is visible.
    pub async fn pause(&self, why: Error, until: Instant) -> Result<(), Error> {
        if self.shared.refusing.get().is_some() {
            return Err(refused());
        }
        let last = Request::new(TenantId::DEFAULT, Vec::new());
        let mut ticket = self.shared.queue.refuse_until(why, until, last)?;
        let late = || {
            let message = "what was under way did not end in time; writes are taken again";
            Err(Error::new(Code::Unavailable, message))
        };
        let paused = match tokio::time::timeout_at(until.into(), &mut ticket.reply).await {
            Ok(Ok(reply)) => reply.map(|_| ()),
            Ok(Err(_gone)) => Err(stopped()),
            Err(_elapsed) => late(),
        };
        if paused.is_err() {
            self.resume();
        }
        paused
    }

    /// Takes nothing ever again, if it takes nothing now; false when the pause is over.
    pub fn pause_for_good(&self, why: Error) -> bool {
        self.shared.queue.keep_refusing(why)
    }

    /// Takes nothing from the start.
    pub fn refuse(&self, why: Error) {
        self.shared.queue.refuse_for_good(why);
    }

    /// Ends a pause before its time.
    pub fn resume(&self) {
        self.shared.queue.refuse_no_more();
    }

    pub fn refusing(&self) -> Option<&str> {
        self.shared.refusing.get().map(String::as_str)
    }

    /// Whether writes are refused only until the disk has room.
    pub fn meets_full_disk(&self) -> bool {
        self.shared.refusing.get().is_none() && self.shared.room.is_full()
    }

    pub fn queue_len(&self) -> usize {
        self.shared.queue.changes()
    }

    /// Serves what waits, and takes nothing more.
    pub fn take_no_more(&self) {
        self.workers.signal().stop();
        self.shared.queue.close();
    }

    /// The same, and returns when all is applied.
    pub fn close(&self) {
        self.take_no_more();
        self.workers.finish();
    }
}

/// The decider's stage.
pub(crate) struct Deciding {
    pub decider: Decider,
    pub shared: Arc<PipelineShared>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub meter: Arc<dyn Meter>,
    pub batch_changes_max: usize,
}

impl Deciding {
    fn run(mut self, to_log: &SyncSender<AwaitedBatch>) {
        while let Some(mut waiting) = self.shared.queue.take(self.batch_changes_max) {
            crew::turn();
            while !waiting.is_empty() {
                if let Some(batch) = self.decide(&mut waiting)
                    && let Err(unsent) = to_log.send(batch)
                {
                    answer_all(unsent.0.waiting, &stopped());
                }
            }
        }
    }

    /// Takes what fits one batch out of those who wait; none when nothing could be decided, and
    /// whoever stood in the way was answered.
    pub fn decide(&mut self, waiting: &mut VecDeque<Pending<Written>>) -> Option<AwaitedBatch> {
        if self.shared.refusing.get().is_some() {
            answer_all(std::mem::take(waiting), &refused());
            return None;
        }
        let begun = Instant::now();
        let now = Millis(self.clock.now_ms());
        // Only where the time is in doubt do keys age by another than that of their batch.
        let past = Some(Millis(self.clock.past_ms())).filter(|past| *past < now);
        self.decider.age_keys_by(past.unwrap_or(Millis(u64::MAX)));
        let requests = waiting.iter().map(|pending| &pending.request);
        match self.decider.decide(requests, now, self.store.as_ref()) {
            Ok(decision) => {
                self.meter.decide(begun.elapsed());
                let rest = waiting.split_off(decision.answers.len());
                let waiting = std::mem::replace(waiting, rest);
                Some(AwaitedBatch { decision, waiting })
            }
            Err(error) => {
                tracing::error!(%error, "a request could not be decided");
                let message = "a row that this depends on could not be read; nothing was changed";
                let error = Error::new(Code::Unavailable, message);
                answer_all(waiting.drain(..1).collect(), &error);
                None
            }
        }
    }
}

fn append_all(
    shared: &PipelineShared,
    log: &dyn Log,
    meter: &dyn Meter,
    batches: &Receiver<AwaitedBatch>,
    to_store: &SyncSender<AwaitedBatch>,
) {
    let mut stopped_early = false;
    for batch in batches {
        crew::turn();
        // Once a batch found no room, those behind it do not continue the log.
        if stopped_early {
            answer_all(batch.waiting, &stopped());
            continue;
        }
        match find_room(shared, Stall::Log, batch, |batch| append(shared, log, meter, batch)) {
            Some(Some(batch)) => {
                if let Err(unsent) = to_store.send(batch) {
                    answer_all(unsent.0.waiting, &stopped());
                }
            }
            Some(None) => {}
            None => stopped_early = true,
        }
    }
}

/// What a stage has done with a batch; the batch itself where the disk was too full for it.
pub(crate) type Staged<T> = Result<T, Box<AwaitedBatch>>;

/// Does a stage's work, however long the disk is full: what was decided rests on it. The callers
/// do not wait so long. None when the engine stops first.
fn find_room<T>(
    shared: &PipelineShared,
    at: Stall,
    mut batch: AwaitedBatch,
    mut work: impl FnMut(AwaitedBatch) -> Staged<T>,
) -> Option<T> {
    loop {
        batch = match work(batch) {
            Ok(done) => {
                shared.room.went_on(at);
                return Some(done);
            }
            Err(unplaced) => *unplaced,
        };
        if shared.room.met_full(at) {
            continue;
        }
        let error = disk_full().outcome_unknown();
        batch.waiting.iter_mut().for_each(|pending| pending.give_up(&error));
        if shared.queue.is_closed() {
            answer_all(batch.waiting, &stopped());
            return None;
        }
        std::thread::sleep(FULL_PAUSE);
    }
}

/// The log's stage: one frame, one fsync per batch. After a failure nothing more is written.
/// None when the batch ends here, its callers answered.
pub(crate) fn append(
    shared: &PipelineShared,
    log: &dyn Log,
    meter: &dyn Meter,
    batch: AwaitedBatch,
) -> Staged<Option<AwaitedBatch>> {
    if shared.refusing.get().is_some() {
        answer_all(batch.waiting, &refused());
        return Ok(None);
    }
    if let Some(frame) = &batch.decision.frame {
        let begun = Instant::now();
        if let Err(error) = log.append(frame) {
            if matches!(error, LogError::Full { .. }) {
                return Err(Box::new(batch));
            }
            tracing::error!(%error, "the log could not be written; writes are refused now");
            let written = matches!(error, LogError::Io { .. });
            let _first = shared.refusing.set(error.to_string());
            let refusal = refused();
            let refusal = if written { refusal.outcome_unknown() } else { refusal };
            answer_all(batch.waiting, &refusal);
            return Ok(None);
        }
        shared.shipping.appended(frame.last());
        meter.fsync(begun.elapsed());
        meter.batch(batch.decision.changes, frame.records.len());
    }
    Ok(Some(batch))
}

fn write_all(
    shared: &PipelineShared,
    mut writer: ReopeningWriter,
    meter: &dyn Meter,
    job_changed: &dyn Fn(),
    batches: &Receiver<AwaitedBatch>,
) {
    let mut stopped_early = false;
    loop {
        let mut batch = match batches.recv_timeout(REST_INTERVAL) {
            Ok(batch) => batch,
            Err(RecvTimeoutError::Timeout) => {
                writer.rest();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        crew::turn();
        // Once a batch was not confirmed, those behind it would leave a hole.
        stopped_early = stopped_early || !confirm(shared, &mut batch);
        if stopped_early {
            answer_all(batch.waiting, &stopped());
            continue;
        }
        let touches_job = !batch.decision.dirty.jobs.is_empty();
        let written = find_room(shared, Stall::Store, batch, |batch| {
            let store = &mut |dirty: &Dirty, applied| {
                writer.write(&mut |store| store.write(dirty, applied))
            };
            write(shared, store, meter, batch)
        });
        stopped_early = written.is_none();
        if touches_job && !stopped_early {
            job_changed();
        }
    }
}

/// Waits until as many standbys as are required have the batch on disk: before that nobody may
/// see it, however long it takes. False when the engine stops first.
fn confirm(shared: &PipelineShared, batch: &mut AwaitedBatch) -> bool {
    loop {
        match shared.shipping.wait(batch.decision.applied.position) {
            Confirmation::Confirmed => return true,
            Confirmation::Stopped => return false,
            Confirmation::Late => {
                let error = unconfirmed();
                batch.waiting.iter_mut().for_each(|pending| pending.give_up(&error));
            }
        }
    }
}

/// The store's stage, and the answers.
pub(crate) fn write(
    shared: &PipelineShared,
    store: &mut dyn FnMut(&Dirty, Applied) -> Result<(), StoreError>,
    meter: &dyn Meter,
    batch: AwaitedBatch,
) -> Staged<()> {
    let AwaitedBatch { decision, waiting } = batch;
    // Once a batch is missing, those behind it would leave a hole, or tell of rows that nobody
    // sees.
    if shared.refusing.get().is_some() {
        let refusal = match decision.frame {
            Some(_) => refused().outcome_unknown(),
            None => refused(),
        };
        answer_all(waiting, &refusal);
        return Ok(());
    }
    if decision.frame.is_some() {
        let begun = Instant::now();
        if let Err(error) = store(&decision.dirty, decision.applied) {
            if matches!(error, StoreError::Full) {
                return Err(Box::new(AwaitedBatch { decision, waiting }));
            }
            tracing::error!(%error, "the store could not be written; writes are refused now");
            let _first = shared.refusing.set(error.to_string());
            answer_all(waiting, &refused().outcome_unknown());
            return Ok(());
        }
        meter.apply(begun.elapsed());
        shared.applied.send_replace(decision.applied.position);
    }
    let (epoch, position) = (decision.applied.epoch, decision.applied.position);
    queue::answer_all(waiting.into_iter().zip(decision.answers).map(|(pending, answers)| {
        let token = Token { tenant: pending.request.tenant, epoch, position };
        (pending, answers.map(|answers| Written { answers, token }))
    }));
    Ok(())
}

fn answer_all(waiting: VecDeque<Pending<Written>>, error: &Error) {
    queue::answer_all(waiting.into_iter().map(|pending| (pending, Err(error.clone()))));
}

/// What failed stands in the service's own log: its words and paths are not the callers'.
fn refused() -> Error {
    let message = "writes are refused until a restart, because the disk failed one; reads go on";
    Error::new(Code::Unavailable, message)
}

fn unconfirmed() -> Error {
    let message = "no standby has confirmed the write in time; it is done when one does, and is \
                   not shown before";
    Error::new(Code::Unavailable, message).outcome_unknown()
}

fn stopped() -> Error {
    Error::new(Code::Unavailable, "the service stopped before the write was done").outcome_unknown()
}
