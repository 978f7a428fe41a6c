//! `FLOOR`: the first position of the oldest segment that belongs to the log; older ones are
//! leftovers. Its place on the disk exists beforehand, so that the log can be trimmed when the disk
//! is full to the last block.
//!
//! The file has two slots, each a small text with a checksum, and zeros behind it. They are written
//! in turn: while one is written, the other holds the floor that stood before. A floor only rises, so
//! of two that can be read the higher one counts.

use std::path::{Path, PathBuf};

use guanxi_model::Position;

use super::{LogError, marks};
use crate::disk::{Disk, DiskFile};

const FLOOR: &str = "FLOOR";
/// What file systems give room by: writing one slot touches nothing of the other.
const SLOT_BYTES: usize = 4096;
const SLOTS: usize = 2;
/// What is written of a slot: any position's text, with zeros to here.
const TEXT_BYTES: usize = 64;

/// The floor of an open log.
pub(super) struct Floor {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    at: Position,
    /// The slot that holds it.
    slot: usize,
    /// No power cut takes it.
    settled: bool,
}

/// The floor as the file says it. A power cut may take it yet.
pub(super) struct FoundFloor {
    pub(super) at: Position,
    path: PathBuf,
    /// None where the file has no place for two.
    slot: Option<usize>,
}

impl FoundFloor {
    /// Position 1 without a file.
    pub(super) fn read(disk: &dyn Disk, folder: &Path) -> Result<FoundFloor, LogError> {
        let path = folder.join(FLOOR);
        let Some(bytes) = marks::read(disk, &path)? else {
            return Ok(FoundFloor { at: Position(1), path, slot: None });
        };
        let mut highest: Option<(Position, usize)> = None;
        for (slot, bytes) in bytes.chunks(SLOT_BYTES).take(SLOTS).enumerate() {
            let text = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            match marks::position_in(&bytes[..text], &path, FLOOR) {
                Ok(at) => highest = highest.max(Some((at, slot))),
                // It was not written to its end, or never.
                Err(LogError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let Some((at, slot)) = highest else {
            let what = "neither of its slots holds a position".to_owned();
            return Err(LogError::Damaged { path, offset: 0, what });
        };
        let slot = (bytes.len() >= SLOTS * SLOT_BYTES).then_some(slot);
        Ok(FoundFloor { at, path, slot })
    }

    /// Opens the file, with place for both slots.
    pub(super) fn open(self, disk: &dyn Disk) -> Result<Floor, LogError> {
        let FoundFloor { at, path, slot } = self;
        if slot.is_none() {
            make(disk, &path, at)?;
        }
        match disk.open(&path) {
            Ok(file) => Ok(Floor { file, path, at, slot: slot.unwrap_or(0), settled: false }),
            Err(source) => Err(LogError::Io { action: "open", path, source }),
        }
    }
}

impl Floor {
    /// Makes the file for a log that begins there.
    pub(super) fn create(disk: &dyn Disk, folder: &Path, at: Position) -> Result<(), LogError> {
        make(disk, &folder.join(FLOOR), at)
    }

    /// Makes what was found what a power cut leaves: a process that was killed may not have come to
    /// it. The slot is written over with what it holds. Meanwhile the other has the floor before it,
    /// or it is torn, and then this one is on the disk.
    pub(super) fn settle(&mut self) -> Result<(), LogError> {
        if !self.settled {
            self.write(self.slot, self.at)?;
            self.settled = true;
        }
        Ok(())
    }

    /// On return the floor is there for good, and after an error the one before it still is.
    pub(super) fn raise(&mut self, to: Position) -> Result<(), LogError> {
        self.settle()?;
        let slot = (self.slot + 1) % SLOTS;
        self.write(slot, to)?;
        (self.at, self.slot) = (to, slot);
        Ok(())
    }

    fn write(&self, slot: usize, at: Position) -> Result<(), LogError> {
        let written = self.file.write_at((slot * SLOT_BYTES) as u64, &text_of(at));
        let written = written.and_then(|()| self.file.sync_data());
        written.map_err(|source| LogError::unsynced("write to", &self.path, source))
    }
}

/// Both slots hold it.
fn make(disk: &dyn Disk, path: &Path, at: Position) -> Result<(), LogError> {
    let mut slot = text_of(at);
    slot.resize(SLOT_BYTES, 0);
    marks::write(disk, path, &slot.repeat(SLOTS))
}

fn text_of(at: Position) -> Vec<u8> {
    let mut bytes = marks::position_text(FLOOR, at);
    debug_assert!(bytes.len() <= TEXT_BYTES, "what stood before would be left behind it");
    bytes.resize(TEXT_BYTES, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Fault, SimDisk};

    const FOLDER: &str = "/";

    fn found(disk: &SimDisk) -> Result<Position, LogError> {
        FoundFloor::read(disk, Path::new(FOLDER)).map(|found| found.at)
    }

    fn floor(disk: &SimDisk) -> Floor {
        FoundFloor::read(disk, Path::new(FOLDER)).unwrap().open(disk).unwrap()
    }

    fn spoil(disk: &SimDisk, slot: usize) {
        let file = disk.open(Path::new("/FLOOR")).unwrap();
        file.write_at((slot * SLOT_BYTES + 3) as u64, b"?").unwrap();
    }

    #[test]
    fn it_rises_in_its_slots_by_turns() {
        let disk = SimDisk::new(1);
        assert_eq!(found(&disk).unwrap(), Position(1));
        Floor::create(&disk, Path::new(FOLDER), Position(5)).unwrap();
        for to in [9, 10, 100, u64::MAX / 2] {
            floor(&disk).raise(Position(to)).unwrap();
            assert_eq!(found(&disk).unwrap(), Position(to));
        }
        let mut floor = floor(&disk);
        for to in [u64::MAX - 2, u64::MAX - 1, u64::MAX] {
            floor.raise(Position(to)).unwrap();
        }
        assert_eq!(found(&disk).unwrap(), Position(u64::MAX));
        spoil(&disk, floor.slot);
        assert_eq!(found(&disk).unwrap(), Position(u64::MAX - 1), "the one before it");
        spoil(&disk, 1 - floor.slot);
        assert!(matches!(found(&disk), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn a_power_cut_leaves_the_floor_that_stood_or_the_new_one() {
        let mut rose = 0;
        for seed in 0..1_000 {
            let disk = SimDisk::new(seed);
            Floor::create(&disk, Path::new(FOLDER), Position(5)).unwrap();
            let mut floor = floor(&disk);
            floor.raise(Position(9)).unwrap();
            disk.fail_at(seed % 3, [Fault::PowerCut, Fault::SyncError][seed as usize / 3 % 2]);
            let _cut_or_not = floor.raise(Position(10));
            let _cut_or_not = floor.raise(Position(11));
            let found = found(&disk.crash(&mut fastrand::Rng::with_seed(seed))).unwrap();
            assert!((Position(9)..=Position(11)).contains(&found), "seed {seed}: {found:?}");
            rose += u64::from(found > Position(9));
        }
        assert!((100..900).contains(&rose), "{rose}");
    }

    #[test]
    fn a_file_of_one_slot_gets_its_other() {
        let disk = SimDisk::new(1);
        let path = Path::new("/FLOOR");
        disk.write_atomic(path, &marks::position_text(FLOOR, Position(7))).unwrap();
        floor(&disk).raise(Position(8)).unwrap();
        assert_eq!(found(&disk).unwrap(), Position(8));
        assert_eq!(disk.read(path).unwrap().len(), SLOTS * SLOT_BYTES);
    }
}
