//! The log: the ordered, durable sequence of records that all other durable state comes from.
//!
//! This file owns the contract: what a frame is, what a log promises, how it refuses. `FileLog`
//! keeps it in segment files, `MemoryLog` in memory; both pass `log/conformance.rs`. What the
//! records mean is the model's affair: here they are bytes.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod files;
mod floor;
mod frame;
mod lineage;
mod marks;
mod memory;
mod recovery;
mod segment;
mod shipment;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use guanxi_model::{Epoch, Position};

use crate::disk::is_full;

pub use files::{Beginning, FileLog, LogOpening, LogOptions};
pub use lineage::{Fork, Lineage};
pub use memory::MemoryLog;
pub use shipment::{OutgoingShipment, SHIPMENT_BYTES_MAX, Shipment, ShipmentError};

/// The largest frame in bytes: what reading one frame may cost in memory.
pub const FRAME_BYTES_MAX: usize = 32 << 20;

/// The most records in a frame: far above any batch of the committer.
pub const FRAME_RECORDS_MAX: usize = 1 << 16;

/// What is written and made durable at once: records with consecutive positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub epoch: Epoch,
    /// The position of the first record.
    pub first: Position,
    /// When the batch was committed; never decreases along the log.
    pub commit_ms: u64,
    pub records: Vec<Vec<u8>>,
}

impl Frame {
    /// The position of the last record.
    pub fn last(&self) -> Position {
        Position((self.first.0 + self.records.len() as u64).saturating_sub(1))
    }
}

/// An ordered, durable sequence of frames. One caller appends, any number read.
pub trait Log: Send + Sync {
    /// Appends the frame that continues the log; it is durable when this returns `Ok`. A frame
    /// that does not continue the log is refused and changes nothing. After `Full` the frame may
    /// stay or not until the next append, which takes its place and may be of the same frame.
    /// After another failed write, or a failed sync, it is unknown whether the frame stays, and
    /// every later append is refused until the log is opened again.
    fn append(&self, frame: &Frame) -> Result<(), LogError>;

    /// The last durable position, 0 when there is none.
    fn last(&self) -> Position;

    /// The oldest position kept, `last() + 1` when there is none.
    fn first(&self) -> Position;

    /// The epoch that the next frame must carry.
    fn epoch(&self) -> Epoch;

    /// The commit time of the last frame, 0 when there never was one.
    fn last_commit_ms(&self) -> u64;

    /// Whole frames, durable ones only, from the one that holds `from` on: at least one if there
    /// is any, then as long as their bytes stay within `bytes_max`. Empty when `from` is past
    /// `last()`; `Trimmed` when it is before `first()`.
    fn read(&self, from: Position, bytes_max: usize) -> Result<Vec<Frame>, LogError>;

    /// Lets go of old frames whose every record is before `keep_from`; some of them may stay.
    fn trim(&self, keep_from: Position) -> Result<(), LogError>;

    /// Makes ready what the next appends will need, so that none of them waits for it. Called now
    /// and then, beside appends; a failure costs nothing but time.
    fn prepare(&self) -> Result<(), LogError> {
        Ok(())
    }

    /// Lets a later trim take what is now the log's active part, when that began before this time.
    /// A log that trims by the frame has nothing to do.
    fn seal(&self, _begun_before_ms: u64) -> Result<(), LogError> {
        Ok(())
    }

    /// What the log occupies.
    fn bytes(&self) -> u64;

    /// The epochs that led here.
    fn lineage(&self) -> Lineage;

    /// Begins a new epoch, greater than the present one, that forks off at `last()`.
    fn begin_epoch(&self, epoch: Epoch) -> Result<(), LogError>;
}

/// Why the log did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the log could not {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    /// Nothing is broken, and nothing was made durable: the same may be tried again.
    #[error("disk full: the log could not {action} {}; make room", path.display())]
    Full { action: &'static str, path: PathBuf },

    #[error(
        "the log is damaged: {}, byte {offset}: {what}. Nothing was cut off; restore the data \
         directory from a backup, or bring back the file as it was",
        path.display()
    )]
    Damaged { path: PathBuf, offset: u64, what: String },

    #[error(
        "{} has format {found}, but this version reads up to {known}: start it with the newer \
         version that wrote it",
        path.display()
    )]
    NewerFormat { path: PathBuf, found: u8, known: u8 },

    #[error(
        "the log takes no more writes, because it was closed or an earlier write or sync failed: \
         look after the disk and restart"
    )]
    Refusing,

    #[error("position {} is no longer in the log, which begins at {}", from.0, first.0)]
    Trimmed { from: Position, first: Position },

    #[error("a frame at position {} does not continue the log, which goes on at {}", found.0, expected.0)]
    OutOfOrder { expected: Position, found: Position },

    #[error("epoch {} does not fit the log, whose epoch is {}", found.0, current.0)]
    WrongEpoch { current: Epoch, found: Epoch },

    #[error("a frame of {found_ms} ms would go behind the log's last commit at {last_ms} ms")]
    TimeBack { last_ms: u64, found_ms: u64 },

    #[error(
        "a frame of {records} records and {bytes} bytes does not fit: 1 to {FRAME_RECORDS_MAX} \
         records and up to {FRAME_BYTES_MAX} bytes do"
    )]
    FrameSize { records: usize, bytes: usize },
}

impl LogError {
    /// What failed before anything was synced: for want of room, or for good.
    fn unsynced(action: &'static str, path: &Path, source: io::Error) -> LogError {
        let path = path.to_path_buf();
        match is_full(&source) {
            true => LogError::Full { action, path },
            false => LogError::Io { action, path, source },
        }
    }

    /// Whether it failed only for want of room.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            LogError::Full { .. } => true,
            LogError::Io { source, .. } => is_full(source),
            _ => false,
        }
    }
}

/// Where a log ends: what the next frame is checked against, in every kind of log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogTip {
    epoch: Epoch,
    last: Position,
    commit_ms: u64,
}

impl LogTip {
    /// The tip of a log that never had a frame.
    fn start() -> Self {
        Self { epoch: Epoch(1), last: Position(0), commit_ms: 0 }
    }

    fn next(&self) -> Position {
        Position(self.last.0 + 1)
    }

    /// The tip after this frame, or why the frame does not continue the log.
    fn after(&self, frame: &Frame) -> Result<LogTip, LogError> {
        let bytes = frame::encoded_bytes(frame);
        if frame.records.is_empty()
            || frame.records.len() > FRAME_RECORDS_MAX
            || bytes > FRAME_BYTES_MAX
        {
            return Err(LogError::FrameSize { records: frame.records.len(), bytes });
        }
        if frame.first != self.next() {
            return Err(LogError::OutOfOrder { expected: self.next(), found: frame.first });
        }
        if frame.epoch != self.epoch {
            return Err(LogError::WrongEpoch { current: self.epoch, found: frame.epoch });
        }
        if frame.commit_ms < self.commit_ms {
            return Err(LogError::TimeBack { last_ms: self.commit_ms, found_ms: frame.commit_ms });
        }
        Ok(LogTip { epoch: self.epoch, last: frame.last(), commit_ms: frame.commit_ms })
    }
}
