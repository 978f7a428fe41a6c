//! Damage in the log's files: a torn end is cut off, anything else is refused and left as it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use guanxi_model::Position;

use super::segment::FRAMES_OFFSET;
use super::tests::{FOLDER, SEED, SMALL, fill, frame_after, open, read_all, segment_path};
use super::{FileLog, Frame, Log, LogError, LogOptions, frame};
use crate::disk::{Disk, SimDisk};

/// Flips a bit at this place.
fn damage(disk: &SimDisk, path: &Path, offset: u64) {
    let file = disk.open(path).unwrap();
    let mut byte = [0];
    file.read_at(offset, &mut byte).unwrap();
    file.write_at(offset, &[byte[0] ^ 0x10]).unwrap();
    file.sync_all().unwrap();
}

fn damaged(opened: Result<FileLog, LogError>) -> (PathBuf, u64, String) {
    match opened {
        Err(LogError::Damaged { path, offset, what }) => (path, offset, what),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Where the frame with this index begins in its segment.
fn frame_offset(index: u64) -> u64 {
    FRAMES_OFFSET + 244 * index
}

#[test]
fn a_torn_last_frame_is_cut_off() {
    for place in [0, 4, 20, 43, 44, 100, 243] {
        let disk = SimDisk::new(1);
        let frames = fill(&open(&disk).unwrap(), 7);
        damage(&disk, &segment_path(9), frame_offset(2) + place);
        let log = open(&disk).unwrap();
        assert!(log.opening().torn_tail);
        assert_eq!(read_all(&log), frames[..6], "byte {place}");
        let again = frame_after(&log, 40);
        log.append(&again).unwrap();
        let log = open(&disk).unwrap();
        assert!(!log.opening().torn_tail, "what was cut is gone");
        assert_eq!(read_all(&log).last(), Some(&again));
    }
}

#[test]
fn a_bad_frame_before_a_good_one_is_refused() {
    for place in [0, 4, 20, 32, 43, 44, 100, 243] {
        let disk = SimDisk::new(1);
        fill(&open(&disk).unwrap(), 7);
        damage(&disk, &segment_path(9), frame_offset(1) + place);
        let (path, offset, what) = damaged(open(&disk));
        assert_eq!(path, segment_path(9));
        assert_eq!(offset, frame_offset(1));
        assert!(what.contains("position 13 follows"), "{what}");
        let size = disk.open(&path).unwrap().size().unwrap();
        assert_eq!(size, 1024, "nothing was changed");
    }
}

#[test]
fn a_good_frame_far_behind_is_found() {
    let disk = SimDisk::new(1);
    let options = LogOptions { segment_bytes: 1 << 20 };
    let large = || FileLog::open(Arc::new(disk.clone()), Path::new(FOLDER), SEED, options);
    let log = large().unwrap();
    fill(&log, 1);
    // The header after this frame lies across the end of what the search reads at once.
    let gap = (64 << 10) - 244 - 30;
    log.append(&Frame { records: vec![vec![0; gap - 48]], ..frame_after(&log, 0) }).unwrap();
    fill(&log, 1);
    damage(&disk, &segment_path(1), frame_offset(0) + 50);
    damage(&disk, &segment_path(1), frame_offset(1) + 50);
    assert!(damaged(large()).2.contains("position 3 follows"));
    damage(&disk, &segment_path(1), frame_offset(1) + 10);
    assert!(damaged(large()).2.contains("position 4 follows"));
}

#[test]
fn a_frame_missing_after_an_orderly_stop_is_refused() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    fill(&log, 7);
    log.close().unwrap();
    damage(&disk, &segment_path(9), frame_offset(2) + 50);
    assert!(damaged(open(&disk)).2.contains("orderly stop left it at 14"));
}

#[test]
fn a_bad_frame_in_an_older_segment_is_refused_when_read() {
    let disk = SimDisk::new(1);
    let frames = fill(&open(&disk).unwrap(), 10);
    damage(&disk, &segment_path(1), frame_offset(2) + 100);
    let log = open(&disk).unwrap();
    assert_eq!(log.read(Position(7), 1).unwrap(), frames[3..4], "what is good can be read");
    assert!(matches!(
        log.read(Position(1), usize::MAX),
        Err(LogError::Damaged { offset, .. }) if offset == frame_offset(2)
    ));
}

#[test]
fn missing_files_are_refused() {
    let cases = [
        ("00000000000000000001.seg", "segment before this one is missing"),
        ("00000000000000000009.seg", "segment before this one is missing"),
        ("LINEAGE", "LINEAGE beside it is missing"),
    ];
    for (name, message) in cases {
        let disk = SimDisk::new(1);
        fill(&open(&disk).unwrap(), 10);
        disk.remove(&Path::new(FOLDER).join(name)).unwrap();
        let (_, _, what) = damaged(open(&disk));
        assert!(what.contains(message), "{name}: {what}");
    }
    let disk = SimDisk::new(1);
    drop(open(&disk).unwrap());
    disk.remove(&segment_path(1)).unwrap();
    assert!(damaged(open(&disk)).2.contains("segment is missing"));
}

#[test]
fn a_bad_or_foreign_segment_is_refused() {
    let disk = SimDisk::new(1);
    fill(&open(&disk).unwrap(), 6);
    damage(&disk, &segment_path(1), 20);
    assert!(damaged(open(&disk)).2.contains("header does not fit its checksum"));
    damage(&disk, &segment_path(1), 20);
    damage(&disk, &segment_path(1), 0);
    assert!(damaged(open(&disk)).2.contains("not a segment"));
    damage(&disk, &segment_path(1), 0);
    let other = FileLog::open(Arc::new(disk.clone()), Path::new(FOLDER), SEED + 1, SMALL);
    assert!(damaged(other).2.contains("another data directory"));
    disk.rename(&segment_path(9), &segment_path(11)).unwrap();
    assert!(damaged(open(&disk)).2.contains("name is not that of its first position"));
}

#[test]
fn a_newer_format_is_refused() {
    let disk = SimDisk::new(1);
    fill(&open(&disk).unwrap(), 2);
    let file = disk.open(&segment_path(1)).unwrap();
    let mut header = [0; FRAMES_OFFSET as usize];
    file.read_at(0, &mut header).unwrap();
    header[8] = 9;
    let crc = crc32c::crc32c(&header[..44]);
    header[44..].copy_from_slice(&crc.to_le_bytes());
    file.write_at(0, &header).unwrap();
    let error = open(&disk).err().unwrap();
    assert!(matches!(error, LogError::NewerFormat { found: 9, known: 1, .. }), "{error}");
}

#[test]
fn a_caller_s_bytes_cannot_pass_for_a_frame() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let mut forged = Vec::new();
    let inner = Frame { first: Position(50), ..frame_after(&log, 10) };
    frame::encode(&inner, frame::ChecksumSeed::new(SEED + 1), &mut forged);
    log.append(&Frame { records: vec![forged], ..frame_after(&log, 0) }).unwrap();
    damage(&disk, &segment_path(1), frame_offset(0) + 10);
    let log = open(&disk).unwrap();
    assert_eq!(log.last(), Position(0), "the torn frame is cut, not taken for damage");
}
