//! A file in the making: written beside its name as `NAME.part`, and moved there when it is whole
//! and on the disk. One that a killed command left is written over by the next.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::failure::Failure;

/// The ending of a file that is not finished.
const ENDING: &str = "part";
/// Only who has made it may read it.
const OWNER_FILE: u32 = 0o600;
/// How often a file that goes while it is taken is taken again: others end only once.
const TRIES_MAX: usize = 10;

/// What the file will be, for the user.
#[derive(Debug, Clone, Copy)]
pub struct FilePurpose {
    /// Such as "export".
    pub name: &'static str,
    /// What it comes to when it cannot be written, such as "no backup was made".
    pub nothing: &'static str,
}

/// Dropped before it is finished, it is gone. Locked as long as it is there, so that no two
/// commands write it.
#[derive(Debug)]
pub struct UnfinishedFile {
    to: PathBuf,
    part: PathBuf,
    file: File,
    purpose: FilePurpose,
    finished: bool,
}

impl UnfinishedFile {
    pub fn begin(to: &Path, purpose: FilePurpose) -> Result<UnfinishedFile, Failure> {
        if to.file_name().is_none() {
            return Err(Failure::usage(format!("{} is no name of a file", to.display())));
        }
        let part = to.with_added_extension(ENDING);
        let cannot = |error: io::Error| purpose.cannot("write", &part, &error);
        for _ in 0..TRIES_MAX {
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(OWNER_FILE);
            // Never through a link, which may lead to any file of ours, nor waiting for whoever
            // reads a pipe.
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let opened = options.custom_flags(flags.bits() as i32).open(&part);
            let file = match opened {
                Err(error) if is_no_file(&error) => return Err(foreign(&part)),
                opened => opened.map_err(cannot)?,
            };
            // One that somebody else has put there would be theirs to read.
            if !is_ours(&file).map_err(cannot)? {
                return Err(foreign(&part));
            }
            if file.try_lock().is_err() {
                let (name, part) = (purpose.name, part.display());
                return Err(Failure::failed(format!("another {name} is writing {part}"))
                    .next("wait for it, or choose another file"));
            }
            // Whoever held the lock before may have moved it to its place, or removed it.
            if !is_at(&file, &part).map_err(cannot)? {
                continue;
            }
            file.set_len(0).map_err(cannot)?;
            file.set_permissions(Permissions::from_mode(OWNER_FILE)).map_err(cannot)?;
            let (to, finished) = (to.to_path_buf(), false);
            return Ok(UnfinishedFile { to, part, file, purpose, finished });
        }
        Err(Failure::failed(format!("others keep writing {}", part.display()))
            .next("choose another file"))
    }

    /// Where it is written.
    pub fn path(&self) -> &Path {
        &self.part
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it means that it could not be written.
    pub fn cannot_write(&self, error: &io::Error) -> Failure {
        self.purpose.cannot("write", &self.part, error)
    }

    /// Makes it durable and gives it its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| self.cannot_write(&error))?;
        let renamed = fs::rename(&self.part, &self.to);
        renamed.map_err(|error| self.purpose.cannot("rename", &self.part, &error))?;
        self.finished = true;
        let folder = match self.to.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| self.purpose.cannot("sync", folder, &error))
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.finished {
            // Where it cannot be removed, the next command writes over it.
            let _ = fs::remove_file(&self.part);
        }
    }
}

impl FilePurpose {
    /// Why a file cannot be had, and what that comes to.
    pub fn cannot(self, action: &str, path: &Path, error: &io::Error) -> Failure {
        let failure = Failure::failed(format!("cannot {action} {}: {error}", path.display()));
        let way_out = match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => "make room, or choose another place",
            _ => "choose a place that can be written to",
        };
        failure.next(format!("{}: {way_out}", self.nothing))
    }
}

/// Whether a file is a plain one of this user's that has no second name.
fn is_ours(file: &File) -> io::Result<bool> {
    let about = file.metadata()?;
    Ok(about.is_file() && about.uid() == geteuid().as_raw() && about.nlink() <= 1)
}

/// Whether it was not opened because it is a link, a pipe that nobody reads, or a socket.
fn is_no_file(error: &io::Error) -> bool {
    let found = error.raw_os_error();
    [Errno::LOOP, Errno::NXIO].iter().any(|errno| found == Some(errno.raw_os_error()))
}

fn foreign(part: &Path) -> Failure {
    Failure::failed(format!("{} is a link, no plain file, or somebody else's", part.display()))
        .next("remove it if you know it, or choose another file")
}

/// Whether the open file is the one of this name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    const PURPOSE: FilePurpose = FilePurpose { name: "export", nothing: "nothing was exported" };

    #[test]
    fn it_appears_when_it_is_whole_and_has_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("a.ndjson");
        let part = folder.path().join("a.ndjson.part");
        fs::write(&part, "what a killed command left").unwrap();
        let one = UnfinishedFile::begin(&to, PURPOSE).unwrap();
        let other = UnfinishedFile::begin(&to, PURPOSE).unwrap_err();
        assert!(other.message().contains("another export"), "{}", other.message());
        one.file().write_all(b"whole").unwrap();
        assert!(!to.exists());
        one.finish().unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"whole");
        assert!(!part.exists());
        drop(UnfinishedFile::begin(&to, PURPOSE).unwrap());
        assert!(!part.exists(), "what was given up is gone");
        assert_eq!(fs::read(&to).unwrap(), b"whole");
    }

    #[test]
    fn it_is_the_users_own_and_never_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("a.backup");
        let part = folder.path().join("a.backup.part");
        let precious = folder.path().join("precious");
        fs::write(&precious, "not to be lost").unwrap();
        let make: [fn(&Path, &Path) -> io::Result<()>; 2] =
            [|to, link| std::os::unix::fs::symlink(to, link), |to, link| fs::hard_link(to, link)];
        for make in make {
            make(&precious, &part).unwrap();
            let refused = UnfinishedFile::begin(&to, PURPOSE).unwrap_err();
            assert!(refused.message().contains("is a link"), "{}", refused.message());
            assert_eq!(fs::read(&precious).unwrap(), b"not to be lost");
            fs::remove_file(&part).unwrap();
        }
        fs::write(&part, "what a killed command left").unwrap();
        fs::set_permissions(&part, Permissions::from_mode(0o644)).unwrap();
        UnfinishedFile::begin(&to, PURPOSE).unwrap().finish().unwrap();
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn nobody_waits_for_the_reader_of_a_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("a.backup");
        let part = folder.path().join("a.backup.part");
        rustix::fs::mknodat(CWD, &part, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let begin = || {
            let (sender, receiver) = mpsc::channel();
            let to = to.clone();
            thread::spawn(move || sender.send(UnfinishedFile::begin(&to, PURPOSE)));
            receiver.recv_timeout(Duration::from_secs(10)).expect("it does not wait").unwrap_err()
        };
        let refused = begin();
        assert!(refused.message().contains("no plain file"), "{}", refused.message());
        let _reader = File::options().read(true).write(true).open(&part).unwrap();
        let refused = begin();
        assert!(refused.message().contains("no plain file"), "{}", refused.message());
    }
}
