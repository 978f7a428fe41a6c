//! Room on the disk of a data directory. Before the disk is full, what would fill it further is
//! refused, so that what was taken can be finished, and removals still find their place. A reserve
//! is given up when something that was taken finds no room, and not before, as whoever fills the
//! disk would have it; it is made again when there is room.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use guanxi_core::signal::Signal;
use guanxi_model::{Change, Code, Error};
use parking_lot::Mutex;

use crate::disk::{Disk, Room, is_full};
use crate::engine::Settings;
use crate::store::Store;

/// The file whose room is given up on a full disk, here or where the store needs it at once.
pub(crate) const RESERVE: &str = "RESERVE";
/// Enough for a small segment of the log, for the files that a start, a trim or a stop writes, and
/// for what a start may have to bring into the store again.
const RESERVE_BYTES_MAX: u64 = 16 << 20;
/// With less room than this the disk counts as full. Flushing the store's memtables and merging
/// its tables needs room for a second copy of them, and must not fail for want of it.
const LOW_BYTES_MAX: u64 = 512 << 20;
/// A disk without these many files left counts as full.
const LOW_FILES: u64 = 64;
/// What a small disk gives of itself instead: an eighth, a sixteenth and so on. The log and the
/// journal have little of it: the rows themselves, and merging them, are what it is for.
const LOW_SHARE: u64 = 8;
const RESERVE_SHARE: u64 = 16;
const SEGMENT_SHARE: u64 = 32;
const MEMTABLE_SHARE: u64 = 32;
const LOG_SHARE: u64 = 8;
const JOURNAL_SHARE: u64 = 16;
/// Where fjall gives back its journal by itself.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// On the smallest of disks, segments and memtables are not smaller than this.
const PIECE_BYTES_MIN: u64 = 1 << 20;
/// How often the disk is looked at: a quick writer takes megabytes meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// What must be free beyond the bound before a full disk is left, lest the next write ends it.
const BEYOND_BYTES: u64 = 1 << 20;
const MEBIBYTE: u64 = 1 << 20;

/// With less room than this a disk of that size counts as full.
pub fn low_bytes(total_bytes: u64) -> u64 {
    LOW_BYTES_MAX.min(total_bytes / LOW_SHARE)
}

/// Whether a disk with so much room counts as full.
pub fn is_low(room: &Room) -> bool {
    room.free_bytes < low_bytes(room.total_bytes) || lacks_files(room)
}

/// Whether there are so few files left that the disk counts as full.
pub fn lacks_files(room: &Room) -> bool {
    room.free_files < LOW_FILES
}

/// Where what was taken does not find its place; each is left by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stall {
    /// The log finds no room.
    Log = 1,
    /// The store finds no room.
    Store = 2,
    /// The store has stopped. What it waits for is to be opened anew.
    Stopped = 4,
}

impl Settings {
    /// The settings with segments, memtables, journal and log no larger than the disk can bear.
    pub(crate) fn fitted(mut self, disk: &dyn Disk) -> Settings {
        let total = disk.room(&self.data_dir).unwrap_or(Room::PLENTY).total_bytes;
        let piece = |share: u64| (total / share).max(PIECE_BYTES_MIN);
        self.log.segment_bytes = self.log.segment_bytes.min(piece(SEGMENT_SHARE));
        self.log.retention_bytes = self.log.retention_bytes.min(piece(LOG_SHARE));
        self.store.memtable_bytes = self.store.memtable_bytes.min(piece(MEMTABLE_SHARE));
        let journal_bytes = piece(JOURNAL_SHARE);
        if journal_bytes < JOURNAL_BYTES_MAX {
            self.store.journal_bytes_max = self.store.journal_bytes_max.min(journal_bytes);
        }
        self
    }
}

/// Watches the room, and holds the reserve.
pub(crate) struct DiskRoom {
    disk: Arc<dyn Disk>,
    data_dir: PathBuf,
    low_bytes: u64,
    /// What the store needs to flush and merge what it holds; on a small disk that is more.
    needed_bytes: AtomicU64,
    reserve_bytes: u64,
    /// Only removals are taken.
    full: AtomicBool,
    /// It was full at some time since the store was last known to be well.
    was_full: AtomicBool,
    /// What was taken does not find its place, by `Stall`: nothing is taken.
    stalled: AtomicU8,
    holding: Mutex<Holding>,
}

/// What was seen last, and whether the reserve is there.
struct Holding {
    room: Room,
    reserved: bool,
}

impl std::fmt::Debug for DiskRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskRoom").field("full", &self.full).finish_non_exhaustive()
    }
}

impl DiskRoom {
    /// Takes care of the room of this directory.
    pub fn open(disk: Arc<dyn Disk>, data_dir: PathBuf) -> DiskRoom {
        let room = disk.room(&data_dir).unwrap_or(Room::PLENTY);
        let reserve = data_dir.join(RESERVE);
        let reserve_bytes = RESERVE_BYTES_MAX.min(room.total_bytes / RESERVE_SHARE);
        let standing = disk.open(&reserve).and_then(|file| file.size());
        let reserved = standing.as_ref().is_ok_and(|bytes| *bytes == reserve_bytes);
        if standing.is_ok() && !reserved {
            let _ = disk.remove(&reserve);
        }
        let this = DiskRoom {
            disk,
            data_dir,
            low_bytes: low_bytes(room.total_bytes),
            needed_bytes: AtomicU64::new(0),
            reserve_bytes,
            full: AtomicBool::new(false),
            was_full: AtomicBool::new(false),
            stalled: AtomicU8::new(0),
            holding: Mutex::new(Holding { room, reserved }),
        };
        this.look();
        this
    }

    /// The store needs this much to flush and merge what it holds.
    pub fn must_keep(&self, bytes: u64) {
        self.needed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// With less room than this it is full.
    fn low(&self) -> u64 {
        self.low_bytes.max(self.needed_bytes.load(Ordering::Relaxed))
    }

    /// Looks at the disk, and draws the consequences.
    pub fn look(&self) {
        let low_bytes = self.low();
        let mut holding = self.holding.lock();
        // The store may have taken its room.
        holding.reserved &= self.disk.exists(&self.data_dir.join(RESERVE)).unwrap_or(true);
        // A disk that does not tell shows when it is full by what fails.
        holding.room = self.disk.room(&self.data_dir).unwrap_or(Room::PLENTY);
        let Room { free_bytes, .. } = holding.room;
        let full = self.full.load(Ordering::Acquire);
        if free_bytes < low_bytes || lacks_files(&holding.room) {
            self.set_full();
            return;
        }
        // The reserve comes first.
        let missing = if holding.reserved { 0 } else { self.reserve_bytes };
        let beyond = if full { BEYOND_BYTES } else { 0 };
        if free_bytes < low_bytes + missing + beyond || !self.make_reserve(&mut holding) {
            return;
        }
        if full && !self.is_stalled() {
            tracing::info!(free_bytes, "the disk has room again: all writes are taken");
            self.full.store(false, Ordering::Release);
        }
    }

    /// Something that was taken found no room there, in the log or in the store. True when it may
    /// find some at once.
    pub fn met_full(&self, at: Stall) -> bool {
        self.set_full();
        // A store that has stopped finds no room by what is given up for it.
        let waits = at == Stall::Store && self.is_stalled_by(Stall::Stopped);
        if waits || !self.give_up_reserve(&mut self.holding.lock()) {
            self.stall(at);
            return false;
        }
        self.went_on(at);
        true
    }

    /// Does what may find no room; where it finds none, once more with that of the reserve.
    pub fn with_reserve<T, E>(
        &self,
        is_full: impl FnOnce(&E) -> bool,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match work() {
            Err(error) if is_full(&error) => {
                self.set_full();
                self.give_up_reserve(&mut self.holding.lock());
                work()
            }
            done => done,
        }
    }

    /// Takes nothing until it `went_on`.
    pub fn stall(&self, at: Stall) {
        self.set_full();
        if self.stalled.fetch_or(at as u8, Ordering::AcqRel) == 0 {
            tracing::error!("disk full: nothing is taken until what was taken finds room");
        }
    }

    /// What had found no room there has found some.
    pub fn went_on(&self, at: Stall) {
        self.stalled.fetch_and(!(at as u8), Ordering::AcqRel);
    }

    fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire) != 0
    }

    fn is_stalled_by(&self, at: Stall) -> bool {
        self.stalled.load(Ordering::Acquire) & at as u8 != 0
    }

    /// Whether it was seen to be full since the store was last known to be well. It may have been
    /// full between two looks, and nobody saw it.
    pub fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Acquire)
    }

    /// The store takes writes: if it stops from now on, then not because the disk was full before.
    pub fn outlived(&self) {
        if !self.is_full() {
            self.was_full.store(false, Ordering::Release);
        }
    }

    /// Whether the disk has room now, also if it is still kept from callers.
    pub fn has_room(&self) -> bool {
        self.look();
        self.had_room()
    }

    /// The same at the last look.
    fn had_room(&self) -> bool {
        let room = self.holding.lock().room;
        room.free_bytes >= self.low() && !lacks_files(&room)
    }

    fn set_full(&self) {
        if !self.full.swap(true, Ordering::AcqRel) {
            tracing::error!("disk full: only removals are taken until there is room again");
        }
        self.was_full.store(true, Ordering::Release);
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Refuses changes for which there is no room.
    pub fn refuse(&self, changes: &[Change]) -> Result<(), Error> {
        if !self.is_full() {
            return Ok(());
        }
        if self.is_stalled() {
            return Err(disk_full());
        }
        match changes.iter().all(is_taken) {
            true => Ok(()),
            false => Err(Error::new(
                Code::Unavailable,
                "disk full: only what removes something is taken until there is room again; \
                 reads go on",
            )),
        }
    }

    /// Why not all writes are taken, for whoever looks after the service.
    pub fn trouble(&self) -> Option<String> {
        if !self.is_full() {
            return None;
        }
        if self.is_stalled_by(Stall::Stopped) && self.had_room() {
            return Some(
                "the store has stopped at a write that found the disk full, which has room again. \
                 It is opened anew when nobody reads it any more, such as an export or a backup, \
                 which ends within seconds; until then reads go on, and nothing is taken"
                    .to_owned(),
            );
        }
        let room = self.holding.lock().room;
        let Room { free_bytes, total_bytes, free_files } = room;
        let files = match lacks_files(&room) {
            true => format!(" and {free_files} files"),
            false => String::new(),
        };
        let meanwhile = match self.is_stalled() {
            true => "reads go on, and nothing is taken",
            false => "reads and removals go on",
        };
        Some(format!(
            "disk full: {} MiB{files} are left of {} MiB. Make room on the disk of the data \
             directory, more than {} MiB; writes come back by themselves. Until then {meanwhile}",
            free_bytes / MEBIBYTE,
            total_bytes / MEBIBYTE,
            (self.low() + BEYOND_BYTES + self.reserve_bytes).div_ceil(MEBIBYTE),
        ))
    }

    fn give_up_reserve(&self, holding: &mut Holding) -> bool {
        if !holding.reserved {
            return false;
        }
        holding.reserved = false;
        match self.disk.remove(&self.data_dir.join(RESERVE)) {
            Ok(()) => true,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(%error, "the reserve could not be given up");
                }
                false
            }
        }
    }

    /// False where there is no room for it.
    fn make_reserve(&self, holding: &mut Holding) -> bool {
        if holding.reserved {
            return true;
        }
        let path = self.data_dir.join(RESERVE);
        let made = self.disk.create(&path).and_then(|file| file.allocate(self.reserve_bytes));
        holding.reserved = made.is_ok();
        if let Err(error) = &made {
            let _ = self.disk.remove(&path);
            if !is_full(error) {
                // It can be done without, as long as there is room.
                tracing::warn!(%error, "there is no reserve for a full disk");
            }
        }
        !made.is_err_and(|error| is_full(&error))
    }
}

/// Looks after the room until the engine stops.
pub(crate) fn run(room: &DiskRoom, store: &dyn Store, signal: &Signal) {
    while !signal.wait(LOOK_INTERVAL) {
        room.must_keep(store.room_needed());
        room.look();
    }
}

/// What a caller is told whose change found no room.
pub(crate) fn disk_full() -> Error {
    let message = "disk full: nothing is taken until there is room again; reads go on";
    Error::new(Code::Unavailable, message)
}

/// Whether a change leaves less than there was, but for a record in the log; so does a kind, without
/// the first of which no service starts.
fn is_taken(change: &Change) -> bool {
    matches!(
        change,
        Change::CreateKind { .. }
            | Change::Delete { .. }
            | Change::Decline { .. }
            | Change::Expire { .. }
            | Change::DropMember { .. }
            | Change::DeleteGroup { .. }
            | Change::BeginErase { .. }
            | Change::EraseStep { .. }
            | Change::FinishErase { .. }
    )
}

#[cfg(test)]
pub(crate) mod tests;
