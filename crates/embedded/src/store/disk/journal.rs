//! Room for fjall's journal. fjall takes a journal that it could not write for the end of the
//! store; so the room for a batch is reserved before fjall is given it, and some ahead.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::disk::is_full;

/// The ending of a journal's name, which is a number.
const ENDING: &str = "jnl";
/// How far ahead of what is written room is reserved, or a quarter of a smaller journal. On a full
/// disk, removals live on it.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
const AHEAD_SHARE: u64 = 4;
/// What fjall writes around a batch, and before the key and value of an entry, at most.
const BATCH_BYTES: u64 = 32;
const ENTRY_BYTES: u64 = 24;

/// The journal that is written to, and how far its room is reserved.
pub(super) struct JournalRoom {
    folder: PathBuf,
    /// A file whose room the journal takes when there is no other.
    spare: PathBuf,
    number: u64,
    file: File,
    /// At least what fjall has written.
    written: u64,
    /// Of which the last batch.
    last_bytes: u64,
    reserved: u64,
    /// Beyond this it is too large; raised after each time that this was said.
    large_at: u64,
    bytes_max: u64,
}

impl JournalRoom {
    /// The newest journal in the folder of an open database, which goes on at its end.
    pub fn find(folder: &Path, spare: PathBuf, bytes_max: u64) -> io::Result<JournalRoom> {
        let mut newest = None;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is_journal = path.extension().is_some_and(|ending| ending == ENDING);
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
            newest = newest.max(number.filter(|_| is_journal));
        }
        let number = newest.ok_or(io::ErrorKind::NotFound)?;
        let file = open(folder, number)?;
        let written = file.metadata()?.len();
        Ok(JournalRoom {
            folder: folder.to_path_buf(),
            spare,
            number,
            file,
            written,
            last_bytes: 0,
            reserved: written,
            large_at: bytes_max,
            bytes_max,
        })
    }

    /// The journal was made just now: its size says nothing of what is written.
    pub fn begin_anew(&mut self) -> io::Result<()> {
        (self.written, self.reserved) = (0, 0);
        self.end_where_written()
    }

    /// fjall makes a journal as long as it may get, and cuts off what it did not come to when it
    /// opens it after a kill, and with that what is reserved ahead. On a full disk somebody else
    /// would have it.
    fn end_where_written(&self) -> io::Result<()> {
        match seek(&self.file, SeekFrom::Data(self.written)) {
            // Nothing comes after.
            Err(Errno::NXIO) => self.file.set_len(self.written),
            _ => Ok(()),
        }
    }

    /// Whether its room should be given back. Where that fails it is said again after some more.
    pub fn is_too_large(&mut self) -> bool {
        let too_large = self.written > self.large_at;
        if too_large {
            self.large_at = self.written.saturating_add(self.bytes_max / 4);
        }
        too_large
    }

    /// What was written to it, about.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether a full disk would gain by it.
    pub fn is_worth_giving_back(&self) -> bool {
        self.written > self.bytes_max / AHEAD_SHARE
    }

    /// Reserves the room of a batch of so many entries with so many bytes in all. Where the file
    /// system cannot reserve, whoever watches the room of the disk has to see that there is some.
    pub fn reserve(&mut self, entries: usize, entries_bytes: u64) -> io::Result<()> {
        let bytes = BATCH_BYTES + ENTRY_BYTES * entries as u64 + entries_bytes;
        self.follow()?;
        let end = self.written + bytes;
        if end + self.ahead_bytes() / 2 > self.reserved {
            let ahead = self.reserve_to(end + self.ahead_bytes());
            // What is ahead still takes it, or the last of the disk.
            if ahead.is_err() && end > self.reserved {
                self.reserve_last(end)?;
            }
        }
        (self.written, self.last_bytes) = (end, bytes);
        Ok(())
    }

    /// Reserves what is ahead, if there is room.
    pub fn reserve_ahead(&mut self) -> io::Result<()> {
        self.reserve_to(self.written + self.ahead_bytes())
    }

    fn ahead_bytes(&self) -> u64 {
        AHEAD_BYTES_MAX.min(self.bytes_max / AHEAD_SHARE)
    }

    /// From the last of the disk, or from the spare file. What that gives up is taken at once:
    /// a moment later whoever fills the disk would have it.
    fn reserve_last(&mut self, end: u64) -> io::Result<()> {
        match self.reserve_to(end) {
            Err(error) if is_full(&error) && fs::remove_file(&self.spare).is_ok() => {
                self.reserve_to(end + self.ahead_bytes()).or_else(|_| self.reserve_to(end))
            }
            done => done,
        }
    }

    fn reserve_to(&mut self, end: u64) -> io::Result<()> {
        let bytes = end - self.reserved;
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.reserved, bytes) {
            Ok(()) => self.reserved = end,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.reserved = u64::MAX,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Goes over to the journal that fjall has begun after this one, if it has; the batch before
    /// may be in it already.
    fn follow(&mut self) -> io::Result<()> {
        match open(&self.folder, self.number + 1) {
            Ok(file) => {
                self.number += 1;
                self.file = file;
                (self.written, self.reserved) = (self.last_bytes, 0);
                self.end_where_written()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn open(folder: &Path, number: u64) -> io::Result<File> {
    File::options().write(true).open(folder.join(format!("{number}.{ENDING}")))
}
