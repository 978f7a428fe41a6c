//! The file log's files: what an open accepts, mends or refuses, and appending beside reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guanxi_model::Position;

use super::segment::FRAMES_OFFSET;
use super::{Epoch, FileLog, Frame, Log, LogError, LogOptions, Opening, frame};
use crate::disk::{Disk, Fault, RealDisk, SimDisk};

const FOLDER: &str = "/log";
const SEED: u64 = 99;
const SMALL: LogOptions = LogOptions {
    segment_bytes: 1024,
};

fn open(disk: &SimDisk) -> Result<FileLog, LogError> {
    FileLog::open(Arc::new(disk.clone()), Path::new(FOLDER), SEED, SMALL)
}

fn frame_after(log: &dyn Log, bytes: usize) -> Frame {
    let first = Position(log.last().0 + 1);
    let record = |index: u8| vec![first.0 as u8 ^ index; bytes];
    Frame {
        epoch: log.epoch(),
        first,
        commit_ms: 1000 + first.0,
        records: vec![record(0), record(1)],
    }
}

/// Appends frames of 2 × 96 bytes of records: 244 each, four to a small segment.
fn fill(log: &FileLog, frames: usize) -> Vec<Frame> {
    (0..frames)
        .map(|_| {
            let frame = frame_after(log, 96);
            log.append(&frame).unwrap();
            frame
        })
        .collect()
}

fn read_all(log: &dyn Log) -> Vec<Frame> {
    log.read(log.first(), usize::MAX).unwrap()
}

fn segment_path(first: u64) -> PathBuf {
    Path::new(FOLDER).join(format!("{first:020}.seg"))
}

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
fn an_orderly_stop_is_noticed_once() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let frames = fill(&log, 10);
    log.close().unwrap();
    assert!(matches!(
        log.append(&frame_after(&log, 1)),
        Err(LogError::Refusing)
    ));
    let log = open(&disk).unwrap();
    assert_eq!(
        log.opening(),
        Opening {
            clean_stop: true,
            bytes_cut: 0
        }
    );
    assert_eq!(read_all(&log), frames);
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!(
        log.opening(),
        Opening {
            clean_stop: false,
            bytes_cut: 0
        }
    );
    assert_eq!(read_all(&log), frames);
    assert_eq!(log.last_commit_ms(), frames[9].commit_ms);
}

#[test]
fn segments_are_named_after_their_first_position_and_preallocated() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    fill(&log, 9);
    let names = disk.list(Path::new(FOLDER)).unwrap();
    let expected = [
        "00000000000000000001.seg",
        "00000000000000000009.seg",
        "00000000000000000017.seg",
        "LINEAGE",
    ];
    assert_eq!(names, expected);
    assert_eq!(log.bytes(), 3 * 1024);
    assert_eq!(disk.open(&segment_path(17)).unwrap().size().unwrap(), 1024);
}

#[test]
fn a_frame_larger_than_a_segment_gets_its_own() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let mut frames = Vec::new();
    for bytes in [5000, 10, 3000, 3000, 10] {
        let frame = frame_after(&log, bytes);
        log.append(&frame).unwrap();
        frames.push(frame);
    }
    assert_eq!(read_all(&log), frames);
    assert_eq!(read_all(&open(&disk).unwrap()), frames);
}

#[test]
fn a_torn_last_frame_is_cut_off() {
    for place in [0, 4, 20, 43, 44, 100, 243] {
        let disk = SimDisk::new(1);
        let frames = fill(&open(&disk).unwrap(), 7);
        damage(&disk, &segment_path(9), frame_offset(2) + place);
        let log = open(&disk).unwrap();
        assert!(log.opening().bytes_cut > 0);
        assert_eq!(read_all(&log), frames[..6], "byte {place}");
        let again = frame_after(&log, 40);
        log.append(&again).unwrap();
        let log = open(&disk).unwrap();
        assert_eq!(log.opening().bytes_cut, 0, "what was cut is gone");
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
    let options = LogOptions {
        segment_bytes: 1 << 20,
    };
    let large = || FileLog::open(Arc::new(disk.clone()), Path::new(FOLDER), SEED, options);
    let log = large().unwrap();
    fill(&log, 1);
    // The header after this frame lies across the end of what the search reads at once.
    let gap = (64 << 10) - 244 - 30;
    log.append(&Frame {
        records: vec![vec![0; gap - 48]],
        ..frame_after(&log, 0)
    })
    .unwrap();
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
    assert!(
        damaged(open(&disk))
            .2
            .contains("orderly stop left it at 14")
    );
}

#[test]
fn a_bad_frame_in_an_older_segment_is_refused_when_read() {
    let disk = SimDisk::new(1);
    let frames = fill(&open(&disk).unwrap(), 10);
    damage(&disk, &segment_path(1), frame_offset(2) + 100);
    let log = open(&disk).unwrap();
    assert_eq!(
        log.read(Position(7), 1).unwrap(),
        frames[3..4],
        "what is good can be read"
    );
    assert!(matches!(
        log.read(Position(1), usize::MAX),
        Err(LogError::Damaged { offset, .. }) if offset == frame_offset(2)
    ));
}

#[test]
fn missing_files_are_refused() {
    let cases = [
        (
            "00000000000000000001.seg",
            "segment before this one is missing",
        ),
        (
            "00000000000000000009.seg",
            "segment before this one is missing",
        ),
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
    assert!(
        damaged(open(&disk))
            .2
            .contains("header does not fit its checksum")
    );
    damage(&disk, &segment_path(1), 20);
    damage(&disk, &segment_path(1), 0);
    assert!(damaged(open(&disk)).2.contains("not a segment"));
    damage(&disk, &segment_path(1), 0);
    let other = FileLog::open(Arc::new(disk.clone()), Path::new(FOLDER), SEED + 1, SMALL);
    assert!(damaged(other).2.contains("another data directory"));
    disk.rename(&segment_path(9), &segment_path(11)).unwrap();
    assert!(
        damaged(open(&disk))
            .2
            .contains("name is not that of its first position")
    );
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
    assert!(
        matches!(
            error,
            LogError::NewerFormat {
                found: 9,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_caller_s_bytes_cannot_pass_for_a_frame() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let mut forged = Vec::new();
    let inner = Frame {
        first: Position(50),
        ..frame_after(&log, 10)
    };
    frame::encode(&inner, frame::ChecksumSeed::new(SEED + 1), &mut forged);
    log.append(&Frame {
        records: vec![forged],
        ..frame_after(&log, 0)
    })
    .unwrap();
    damage(&disk, &segment_path(1), frame_offset(0) + 10);
    let log = open(&disk).unwrap();
    assert_eq!(
        log.last(),
        Position(0),
        "the torn frame is cut, not taken for damage"
    );
}

#[test]
fn after_a_failed_write_or_sync_appends_are_refused_until_reopened() {
    for fault in [Fault::WriteError, Fault::NoSpace, Fault::SyncError] {
        let disk = SimDisk::new(1);
        let log = open(&disk).unwrap();
        let frames = fill(&log, 3);
        disk.fail_at(0, fault);
        let next = frame_after(&log, 96);
        assert!(
            matches!(log.append(&next), Err(LogError::Io { .. })),
            "{fault:?}"
        );
        for _ in 0..3 {
            assert!(
                matches!(log.append(&next), Err(LogError::Refusing)),
                "{fault:?}"
            );
        }
        assert_eq!(log.last(), frames[2].last(), "it is not shown as durable");
        assert_eq!(read_all(&log), frames, "reads go on");
        assert!(matches!(log.close(), Err(LogError::Refusing)));
        assert!(matches!(log.begin_epoch(Epoch(2)), Err(LogError::Refusing)));
        let log = open(&disk).unwrap();
        assert!(log.last() >= frames[2].last());
        log.append(&frame_after(&log, 96)).unwrap();
    }
}

#[test]
fn a_refused_frame_does_not_stop_the_log() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    fill(&log, 1);
    let wrong = Frame {
        first: Position(9),
        ..frame_after(&log, 5)
    };
    assert!(matches!(
        log.append(&wrong),
        Err(LogError::OutOfOrder { .. })
    ));
    fill(&log, 1);
}

#[test]
fn trimming_removes_whole_segments_and_never_the_active_one() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let frames = fill(&log, 12);
    for (keep_from, first) in [(0, 1), (8, 1), (9, 9), (10, 9), (17, 17), (1000, 17)] {
        log.trim(Position(keep_from)).unwrap();
        assert_eq!(log.first(), Position(first), "keep from {keep_from}");
        assert!(disk.exists(&segment_path(first)).unwrap());
    }
    assert!(!disk.exists(&segment_path(9)).unwrap());
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!(log.first(), Position(17));
    assert_eq!(read_all(&log), frames[8..]);
    assert!(matches!(
        log.read(Position(16), 1),
        Err(LogError::Trimmed {
            from: Position(16),
            first: Position(17)
        })
    ));
}

#[test]
fn an_empty_last_segment_remembers_where_the_log_stands() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let frames = fill(&log, 4);
    // The fifth frame's segment gets made, the frame itself does not.
    disk.fail_at(5, Fault::WriteError);
    assert!(log.append(&frame_after(&log, 96)).is_err());
    drop(log);
    let log = open(&disk).unwrap();
    assert!(disk.exists(&segment_path(9)).unwrap());
    assert_eq!(log.last(), frames[3].last());
    log.trim(Position(u64::MAX)).unwrap();
    assert_eq!((log.first(), log.last()), (Position(9), Position(8)));
    let log = open(&disk).unwrap();
    assert_eq!(log.last_commit_ms(), frames[3].commit_ms);
    assert_eq!(log.read(Position(9), 1).unwrap(), []);
    fill(&log, 1);
}

#[test]
fn epochs_outlive_a_restart() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let mut frames = fill(&log, 3);
    log.begin_epoch(Epoch(4)).unwrap();
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!(log.epoch(), Epoch(4));
    frames.extend(fill(&log, 6));
    let log = open(&disk).unwrap();
    assert_eq!(read_all(&log), frames);
    assert!(log.lineage().accepts(Epoch(1), Position(6)));
    assert!(!log.lineage().accepts(Epoch(1), Position(7)));
}

#[test]
fn readers_beside_the_writer_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let options = LogOptions {
        segment_bytes: 16 << 10,
    };
    let log = FileLog::open(
        Arc::new(RealDisk),
        &folder.path().join("log"),
        SEED,
        options,
    )
    .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for step in [1usize, 4000, 100_000] {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                let mut next = 1;
                loop {
                    let finished = done.load(Ordering::SeqCst);
                    match log.read(Position(next), step) {
                        Ok(frames) => {
                            for frame in &frames {
                                assert_eq!(frame.first.0, next);
                                assert_eq!(frame.records[0][0], next as u8);
                                next = frame.last().0 + 1;
                            }
                            if frames.is_empty() && finished {
                                break;
                            }
                        }
                        Err(LogError::Trimmed { first, .. }) => next = first.0,
                        Err(error) => panic!("{error}"),
                    }
                }
                assert_eq!(next, log.last().0 + 1);
            });
        }
        for round in 0..1000 {
            log.append(&frame_after(&log, 50 + round % 300)).unwrap();
            if round % 100 == 99 {
                log.trim(Position(log.last().0 - 100)).unwrap();
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    log.close().unwrap();
    assert!(log.first() > Position(1));
}
