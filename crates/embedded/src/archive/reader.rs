//! Reads an archive from front to back and believes nothing: every byte is under a checksum, the
//! parts come in their order, and the trailer must fit what came before it.

use std::io::{ErrorKind, Read};

use guanxi_model::Position;
use guanxi_model::codec::CodecError;

use super::block::{self, BlockKind, CRC_OFFSET, HEAD_BYTES, PREAMBLE_BYTES};
use super::{
    ArchiveBase, ArchiveError, ArchiveHeader, BLOCK_BYTES_MAX, FORMAT, LogPlace, Trailer, writer,
};
use crate::log::Frame;
use crate::store::RawRow;

/// A piece of an archive.
#[derive(Debug)]
pub enum ArchivePart {
    Rows(Vec<RawRow>),
    Frames(Vec<Frame>),
    /// The last one: all was there and right.
    End(Trailer),
}

/// An archive that is being read.
#[derive(Debug)]
pub struct ArchiveReader<R> {
    input: R,
    header: ArchiveHeader,
    offset: u64,
    /// Of everything so far.
    checksum: u32,
    rows: u64,
    frames: u64,
    records: u64,
    /// Where the archive's content has got to.
    end: LogPlace,
}

struct Block {
    kind: BlockKind,
    offset: u64,
    content: Vec<u8>,
    /// Of everything before the block.
    checksum_before: u32,
}

impl<R: Read> ArchiveReader<R> {
    /// Reads the header.
    pub fn open(input: R) -> Result<ArchiveReader<R>, ArchiveError> {
        let mut source = CheckedBytes { input, offset: 0, checksum: 0 };
        source.preamble()?;
        let block = source.block()?;
        if block.kind != BlockKind::Header {
            return Err(damaged(block.offset, "it does not begin with its header"));
        }
        let header = block::decode_header(&block.content).map_err(at(block.offset))?;
        let end = match &header.base {
            ArchiveBase::Rows(applied) => LogPlace {
                epoch: applied.epoch,
                position: applied.position,
                commit: applied.commit,
            },
            ArchiveBase::After(place) => *place,
        };
        let CheckedBytes { input, offset, checksum } = source;
        Ok(ArchiveReader { input, header, offset, checksum, rows: 0, frames: 0, records: 0, end })
    }

    pub fn header(&self) -> &ArchiveHeader {
        &self.header
    }

    /// How much of the file has been read.
    pub fn bytes_read(&self) -> u64 {
        self.offset
    }

    /// The next part. After `End` there is nothing to ask for.
    pub fn next_part(&mut self) -> Result<ArchivePart, ArchiveError> {
        let block = {
            let mut source = CheckedBytes {
                input: &mut self.input,
                offset: self.offset,
                checksum: self.checksum,
            };
            let block = source.block()?;
            (self.offset, self.checksum) = (source.offset, source.checksum);
            block
        };
        let offset = block.offset;
        match block.kind {
            BlockKind::Header => Err(damaged(offset, "a second header")),
            BlockKind::Rows => {
                if matches!(self.header.base, ArchiveBase::After(_)) || self.frames > 0 {
                    return Err(damaged(offset, "rows that do not belong here"));
                }
                let rows = block::decode_rows(&block.content).map_err(at(offset))?;
                self.rows += rows.len() as u64;
                Ok(ArchivePart::Rows(rows))
            }
            BlockKind::Frames => {
                let frames = block::decode_frames(&block.content).map_err(at(offset))?;
                for frame in &frames {
                    self.take(frame, offset)?;
                }
                Ok(ArchivePart::Frames(frames))
            }
            BlockKind::Trailer => self.end(block),
        }
    }

    /// Notes a frame, which must follow what came before it.
    fn take(&mut self, frame: &Frame, offset: u64) -> Result<(), ArchiveError> {
        // A backup that continues another may begin in the middle of a frame.
        let begins = self.frames == 0 && frame.first.0 <= self.end.position.0 + 1;
        let goes_on = frame.first.0 == self.end.position.0 + 1;
        if !(begins || goes_on) || frame.last() <= self.end.position {
            let what = format!(
                "a frame of position {} follows position {}",
                frame.first.0, self.end.position.0
            );
            return Err(damaged(offset, what));
        }
        self.frames += 1;
        self.records += frame.records.len() as u64;
        self.end = LogPlace {
            epoch: frame.epoch,
            position: frame.last(),
            commit: guanxi_model::Millis(frame.commit_ms),
        };
        Ok(())
    }

    fn end(&mut self, block: Block) -> Result<ArchivePart, ArchiveError> {
        let offset = block.offset;
        let (trailer, checksum) = block::decode_trailer(&block.content).map_err(at(offset))?;
        if checksum != block.checksum_before {
            return Err(damaged(offset, "its blocks are not those that were written"));
        }
        let counted = (self.rows, self.frames, self.records, self.end.position);
        if counted != (trailer.rows, trailer.frames, trailer.records, trailer.end.position)
            || trailer.end.position < self.header.base.position()
        {
            return Err(damaged(offset, "its counts are not those that were written"));
        }
        let begun = trailer.lineage.forks().last().map_or(Position(0), |fork| fork.at);
        if begun > trailer.end.position {
            return Err(damaged(offset, "its last epoch begins after its end"));
        }
        let mut more = [0];
        match self.input.read(&mut more) {
            Ok(0) => Ok(ArchivePart::End(trailer)),
            Ok(_) => Err(damaged(self.offset, "it goes on after its end")),
            Err(error) => Err(ArchiveError::Io(error)),
        }
    }
}

/// Bytes in order, counted and summed.
struct CheckedBytes<R> {
    input: R,
    offset: u64,
    checksum: u32,
}

impl<R: Read> CheckedBytes<R> {
    /// What every archive of this format begins with.
    fn preamble(&mut self) -> Result<(), ArchiveError> {
        let mut bytes = [0; PREAMBLE_BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ArchiveError::Io(error)),
            }
        }
        let shown = filled.min(block::MAGIC.len());
        if bytes[..shown] != block::MAGIC[..shown] || filled == 0 {
            return Err(ArchiveError::NotAnArchive);
        }
        if filled < bytes.len() {
            return Err(ArchiveError::Truncated(filled as u64));
        }
        if crc_at(&bytes) != crc32c::crc32c(&bytes[..CRC_OFFSET]) {
            return Err(damaged(0, "its first bytes do not fit their checksum"));
        }
        if bytes[8] > FORMAT {
            return Err(ArchiveError::NewerFormat { found: bytes[8], known: FORMAT });
        }
        if bytes[8] < FORMAT {
            return Err(ArchiveError::OlderFormat { found: bytes[8], known: FORMAT });
        }
        self.note(&bytes);
        Ok(())
    }

    fn block(&mut self) -> Result<Block, ArchiveError> {
        let (offset, checksum_before) = (self.offset, self.checksum);
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let length = |at: usize| {
            u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize
        };
        let (stored_bytes, content_bytes) = (length(4), length(8));
        // Before anything is allocated: the head is not known to be right yet.
        if stored_bytes > BLOCK_BYTES_MAX || content_bytes > BLOCK_BYTES_MAX {
            return Err(damaged(offset, "a block is longer than any that is written"));
        }
        let mut stored = vec![0; stored_bytes];
        self.fill(&mut stored)?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..CRC_OFFSET]), &stored);
        if crc_at(&head) != crc {
            return Err(damaged(offset, "a block does not fit its checksum"));
        }
        let kind =
            BlockKind::of(head[0]).ok_or_else(|| damaged(offset, "a block of no known kind"))?;
        let content = writer::decoded(head[1], stored, content_bytes)
            .ok_or_else(|| damaged(offset, "a block cannot be decompressed"))?;
        Ok(Block { kind, offset, content, checksum_before })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        match self.input.read_exact(bytes) {
            Ok(()) => {
                self.note(bytes);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(ArchiveError::Truncated(self.offset))
            }
            Err(error) => Err(ArchiveError::Io(error)),
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        self.offset += bytes.len() as u64;
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
    }
}

fn crc_at(bytes: &[u8; HEAD_BYTES]) -> u32 {
    let [.., a, b, c, d] = *bytes;
    u32::from_le_bytes([a, b, c, d])
}

fn damaged(offset: u64, what: impl Into<String>) -> ArchiveError {
    ArchiveError::Damaged { offset, what: what.into() }
}

fn at(offset: u64) -> impl FnOnce(CodecError) -> ArchiveError {
    move |error| damaged(offset, error.0)
}
