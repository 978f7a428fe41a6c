//! The file log: its files, stops and restarts, failures, trimming, and reading beside appending.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guanxi_model::Position;

use super::segment::FRAMES_OFFSET;
use super::{Beginning, Epoch, FileLog, Frame, Lineage, Log, LogError, LogOpening, LogOptions};
use crate::disk::{Disk, Fault, RealDisk, SimDisk};

pub(super) const FOLDER: &str = "/log";
pub(super) const SEED: u64 = 99;
pub(super) const SMALL: LogOptions = LogOptions { segment_bytes: 1024 };

pub(super) fn open(disk: &SimDisk) -> Result<FileLog, LogError> {
    FileLog::open(Arc::new(disk.clone()), Path::new(FOLDER), SEED, SMALL)
}

pub(super) fn frame_after(log: &dyn Log, bytes: usize) -> Frame {
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
pub(super) fn fill(log: &FileLog, frames: usize) -> Vec<Frame> {
    (0..frames)
        .map(|_| {
            let frame = frame_after(log, 96);
            log.append(&frame).unwrap();
            frame
        })
        .collect()
}

pub(super) fn read_all(log: &dyn Log) -> Vec<Frame> {
    log.read(log.first(), usize::MAX).unwrap()
}

pub(super) fn segment_path(first: u64) -> PathBuf {
    Path::new(FOLDER).join(format!("{first:020}.seg"))
}

#[test]
fn an_orderly_stop_is_noticed_once() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let frames = fill(&log, 10);
    log.close().unwrap();
    assert!(matches!(log.append(&frame_after(&log, 1)), Err(LogError::Refusing)));
    let log = open(&disk).unwrap();
    assert_eq!(log.opening(), LogOpening { clean_stop: true, torn_tail: false });
    assert_eq!(read_all(&log), frames);
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!(log.opening(), LogOpening { clean_stop: false, torn_tail: false });
    assert_eq!(read_all(&log), frames);
    assert_eq!(log.last_commit_ms(), frames[9].commit_ms);
}

#[test]
fn the_mark_of_an_orderly_stop_is_taken_away_durably() {
    let disk = SimDisk::new(1);
    open(&disk).unwrap().close().unwrap();
    let clean = Path::new(FOLDER).join("CLEAN");
    assert!(disk.exists(&clean).unwrap());
    drop(open(&disk).unwrap());
    for seed in 0..50 {
        let crashed = disk.crash(&mut fastrand::Rng::with_seed(seed));
        assert!(!crashed.exists(&clean).unwrap(), "seed {seed}");
    }
}

#[test]
fn an_old_mark_of_an_orderly_stop_is_not_believed() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let mut frames = fill(&log, 2);
    log.close().unwrap();
    let clean = Path::new(FOLDER).join("CLEAN");
    let mark = disk.read(&clean).unwrap();
    let log = open(&disk).unwrap();
    disk.fail_at(0, Fault::WriteError);
    assert!(log.append(&frame_after(&log, 96)).is_err());
    // The mark names the log's last position, but a torn frame follows.
    disk.open(&segment_path(1)).unwrap().write_at(FRAMES_OFFSET + 2 * 244, b"torn").unwrap();
    disk.write_atomic(&clean, &mark).unwrap();
    let log = open(&disk).unwrap();
    assert!(!log.opening().clean_stop && log.opening().torn_tail);
    assert_eq!(read_all(&log), frames);
    // The mark names an earlier position.
    frames.extend(fill(&log, 1));
    disk.write_atomic(&clean, &mark).unwrap();
    let log = open(&disk).unwrap();
    assert!(!log.opening().clean_stop);
    assert_eq!(read_all(&log), frames);
}

#[test]
fn a_trim_that_was_cut_short_goes_on_at_the_next_start() {
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        let log = open(&disk).unwrap();
        fill(&log, 12);
        // The new floor is in its slot, but need not be on the disk.
        disk.fail_at(1, Fault::SyncError);
        assert!(log.trim(Position(17)).is_err());
        drop(log);
        disk.fail_at(seed % 12, Fault::PowerCut);
        let _cut_or_not = open(&disk);
        let disk = disk.crash(&mut fastrand::Rng::with_seed(seed));
        let log = open(&disk).unwrap();
        assert!([1, 17].contains(&log.first().0), "seed {seed}");
        assert_eq!(log.last(), Position(24), "seed {seed}");
    }
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
        "FLOOR",
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
fn after_a_failed_write_or_sync_appends_are_refused_until_reopened() {
    for fault in [Fault::WriteError, Fault::SyncError] {
        let disk = SimDisk::new(1);
        let log = open(&disk).unwrap();
        let frames = fill(&log, 3);
        disk.fail_at(0, fault);
        let next = frame_after(&log, 96);
        assert!(matches!(log.append(&next), Err(LogError::Io { .. })), "{fault:?}");
        for _ in 0..3 {
            assert!(matches!(log.append(&next), Err(LogError::Refusing)), "{fault:?}");
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
fn a_full_disk_stops_the_log_only_while_it_is_full() {
    // Whatever of an append, of the making of a segment or of an epoch meets the full disk.
    for operation in 0..40 {
        let disk = SimDisk::new(operation);
        let log = open(&disk).unwrap();
        let mut frames = fill(&log, 3);
        disk.fail_at(operation, Fault::NoSpace);
        for round in 0..30 {
            let next = frame_after(&log, 96);
            let epoch = Epoch(log.epoch().0 + 1);
            let mut tried: Vec<Result<(), LogError>> = vec![log.append(&next)];
            if tried[0].is_err() {
                assert_eq!(read_all(&log), frames, "what is not durable is not shown");
                tried.push(log.append(&next));
            }
            frames.push(next);
            tried.push(log.prepare());
            if round % 10 == 9 {
                tried.push(log.seal(u64::MAX));
                tried.push(log.begin_epoch(epoch));
            }
            for failed in tried.into_iter().filter_map(Result::err) {
                assert!(disk.faulted(), "{failed}");
                assert!(matches!(failed, LogError::Full { .. }), "operation {operation}: {failed}");
            }
        }
        assert!(disk.faulted(), "the disk was full once");
        assert_eq!(read_all(&log), frames);
        let names = disk.list(Path::new(FOLDER)).unwrap();
        let unfinished: Vec<_> = names.iter().filter(|name| name.ends_with(".new")).collect();
        assert!(unfinished.len() <= 1, "at most the spare one: {unfinished:?}");
        log.close().unwrap();
        assert_eq!(read_all(&open(&disk).unwrap()), frames);
    }
}

#[test]
fn a_log_opens_on_a_full_disk_after_an_unclean_stop() {
    let mut met = 0;
    for operation in 0..12 {
        let disk = SimDisk::new(operation);
        let frames = fill(&open(&disk).unwrap(), 19);
        disk.fail_at(operation, Fault::NoSpace);
        let log = open(&disk).unwrap();
        assert_eq!(read_all(&log), frames, "operation {operation}");
        met += u64::from(disk.faulted());
        disk.calm();
        log.append(&frame_after(&log, 96)).unwrap();
    }
    assert!(met > 3, "the making, allocating and filling of a file met it: {met}");
}

#[test]
fn a_disk_that_is_full_to_the_brim_is_trimmed() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let frames = fill(&log, 20);
    disk.set_full(true);
    for first in [9, 17] {
        log.trim(Position(first)).unwrap();
        assert_eq!(log.first(), Position(first));
        assert!(!disk.exists(&segment_path(first - 8)).unwrap(), "there is room again");
    }
    drop(log);
    let log = open(&disk).unwrap();
    log.trim(Position(25)).unwrap();
    let disk = disk.crash(&mut fastrand::Rng::with_seed(1));
    assert_eq!(read_all(&open(&disk).unwrap()), frames[12..]);
}

#[test]
fn a_refused_frame_does_not_stop_the_log() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    fill(&log, 1);
    let wrong = Frame { first: Position(9), ..frame_after(&log, 5) };
    assert!(matches!(log.append(&wrong), Err(LogError::OutOfOrder { .. })));
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
        Err(LogError::Trimmed { from: Position(16), first: Position(17) })
    ));
}

#[test]
fn an_old_active_segment_is_sealed_so_that_trimming_can_take_it() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let frames = fill(&log, 2);
    log.seal(frames[0].commit_ms).unwrap();
    log.trim(Position(u64::MAX)).unwrap();
    assert_eq!(log.first(), Position(1), "it began at that time, not before");
    for _ in 0..2 {
        log.seal(frames[0].commit_ms + 1).unwrap();
        log.trim(Position(u64::MAX)).unwrap();
        assert_eq!((log.first(), log.last()), (Position(5), Position(4)));
    }
    let log = open(&disk).unwrap();
    let frames = fill(&log, 3);
    assert_eq!(read_all(&log), frames);
}

#[test]
fn a_prepared_file_becomes_the_next_segment() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    let spare = Path::new(FOLDER).join("spare.new");
    let mut frames = fill(&log, 1);
    log.prepare().unwrap();
    assert!(!disk.exists(&spare).unwrap(), "the active segment is not half full yet");
    frames.extend(fill(&log, 2));
    log.prepare().unwrap();
    assert!(disk.exists(&spare).unwrap());
    frames.extend(fill(&log, 5));
    assert!(!disk.exists(&spare).unwrap());
    assert!(disk.exists(&segment_path(9)).unwrap());
    log.prepare().unwrap();
    drop(log);
    let log = open(&disk).unwrap();
    assert!(!disk.exists(&spare).unwrap(), "a start begins without one");
    assert_eq!(read_all(&log), frames);
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
    let options = LogOptions { segment_bytes: 16 << 10 };
    let log = FileLog::open(Arc::new(RealDisk), &folder.path().join("log"), SEED, options).unwrap();
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

#[test]
fn a_log_may_begin_at_any_position() {
    let (disk, mut random) = (SimDisk::new(1), fastrand::Rng::with_seed(1));
    let lineage = Lineage::start().with(Epoch(4), Position(600)).unwrap();
    let beginning = Beginning { lineage: lineage.clone(), last: Position(700), commit_ms: 900 };
    FileLog::create(&disk, Path::new(FOLDER), SEED, SMALL, &beginning).unwrap();
    let disk = disk.crash(&mut random);
    let log = open(&disk).unwrap();
    assert_eq!((log.first(), log.last(), log.epoch()), (Position(701), Position(700), Epoch(4)));
    assert_eq!((log.last_commit_ms(), log.lineage()), (900, lineage));
    assert!(log.read(Position(701), 1).unwrap().is_empty());
    assert!(matches!(log.read(Position(700), 1), Err(LogError::Trimmed { .. })));
    let early = Frame { commit_ms: 899, ..frame_after(&log, 1) };
    assert!(matches!(log.append(&early), Err(LogError::TimeBack { .. })));
    let frames = fill(&log, 10);
    let disk = disk.crash(&mut random);
    let log = open(&disk).unwrap();
    assert_eq!((read_all(&log), log.first()), (frames, Position(701)));
}
