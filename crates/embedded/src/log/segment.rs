//! A segment file: its header, its making, and walking over its frames.
//!
//! The file is named after the position of its first record, preallocated with zeros, and begins
//! with 48 bytes:
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | magic `GUANXISG` |
//! | 8 | format |
//! | 9..12 | zero |
//! | 12..16 | epoch when it was made |
//! | 16..24 | position of its first record |
//! | 24..32 | first position of the segment before it, 0 for the first ever |
//! | 32..40 | commit time of the last frame before it, ms |
//! | 40..44 | the directory's seed, as a checksum |
//! | 44..48 | CRC32C of the header up to here |

use std::io;
use std::path::{Path, PathBuf};

use guanxi_model::Position;
use parking_lot::Mutex;

use super::frame::{ChecksumSeed, FrameError, FrameHeader, HEADER_BYTES, u32_at, u64_at};
use super::{Epoch, Frame, LogError};
use crate::disk::{Disk, DiskFile, UNFINISHED};

const MAGIC: [u8; 8] = *b"GUANXISG";
const FORMAT: u8 = 1;
const ENDING: &str = ".seg";
/// The name, while it is unfinished, of a file of zeros that waits to become a segment.
const SPARE: &str = "spare";
/// Zeros that are written at once, and then synced.
const ZEROED_BYTES: u64 = 2 << 20;
/// Where a segment's first frame begins.
pub(super) const FRAMES_OFFSET: u64 = 48;
/// How much is read at once while walking.
const WINDOW_BYTES: usize = 64 << 10;
/// How far apart the places are that a segment remembers: what a read passes over at most, once
/// the way there has been walked.
const INDEX_STEP_BYTES: u64 = 64 << 10;

/// What stands at the head of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) epoch: Epoch,
    pub(super) first: Position,
    pub(super) previous: Position,
    pub(super) commit_ms: u64,
}

/// A segment that the log knows of.
pub(super) struct Segment {
    pub(super) first: Position,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    index: Mutex<Vec<(Position, u64)>>,
}

/// The file name of the segment that begins at this position.
pub(super) fn file_name(first: Position) -> String {
    format!("{:020}{ENDING}", first.0)
}

/// The position in a segment's file name; `None` for any other file.
pub(super) fn position_in(name: &str) -> Option<Position> {
    let digits = name.strip_suffix(ENDING)?;
    let position = Position(digits.parse().ok()?);
    (file_name(position) == name).then_some(position)
}

/// Makes the file of a segment under its unfinished name: header and zeros up to `size`, neither
/// synced nor in place. What could not be made whole is gone again.
pub(super) fn create(
    disk: &dyn Disk,
    folder: &Path,
    header: &SegmentHeader,
    seed: ChecksumSeed,
    size: u64,
) -> io::Result<Unplaced> {
    let path = folder.join(file_name(header.first)).with_added_extension(UNFINISHED);
    let made = Unplaced::allocated(disk, path, size)?;
    made.or_gone(disk, made.begin(header, seed))?;
    Ok(Unplaced { written: FRAMES_OFFSET, ..made })
}

/// A segment's file that does not stand under its name yet.
pub(super) struct Unplaced {
    pub(super) file: Box<dyn DiskFile>,
    path: PathBuf,
    pub(super) size: u64,
    /// Up to where it is written, if only with zeros.
    pub(super) written: u64,
}

impl Unplaced {
    /// A file of zeros, written and synced in advance: appending to it changes no metadata, so
    /// its syncs wait for nobody else's writes. What could not be made whole is gone again.
    pub(super) fn zeros(disk: &dyn Disk, folder: &Path, size: u64) -> io::Result<Unplaced> {
        let path = folder.join(SPARE).with_added_extension(UNFINISHED);
        // All of the room first, so that a full disk shows before anything is written.
        let made = Self::allocated(disk, path, size)?;
        made.or_gone(disk, made.write_zeros())?;
        Ok(Unplaced { written: size, ..made })
    }

    /// A new file with its room reserved, in the place of one that an earlier attempt left.
    fn allocated(disk: &dyn Disk, path: PathBuf, size: u64) -> io::Result<Unplaced> {
        if disk.exists(&path)? {
            disk.remove(&path)?;
        }
        let file = disk.create(&path)?;
        let made = Unplaced { file, path, size, written: 0 };
        made.or_gone(disk, made.file.allocate(size))?;
        Ok(made)
    }

    fn write_zeros(&self) -> io::Result<()> {
        let zeros = vec![0; ZEROED_BYTES.min(self.size) as usize];
        let mut written = 0;
        while written < self.size {
            let bytes = (self.size - written).min(ZEROED_BYTES);
            self.file.write_at(written, &zeros[..bytes as usize])?;
            // Piece by piece, so that an append beside it never waits for all of it.
            self.file.sync_data()?;
            written += bytes;
        }
        self.file.sync_all()
    }

    /// Removes the file if what was done with it failed: on a full disk nothing may stay that
    /// nobody needs. Where it cannot be removed, the next attempt or the next start does.
    pub(super) fn or_gone<T>(&self, disk: &dyn Disk, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            let _ = disk.remove(&self.path);
        }
        done
    }

    /// Gives a file of zeros the header that makes it a segment.
    pub(super) fn begin(&self, header: &SegmentHeader, seed: ChecksumSeed) -> io::Result<()> {
        self.file.write_at(0, &header.encode(seed))
    }

    /// Syncs the file and gives it its name, which is durable once the folder is synced. The name
    /// stands only when all of the content is on the disk, so a segment with a bad header is never
    /// the work of a power cut. A file that does not get its name is gone.
    pub(super) fn put_in_place(
        &self,
        disk: &dyn Disk,
        folder: &Path,
        first: Position,
    ) -> io::Result<PathBuf> {
        let path = folder.join(file_name(first));
        let named = self.file.sync_all().and_then(|()| disk.rename(&self.path, &path));
        self.or_gone(disk, named)?;
        Ok(path)
    }
}

impl SegmentHeader {
    fn encode(&self, seed: ChecksumSeed) -> [u8; FRAMES_OFFSET as usize] {
        let mut bytes = [0; FRAMES_OFFSET as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = FORMAT;
        bytes[12..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.previous.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.commit_ms.to_le_bytes());
        bytes[40..44].copy_from_slice(&seed.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads and checks the header of the segment file at `path`, which is named after `first`.
    pub(super) fn read(
        file: &dyn DiskFile,
        path: &Path,
        first: Position,
        seed: ChecksumSeed,
    ) -> Result<Self, LogError> {
        let mut bytes = [0; FRAMES_OFFSET as usize];
        let damaged = |what: &str| LogError::Damaged {
            path: path.to_path_buf(),
            offset: 0,
            what: what.to_owned(),
        };
        let read = file.read_at(0, &mut bytes).map_err(|source| LogError::Io {
            action: "read",
            path: path.to_path_buf(),
            source,
        })?;
        if read < bytes.len() || bytes[..8] != MAGIC {
            return Err(damaged("it is not a segment of a log"));
        }
        if u32_at(&bytes, 44) != crc32c::crc32c(&bytes[..44]) {
            return Err(damaged("the segment's header does not fit its checksum"));
        }
        if bytes[8] > FORMAT {
            return Err(LogError::NewerFormat {
                path: path.to_path_buf(),
                found: bytes[8],
                known: FORMAT,
            });
        }
        if u32_at(&bytes, 40) != seed.0 {
            return Err(damaged("the segment belongs to another data directory"));
        }
        let header = SegmentHeader {
            epoch: Epoch(u32_at(&bytes, 12)),
            first: Position(u64_at(&bytes, 16)),
            previous: Position(u64_at(&bytes, 24)),
            commit_ms: u64_at(&bytes, 32),
        };
        if header.first != first {
            return Err(damaged("the segment's name is not that of its first position"));
        }
        Ok(header)
    }
}

impl Segment {
    pub(super) fn new(first: Position, path: PathBuf, bytes: u64) -> Self {
        Self { first, path, bytes, index: Mutex::new(vec![(first, FRAMES_OFFSET)]) }
    }

    /// Remembers where a frame begins, unless a remembered one is near.
    pub(super) fn note(&self, first: Position, offset: u64) {
        let mut index = self.index.lock();
        if index.last().is_none_or(|(_, last)| offset >= last + INDEX_STEP_BYTES) {
            index.push((first, offset));
        }
    }

    /// Reads the frames from the one that holds `from` up to the one that ends at `last`, until
    /// `bytes_max` is reached; at least one unless `frames` holds one. Returns the bytes left.
    pub(super) fn read(
        &self,
        file: &dyn DiskFile,
        seed: ChecksumSeed,
        (from, last): (Position, Position),
        bytes_max: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<usize, LogError> {
        let (mut expected, offset) = self.nearest(from);
        let mut cursor = FrameCursor::new(file, seed, offset);
        let mut bytes_left = bytes_max;
        while expected <= last {
            let offset = cursor.offset;
            let header = cursor.header().map_err(|error| error.at(&self.path, offset))?;
            if header.first != expected {
                let error = FrameError::Bad("the frame is not the one that continues the log");
                return Err(error.at(&self.path, offset));
            }
            self.note(header.first, offset);
            expected = Position(header.last().0 + 1);
            if header.last() >= from {
                let bytes = header.bytes() as usize;
                if bytes > bytes_left && !frames.is_empty() {
                    return Ok(0);
                }
                let frame = cursor.frame(&header).map_err(|error| error.at(&self.path, offset))?;
                frames.push(frame);
                bytes_left = bytes_left.saturating_sub(bytes);
            }
            cursor.pass(&header);
        }
        Ok(bytes_left)
    }

    /// The remembered frame that is the last at or before this position.
    fn nearest(&self, position: Position) -> (Position, u64) {
        let index = self.index.lock();
        let after = index.partition_point(|(first, _)| *first <= position);
        index[after.saturating_sub(1)]
    }
}

/// Walks over the frames of a file through a bounded window.
pub(super) struct FrameCursor<'a> {
    file: &'a dyn DiskFile,
    seed: ChecksumSeed,
    pub(super) offset: u64,
    window: Vec<u8>,
    /// Where in the file the window begins, and how much of it is read.
    window_offset: u64,
    filled: usize,
}

impl<'a> FrameCursor<'a> {
    pub(super) fn new(file: &'a dyn DiskFile, seed: ChecksumSeed, offset: u64) -> Self {
        Self { file, seed, offset, window: Vec::new(), window_offset: 0, filled: 0 }
    }

    /// The header at the cursor.
    pub(super) fn header(&mut self) -> Result<FrameHeader, FrameError> {
        let seed = self.seed;
        FrameHeader::decode(self.bytes(self.offset, HEADER_BYTES)?, seed)
    }

    /// Checks the payload after this header.
    pub(super) fn check(&mut self, header: &FrameHeader) -> Result<(), FrameError> {
        self.payload(header).map(|_| ())
    }

    /// The frame of this header.
    pub(super) fn frame(&mut self, header: &FrameHeader) -> Result<Frame, FrameError> {
        header.frame(self.payload(header)?)
    }

    /// Moves on to what follows this header's frame.
    pub(super) fn pass(&mut self, header: &FrameHeader) {
        self.offset += header.bytes();
    }

    /// Looks for a good header from this offset to the end of the file.
    pub(super) fn find_header(
        &mut self,
        from: u64,
    ) -> Result<Option<(u64, FrameHeader)>, FrameError> {
        let seed = self.seed;
        let mut offset = from;
        loop {
            let window = self.bytes(offset, WINDOW_BYTES)?;
            for (index, start) in window.windows(super::frame::MAGIC.len()).enumerate() {
                if start != super::frame::MAGIC {
                    continue;
                }
                if let Ok(header) = FrameHeader::decode(&window[index..], seed) {
                    return Ok(Some((offset + index as u64, header)));
                }
            }
            if window.len() < WINDOW_BYTES {
                return Ok(None);
            }
            // A header may lie across the window's end.
            offset += (WINDOW_BYTES - HEADER_BYTES) as u64;
        }
    }

    fn payload(&mut self, header: &FrameHeader) -> Result<&[u8], FrameError> {
        let seed = self.seed;
        let bytes = self.bytes(self.offset + HEADER_BYTES as u64, header.payload_bytes as usize)?;
        header.check(bytes, seed)?;
        Ok(bytes)
    }

    /// These bytes of the file, fewer where it ends.
    fn bytes(&mut self, offset: u64, length: usize) -> Result<&[u8], FrameError> {
        let window_end = self.window_offset + self.filled as u64;
        if offset < self.window_offset || offset + length as u64 > window_end {
            let wanted = length.max(WINDOW_BYTES);
            if self.window.len() < wanted {
                self.window = vec![0; wanted];
            }
            let window = &mut self.window[..wanted];
            self.filled = self.file.read_at(offset, window).map_err(FrameError::Io)?;
            self.window_offset = offset;
        }
        let start = (offset - self.window_offset) as usize;
        let end = self.filled.min(start + length);
        Ok(&self.window[start..end])
    }
}
