//! The seeded simulator: histories of the real decider, stages, log and replay on one thread, with
//! a virtual clock, a faulty disk and a store that a power cut takes back to any durable prefix.
//!
//! One seed is one history of several lives. Each life begins with the real recovery, which may
//! itself be cut short, and is held against a reference that decides every request once more on
//! plain rows. `machine` is what faults come from, `life` interleaves the stages, `reference`
//! knows what must be there. The planted bugs show that the simulator would notice.

mod compare;
mod life;
mod machine;
mod planted;
mod reference;
mod requests;
mod rows;
mod twin;

pub use self::twin::Twin;

use std::path::PathBuf;
use std::sync::Arc;

use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::decode_record;
use guanxi_model::{Epoch, Position, Record, Region, Version};

use self::compare::{compare, same};
use self::life::{Legacy, Life};
use self::machine::Machine;
use self::planted::ReplayedStore;
use self::reference::ReferenceService;
use self::requests::RequestAuthor;
use crate::disk::Fault;
use crate::engine::{OpenError, replay};
use crate::log::{FileLog, Frame, Log, LogError, LogOptions};
use crate::resident::{ResidentBug, ResidentSettings, plant};
use crate::store::{KeyedStore, Store};

/// The low byte of the versions.
const REGION: Region = Region::MAX;
const START_MS: u64 = 1_700_000_000_000;
const DIRECTORY_SEED: u64 = 0x5eed;
/// Starts of one history, those that fail with it.
const STARTS: usize = 8;
const LIFE_STEPS_MAX: usize = 120;
/// A list has so few places that it goes on behind them.
const RESIDENT: ResidentSettings =
    ResidentSettings { rows_bytes_max: 1 << 17, filter_bytes_max: 1 << 20, list_places_max: 3 };
/// Of a segment: few enough that a life fills several.
const SEGMENT_BYTES: [u64; 3] = [1 << 11, 1 << 13, 1 << 15];

/// A mistake that a history is run with, to see that it is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulationBug {
    /// The sync of a frame does nothing.
    SkipFsync,
    /// Syncs of folders do nothing.
    SkipFolderSync,
    /// After an unclean stop, what can be read is believed to be on the disk.
    RecoverUnsynced,
    /// Callers are answered before their batch is in the log.
    AcknowledgeEarly,
    /// Readers see a batch before it is in the log.
    ApplyEarly,
    /// A frame is written before the sync of the one before it has returned.
    WriteAhead,
    /// Replay counts tallies and counters twice.
    TallyOnReplay,
    /// Replay begins with the last frame that the store has.
    ReplayTwice,
    /// The store writes the position after the rows, in a write of its own.
    PositionAfterBatch,
    /// The store writes the position before the rows, in a write of its own.
    PositionBeforeBatch,
    /// The store writes a batch in two halves.
    HalfBatch,
    /// The decider looks at the store's rows before it asks where they stand.
    DecideOnOldRows,
    /// The last good frame is cut off with a torn tail.
    CutTooMuch,
    /// The log is trimmed by what readers see, not by what the store has for good.
    TrimTooMuch,
    /// What is at hand in memory is wrong.
    Resident(ResidentBug),
}

/// How much happened: a simulation in which nothing does proves nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deeds {
    pub starts: u64,
    /// Starts that a fault cut short.
    pub failed_starts: u64,
    pub orderly_stops: u64,
    pub kills: u64,
    pub power_cuts: u64,
    pub torn_tails: u64,
    pub replayed_records: u64,
    pub batches: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub unknown: u64,
    pub reads: u64,
    /// Filters that were built, loaded and saved.
    pub filters: u64,
    /// Rows and lists that were at hand, and "surely not".
    pub at_hand: u64,
}

impl Deeds {
    fn numbers(&mut self) -> [&mut u64; 14] {
        [
            &mut self.starts,
            &mut self.failed_starts,
            &mut self.orderly_stops,
            &mut self.kills,
            &mut self.power_cuts,
            &mut self.torn_tails,
            &mut self.replayed_records,
            &mut self.batches,
            &mut self.acknowledged,
            &mut self.refused,
            &mut self.unknown,
            &mut self.reads,
            &mut self.filters,
            &mut self.at_hand,
        ]
    }

    pub fn add(&mut self, mut other: Deeds) {
        for (sum, number) in self.numbers().into_iter().zip(other.numbers()) {
            *sum += *number;
        }
    }

    /// Whether every number has at least this.
    pub fn reach(mut self, least: u64) -> bool {
        self.numbers().into_iter().all(|number| *number >= least)
    }
}

/// Runs the history of this seed; the error says what did not hold.
pub fn run(seed: u64, bug: Option<SimulationBug>) -> Result<Deeds, String> {
    plant(match bug {
        Some(SimulationBug::Resident(bug)) => Some(bug),
        _ => None,
    });
    let mut random = fastrand::Rng::with_seed(seed);
    let machine = Machine::new(random.u64(..), START_MS, bug).map_err(text)?;
    let segment_bytes = SEGMENT_BYTES[random.usize(..SEGMENT_BYTES.len())];
    let mut history = SimulationHistory {
        machine,
        bug,
        options: LogOptions { segment_bytes },
        log_folder: PathBuf::from("/data/log"),
        legacy: Some(Legacy {
            author: RequestAuthor::new(random.fork()),
            reference: ReferenceService::new(REGION),
            deeds: Deeds::default(),
        }),
        random,
    };
    for _ in 0..STARTS {
        history.plan_faults();
        let stop = match history.start()? {
            Some(life) => history.live(life)?,
            None => LifeEnd::any(&mut history.random),
        };
        history.stop(stop);
    }
    let life = history.start()?.ok_or("a calm machine failed")?;
    let (legacy, ended) = life.run(0, true);
    ended.map(|()| legacy.deeds)
}

struct SimulationHistory {
    random: fastrand::Rng,
    machine: Machine,
    bug: Option<SimulationBug>,
    options: LogOptions,
    log_folder: PathBuf,
    /// With the life while there is one.
    legacy: Option<Legacy>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LifeEnd {
    Orderly,
    Kill,
    PowerCut,
}

impl LifeEnd {
    fn any(random: &mut fastrand::Rng) -> LifeEnd {
        match random.u8(..8) {
            0 => LifeEnd::Orderly,
            1 | 2 => LifeEnd::Kill,
            _ => LifeEnd::PowerCut,
        }
    }
}

impl SimulationHistory {
    fn plan_faults(&mut self) {
        let fault = match self.random.u8(..10) {
            0 => Some(Fault::WriteError),
            1 => Some(Fault::NoSpace),
            2 | 3 => Some(Fault::SyncError),
            4..7 => Some(Fault::PowerCut),
            _ => None,
        };
        // A start takes about a dozen operations, a life some hundred.
        let within = if self.random.u8(..4) == 0 { 14 } else { 150 };
        if let Some(fault) = fault {
            let after = self.random.u64(..within);
            self.machine.plan_disk_fault(after, fault);
        }
        if self.random.u8(..8) == 0 {
            self.machine.plan_store_fault(self.random.u64(..20));
        }
    }

    /// The real recovery, held against the reference; none when a fault cut it short.
    fn start(&mut self) -> Result<Option<Life>, String> {
        let Some(mut legacy) = self.legacy.take() else {
            return Err("there is a life already".into());
        };
        legacy.deeds.starts += 1;
        let recovered = self.recover();
        let (log, store, replayed) = match recovered {
            Ok(recovered) => recovered,
            Err(error) => {
                legacy.deeds.failed_starts += 1;
                self.legacy = Some(legacy);
                return match self.excuses(&error) {
                    true => Ok(None),
                    false => Err(format!("start: {error}")),
                };
            }
        };
        legacy.deeds.torn_tails += u64::from(log.opening().torn_tail);
        legacy.deeds.replayed_records += replayed;
        check_recovered(&log, &store, &mut legacy.reference)?;
        self.machine.opened();
        let machine = self.machine.clone();
        let life = Life::new(machine, self.bug, Arc::new(log), Arc::new(store), legacy);
        Ok(Some(life))
    }

    fn recover(&mut self) -> Result<(FileLog, KeyedStore<Machine>, u64), OpenError> {
        let mut log = self.open_log()?;
        if self.bug == Some(SimulationBug::CutTooMuch) && log.opening().torn_tail {
            log = self.cut_last_frame(&log)?;
        }
        if self.random.u8(..16) == 0 {
            log.begin_epoch(Epoch(log.epoch().0 + 1))?;
        }
        let store = KeyedStore::open_with(self.machine.clone(), RESIDENT)?;
        let before = store.applied().position;
        match self.bug {
            Some(bug @ (SimulationBug::TallyOnReplay | SimulationBug::ReplayTwice)) => {
                replay(&log, &ReplayedStore::new(&store, bug, &log))?;
            }
            _ => replay(&log, &store)?,
        }
        store.persist()?;
        let replayed = store.applied().position.0 - before.0;
        Ok((log, store, replayed))
    }

    fn open_log(&self) -> Result<FileLog, LogError> {
        let disk = Arc::new(self.machine.clone());
        FileLog::open(disk, &self.log_folder, DIRECTORY_SEED, self.options)
    }

    /// The planted bug: a log of all frames but the last, at another place.
    fn cut_last_frame(&mut self, log: &FileLog) -> Result<FileLog, LogError> {
        let frames = log.read(log.first(), usize::MAX)?;
        self.log_folder.as_mut_os_string().push("x");
        let cut = self.open_log()?;
        if cut.epoch() < log.epoch() {
            cut.begin_epoch(log.epoch())?;
        }
        for frame in frames.iter().take(frames.len().saturating_sub(1)) {
            let epoch = cut.epoch();
            cut.append(&Frame { epoch, ..frame.clone() })?;
        }
        Ok(cut)
    }

    /// Whether a planned fault explains why a start failed.
    fn excuses(&self, error: &OpenError) -> bool {
        match error {
            OpenError::Log(LogError::Io { .. } | LogError::Full { .. }) => {
                self.machine.disk_faulted()
            }
            OpenError::Store(StoreError::Io(_)) => self.machine.store_faulted(),
            _ => false,
        }
    }

    /// Lives until the stop that it returns.
    fn live(&mut self, life: Life) -> Result<LifeEnd, String> {
        let stop = LifeEnd::any(&mut self.random);
        let steps = self.random.usize(..LIFE_STEPS_MAX);
        let (legacy, ended) = life.run(steps, stop == LifeEnd::Orderly);
        self.legacy = Some(legacy);
        ended.map(|()| stop)
    }

    fn stop(&mut self, stop: LifeEnd) {
        let powerless = stop == LifeEnd::PowerCut || self.machine.power_failed();
        self.machine = match powerless {
            true => self.machine.after_power_cut(&mut self.random),
            false => self.machine.after_kill(),
        };
        if let Some(legacy) = &mut self.legacy {
            legacy.deeds.power_cuts += u64::from(powerless);
            legacy.deeds.kills += u64::from(!powerless && stop == LifeEnd::Kill);
        }
    }
}

/// The log ends where it may, holds the frames that were decided, and the store stands at its end
/// with the rows that they lead to.
fn check_recovered(
    log: &FileLog,
    store: &KeyedStore<Machine>,
    reference: &mut ReferenceService,
) -> Result<(), String> {
    let prefix = reference.reopened(log.last(), log.epoch())?;
    let found = log.read(log.first(), usize::MAX).map_err(text)?;
    let kept = reference.frames.iter();
    let expected: Vec<&Frame> = kept.filter(|frame| frame.first >= log.first()).collect();
    same(|| "frames".into(), &found.iter().collect(), &expected)?;
    check_order(&found)?;
    let applied = store.applied();
    same(|| "the store's place".into(), &applied, &prefix.applied)?;
    compare(store.snapshot().as_ref(), &prefix.rows, applied.commit)
        .map_err(|what| format!("after a start at position {}: {what}", applied.position.0))
}

/// Positions go on without a gap, commit times never decrease, versions always grow.
fn check_order(frames: &[Frame]) -> Result<(), String> {
    let mut version = Version::ZERO;
    for frame in frames {
        for encoded in &frame.records {
            let taken = match decode_record(encoded).map_err(text)? {
                Record::Edge(record) => record.new.version,
                _ => continue,
            };
            if taken <= version {
                return Err(format!("version {} follows {}", taken.0, version.0));
            }
            version = taken;
        }
    }
    for (before, after) in frames.iter().zip(frames.iter().skip(1)) {
        if after.first != Position(before.last().0 + 1) || after.commit_ms < before.commit_ms {
            return Err(format!(
                "the frame at {} and {} ms follows one that ends at {} and {} ms",
                after.first.0,
                after.commit_ms,
                before.last().0,
                before.commit_ms
            ));
        }
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
