//! One life: from a start to the next stop. Runs the stages of the commit path, readers, chores
//! and checkpoints on one thread, one amid another as threads could: whenever a stage comes to an
//! operation of the machine, others may go on before it does. Who asks is in `life/callers.rs`.

mod callers;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use guanxi_core::clock::Clock;
use guanxi_core::signal::Signal;
use guanxi_core::snapshot::Snapshot;
use guanxi_model::{Millis, Position, Request};
use tokio::sync::watch;

use self::callers::{SimulatedCaller, note_due};
use super::compare::{compare, same};
use super::machine::Machine;
use super::planted::{PausingStore, answers_alone, rows_alone};
use super::reference::{Expected, Prefix, ReferenceService};
use super::requests::{self, RequestAuthor};
use super::{DIRECTORY_SEED, Deeds, REGION, RESIDENT, SimulationBug};
use crate::commit::pipeline::{self, AwaitedBatch, Deciding, PipelineShared};
use crate::commit::{Decider, Unmetered};
use crate::disk::SimDisk;
use crate::disk_room::DiskRoom;
use crate::log::{FileLog, Log};
use crate::overlay::Dirty;
use crate::resident::keeper::{FilterKeeper, FilterParts};
use crate::shipping::{Shipping, ShippingSettings};
use crate::store::{EmbeddedStore, KeyedStore, Store};

/// Changes that may wait: few, so that some requests find the queue full.
const QUEUE_MAX: usize = 60;
const BATCH_CHANGES_MAX: usize = 40;
/// A channel between stages holds one batch, and the stage before it may hold one more.
const BETWEEN_STAGES_MAX: usize = 2;
/// How deep one step may come amid another.
const DEPTH_MAX: u32 = 3;
const HELD_SNAPSHOTS_MAX: usize = 3;
const HOUR_MS: u64 = 60 * 60 * 1_000;

thread_local! {
    /// The life that this thread runs. The log and the store keep parts that may go to other
    /// threads, which a life cannot, so they find it here.
    static LIFE: RefCell<Option<Rc<Life>>> = const { RefCell::new(None) };
}

fn current() -> Option<Rc<Life>> {
    LIFE.with_borrow(|life| life.clone())
}

/// A place where the operating system could let another thread run, or the process end.
pub(super) fn pause() {
    if let Some(life) = current() {
        life.meanwhile();
    }
}

/// Does what the store's stage must stay out of meanwhile.
pub(super) fn alone_at_the_store(work: impl FnOnce()) {
    let Some(life) = current() else { return work() };
    let busy = life.store_busy.replace(true);
    work();
    life.store_busy.set(busy);
}

/// Gives the thread free when the life ends, also by a panic.
struct Thread;

impl Drop for Thread {
    fn drop(&mut self) {
        LIFE.set(None);
    }
}

pub(super) struct Life {
    machine: Machine,
    bug: Option<SimulationBug>,
    log: Arc<FileLog>,
    store: Arc<KeyedStore<Machine>>,
    shared: Arc<PipelineShared>,
    author: RefCell<RequestAuthor>,
    reference: RefCell<ReferenceService>,
    deeds: RefCell<Deeds>,
    /// Away while it decides.
    deciding: RefCell<Option<Deciding>>,
    decided: RefCell<VecDeque<AwaitedBatch>>,
    appended: RefCell<VecDeque<AwaitedBatch>>,
    log_busy: Cell<bool>,
    store_busy: Cell<bool>,
    checkpoint_busy: Cell<bool>,
    keeper: FilterKeeper,
    keeper_busy: Cell<bool>,
    /// In the order of the queue.
    queued: RefCell<VecDeque<SimulatedCaller>>,
    taken: RefCell<Vec<SimulatedCaller>>,
    /// The sweeper or a job waits for an answer.
    chore_waits: Cell<bool>,
    /// What readers see, and what they will see when the store's stage is done.
    visible: Cell<Position>,
    writing: Cell<Position>,
    persisted: Cell<Position>,
    snapshots: RefCell<Vec<(Box<dyn Snapshot>, Prefix)>>,
    depth: Cell<u32>,
    broken: RefCell<Option<String>>,
}

/// What outlives a life.
pub(super) struct Legacy {
    pub author: RequestAuthor,
    pub reference: ReferenceService,
    pub deeds: Deeds,
}

impl Life {
    pub fn new(
        machine: Machine,
        bug: Option<SimulationBug>,
        log: Arc<FileLog>,
        store: Arc<KeyedStore<Machine>>,
        legacy: Legacy,
    ) -> Life {
        let applied = store.applied();
        let shipping = Shipping::new(ShippingSettings::default(), log.last());
        let visible = watch::Sender::new(applied.position);
        let room = DiskRoom::open(Arc::new(SimDisk::new(0)), PathBuf::from("/"));
        let (shipping, visible) = (Arc::new(shipping), Arc::new(visible));
        let shared = Arc::new(PipelineShared::new(QUEUE_MAX, shipping, Arc::new(room), visible));
        let pausing = Arc::new(PausingStore::new(store.clone(), bug));
        let keeper = FilterKeeper::small(FilterParts {
            store: pausing.clone(),
            log: log.clone(),
            disk: Arc::new(machine.clone()),
            room: shared.room().clone(),
            data_dir: PathBuf::from("/data"),
            seed: DIRECTORY_SEED,
            bytes_max: RESIDENT.filter_bytes_max,
        });
        let deciding = Deciding {
            decider: Decider::new(log.epoch(), applied, REGION),
            shared: shared.clone(),
            store: pausing,
            clock: machine.clock.clone(),
            meter: Arc::new(Unmetered),
            batch_changes_max: BATCH_CHANGES_MAX,
        };
        Life {
            machine,
            bug,
            log,
            store,
            shared,
            author: RefCell::new(legacy.author),
            reference: RefCell::new(legacy.reference),
            deeds: RefCell::new(legacy.deeds),
            deciding: RefCell::new(Some(deciding)),
            decided: RefCell::default(),
            appended: RefCell::default(),
            log_busy: Cell::new(false),
            store_busy: Cell::new(false),
            checkpoint_busy: Cell::new(false),
            keeper,
            keeper_busy: Cell::new(false),
            queued: RefCell::default(),
            taken: RefCell::default(),
            chore_waits: Cell::new(false),
            visible: Cell::new(applied.position),
            writing: Cell::new(applied.position),
            persisted: Cell::new(applied.position),
            snapshots: RefCell::default(),
            depth: Cell::new(0),
            broken: RefCell::default(),
        }
    }

    /// Lives for so many steps, or until the process ends; an orderly end serves what waits.
    pub fn run(self, steps: usize, orderly: bool) -> (Legacy, Result<(), String>) {
        let life = Rc::new(self);
        LIFE.set(Some(life.clone()));
        let thread = Thread;
        match requests::first_kinds(&life.store.catalog()) {
            Ok(Some(request)) => life.ask(request, false),
            Ok(None) => {}
            Err(error) => life.breaks(error.to_string()),
        }
        for _ in 0..steps {
            if life.is_over() {
                break;
            }
            life.step();
        }
        if orderly && !life.is_over() {
            life.close();
        }
        drop(thread);
        life.snapshots.take();
        life.deeds.borrow_mut().at_hand += life.store.resident().answered.at_hand();
        let ended = match life.broken.take() {
            Some(what) => Err(what),
            None => Ok(()),
        };
        let legacy = Legacy {
            author: life.author.replace(RequestAuthor::new(fastrand::Rng::with_seed(0))),
            reference: life.reference.replace(ReferenceService::new(REGION)),
            deeds: life.deeds.take(),
        };
        (legacy, ended)
    }

    fn is_over(&self) -> bool {
        self.machine.stopped() || self.broken.borrow().is_some()
    }

    fn breaks(&self, what: String) {
        self.broken.borrow_mut().get_or_insert(what);
    }

    fn check(&self, held: Result<(), String>) {
        if let Err(what) = held {
            self.breaks(what);
        }
    }

    fn roll(&self, below: u32) -> u32 {
        self.author.borrow_mut().random.u32(..below)
    }

    fn now(&self) -> Millis {
        Millis(self.machine.clock.now_ms())
    }

    /// What may happen while a stage waits for the machine.
    fn meanwhile(&self) {
        if self.is_over() || self.depth.get() == DEPTH_MAX {
            return;
        }
        if self.roll(500) == 0 {
            self.machine.stop();
            return;
        }
        if self.roll(4) == 0 {
            self.depth.set(self.depth.get() + 1);
            self.step();
            self.depth.set(self.depth.get() - 1);
        }
    }

    fn step(&self) {
        match self.roll(100) {
            0..30 => self.ask_anything(),
            30..33 => self.ask_chore(),
            33..51 => self.decide(),
            51..69 => self.append(),
            69..87 => self.write(),
            87..91 => self.read(),
            91..93 => self.checkpoint(),
            93..95 => self.withdraw(),
            95..98 => self.keep_filter(),
            _ => self.pass_time(),
        }
    }

    fn pass_time(&self) {
        let now_ms = self.now().0;
        let by_ms = u64::from(self.roll(40));
        let next_ms = match self.roll(30) {
            0 => now_ms + 25 * HOUR_MS,
            1 => now_ms + HOUR_MS,
            2 => now_ms - 2 * HOUR_MS,
            3..6 => now_ms - by_ms,
            _ => now_ms + by_ms,
        };
        self.machine.clock.set(next_ms);
    }

    /// The decider's stage.
    fn decide(&self) {
        let waits = |caller: &SimulatedCaller| !caller.withdrawn;
        if self.decided.borrow().len() == BETWEEN_STAGES_MAX
            || !self.queued.borrow().iter().any(waits)
        {
            return;
        }
        let Some(mut deciding) = self.deciding.take() else {
            return;
        };
        let mut waiting = self.shared.queue.take(BATCH_CHANGES_MAX).unwrap_or_default();
        let mut callers = self.callers_of(&waiting);
        while !waiting.is_empty() {
            let requests: Vec<Request> = waiting.iter().map(|each| each.request.clone()).collect();
            let now = self.now();
            let batch = deciding.decide(&mut waiting);
            if self.is_over() {
                return;
            }
            let rest = callers.split_off(requests.len() - waiting.len());
            let mut of_batch = std::mem::replace(&mut callers, rest);
            if let Some(batch) = batch {
                let decided = &requests[..of_batch.len()];
                let expected = self.reference.borrow_mut().decide(decided, now);
                self.check(check_decision(&batch, &expected));
                note_due(&mut of_batch, expected);
                self.decided.borrow_mut().push_back(batch);
                self.deeds.borrow_mut().batches += 1;
            }
            self.taken.borrow_mut().append(&mut of_batch);
        }
        self.deciding.replace(Some(deciding));
        self.collect(false);
    }

    /// The log's stage.
    fn append(&self) {
        if self.log_busy.get() || self.appended.borrow().len() == BETWEEN_STAGES_MAX {
            return;
        }
        let Some(batch) = self.decided.borrow_mut().pop_front() else {
            return;
        };
        self.log_busy.set(true);
        match self.bug {
            Some(SimulationBug::WriteAhead) => self.append_ahead(batch),
            Some(SimulationBug::AcknowledgeEarly) => {
                let (answers, batch) = answers_alone(batch);
                self.write_batch(answers);
                self.append_batch(batch);
            }
            Some(SimulationBug::ApplyEarly) => {
                let (rows, batch) = rows_alone(batch);
                self.write_batch(rows);
                self.append_batch(batch);
                if let Some(appended) = self.appended.borrow_mut().back_mut() {
                    appended.decision.frame = None;
                }
            }
            _ => self.append_batch(batch),
        }
        self.log_busy.set(false);
    }

    fn append_batch(&self, batch: AwaitedBatch) {
        if self.is_over() {
            return;
        }
        let last = batch.decision.applied.position;
        let has_frame = batch.decision.frame.is_some();
        if has_frame {
            self.reference.borrow_mut().attempted = last;
        }
        let appended = pipeline::append(&self.shared, self.log.as_ref(), &Unmetered, batch);
        if self.is_over() {
            return;
        }
        // A full disk has room at the next try.
        let appended = appended.unwrap_or_else(|batch| {
            self.decided.borrow_mut().push_front(*batch);
            None
        });
        if let Some(batch) = appended {
            let mut reference = self.reference.borrow_mut();
            reference.durable = reference.durable.max(reference.attempted);
            self.appended.borrow_mut().push_back(batch);
        }
        self.collect(false);
    }

    /// The planted bug: the next frame is written before the sync of this one has returned.
    fn append_ahead(&self, batch: AwaitedBatch) {
        let durable = self.reference.borrow().durable;
        // Neither is seen before its sync.
        let store_busy = self.store_busy.replace(true);
        self.machine.hold_syncs();
        self.append_batch(batch);
        let next = self.decided.borrow_mut().pop_front();
        if let Some(next) = next {
            self.append_batch(next);
        }
        let written = std::mem::replace(&mut self.reference.borrow_mut().durable, durable);
        if self.machine.release_syncs().is_err() {
            self.machine.stop();
        }
        if !self.is_over() {
            self.reference.borrow_mut().durable = written;
        }
        self.store_busy.set(store_busy);
    }

    /// The store's stage.
    fn write(&self) {
        if self.store_busy.get() {
            return;
        }
        let batch = self.appended.borrow_mut().pop_front();
        if let Some(batch) = batch {
            self.write_batch(batch);
        }
    }

    fn write_batch(&self, batch: AwaitedBatch) {
        let may_succeed = self.shared.refusing.get().is_none();
        let busy = self.store_busy.replace(true);
        if batch.decision.frame.is_some() {
            self.writing.set(batch.decision.applied.position);
        }
        let store = &mut |dirty: &Dirty, applied| {
            let written = self.store.write(dirty, applied);
            if written.is_ok() {
                self.visible.set(self.writing.get());
            }
            written
        };
        let written = pipeline::write(&self.shared, store, &Unmetered, batch);
        debug_assert!(written.is_ok(), "a store in memory is never full");
        self.store_busy.set(busy);
        if !self.is_over() {
            self.collect(may_succeed);
        }
    }

    /// A reader takes a snapshot and looks, or looks again at one that it took before.
    fn read(&self) {
        self.deeds.borrow_mut().reads += 1;
        let mut snapshots = self.snapshots.borrow_mut();
        if snapshots.len() == HELD_SNAPSHOTS_MAX {
            let (snapshot, prefix) = snapshots.swap_remove(self.roll(3) as usize);
            let found = compare(snapshot.as_ref(), &prefix.rows, prefix.applied.commit);
            self.check(found.map_err(|what| format!("an old snapshot: {what}")));
            return;
        }
        let seen = self.visible.get();
        let mut reference = self.reference.borrow_mut();
        let Some(prefix) = reference.at(seen) else {
            let what = format!("readers see position {}, where no batch ends", seen.0);
            return self.breaks(what);
        };
        let snapshot = self.store.snapshot();
        let found = compare(snapshot.as_ref(), &prefix.rows, prefix.applied.commit);
        self.check(found.map_err(|what| format!("at position {}: {what}", seen.0)));
        reference.show(seen);
        if self.roll(2) == 0 {
            snapshots.push((snapshot, prefix));
        }
    }

    /// Makes the store durable and perhaps lets go of what the log need not keep.
    fn checkpoint(&self) {
        if self.checkpoint_busy.replace(true) {
            return;
        }
        let persisted = match self.bug {
            Some(SimulationBug::TrimTooMuch) => Ok(self.store.applied().position),
            _ => self.store.persist(),
        };
        // It fails only when the process ends.
        if let Ok(position) = persisted {
            self.persisted.set(self.persisted.get().max(position));
            if self.bug != Some(SimulationBug::CutTooMuch) && self.roll(2) == 0 {
                self.trim();
            }
            self.prepare();
        }
        self.checkpoint_busy.set(false);
    }

    /// Loads, builds or saves the filter. What a fault leaves of it is found out at the next start.
    fn keep_filter(&self) {
        if self.store_busy.get() || self.keeper_busy.replace(true) {
            return;
        }
        let had_one = self.store.filter().is_some();
        let turn = self.keeper.turn(&Signal::default());
        if turn.is_err() && !self.is_over() {
            self.breaks("the filter could not be kept".into());
        }
        if had_one && self.roll(2) == 0 {
            self.keeper.save();
        }
        self.deeds.borrow_mut().filters += 1;
        self.keeper_busy.set(false);
    }

    fn prepare(&self) {
        if let Err(error) = self.log.prepare()
            && !self.machine.disk_faulted()
            && !self.is_over()
        {
            self.breaks(format!("prepare: {error}"));
        }
    }

    fn trim(&self) {
        let needed = self.persisted.get().0 + 1;
        let keep_from = match self.roll(2) {
            0 => needed,
            _ => self.author.borrow_mut().random.u64(..=needed),
        };
        if let Err(error) = self.log.trim(Position(keep_from))
            && !self.machine.disk_faulted()
            && !self.is_over()
        {
            self.breaks(format!("trim: {error}"));
        }
    }

    /// Serves what waits, then stops orderly.
    fn close(&self) {
        // Nobody comes in between any more, and each round takes at least one request.
        self.depth.set(DEPTH_MAX);
        let idle = || {
            let waits = |caller: &SimulatedCaller| !caller.withdrawn;
            !self.queued.borrow().iter().any(waits)
                && self.decided.borrow().is_empty()
                && self.appended.borrow().is_empty()
        };
        while !idle() && !self.is_over() {
            self.write();
            self.append();
            self.decide();
        }
        if self.is_over() {
            return;
        }
        if !self.taken.borrow().is_empty() {
            return self.breaks("a caller was not answered before the stop".into());
        }
        let persisted = self.store.persist();
        if !self.keeper_busy.get() {
            self.keeper.save();
        }
        if let Err(error) = self.log.close()
            && self.shared.refusing.get().is_none()
            && !self.machine.disk_faulted()
        {
            self.breaks(format!("close: {error}"));
        }
        if persisted.is_ok() {
            self.deeds.borrow_mut().orderly_stops += 1;
        }
    }
}

fn check_decision(batch: &AwaitedBatch, expected: &Expected) -> Result<(), String> {
    let decision = &batch.decision;
    same(|| "decided answers".into(), &decision.answers, &expected.answers)?;
    same(|| "decided frame".into(), &decision.frame, &expected.frame)?;
    same(|| "decided end".into(), &decision.applied, &expected.applied)
}
