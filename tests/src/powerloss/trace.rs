//! The trace: its records, read back and appended. The layout is that of `powerloss/recorder.c`.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use super::content::Bytes;

/// Length, kind, two identities, two numbers.
const HEADER_BYTES: usize = 4 + 4 + 6 * 8;

/// A file or directory as the kernel names it; the inode of a removed one may come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'t> {
    /// The recorded directory; stands first.
    Root {
        directory: Identity,
    },
    Create {
        directory: Identity,
        name: &'t OsStr,
        file: Identity,
    },
    MakeDirectory {
        directory: Identity,
        name: &'t OsStr,
        made: Identity,
    },
    Link {
        directory: Identity,
        name: &'t OsStr,
        file: Identity,
    },
    Remove {
        directory: Identity,
        name: &'t OsStr,
    },
    RemoveDirectory {
        directory: Identity,
        name: &'t OsStr,
    },
    Rename {
        from_directory: Identity,
        from: &'t OsStr,
        to_directory: Identity,
        to: &'t OsStr,
    },
    Write {
        file: Identity,
        offset: u64,
        bytes: Bytes<'t>,
    },
    Truncate {
        file: Identity,
        length: u64,
    },
    Allocate {
        file: Identity,
        offset: u64,
        length: u64,
    },
    SyncBegin {
        object: Identity,
        ticket: u64,
        data_only: bool,
    },
    SyncEnd {
        ticket: u64,
        succeeded: bool,
    },
    /// Written by the test, not by the recorder.
    Mark {
        text: &'t str,
    },
    /// All that stands before is durable: the directory as it was when recording began.
    Settled,
}

/// A whole trace in memory.
pub struct Trace {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Trace {
    pub fn read(path: &Path) -> io::Result<Trace> {
        let bytes = std::fs::read(path)?;
        let mut starts = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let length =
                rest.first_chunk().map_or(usize::MAX, |bytes| u32::from_ne_bytes(*bytes) as usize);
            if length < HEADER_BYTES - 4 || length > rest.len() - 4 {
                return Err(damaged(format!("{}: no whole record at byte {at}", path.display())));
            }
            decode(&rest[..4 + length])?;
            starts.push(at);
            at += 4 + length;
        }
        Ok(Trace { bytes, starts })
    }

    pub fn records(&self) -> impl ExactSizeIterator<Item = Record<'_>> {
        (0..self.starts.len()).map(|index| self.record(index))
    }

    pub fn length(&self) -> usize {
        self.starts.len()
    }

    /// The first record that a cut may precede: what stands before it is the directory at the start.
    pub fn settled(&self) -> usize {
        self.records().position(|record| record == Record::Settled).map_or(0, |index| index + 1)
    }

    /// The marks, each with its record's index.
    pub fn marks(&self) -> impl Iterator<Item = (usize, &str)> {
        self.records().enumerate().filter_map(|(index, record)| match record {
            Record::Mark { text } => Some((index, text)),
            _ => None,
        })
    }

    pub fn record(&self, index: usize) -> Record<'_> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.bytes.len());
        decode(&self.bytes[self.starts[index]..end])
            .expect("every record was decoded when the trace was read")
    }
}

/// Appends records to a trace beside the recorder, each in one write, so that the order holds.
pub struct TraceWriter {
    file: File,
}

impl TraceWriter {
    pub fn append_to(path: &Path) -> io::Result<TraceWriter> {
        Ok(TraceWriter { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    pub fn append(&self, record: &Record<'_>) -> io::Result<()> {
        let bytes = encode(record);
        let written = (&self.file).write(&bytes)?;
        if written < bytes.len() {
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                "a record of the trace was cut short",
            ));
        }
        Ok(())
    }

    pub fn mark(&self, text: &str) -> io::Result<()> {
        self.append(&Record::Mark { text })
    }
}

const ROOT: u32 = 1;
const CREATE: u32 = 2;
const MAKE_DIRECTORY: u32 = 3;
const LINK: u32 = 4;
const REMOVE: u32 = 5;
const REMOVE_DIRECTORY: u32 = 6;
const RENAME: u32 = 7;
const WRITE: u32 = 8;
const TRUNCATE: u32 = 9;
const ALLOCATE: u32 = 10;
const SYNC_BEGIN: u32 = 11;
const SYNC_END: u32 = 12;
const MARK: u32 = 13;
const SETTLED: u32 = 14;

fn encode(record: &Record<'_>) -> Vec<u8> {
    let none = Identity::default();
    let joined;
    let (kind, subject, object, first, second, payload): (
        u32,
        Identity,
        Identity,
        u64,
        u64,
        &[u8],
    ) = match *record {
        Record::Root { directory } => (ROOT, directory, none, 0, 0, &[]),
        Record::Create { directory, name, file } => {
            (CREATE, directory, file, 0, 0, name.as_bytes())
        }
        Record::MakeDirectory { directory, name, made } => {
            (MAKE_DIRECTORY, directory, made, 0, 0, name.as_bytes())
        }
        Record::Link { directory, name, file } => (LINK, directory, file, 0, 0, name.as_bytes()),
        Record::Remove { directory, name } => (REMOVE, directory, none, 0, 0, name.as_bytes()),
        Record::RemoveDirectory { directory, name } => {
            (REMOVE_DIRECTORY, directory, none, 0, 0, name.as_bytes())
        }
        Record::Rename { from_directory, from, to_directory, to } => {
            joined = [from.as_bytes(), &[0], to.as_bytes()].concat();
            (RENAME, from_directory, to_directory, 0, 0, &joined)
        }
        Record::Write { file, offset, bytes } => match bytes {
            Bytes::Zeros(length) => (WRITE, file, none, offset, length, &[]),
            Bytes::Given(given) => (WRITE, file, none, offset, given.len() as u64, given),
        },
        Record::Truncate { file, length } => (TRUNCATE, file, none, length, 0, &[]),
        Record::Allocate { file, offset, length } => (ALLOCATE, file, none, offset, length, &[]),
        Record::SyncBegin { object, ticket, data_only } => {
            (SYNC_BEGIN, object, none, ticket, u64::from(data_only), &[])
        }
        Record::SyncEnd { ticket, succeeded } => {
            (SYNC_END, none, none, ticket, u64::from(!succeeded), &[])
        }
        Record::Mark { text } => (MARK, none, none, 0, 0, text.as_bytes()),
        Record::Settled => (SETTLED, none, none, 0, 0, &[]),
    };
    let length =
        u32::try_from(HEADER_BYTES - 4 + payload.len()).expect("a record is shorter than 4 GiB");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    for number in [subject.device, subject.inode, object.device, object.inode, first, second] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// `record` is one whole record, its length field included.
fn decode(record: &[u8]) -> io::Result<Record<'_>> {
    let (header, payload) = record.split_at(HEADER_BYTES);
    let number = |index: usize| {
        let start = 8 + index * 8;
        u64::from_ne_bytes(header[start..start + 8].try_into().expect("eight bytes"))
    };
    let kind = u32::from_ne_bytes(header[4..8].try_into().expect("four bytes"));
    let subject = Identity { device: number(0), inode: number(1) };
    let object = Identity { device: number(2), inode: number(3) };
    let (first, second) = (number(4), number(5));
    let name = OsStr::from_bytes(payload);
    Ok(match kind {
        ROOT => Record::Root { directory: subject },
        CREATE => Record::Create { directory: subject, name, file: object },
        MAKE_DIRECTORY => Record::MakeDirectory { directory: subject, name, made: object },
        LINK => Record::Link { directory: subject, name, file: object },
        REMOVE => Record::Remove { directory: subject, name },
        REMOVE_DIRECTORY => Record::RemoveDirectory { directory: subject, name },
        RENAME => {
            let mut names = payload.splitn(2, |byte| *byte == 0).map(OsStr::from_bytes);
            let (Some(from), Some(to)) = (names.next(), names.next()) else {
                return Err(damaged("a rename has only one name".to_owned()));
            };
            Record::Rename { from_directory: subject, from, to_directory: object, to }
        }
        WRITE if payload.is_empty() => {
            Record::Write { file: subject, offset: first, bytes: Bytes::Zeros(second) }
        }
        WRITE => Record::Write { file: subject, offset: first, bytes: Bytes::Given(payload) },
        TRUNCATE => Record::Truncate { file: subject, length: first },
        ALLOCATE => Record::Allocate { file: subject, offset: first, length: second },
        SYNC_BEGIN => Record::SyncBegin { object: subject, ticket: first, data_only: second == 1 },
        SYNC_END => Record::SyncEnd { ticket: first, succeeded: second == 0 },
        MARK => Record::Mark {
            text: std::str::from_utf8(payload)
                .map_err(|error| damaged(format!("a mark: {error}")))?,
        },
        SETTLED => Record::Settled,
        other => return Err(damaged(format!("record of unknown kind {other}"))),
    })
}

fn damaged(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
