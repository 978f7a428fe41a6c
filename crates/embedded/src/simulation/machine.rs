//! The machine that a life runs on: its disk, its clock and the keys that the store keeps. It can
//! stop at any of their operations, and it carries the planted bugs that are the machine's.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use guanxi_core::clock::VirtualClock;
use guanxi_core::snapshot::StoreError;

use super::{SimulationBug, life};
use crate::disk::{Disk, DiskFile, DiskLock, Fault, Room, SimDisk, UNFINISHED};
use crate::store::keyed::{Backend, KeyWrite};
use crate::store::memory::{MemoryBackend, MemoryView};

/// Never reached: no write of the store fails.
const NO_FAILURE: u64 = u64::MAX;

/// Clones are the same machine.
#[derive(Clone)]
pub(super) struct Machine {
    pub clock: Arc<VirtualClock>,
    disk: SimDisk,
    keys: Arc<MemoryBackend>,
    bug: Option<SimulationBug>,
    state: Arc<MachineState>,
}

struct MachineState {
    /// The process is gone: nothing that it still asks for happens.
    stopped: AtomicBool,
    /// The log is being opened and the store brought up to it.
    opening: AtomicBool,
    /// A power cut is planned on the disk.
    power_fails: AtomicBool,
    /// Writes that the store still takes; the one after them fails.
    store_writes: AtomicU64,
    /// For the bug that writes ahead: syncs that were asked for and wait.
    held: Mutex<Option<Vec<Arc<dyn DiskFile>>>>,
}

impl MachineState {
    fn new() -> MachineState {
        MachineState {
            stopped: AtomicBool::new(false),
            opening: AtomicBool::new(true),
            power_fails: AtomicBool::new(false),
            store_writes: AtomicU64::new(NO_FAILURE),
            held: Mutex::default(),
        }
    }
}

impl Machine {
    pub fn new(seed: u64, now_ms: u64, bug: Option<SimulationBug>) -> io::Result<Machine> {
        let disk = SimDisk::new(seed);
        disk.create_dir_all(Path::new("/data"))?;
        disk.sync_dir(Path::new("/"))?;
        Ok(Machine {
            clock: Arc::new(VirtualClock::new(now_ms)),
            disk,
            keys: Arc::default(),
            bug,
            state: Arc::new(MachineState::new()),
        })
    }

    /// The machine as the next start finds it when only the process is gone.
    pub fn after_kill(&self) -> Machine {
        self.disk.calm();
        Machine { state: Arc::new(MachineState::new()), ..self.clone() }
    }

    /// The machine as the next start finds it when the power was gone: what was not synced is
    /// lost or torn, and the store is any prefix of its writes that has the persisted ones.
    pub fn after_power_cut(&self, random: &mut fastrand::Rng) -> Machine {
        let lost = random.usize(..=self.keys.unpersisted());
        Machine {
            disk: self.disk.crash(random),
            keys: Arc::new(self.keys.crashed(lost)),
            state: Arc::new(MachineState::new()),
            ..self.clone()
        }
    }

    pub fn plan_disk_fault(&self, after: u64, fault: Fault) {
        self.disk.fail_at(after, fault);
        let power_fails = fault == Fault::PowerCut;
        self.state.power_fails.store(power_fails, Ordering::SeqCst);
    }

    /// After so many writes of the store, one fails.
    pub fn plan_store_fault(&self, after: u64) {
        self.state.store_writes.store(after, Ordering::SeqCst);
    }

    pub fn disk_faulted(&self) -> bool {
        self.disk.faulted()
    }

    pub fn store_faulted(&self) -> bool {
        self.state.store_writes.load(Ordering::SeqCst) == 0
    }

    pub fn power_failed(&self) -> bool {
        self.state.power_fails.load(Ordering::SeqCst) && self.disk.faulted()
    }

    /// The end of the start: from here on the stages run.
    pub fn opened(&self) {
        self.state.opening.store(false, Ordering::SeqCst);
    }

    pub fn stop(&self) {
        self.state.stopped.store(true, Ordering::SeqCst);
    }

    pub fn stopped(&self) -> bool {
        self.state.stopped.load(Ordering::SeqCst)
    }

    pub fn hold_syncs(&self) {
        *self.state.held.lock() = Some(Vec::new());
    }

    /// Does the syncs that were held back.
    pub fn release_syncs(&self) -> io::Result<()> {
        let held = self.state.held.lock().take();
        for file in held.into_iter().flatten() {
            self.operate(|| file.sync_data())?;
        }
        Ok(())
    }

    fn running(&self) -> io::Result<()> {
        match self.stopped() {
            true => Err(io::Error::other("the process is gone")),
            false => Ok(()),
        }
    }

    /// An operation that changes or syncs something; others may come before and after it, and
    /// the process may end at both places.
    fn operate<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        life::pause();
        self.running()?;
        let done = operation();
        if self.power_failed() {
            self.stop();
        }
        life::pause();
        self.running()?;
        done
    }

    /// Whether this is a segment being written anew by a recovery that does not sync it.
    fn recovers_unsynced(&self, path: &Path) -> bool {
        self.bug == Some(SimulationBug::RecoverUnsynced)
            && self.state.opening.load(Ordering::SeqCst)
            && path.extension().is_some_and(|ending| ending == UNFINISHED)
            && self.disk.exists(&path.with_extension("")).unwrap_or(false)
    }

    fn file(&self, path: &Path, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(MachineFile {
            machine: self.clone(),
            path: path.to_path_buf(),
            file: Arc::from(file),
        })
    }
}

impl Disk for Machine {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.operate(|| self.disk.create_dir_all(path))
    }

    fn keep_to_owner(&self, folder: &Path) -> io::Result<()> {
        self.running()?;
        self.disk.keep_to_owner(folder)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.running()?;
        self.disk.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.running()?;
        self.disk.exists(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.running()?;
        self.disk.open(path).map(|file| self.file(path, file))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.operate(|| self.disk.create(path))?;
        Ok(self.file(path, file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(|| self.disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate(|| self.disk.remove(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.operate(|| match self.bug {
            Some(SimulationBug::SkipFolderSync) => Ok(()),
            _ => self.disk.sync_dir(path),
        })
    }

    fn room(&self, path: &Path) -> io::Result<Room> {
        self.disk.room(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        self.disk.lock(path)
    }
}

struct MachineFile {
    machine: Machine,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for MachineFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.machine.operate(|| self.file.write_at(offset, bytes))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.machine.running()?;
        self.file.read_at(offset, buffer)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.machine.operate(|| self.file.allocate(size))
    }

    fn sync_data(&self) -> io::Result<()> {
        if let Some(held) = self.machine.state.held.lock().as_mut() {
            held.push(Arc::clone(&self.file));
            return Ok(());
        }
        self.machine.operate(|| match self.machine.bug {
            Some(SimulationBug::SkipFsync) => Ok(()),
            _ => self.file.sync_data(),
        })
    }

    fn sync_all(&self) -> io::Result<()> {
        let skipped = self.machine.recovers_unsynced(&self.path);
        self.machine.operate(|| match skipped {
            true => Ok(()),
            false => self.file.sync_all(),
        })
    }
}

impl Backend for Machine {
    type View = MemoryView;

    fn view(&self) -> MemoryView {
        life::pause();
        self.keys.view()
    }

    fn write(&self, entries: &[KeyWrite]) -> Result<(), StoreError> {
        life::pause();
        let gone = |error: io::Error| StoreError::Io(error.to_string());
        self.running().map_err(gone)?;
        let left = &self.state.store_writes;
        if left.load(Ordering::SeqCst) == 0 {
            return Err(StoreError::Io("simulated store error".into()));
        }
        if left.load(Ordering::SeqCst) != NO_FAILURE {
            left.fetch_sub(1, Ordering::SeqCst);
        }
        // The position is the last entry of a batch.
        let position = entries.len().saturating_sub(1);
        match self.bug {
            Some(SimulationBug::PositionAfterBatch) => {
                let (rows, position) = entries.split_at(position);
                self.keys.write(rows)?;
                self.keys.write(position)?;
            }
            Some(SimulationBug::PositionBeforeBatch) => {
                let (rows, position) = entries.split_at(position);
                self.keys.write(position)?;
                self.keys.write(rows)?;
            }
            Some(SimulationBug::HalfBatch) => {
                let (half, rest) = entries.split_at(entries.len() / 2);
                self.keys.write(half)?;
                life::pause();
                self.keys.write(rest)?;
            }
            _ => self.keys.write(entries)?,
        }
        life::pause();
        self.running().map_err(gone)
    }

    fn persist(&self) -> Result<(), StoreError> {
        life::pause();
        let gone = |error: io::Error| StoreError::Io(error.to_string());
        self.running().map_err(gone)?;
        self.keys.persist()
    }

    fn bytes(&self) -> u64 {
        self.keys.bytes()
    }
}
