//! The seam for files: what the log and the data directory ask of a disk, and nothing more.
//!
//! `RealDisk` is the operating system's; `SimDisk` keeps files in memory, loses what was not
//! synced and fails on request. The store does its own file access and does not come through here.

mod checked;
mod real;
#[cfg(any(test, feature = "conformance"))]
mod sim;

use std::io;
use std::path::Path;

pub use checked::{with_checksum, without_checksum};
pub use real::RealDisk;
#[cfg(any(test, feature = "conformance"))]
pub use sim::{Fault, SimDisk};

/// What a small file (identity, lineage, marker) may hold: `read` refuses more.
pub const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// The ending of a file that is still being written and may be deleted at the next start.
pub const UNFINISHED: &str = "new";

/// Held while the process may use what it guards; dropping it lets go.
pub type DiskLock = Box<dyn Send + Sync>;

/// How much a file system has left for the user that runs the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Files that can still be made.
    pub free_files: u64,
}

impl Room {
    /// Of a disk that does not say how much it has.
    pub const PLENTY: Room =
        Room { free_bytes: u64::MAX, total_bytes: u64::MAX, free_files: u64::MAX };
}

/// Whether something failed only for want of room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Files and folders. A name that was created, renamed or removed is durable only after
/// `sync_dir` of its folder, and a file's content only after a sync of the file.
pub trait Disk: Send + Sync {
    /// Makes a folder that is its owner's alone, and those above it as far as they are missing. One
    /// that stands already is left as it is: it may turn out to be nobody's to touch.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Takes from others what they may do with a folder: what is kept here is nobody else's to
    /// read. Somebody else's folder, such as a volume that is lent to a group, stays as it is.
    fn keep_to_owner(&self, folder: &Path) -> io::Result<()>;

    /// The names in a folder, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Opens a file that exists, to read and write.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Makes an empty file; `AlreadyExists` when the name is taken.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Renames within one folder, over a file that has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// What is left on the file system that holds this path.
    fn room(&self, path: &Path) -> io::Result<Room>;

    /// Takes the lock on this file (made when missing); `None` when another holder has it.
    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>>;

    /// The whole content of a small file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        let size = file.size()?;
        if size > SMALL_FILE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it has {size} bytes, more than the {SMALL_FILE_BYTES_MAX} expected"),
            ));
        }
        let mut bytes = vec![0; size as usize];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Puts a small file in place so that a crash at any moment leaves the old content or the new,
    /// and that the new is durable on return.
    fn write_atomic(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let unfinished = path.with_added_extension(UNFINISHED);
        if self.exists(&unfinished)? {
            self.remove(&unfinished)?;
        }
        let file = self.create(&unfinished)?;
        file.write_at(0, bytes)?;
        file.sync_all()?;
        self.rename(&unfinished, path)?;
        self.sync_dir(folder_of(path))
    }
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Writes all of the bytes; an error may leave any part of them written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills as much of the buffer as the file has there, and says how much.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    fn size(&self) -> io::Result<u64>;

    /// Grows the file to this size with zeros, with its space reserved where the file system can.
    fn allocate(&self, size: u64) -> io::Result<()>;

    /// Makes the content durable, and the size if it changed.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes content and all metadata durable.
    fn sync_all(&self) -> io::Result<()>;
}

/// The folder that holds this path; `.` for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    }
}
