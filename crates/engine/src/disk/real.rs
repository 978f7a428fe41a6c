//! The operating system's files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{Disk, DiskFile, DiskLock};

/// The disk of this machine.
#[derive(Debug, Default)]
pub struct RealDisk;

struct RealFile(File);

impl Disk for RealDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
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
        let file = File::create_new(path)?;
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

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
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
