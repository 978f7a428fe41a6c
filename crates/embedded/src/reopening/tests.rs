use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use guanxi_core::snapshot::Snapshot;
use guanxi_model::{Catalog, Position};
use parking_lot::Mutex;

use super::*;
use crate::disk_room::tests::NarrowDisk;
use crate::log::MemoryLog;
use crate::overlay::Dirty;
use crate::store::memory::MemoryBackend;
use crate::store::{Applied, KeyedStore, Replay};

const PLENTY_BYTES: u64 = 100 << 20;

/// A store that stops when it is told to, until it is mended.
struct Stopping {
    rows: KeyedStore<MemoryBackend>,
    /// The next writes at which it stops, after it was mended.
    stops: AtomicU32,
    stopped: Mutex<bool>,
    /// Readers stand in the way of mending it.
    read: Mutex<bool>,
    mends: AtomicU32,
}

impl Stopping {
    fn new() -> Arc<Stopping> {
        Arc::new(Stopping {
            rows: KeyedStore::open(MemoryBackend::default()).unwrap(),
            stops: AtomicU32::new(0),
            stopped: Mutex::new(false),
            read: Mutex::new(false),
            mends: AtomicU32::new(0),
        })
    }

    fn stop(&self) {
        *self.stopped.lock() = true;
    }

    fn mends(&self) -> u32 {
        self.mends.load(Ordering::Relaxed)
    }

    fn check_stop(&self) -> Result<(), StoreError> {
        let mut stopped = self.stopped.lock();
        let left = self.stops.load(Ordering::Relaxed);
        if !*stopped && left > 0 {
            self.stops.store(left - 1, Ordering::Relaxed);
            *stopped = true;
        }
        if *stopped { Err(StoreError::Stopped) } else { Ok(()) }
    }
}

impl Store for Stopping {
    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.rows.snapshot()
    }

    fn write(&self, _: &Dirty, _: Applied) -> Result<(), StoreError> {
        self.check_stop()
    }

    fn applied(&self) -> Applied {
        self.rows.applied()
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.rows.catalog()
    }

    fn persist(&self) -> Result<Position, StoreError> {
        self.rows.persist()
    }

    fn is_in_doubt(&self) -> bool {
        self.mends() > 0
    }

    fn mend(&self, _: &Replay<'_>) -> Result<bool, StoreError> {
        if *self.read.lock() {
            return Ok(false);
        }
        self.mends.fetch_add(1, Ordering::Relaxed);
        *self.stopped.lock() = false;
        Ok(true)
    }

    fn check(&self) -> Result<(), StoreError> {
        self.check_stop()
    }

    /// As a store whose rest has nothing to do with what has stopped it.
    fn rest(&self) -> Result<(), StoreError> {
        match *self.read.lock() {
            true => self.check_stop(),
            false => Ok(()),
        }
    }

    fn bytes(&self) -> u64 {
        0
    }
}

struct Bench {
    disk: Arc<NarrowDisk>,
    room: Arc<DiskRoom>,
    store: Arc<Stopping>,
    writer: ReopeningWriter,
}

impl Bench {
    fn new() -> Bench {
        let disk = NarrowDisk::new(PLENTY_BYTES);
        let room = Arc::new(DiskRoom::open(disk.clone(), PathBuf::from("/")));
        let store = Stopping::new();
        let log = Arc::new(MemoryLog::default());
        let writer = ReopeningWriter::new(store.clone(), log, room.clone());
        Bench { disk, room, store, writer }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.writer.write(&mut |store| store.write(&Dirty::default(), Applied::NOTHING))
    }
}

#[test]
fn a_store_that_stopped_between_two_looks_is_mended_at_once() {
    let mut bench = Bench::new();
    bench.write().unwrap();
    assert_eq!(bench.store.mends(), 0);
    for mends in 1..=3 {
        bench.store.stop();
        bench.write().unwrap();
        assert_eq!(bench.store.mends(), mends);
    }
    assert!(!bench.room.is_full());
}

#[test]
fn a_store_that_stopped_on_a_full_disk_is_mended_after_rest_too() {
    let mut bench = Bench::new();
    bench.disk.leave(0);
    bench.room.look();
    bench.store.stop();
    bench.disk.leave(PLENTY_BYTES);
    bench.writer.rest();
    bench.room.look();
    assert!(!bench.room.is_full());
    assert!(bench.room.was_full(), "a rest shows nothing of the store");
    bench.write().unwrap();
    assert_eq!(bench.store.mends(), 1);
    assert!(!bench.room.was_full(), "a write does");
}

#[test]
fn without_room_callers_are_told_before_it_is_mended() {
    let mut bench = Bench::new();
    bench.disk.leave(0);
    bench.store.stop();
    assert!(matches!(bench.write(), Err(StoreError::Full)));
    assert_eq!(bench.store.mends(), 0);
    bench.write().unwrap();
    assert_eq!(bench.store.mends(), 1);
}

#[test]
fn a_rest_that_mends_the_store_lets_changes_in_again() {
    let mut bench = Bench::new();
    bench.disk.leave(0);
    bench.room.look();
    *bench.store.read.lock() = true;
    bench.store.stop();
    bench.writer.rest();
    let stalled = bench.room.trouble().unwrap();
    assert!(stalled.contains("nothing is taken"), "{stalled}");
    bench.disk.leave(PLENTY_BYTES);
    *bench.store.read.lock() = false;
    bench.writer.rest();
    bench.room.look();
    assert_eq!(bench.room.trouble(), None);
}

#[test]
fn a_store_that_stops_again_and_again_with_room_is_refused() {
    let mut bench = Bench::new();
    bench.store.stops.store(u32::MAX, Ordering::Relaxed);
    let mut tries = 0;
    while let Err(StoreError::Full) = bench.write() {
        tries += 1;
        assert!(tries < 100);
        // It was not full, and the store went on for a while.
        bench.room.went_on(Stall::Stopped);
        bench.room.look();
        bench.room.outlived();
    }
    assert!(matches!(bench.write(), Err(StoreError::Stopped)));
    assert!(bench.store.mends() >= UNEXPLAINED_MENDS_MAX);
}

#[test]
fn a_store_that_stopped_while_nobody_wrote_is_mended_at_rest() {
    let mut bench = Bench::new();
    bench.store.stop();
    bench.writer.rest();
    assert_eq!(bench.store.mends(), 1);
    bench.write().unwrap();
}

#[test]
fn a_store_that_has_stopped_leaves_the_reserve_to_what_finds_no_room() {
    let mut bench = Bench::new();
    bench.disk.leave(0);
    bench.store.stop();
    assert!(matches!(bench.write(), Err(StoreError::Full)));
    assert!(!bench.room.met_full(Stall::Store) && bench.disk.has_reserve());
    bench.write().unwrap();
    assert!(bench.room.met_full(Stall::Store) && !bench.disk.has_reserve());
}
