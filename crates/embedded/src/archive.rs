//! The archive: the file that a backup is. This file owns its bytes and knows how to write and to
//! read them; what goes in is `backup`'s, what is made of it `restore`'s.
//!
//! An archive is read from front to back and describes itself:
//!
//! | part | |
//! |---|---|
//! | preamble | magic `GUANXIBK`, format (1 byte), 3 zeros, CRC32C of these 12 bytes |
//! | block | kind `H`, `R`, `F` or `T`, coding (0 plain, 1 zstd), 2 zeros, bytes stored, bytes when decoded, CRC32C of all of this and of what is stored; then what is stored |
//!
//! Numbers are little endian. One `H` block (the header) comes first, then blocks of rows (`R`) in
//! the order of keys, then blocks of log frames (`F`), then one `T` (the trailer), then nothing.
//! The trailer holds counts and the checksum of everything before it, so that a missing, doubled
//! or misplaced block is noticed as well as a changed byte. Preamble and block heads keep their
//! place in every later format.

mod block;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

use std::io;

use guanxi_model::{Epoch, Millis, Position, Secret};

pub use reader::{ArchivePart, ArchiveReader};
pub use writer::ArchiveWriter;

use crate::log::{FRAME_BYTES_MAX, Frame, Lineage};
use crate::store::{Applied, RawRow};

/// Raised whenever an older reader would misunderstand what is written: this file's own parts, or
/// the rows and records inside, which the store and the model lay out.
pub const FORMAT: u8 = 2;
/// About how much a block holds before it is compressed: enough to compress well, little enough
/// to be a step of a stream.
pub const BLOCK_BYTES: usize = 256 << 10;
/// What a block may hold: a frame of the largest size, with room for how it is written.
const BLOCK_BYTES_MAX: usize = FRAME_BYTES_MAX + (1 << 20);

/// What an archive says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveHeader {
    pub created: Millis,
    pub base: ArchiveBase,
    /// The epochs of the log when the backup began.
    pub lineage: Lineage,
    /// What the service seals its tokens with: what is made of the archive takes the same.
    pub secret: Secret,
}

/// What an archive begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveBase {
    /// All rows at a place in the log.
    Rows(Applied),
    /// Nothing: it continues another archive from here.
    After(LogPlace),
}

impl ArchiveBase {
    /// The position that the archive's frames follow.
    pub fn position(&self) -> Position {
        match self {
            ArchiveBase::Rows(applied) => applied.position,
            ArchiveBase::After(place) => place.position,
        }
    }
}

/// A place in a log, with what tells it from the same position of another service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    pub epoch: Epoch,
    pub position: Position,
    /// The commit time of the frame there; 0 when the log no longer has it.
    pub commit: Millis,
}

/// What an archive says last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailer {
    pub rows: u64,
    pub frames: u64,
    pub records: u64,
    /// Where its last frame ends, or its rows where there is none.
    pub end: LogPlace,
    /// The epochs of the log when the backup ended.
    pub lineage: Lineage,
    /// When the end of the log was looked at: what came later is not in it.
    pub ended: Millis,
}

/// Why an archive cannot be read or written. Whoever names the file adds its name.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("it could not be read: {0}")]
    Io(io::Error),
    #[error("it is not a backup of guanxi: it does not begin with {}", block::MAGIC_TEXT)]
    NotAnArchive,
    #[error(
        "it has format {found}, but this version reads {known}: use the newer version of \
         guanxi that wrote it"
    )]
    NewerFormat { found: u8, known: u8 },
    #[error(
        "it has format {found} of an earlier release, and this one reads {known}: restore it with \
         that release (guanxi restore), export it there (guanxi export), and import that here"
    )]
    OlderFormat { found: u8, known: u8 },
    #[error("it is cut off after {0} bytes: a backup that was not finished, or a partial copy")]
    Truncated(u64),
    #[error("it is damaged at byte {offset}: {what}; use another copy of it or another backup")]
    Damaged { offset: u64, what: String },
}

/// About what a row or a frame takes in a block.
pub(crate) fn row_bytes((key, value): &RawRow) -> usize {
    key.len() + value.len() + 8
}

pub(crate) fn frame_bytes(frame: &Frame) -> usize {
    frame.records.iter().map(|record| record.len() + 4).sum::<usize>() + 32
}
