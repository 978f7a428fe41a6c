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

/// Files and folders. A name that was created, renamed or removed is durable only after
/// `sync_dir` of its folder, and a file's content only after a sync of the file.
pub trait Disk: Send + Sync {
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

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
