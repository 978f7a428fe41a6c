//! Writes an archive block by block. It keeps no bytes: each call returns the next piece of the
//! file, to be sent or written in order.

use super::block::{self, BlockKind, HEAD_BYTES};
use super::{ArchiveHeader, BLOCK_BYTES_MAX, FORMAT, Trailer};
use crate::log::Frame;
use crate::store::RawRow;

/// zstd's own default: most of what it can save, at a speed that disks set.
const COMPRESSION_LEVEL: i32 = 3;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// An archive in the making.
#[derive(Debug, Default)]
pub struct ArchiveWriter {
    /// Of everything so far.
    checksum: u32,
}

impl ArchiveWriter {
    /// The beginning of the file.
    pub fn header(&mut self, header: &ArchiveHeader) -> Vec<u8> {
        let mut piece = block::preamble(FORMAT).to_vec();
        piece.extend(assembled(BlockKind::Header, &block::encode_header(header)));
        self.noted(piece)
    }

    pub fn rows(&mut self, rows: &[RawRow]) -> Vec<u8> {
        self.noted(assembled(BlockKind::Rows, &block::encode_rows(rows)))
    }

    pub fn frames(&mut self, frames: &[Frame]) -> Vec<u8> {
        self.noted(assembled(BlockKind::Frames, &block::encode_frames(frames)))
    }

    /// The end of the file.
    pub fn trailer(self, trailer: &Trailer) -> Vec<u8> {
        assembled(BlockKind::Trailer, &block::encode_trailer(trailer, self.checksum))
    }

    fn noted(&mut self, piece: Vec<u8>) -> Vec<u8> {
        self.checksum = crc32c::crc32c_append(self.checksum, &piece);
        piece
    }
}

/// A block with its head. What does not compress is stored as it is.
fn assembled(kind: BlockKind, content: &[u8]) -> Vec<u8> {
    debug_assert!(content.len() <= BLOCK_BYTES_MAX, "a block holds what a reader takes");
    let compressed = zstd::bulk::compress(content, COMPRESSION_LEVEL).ok();
    let compressed = compressed.filter(|compressed| compressed.len() < content.len());
    let (coding, stored) = match &compressed {
        Some(compressed) => (ZSTD, compressed.as_slice()),
        None => (PLAIN, content),
    };
    let mut piece = Vec::with_capacity(HEAD_BYTES + stored.len());
    piece.extend_from_slice(&[kind as u8, coding, 0, 0]);
    piece.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    piece.extend_from_slice(&(content.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&piece), stored);
    piece.extend_from_slice(&crc.to_le_bytes());
    piece.extend_from_slice(stored);
    piece
}

/// What was stored, as it was before; `None` when it cannot have been stored so.
pub(super) fn decoded(coding: u8, stored: Vec<u8>, bytes: usize) -> Option<Vec<u8>> {
    match coding {
        PLAIN => Some(stored),
        ZSTD => zstd::bulk::decompress(&stored, bytes).ok(),
        _ => None,
    }
    .filter(|content| content.len() == bytes)
}
