//! Histories of a file log on a faulty disk: append, trim, begin epochs, stop orderly or not, lose
//! power at any step, also while the log is being opened. What was acknowledged or read once must
//! be there ever after, followed at most by the one frame whose outcome was unknown.

use std::io;
use std::path::Path;
use std::sync::Arc;

use guanxi_model::Position;

use super::{Epoch, FileLog, Frame, Log, LogError, LogOptions};
use crate::disk::{Disk, DiskFile, DiskLock, Fault, Room, SimDisk};

const FOLDER: &str = "/data/log";
const DIRECTORY_SEED: u64 = 0x5eed;
const HISTORIES: u64 = 4000;
const HISTORIES_TO_CATCH_A_BUG: u64 = 300;

/// How the log sees the disk: honestly, or through a planted bug.
type Wrap = fn(SimDisk) -> Arc<dyn Disk>;

struct LogHistory {
    random: fastrand::Rng,
    disk: SimDisk,
    wrap: Wrap,
    /// Every frame that was acknowledged or read, from position 1 on.
    known: Vec<Frame>,
    /// The frames whose append failed since the last that was durable: for want of room, and the
    /// last perhaps for good. If nothing was opened since, one of them may be there.
    unknown: Vec<Frame>,
    /// The last of them failed for good.
    refused: bool,
    /// The epochs that may have been begun.
    epochs: (Epoch, Option<Epoch>),
    /// The furthest that was ever allowed to be trimmed.
    keep_from: Position,
}

fn run(seed: u64, wrap: Wrap) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = SimDisk::new(random.u64(..));
    disk.create_dir_all(Path::new("/data")).map_err(|error| error.to_string())?;
    disk.sync_dir(Path::new("/")).map_err(|error| error.to_string())?;
    let mut history = LogHistory {
        random,
        disk,
        wrap,
        known: Vec::new(),
        unknown: Vec::new(),
        refused: false,
        epochs: (Epoch(1), None),
        keep_from: Position(1),
    };
    for _ in 0..5 {
        history.plan_a_fault();
        let log = history.open()?;
        if let Some(log) = &log {
            history.live(log)?;
        }
        history.stop(log);
    }
    history.disk.calm();
    history.open()?.map(|_| ()).ok_or_else(|| "a calm disk failed".to_owned())
}

impl LogHistory {
    fn plan_a_fault(&mut self) {
        let fault = match self.random.u8(0..8) {
            0 => Fault::WriteError,
            1 => Fault::NoSpace,
            2 | 3 => Fault::SyncError,
            4 => return,
            _ => Fault::PowerCut,
        };
        self.disk.fail_at(self.random.u64(0..60), fault);
    }

    /// Opens the log and compares; `None` when the planned fault came in between.
    fn open(&mut self) -> Result<Option<FileLog>, String> {
        let disk = (self.wrap)(self.disk.clone());
        let options = LogOptions { segment_bytes: 2048 };
        let log = match FileLog::open(disk, Path::new(FOLDER), DIRECTORY_SEED, options) {
            Ok(log) => log,
            Err(LogError::Io { .. }) if self.disk.faulted() => return Ok(None),
            Err(error) => return Err(format!("open: {error}")),
        };
        if log.first() > self.keep_from.max(Position(1)) {
            return Err(format!("trimmed up to {:?}, kept {:?}", log.first(), self.keep_from));
        }
        let kept = self.known.iter().filter(|frame| frame.first >= log.first());
        let expected: Vec<Frame> = kept.cloned().collect();
        let found = log.read(log.first(), usize::MAX).map_err(|error| format!("read: {error}"))?;
        let more = found.strip_prefix(expected.as_slice()).ok_or_else(|| {
            format!("{} frames were known, {} found", expected.len(), found.len())
        })?;
        match more {
            [] => {}
            [frame] if self.unknown.contains(frame) => self.known.push(frame.clone()),
            more => return Err(format!("{} frames from nowhere", more.len())),
        }
        self.unknown.clear();
        self.refused = false;
        let (current, begun) = self.epochs;
        if log.epoch() != current && Some(log.epoch()) != begun {
            return Err(format!("epoch {:?}, expected {:?}", log.epoch(), self.epochs));
        }
        self.epochs = (log.epoch(), None);
        let commit_ms = self.known.last().map_or(0, |frame| frame.commit_ms);
        if log.last_commit_ms() != commit_ms {
            return Err(format!("commit time {}, expected {commit_ms}", log.last_commit_ms()));
        }
        Ok(Some(log))
    }

    /// Uses the log until a fault or enough.
    fn live(&mut self, log: &FileLog) -> Result<(), String> {
        for _ in 0..self.random.usize(0..40) {
            let done = match self.random.u8(0..40) {
                0 => self.trim(log),
                1 => self.begin_epoch(log),
                2..=5 => log.prepare(),
                6 => log.seal(u64::MAX),
                _ => self.append(log),
            };
            match done {
                Ok(()) => {}
                // The disk was full once; there is room again.
                Err(LogError::Full { .. }) if self.disk.faulted() => {}
                Err(LogError::Io { .. }) if self.disk.faulted() => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        if self.refused {
            let next = self.frame(log);
            match log.append(&next) {
                Err(LogError::Refusing) => {}
                other => return Err(format!("an append after a failed one gave {other:?}")),
            }
        }
        Ok(())
    }

    fn append(&mut self, log: &FileLog) -> Result<(), LogError> {
        let frame = self.frame(log);
        match log.append(&frame) {
            Ok(()) => {
                self.known.push(frame);
                self.unknown.clear();
            }
            Err(error) => {
                self.unknown.push(frame);
                self.refused = !matches!(error, LogError::Full { .. });
                return Err(error);
            }
        }
        Ok(())
    }

    fn trim(&mut self, log: &FileLog) -> Result<(), LogError> {
        self.keep_from = self.keep_from.max(Position(self.random.u64(0..=log.last().0)));
        log.trim(self.keep_from)
    }

    fn begin_epoch(&mut self, log: &FileLog) -> Result<(), LogError> {
        let epoch = Epoch(log.epoch().0 + 1);
        self.epochs.1 = Some(epoch);
        let begun = log.begin_epoch(epoch);
        match begun {
            Ok(()) => self.epochs = (epoch, None),
            Err(LogError::Full { .. }) => self.epochs.1 = None,
            Err(_) => {}
        }
        begun
    }

    /// An orderly stop, a kill (the disk goes on as it is) or a power cut.
    fn stop(&mut self, log: Option<FileLog>) {
        let powered = self.disk.list(Path::new("/")).is_ok();
        match self.random.u8(0..6) {
            0 if powered => {
                // It may fail, or be refused after a failed append: then it was not orderly.
                let _ = log.map(|log| log.close());
            }
            1 if powered => {}
            _ => self.disk = self.disk.crash(&mut self.random),
        }
        if self.disk.list(Path::new("/")).is_err() {
            self.disk = self.disk.crash(&mut self.random);
        }
    }

    fn frame(&mut self, log: &FileLog) -> Frame {
        let records = self.random.usize(1..6);
        let bytes_max = if self.random.u8(0..20) == 0 { 3000 } else { 200 };
        let mut record = || {
            let mut bytes = vec![0; self.random.usize(0..bytes_max)];
            self.random.fill(&mut bytes);
            bytes
        };
        Frame {
            epoch: log.epoch(),
            first: Position(log.last().0 + 1),
            records: (0..records).map(|_| record()).collect(),
            commit_ms: log.last_commit_ms() + self.random.u64(0..3),
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    for seed in 0..HISTORIES {
        if let Err(what) = run(seed, |disk| Arc::new(disk)) {
            panic!("seed {seed}: {what}");
        }
    }
}

#[test]
fn a_disk_that_skips_file_syncs_is_caught() {
    let wrap: Wrap = |disk| Arc::new(Lazy { disk, skips: Skips::Files });
    assert!((0..HISTORIES_TO_CATCH_A_BUG).any(|seed| run(seed, wrap).is_err()));
}

#[test]
fn a_disk_that_skips_folder_syncs_is_caught() {
    let wrap: Wrap = |disk| Arc::new(Lazy { disk, skips: Skips::Folders });
    assert!((0..HISTORIES_TO_CATCH_A_BUG).any(|seed| run(seed, wrap).is_err()));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Skips {
    Files,
    Folders,
}

/// A disk that says it synced and did not.
struct Lazy {
    disk: SimDisk,
    skips: Skips,
}

struct LazyFile {
    file: Box<dyn DiskFile>,
    skips: Skips,
}

impl Lazy {
    fn lazy(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(LazyFile { file, skips: self.skips })
    }
}

impl Disk for Lazy {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }

    fn keep_to_owner(&self, folder: &Path) -> io::Result<()> {
        self.disk.keep_to_owner(folder)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(path).map(|file| self.lazy(file))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.disk.create(path).map(|file| self.lazy(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match self.skips {
            Skips::Folders => Ok(()),
            Skips::Files => self.disk.sync_dir(path),
        }
    }

    fn room(&self, path: &Path) -> io::Result<Room> {
        self.disk.room(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        self.disk.lock(path)
    }
}

impl DiskFile for LazyFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.file.allocate(size)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.skips {
            Skips::Files => Ok(()),
            Skips::Folders => self.file.sync_data(),
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}
