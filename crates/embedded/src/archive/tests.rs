//! Archives come back as they went, and no change to one goes unnoticed.

use guanxi_model::{Epoch, Millis, Position, Secret, Version};

use super::block::{self, PREAMBLE_BYTES};
use super::*;
use crate::log::{Fork, Lineage};

fn lineage() -> Lineage {
    let first = Fork { epoch: Epoch(1), parent: Epoch(0), at: Position(0) };
    let second = Fork { epoch: Epoch(9), parent: Epoch(1), at: Position(4) };
    Lineage::from_forks(vec![first, second]).unwrap()
}

fn header() -> ArchiveHeader {
    let applied = Applied {
        epoch: Epoch(9),
        position: Position(5),
        commit: Millis(70),
        version: Version(u64::MAX),
    };
    let secret = Secret::new([9; 32]);
    ArchiveHeader {
        created: Millis(80),
        base: ArchiveBase::Rows(applied),
        lineage: lineage(),
        secret,
    }
}

fn rows(from: u8) -> Vec<RawRow> {
    (from..from + 9).map(|key| (vec![key, 1], vec![key; key as usize])).collect()
}

fn frames(first: u64) -> Vec<Frame> {
    let frame = |first, records| Frame {
        epoch: Epoch(9),
        first: Position(first),
        commit_ms: 70 + first,
        records,
    };
    vec![frame(first, vec![vec![1, 2, 3], Vec::new()]), frame(first + 2, vec![vec![7; 300]])]
}

fn trailer() -> Trailer {
    let end = LogPlace { epoch: Epoch(9), position: Position(11), commit: Millis(80) };
    Trailer { rows: 18, frames: 4, records: 6, end, lineage: lineage(), ended: Millis(99) }
}

/// The pieces of a good archive: header, rows, rows, frames, frames, trailer.
fn pieces() -> Vec<Vec<u8>> {
    let mut writer = ArchiveWriter::default();
    let mut pieces = vec![
        writer.header(&header()),
        writer.rows(&rows(1)),
        writer.rows(&rows(20)),
        writer.frames(&frames(6)),
        writer.frames(&frames(9)),
    ];
    pieces.push(writer.trailer(&trailer()));
    pieces
}

#[derive(Debug, PartialEq, Eq)]
struct WholeArchive {
    header: ArchiveHeader,
    rows: Vec<RawRow>,
    frames: Vec<Frame>,
    trailer: Trailer,
}

fn read(bytes: &[u8]) -> Result<WholeArchive, ArchiveError> {
    let mut reader = ArchiveReader::open(bytes)?;
    let (mut rows, mut frames) = (Vec::new(), Vec::new());
    loop {
        match reader.next_part()? {
            ArchivePart::Rows(part) => rows.extend(part),
            ArchivePart::Frames(part) => frames.extend(part),
            ArchivePart::End(trailer) => {
                assert_eq!(reader.bytes_read(), bytes.len() as u64);
                return Ok(WholeArchive { header: reader.header().clone(), rows, frames, trailer });
            }
        }
    }
}

#[test]
fn an_archive_comes_back_as_it_went() {
    let whole = read(&pieces().concat()).unwrap();
    assert_eq!((whole.header, whole.trailer), (header(), trailer()));
    assert_eq!(whole.rows, [rows(1), rows(20)].concat());
    assert_eq!(whole.frames, [frames(6), frames(9)].concat());
}

#[test]
fn one_that_continues_another_has_no_rows() {
    let after = LogPlace { epoch: Epoch(9), position: Position(6), commit: Millis(76) };
    let header = ArchiveHeader { base: ArchiveBase::After(after), ..header() };
    let archive = |with_rows: bool| {
        let mut writer = ArchiveWriter::default();
        let mut bytes = writer.header(&header);
        if with_rows {
            bytes.extend(writer.rows(&rows(1)));
        }
        // It begins in the middle of a frame.
        bytes.extend(writer.frames(&frames(6)));
        let end = LogPlace { position: Position(8), ..trailer().end };
        let rows = if with_rows { 9 } else { 0 };
        bytes.extend(writer.trailer(&Trailer { rows, frames: 2, records: 3, end, ..trailer() }));
        bytes
    };
    assert_eq!(read(&archive(false)).unwrap().frames, frames(6));
    assert!(matches!(read(&archive(true)), Err(ArchiveError::Damaged { .. })));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let good = pieces().concat();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn every_cut_is_noticed_and_named() {
    let good = pieces().concat();
    for kept in 0..good.len() {
        match (kept, read(&good[..kept])) {
            (0, Err(ArchiveError::NotAnArchive)) => {}
            (1.., Err(ArchiveError::Truncated(at))) => assert!(at <= kept as u64),
            (_, other) => panic!("{kept} bytes: {other:?}"),
        }
    }
}

#[test]
fn blocks_that_are_missing_doubled_or_moved_are_noticed() {
    let good = pieces();
    for index in 0..good.len() {
        let mut missing = good.clone();
        missing.remove(index);
        assert!(read(&missing.concat()).is_err(), "without piece {index}");
        let mut doubled = good.clone();
        doubled.insert(index, good[index].clone());
        assert!(read(&doubled.concat()).is_err(), "twice piece {index}");
        for other in 0..index {
            let mut moved = good.clone();
            moved.swap(index, other);
            assert!(read(&moved.concat()).is_err(), "pieces {index} and {other} exchanged");
        }
    }
}

#[test]
fn what_is_no_archive_and_what_is_newer_is_said() {
    for text in ["", "GUANX!", "{\"kind\":\"follow\"}\n", "PK\u{3}\u{4} and so on and so on"] {
        assert!(matches!(read(text.as_bytes()), Err(ArchiveError::NotAnArchive)), "{text}");
    }
    let of_format = |format: u8| {
        let mut bytes = pieces().concat();
        bytes[..PREAMBLE_BYTES].copy_from_slice(&block::preamble(format));
        read(&bytes).unwrap_err().to_string()
    };
    let newer = of_format(FORMAT + 1);
    assert!(newer.contains("format 3, but this version reads 2"), "{newer}");
    let older = of_format(FORMAT - 1);
    assert!(older.contains("format 1 of an earlier release"), "{older}");
}

#[test]
fn a_length_that_makes_no_sense_takes_no_memory() {
    let mut bytes = pieces()[0][..PREAMBLE_BYTES].to_vec();
    bytes.extend_from_slice(b"H\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0");
    assert!(matches!(read(&bytes), Err(ArchiveError::Damaged { offset: 16, .. })));
}
