//! How a frame stands in a segment file: 44 bytes of header, then the records.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | magic `GXFR` |
//! | 4 | format |
//! | 5..8 | zero |
//! | 8..12 | epoch |
//! | 12..16 | number of records |
//! | 16..24 | position of the first record |
//! | 24..32 | commit time, ms |
//! | 32..36 | bytes of payload |
//! | 36..40 | CRC32C of the payload |
//! | 40..44 | CRC32C of the header up to here |
//!
//! Numbers are little endian. The payload is each record's length (4 bytes) and bytes. Both
//! checksums start from the directory's random seed, so that bytes chosen by a caller cannot pass
//! for a frame. The header has its own, so that a reader can pass over payloads and a search for
//! frames need not trust a length. Header and checksum keep their place in every later format.

use std::io;
use std::path::Path;

use guanxi_model::Position;

use super::{Epoch, FRAME_BYTES_MAX, FRAME_RECORDS_MAX, Frame, LogError};

pub(super) const MAGIC: [u8; 4] = *b"GXFR";
pub(super) const FORMAT: u8 = 1;
pub(super) const HEADER_BYTES: usize = 44;
const LENGTH_BYTES: usize = 4;

/// The directory's random value, ready to start a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChecksumSeed(pub(super) u32);

impl ChecksumSeed {
    pub(super) fn new(directory_seed: u64) -> Self {
        Self(crc32c::crc32c(&directory_seed.to_le_bytes()))
    }

    fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, bytes)
    }
}

/// What a frame says about itself before its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) epoch: Epoch,
    pub(super) first: Position,
    pub(super) commit_ms: u64,
    pub(super) records: u32,
    pub(super) payload_bytes: u32,
    payload_crc: u32,
}

/// Why there is no good frame at a place.
#[derive(Debug)]
pub(super) enum FrameError {
    Io(io::Error),
    /// Zeros or the end of the file: nothing was written here.
    Absent,
    Bad(&'static str),
    Newer(u8),
}

impl FrameError {
    /// What this means for a log that must have a frame there.
    pub(super) fn at(self, path: &Path, offset: u64) -> LogError {
        let path = path.to_path_buf();
        let damaged = |path, what: &str| LogError::Damaged { path, offset, what: what.to_owned() };
        match self {
            FrameError::Io(source) => LogError::Io { action: "read", path, source },
            FrameError::Absent => damaged(path, "a frame is missing here"),
            FrameError::Bad(what) => damaged(path, what),
            FrameError::Newer(found) => LogError::NewerFormat { path, found, known: FORMAT },
        }
    }
}

/// What the frame takes in a segment.
pub(super) fn encoded_bytes(frame: &Frame) -> usize {
    let records: usize = frame.records.iter().map(|record| LENGTH_BYTES + record.len()).sum();
    HEADER_BYTES + records
}

/// Writes the frame into the buffer, in place of what is there. Its size was checked before.
pub(super) fn encode(frame: &Frame, seed: ChecksumSeed, buffer: &mut Vec<u8>) {
    buffer.clear();
    encode_behind(frame, seed, buffer);
}

/// Writes the frame behind what is in the buffer.
pub(super) fn encode_behind(frame: &Frame, seed: ChecksumSeed, buffer: &mut Vec<u8>) {
    let begin = buffer.len();
    buffer.resize(begin + HEADER_BYTES, 0);
    for record in &frame.records {
        buffer.extend_from_slice(&(record.len() as u32).to_le_bytes());
        buffer.extend_from_slice(record);
    }
    let (header, payload) = buffer[begin..].split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&MAGIC);
    header[4] = FORMAT;
    header[8..12].copy_from_slice(&frame.epoch.0.to_le_bytes());
    header[12..16].copy_from_slice(&(frame.records.len() as u32).to_le_bytes());
    header[16..24].copy_from_slice(&frame.first.0.to_le_bytes());
    header[24..32].copy_from_slice(&frame.commit_ms.to_le_bytes());
    header[32..36].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[36..40].copy_from_slice(&seed.checksum(payload).to_le_bytes());
    let crc = seed.checksum(&header[..40]);
    header[40..44].copy_from_slice(&crc.to_le_bytes());
}

impl FrameHeader {
    /// Reads the header at the start of these bytes.
    pub(super) fn decode(bytes: &[u8], seed: ChecksumSeed) -> Result<Self, FrameError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(match bytes.iter().all(|byte| *byte == 0) {
                true => FrameError::Absent,
                false => FrameError::Bad("the frame's header is cut off"),
            });
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(FrameError::Absent);
        }
        if bytes[..4] != MAGIC {
            return Err(FrameError::Bad("no frame begins here"));
        }
        if u32_at(bytes, 40) != seed.checksum(&bytes[..40]) {
            return Err(FrameError::Bad("the frame's header does not fit its checksum"));
        }
        if bytes[4] > FORMAT {
            return Err(FrameError::Newer(bytes[4]));
        }
        let header = FrameHeader {
            epoch: Epoch(u32_at(bytes, 8)),
            first: Position(u64_at(bytes, 16)),
            commit_ms: u64_at(bytes, 24),
            records: u32_at(bytes, 12),
            payload_bytes: u32_at(bytes, 32),
            payload_crc: u32_at(bytes, 36),
        };
        let sane = header.first.0 > 0
            && header.first.0 <= u64::MAX - FRAME_RECORDS_MAX as u64
            && (1..=FRAME_RECORDS_MAX).contains(&(header.records as usize))
            && header.bytes() <= FRAME_BYTES_MAX as u64;
        if sane { Ok(header) } else { Err(FrameError::Bad("the frame's header makes no sense")) }
    }

    pub(super) fn last(&self) -> Position {
        Position(self.first.0 + u64::from(self.records) - 1)
    }

    /// Header and payload.
    pub(super) fn bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.payload_bytes)
    }

    /// Whether these bytes are the payload that the header announces.
    pub(super) fn check(&self, payload: &[u8], seed: ChecksumSeed) -> Result<(), FrameError> {
        if payload.len() != self.payload_bytes as usize {
            return Err(FrameError::Bad("the frame's records are cut off"));
        }
        if self.payload_crc != seed.checksum(payload) {
            return Err(FrameError::Bad("the frame's records do not fit their checksum"));
        }
        Ok(())
    }

    /// The frame, from a payload that `check` found good.
    pub(super) fn frame(&self, payload: &[u8]) -> Result<Frame, FrameError> {
        let mut records = Vec::with_capacity(self.records as usize);
        let mut rest = payload;
        for _ in 0..self.records {
            let split = rest
                .split_at_checked(LENGTH_BYTES)
                .and_then(|(length, rest)| rest.split_at_checked(u32_at(length, 0) as usize));
            let Some((record, after)) = split else {
                return Err(FrameError::Bad("the frame's records overrun it"));
            };
            records.push(record.to_vec());
            rest = after;
        }
        if !rest.is_empty() {
            return Err(FrameError::Bad("the frame holds more than its records"));
        }
        Ok(Frame { epoch: self.epoch, first: self.first, commit_ms: self.commit_ms, records })
    }
}

/// The little-endian number at this offset, which the caller knows to be inside.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(number)
}

/// As `u32_at`, for eight bytes.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: ChecksumSeed = ChecksumSeed(77);

    fn decode(bytes: &[u8], seed: ChecksumSeed) -> Result<Frame, FrameError> {
        let header = FrameHeader::decode(bytes, seed)?;
        let end = bytes.len().min(header.bytes() as usize);
        let payload = &bytes[HEADER_BYTES..end];
        header.check(payload, seed)?;
        header.frame(payload)
    }

    fn frame(records: &[&[u8]]) -> Frame {
        Frame {
            epoch: Epoch(3),
            first: Position(12),
            commit_ms: 1_700_000_000_000,
            records: records.iter().map(|record| record.to_vec()).collect(),
        }
    }

    #[test]
    fn frames_come_back_as_they_went() {
        let cases: [&[&[u8]]; 4] = [&[b"a"], &[b""], &[b"", b"abc", b""], &[&[7; 5000], &[8; 70]]];
        let mut buffer = vec![9; 3];
        for records in cases {
            let frame = frame(records);
            encode(&frame, SEED, &mut buffer);
            assert_eq!(buffer.len(), encoded_bytes(&frame));
            assert_eq!(decode(&buffer, SEED).unwrap(), frame);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let mut buffer = Vec::new();
        encode(&frame(&[b"one", b"two"]), SEED, &mut buffer);
        for bit in 0..buffer.len() * 8 {
            let mut flipped = buffer.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped, SEED).is_err(), "bit {bit}");
        }
        for kept in 0..buffer.len() {
            assert!(decode(&buffer[..kept], SEED).is_err(), "{kept} bytes");
        }
    }

    #[test]
    fn another_directory_s_frame_is_not_ours() {
        let mut buffer = Vec::new();
        encode(&frame(&[b"one"]), SEED, &mut buffer);
        assert!(decode(&buffer, ChecksumSeed(78)).is_err());
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut buffer = Vec::new();
        encode(&frame(&[b"one"]), SEED, &mut buffer);
        buffer[4] = FORMAT + 1;
        let crc = SEED.checksum(&buffer[..40]);
        buffer[40..44].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(decode(&buffer, SEED), Err(FrameError::Newer(2))));
    }
}
