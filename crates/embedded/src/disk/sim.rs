//! A disk in memory that loses and tears what was not synced, and fails on request.
//!
//! Everything is decided by seeds, so a failing history can be replayed. What a file or folder
//! holds, seen and durable, stands in `sim/content.rs`.

mod content;

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use content::{FileContent, FolderContent, Mood, NameChange};
use parking_lot::Mutex;

use super::{Disk, DiskFile, DiskLock, Room};

/// What goes wrong at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A change fails; a write may have got through in part.
    WriteError,
    /// The disk is full: a write, an allocation or a new name fails.
    NoSpace,
    /// A sync fails. Of a file, what was to be synced still reads as written, but each part of it
    /// is on the disk or lost by chance, and no later sync mends that. Of a folder, the names stay
    /// in doubt until the next sync, for file systems keep these in a journal.
    SyncError,
    /// The power goes: this operation and every later one fail. `crash` gives the disk after it.
    PowerCut,
}

/// The simulated disk. Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
}

struct World {
    inodes: Vec<Inode>,
    random: fastrand::Rng,
    operations: u64,
    /// From which operation on the fault waits for one that it concerns.
    planned: Option<(u64, Fault)>,
    faulted: bool,
    powered: bool,
    full: bool,
    locks: BTreeSet<PathBuf>,
}

#[derive(Clone)]
enum Inode {
    File(FileContent),
    Folder(FolderContent),
}

/// What an operation does, as far as faults care.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    NewName,
    ChangeName,
    Sync,
}

const ROOT: usize = 0;

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        Self::with(vec![Inode::Folder(FolderContent::default())], seed)
    }

    fn with(inodes: Vec<Inode>, seed: u64) -> Self {
        let world = World {
            inodes,
            random: fastrand::Rng::with_seed(seed),
            operations: 0,
            planned: None,
            faulted: false,
            powered: true,
            full: false,
            locks: BTreeSet::new(),
        };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// The disk as it may stand after a power cut now: every write that was not synced is lost,
    /// kept or torn, every name change that was not synced lost or kept. This one stays as it is.
    pub fn crash(&self, random: &mut fastrand::Rng) -> SimDisk {
        let mut inodes = self.world.lock().inodes.clone();
        let mood = Mood::any(random);
        for inode in &mut inodes {
            match inode {
                Inode::File(file) => file.cut(mood, random),
                Inode::Folder(folder) => folder.cut(mood, random),
            }
        }
        Self::with(inodes, random.u64(..))
    }

    /// How many operations that change or sync something were tried so far.
    pub fn operations(&self) -> u64 {
        self.world.lock().operations
    }

    /// Lets the `after`-th such operation from now (0 is the next), or the first one past it that
    /// the fault concerns, go wrong.
    pub fn fail_at(&self, after: u64, fault: Fault) {
        let mut world = self.world.lock();
        world.planned = Some((world.operations + after, fault));
        world.faulted = false;
    }

    /// Takes back a planned fault that has not happened.
    pub fn calm(&self) {
        self.world.lock().planned = None;
    }

    /// From now on there is no room, or again: nothing grows and no name is made, while what a file
    /// has can be written over and names may go.
    pub fn set_full(&self, full: bool) {
        self.world.lock().full = full;
    }

    /// Whether the fault of the last `fail_at` has happened.
    pub fn faulted(&self) -> bool {
        self.world.lock().faulted
    }

    fn file(&self, inode: usize) -> Box<dyn DiskFile> {
        Box::new(SimFile { disk: self.clone(), inode })
    }
}

impl World {
    /// Every operation that changes or syncs begins here: it is counted, and met by a fault that
    /// is due.
    fn begin(&mut self, operation: Operation) -> io::Result<Option<Fault>> {
        self.powered()?;
        let number = self.operations;
        self.operations += 1;
        let Some((from, fault)) = self.planned else {
            return Ok(None);
        };
        if number < from || !fault.concerns(operation) {
            return Ok(None);
        }
        self.planned = None;
        self.faulted = true;
        self.powered = fault != Fault::PowerCut;
        Ok(Some(fault))
    }

    /// Whether a file may grow to this size.
    fn grows(&self, inode: usize, size: u64) -> io::Result<()> {
        let fits = !self.full || size <= self.file(inode)?.seen().len() as u64;
        if fits { Ok(()) } else { Err(Fault::NoSpace.error()) }
    }

    fn powered(&self) -> io::Result<()> {
        if self.powered { Ok(()) } else { Err(Fault::PowerCut.error()) }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut inode = ROOT;
        for name in names(path) {
            let folder = self.folder(inode)?;
            inode = folder.find(&name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(inode)
    }

    fn find_parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let mut names = names(path);
        let name = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let mut inode = ROOT;
        for name in names {
            inode = self.folder(inode)?.find(&name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok((inode, name))
    }

    fn folder(&self, inode: usize) -> io::Result<&FolderContent> {
        match &self.inodes[inode] {
            Inode::Folder(folder) => Ok(folder),
            Inode::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn folder_mut(&mut self, inode: usize) -> io::Result<&mut FolderContent> {
        match &mut self.inodes[inode] {
            Inode::Folder(folder) => Ok(folder),
            Inode::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&self, inode: usize) -> io::Result<&FileContent> {
        match &self.inodes[inode] {
            Inode::File(file) => Ok(file),
            Inode::Folder(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn file_mut(&mut self, inode: usize) -> io::Result<&mut FileContent> {
        match &mut self.inodes[inode] {
            Inode::File(file) => Ok(file),
            Inode::Folder(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn add(&mut self, folder: usize, name: String, made: Inode) -> io::Result<usize> {
        if self.folder(folder)?.find(&name).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if self.full {
            return Err(Fault::NoSpace.error());
        }
        // Without a name it is out of reach, so it may stay when the change fails.
        let inode = self.inodes.len();
        self.inodes.push(made);
        self.change(folder, Operation::NewName, NameChange::Add { name, inode })?;
        Ok(inode)
    }

    /// A change of names is in doubt when the power goes, and did not happen after another fault.
    fn change(
        &mut self,
        folder: usize,
        operation: Operation,
        change: NameChange,
    ) -> io::Result<()> {
        let fault = self.begin(operation)?;
        if matches!(fault, None | Some(Fault::PowerCut)) {
            self.folder_mut(folder)?.change(change);
        }
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }
}

impl Fault {
    fn concerns(self, operation: Operation) -> bool {
        match self {
            Fault::WriteError => operation != Operation::Sync,
            Fault::NoSpace => matches!(operation, Operation::Write | Operation::NewName),
            Fault::SyncError => operation == Operation::Sync,
            Fault::PowerCut => true,
        }
    }

    fn error(self) -> io::Error {
        match self {
            Fault::WriteError => io::Error::other("simulated write error"),
            Fault::NoSpace => io::ErrorKind::StorageFull.into(),
            Fault::SyncError => io::Error::other("simulated sync error"),
            Fault::PowerCut => io::Error::other("simulated power cut"),
        }
    }
}

impl Disk for SimDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        world.powered()?;
        let mut inode = ROOT;
        for name in names(path) {
            inode = match world.folder(inode)?.find(&name) {
                Some(found) => found,
                None => world.add(inode, name, Inode::Folder(FolderContent::default()))?,
            };
        }
        world.folder(inode).map(|_| ())
    }

    fn keep_to_owner(&self, folder: &Path) -> io::Result<()> {
        let world = self.world.lock();
        world.powered()?;
        world.folder(world.find(folder)?).map(|_| ())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let world = self.world.lock();
        world.powered()?;
        Ok(world.folder(world.find(path)?)?.list())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let world = self.world.lock();
        world.powered()?;
        Ok(world.find(path).is_ok())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let world = self.world.lock();
        world.powered()?;
        let inode = world.find(path)?;
        world.file(inode)?;
        Ok(self.file(inode))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.world.lock();
        let (folder, name) = world.find_parent(path)?;
        let inode = world.add(folder, name, Inode::File(FileContent::default()))?;
        Ok(self.file(inode))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        let (folder, from) = world.find_parent(from)?;
        let (to_folder, to) = world.find_parent(to)?;
        if folder != to_folder {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        let inode = world.folder(folder)?.find(&from).ok_or(io::ErrorKind::NotFound)?;
        world.change(folder, Operation::ChangeName, NameChange::Rename { from, to, inode })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        let (folder, name) = world.find_parent(path)?;
        let inode = world.folder(folder)?.find(&name).ok_or(io::ErrorKind::NotFound)?;
        world.file(inode)?;
        world.change(folder, Operation::ChangeName, NameChange::Remove { name })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        let inode = world.find(path)?;
        let fault = world.begin(Operation::Sync)?;
        if fault.is_none() {
            world.folder_mut(inode)?.sync();
        }
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn room(&self, _: &Path) -> io::Result<Room> {
        Ok(Room::PLENTY)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        if !self.exists(path)? {
            self.create(path)?;
        }
        let fresh = self.world.lock().locks.insert(path.to_path_buf());
        Ok(fresh.then(|| -> DiskLock {
            Box::new(SimLock { disk: self.clone(), path: path.to_path_buf() })
        }))
    }
}

struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl SimFile {
    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world.lock();
        let fault = world.begin(Operation::Sync)?;
        let World { inodes, random, .. } = &mut *world;
        let Inode::File(file) = &mut inodes[self.inode] else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        match fault {
            None => file.sync(),
            Some(Fault::PowerCut) => {}
            Some(_) => file.settle(Mood::any(random), random),
        }
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.disk.world.lock();
        world.grows(self.inode, offset + bytes.len() as u64)?;
        let fault = world.begin(Operation::Write)?;
        let written = match fault {
            None | Some(Fault::PowerCut) => bytes.len(),
            Some(_) => world.random.usize(0..=bytes.len()),
        };
        world.file_mut(self.inode)?.write(offset as usize, &bytes[..written]);
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let world = self.disk.world.lock();
        world.powered()?;
        let seen = world.file(self.inode)?.seen();
        let start = seen.len().min(offset as usize);
        let read = buffer.len().min(seen.len() - start);
        buffer[..read].copy_from_slice(&seen[start..start + read]);
        Ok(read)
    }

    fn size(&self) -> io::Result<u64> {
        let world = self.disk.world.lock();
        world.powered()?;
        Ok(world.file(self.inode)?.seen().len() as u64)
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        let mut world = self.disk.world.lock();
        world.grows(self.inode, size)?;
        let fault = world.begin(Operation::Write)?;
        if matches!(fault, None | Some(Fault::PowerCut)) {
            world.file_mut(self.inode)?.grow(size as usize);
        }
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.world.lock().locks.remove(&self.path);
    }
}

/// The names along a path; a relative one begins at the root.
fn names(path: &Path) -> Vec<String> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
