//! The operating system's files.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use super::{Disk, DiskFile, DiskLock, Room};

/// Folders and files that nobody but their owner may look into.
const OWNER_ONLY: u32 = 0o700;
const OWNER_FILE: u32 = 0o600;
/// What others may do with a folder.
const OTHERS: u32 = 0o077;

/// The disk of this machine.
#[derive(Debug, Default)]
pub struct RealDisk;

struct RealFile(File);

impl Disk for RealDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(super::folder_of(path))?;
        match DirBuilder::new().mode(OWNER_ONLY).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        }
    }

    fn keep_to_owner(&self, folder: &Path) -> io::Result<()> {
        let mode = fs::metadata(folder)?.permissions().mode();
        if mode & OTHERS == 0 {
            return Ok(());
        }
        match fs::set_permissions(folder, Permissions::from_mode(mode & !OTHERS)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let folder = folder.display();
                tracing::warn!(%folder, "others may look into this folder, and it is not ours to close");
                Ok(())
            }
            closed => closed,
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = fs::read_dir(path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<String>>>()?;
        names.sort();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(OWNER_FILE)
            .open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn room(&self, path: &Path) -> io::Result<Room> {
        let disk = statvfs(path)?;
        Ok(Room {
            free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
            total_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
            // A file system that makes its inodes as it needs them counts none.
            free_files: if disk.f_files == 0 { u64::MAX } else { disk.f_favail },
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(OWNER_FILE);
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match self.0.read_at(&mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        if self.size()? >= size {
            return Ok(());
        }
        loop {
            match fallocate(&self.0, FallocateFlags::empty(), 0, size) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                // Without reservation, a full disk shows at the write instead, which is handled too.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    return self.0.set_len(size);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        RealDisk.create_dir_all(&path).unwrap();
        let file = RealDisk.create(&path.join("one")).unwrap();
        assert_eq!(
            RealDisk.create(&path.join("one")).err().map(|e| e.kind()),
            Some(io::ErrorKind::AlreadyExists)
        );
        file.allocate(10_000).unwrap();
        file.write_at(5, b"hello").unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.size().unwrap(), 10_000);
        let mut buffer = [9; 20];
        assert_eq!(file.read_at(9_990, &mut buffer).unwrap(), 10);
        assert_eq!(file.read_at(20_000, &mut buffer).unwrap(), 0);
        RealDisk.rename(&path.join("one"), &path.join("two")).unwrap();
        RealDisk.write_atomic(&path.join("small"), b"text").unwrap();
        RealDisk.write_atomic(&path.join("small"), b"more").unwrap();
        assert_eq!(RealDisk.read(&path.join("small")).unwrap(), b"more");
        assert_eq!(RealDisk.list(&path).unwrap(), ["small", "two"]);
        RealDisk.remove(&path.join("two")).unwrap();
        assert!(!RealDisk.exists(&path.join("two")).unwrap());
    }

    #[test]
    fn what_is_made_is_the_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = folder.path().join("above/data");
        RealDisk.create_dir_all(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        RealDisk.create_dir_all(&path).unwrap();
        assert_eq!(mode(&path), 0o755, "what stands is left as it is");
        RealDisk.keep_to_owner(&path).unwrap();
        assert_eq!(mode(&path), 0o700, "one that others could read is closed");
        RealDisk.create(&path.join("one")).unwrap();
        RealDisk.write_atomic(&path.join("two"), b"text").unwrap();
        RealDisk.lock(&path.join("LOCK")).unwrap();
        for name in ["one", "two", "LOCK"] {
            assert_eq!(mode(&path.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn a_lock_has_one_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("LOCK");
        let held = RealDisk.lock(&path).unwrap();
        assert!(held.is_some());
        assert!(RealDisk.lock(&path).unwrap().is_none());
        drop(held);
        assert!(RealDisk.lock(&path).unwrap().is_some());
    }
}
