//! The bytes of an archive's parts: preamble, block heads, and what stands in each kind of block.

use guanxi_model::codec::{CodecError, Decoder, Encoder};
use guanxi_model::{Epoch, Millis, Position, Secret, Version};

use super::{ArchiveBase, ArchiveHeader, LogPlace, Trailer};
use crate::log::{FRAME_RECORDS_MAX, Fork, Frame, Lineage};
use crate::store::{Applied, RawRow};

pub(super) const MAGIC: [u8; 8] = *b"GUANXIBK";
pub(super) const MAGIC_TEXT: &str = "GUANXIBK";
pub(super) const PREAMBLE_BYTES: usize = 16;
pub(super) const HEAD_BYTES: usize = 16;
/// Where the checksum stands in the preamble and in a block's head.
pub(super) const CRC_OFFSET: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    Header = b'H' as isize,
    Rows = b'R' as isize,
    Frames = b'F' as isize,
    Trailer = b'T' as isize,
}

impl BlockKind {
    pub(super) fn of(byte: u8) -> Option<BlockKind> {
        [BlockKind::Header, BlockKind::Rows, BlockKind::Frames, BlockKind::Trailer]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

pub(super) fn preamble(format: u8) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8] = format;
    let crc = crc32c::crc32c(&bytes[..CRC_OFFSET]);
    bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn encode_header(header: &ArchiveHeader) -> Vec<u8> {
    let mut out = Encoder::with_capacity(96);
    out.varint(header.created.0);
    match &header.base {
        ArchiveBase::Rows(applied) => {
            out.u8(0);
            out.varint(u64::from(applied.epoch.0));
            out.varint(applied.position.0);
            out.varint(applied.commit.0);
            out.varint(applied.version.0);
        }
        ArchiveBase::After(place) => {
            out.u8(1);
            encode_place(&mut out, place);
        }
    }
    encode_lineage(&mut out, &header.lineage);
    out.bytes(header.secret.bytes());
    out.into_bytes()
}

pub(super) fn decode_header(bytes: &[u8]) -> Result<ArchiveHeader, CodecError> {
    let mut input = Decoder::new(bytes);
    let created = Millis(input.varint()?);
    let base = match input.u8()? {
        0 => ArchiveBase::Rows(Applied {
            epoch: Epoch(input.varint_u32()?),
            position: Position(input.varint()?),
            commit: Millis(input.varint()?),
            version: Version(input.varint()?),
        }),
        1 => ArchiveBase::After(decode_place(&mut input)?),
        other => return Err(CodecError(format!("{other} is no beginning of an archive"))),
    };
    let lineage = decode_lineage(&mut input)?;
    let secret = input.bytes()?.try_into();
    let secret = secret.map_err(|_| CodecError("its secret is of another length".into()))?;
    input.finish()?;
    Ok(ArchiveHeader { created, base, lineage, secret: Secret::new(secret) })
}

pub(super) fn encode_rows(rows: &[RawRow]) -> Vec<u8> {
    let bytes = rows.iter().map(super::row_bytes).sum();
    let mut out = Encoder::with_capacity(bytes);
    for (key, value) in rows {
        out.bytes(key);
        out.bytes(value);
    }
    out.into_bytes()
}

pub(super) fn decode_rows(bytes: &[u8]) -> Result<Vec<RawRow>, CodecError> {
    let mut input = Decoder::new(bytes);
    let mut rows = Vec::new();
    while !input.is_empty() {
        rows.push((input.bytes()?.to_vec(), input.bytes()?.to_vec()));
    }
    Ok(rows)
}

pub(super) fn encode_frames(frames: &[Frame]) -> Vec<u8> {
    let mut out = Encoder::with_capacity(frames.iter().map(super::frame_bytes).sum());
    for frame in frames {
        out.varint(u64::from(frame.epoch.0));
        out.varint(frame.first.0);
        out.varint(frame.commit_ms);
        out.varint(frame.records.len() as u64);
        for record in &frame.records {
            out.bytes(record);
        }
    }
    out.into_bytes()
}

pub(super) fn decode_frames(bytes: &[u8]) -> Result<Vec<Frame>, CodecError> {
    let mut input = Decoder::new(bytes);
    let mut frames = Vec::new();
    while !input.is_empty() {
        let epoch = Epoch(input.varint_u32()?);
        let first = Position(input.varint()?);
        let commit_ms = input.varint()?;
        let records = input.varint()?;
        if !(1..=FRAME_RECORDS_MAX as u64).contains(&records) {
            return Err(CodecError(format!("a frame of {records} records")));
        }
        let records = (0..records).map(|_| Ok(input.bytes()?.to_vec()));
        let records = records.collect::<Result<Vec<_>, CodecError>>()?;
        frames.push(Frame { epoch, first, commit_ms, records });
    }
    Ok(frames)
}

/// The trailer with the checksum of everything before its block.
pub(super) fn encode_trailer(trailer: &Trailer, checksum: u32) -> Vec<u8> {
    let mut out = Encoder::with_capacity(64);
    out.varint(u64::from(checksum));
    out.varint(trailer.rows);
    out.varint(trailer.frames);
    out.varint(trailer.records);
    encode_place(&mut out, &trailer.end);
    encode_lineage(&mut out, &trailer.lineage);
    out.varint(trailer.ended.0);
    out.into_bytes()
}

pub(super) fn decode_trailer(bytes: &[u8]) -> Result<(Trailer, u32), CodecError> {
    let mut input = Decoder::new(bytes);
    let checksum = input.varint_u32()?;
    let trailer = Trailer {
        rows: input.varint()?,
        frames: input.varint()?,
        records: input.varint()?,
        end: decode_place(&mut input)?,
        lineage: decode_lineage(&mut input)?,
        ended: Millis(input.varint()?),
    };
    input.finish()?;
    Ok((trailer, checksum))
}

fn encode_place(out: &mut Encoder, place: &LogPlace) {
    out.varint(u64::from(place.epoch.0));
    out.varint(place.position.0);
    out.varint(place.commit.0);
}

fn decode_place(input: &mut Decoder<'_>) -> Result<LogPlace, CodecError> {
    Ok(LogPlace {
        epoch: Epoch(input.varint_u32()?),
        position: Position(input.varint()?),
        commit: Millis(input.varint()?),
    })
}

fn encode_lineage(out: &mut Encoder, lineage: &Lineage) {
    out.varint(lineage.forks().len() as u64);
    for fork in lineage.forks() {
        out.varint(u64::from(fork.epoch.0));
        out.varint(u64::from(fork.parent.0));
        out.varint(fork.at.0);
    }
}

fn decode_lineage(input: &mut Decoder<'_>) -> Result<Lineage, CodecError> {
    let mut forks = Vec::new();
    for _ in 0..input.varint()? {
        forks.push(Fork {
            epoch: Epoch(input.varint_u32()?),
            parent: Epoch(input.varint_u32()?),
            at: Position(input.varint()?),
        });
    }
    Lineage::from_forks(forks).ok_or_else(|| CodecError("its epochs are no lineage".into()))
}
