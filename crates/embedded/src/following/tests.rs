use guanxi_model::Epoch;

use super::*;
use crate::log::MemoryLog;

fn frame(log: &dyn Log) -> Frame {
    let first = Position(log.last().0 + 1);
    Frame { epoch: log.epoch(), first, commit_ms: first.0, records: vec![vec![1], vec![2]] }
}

/// A log with this many frames of two records each.
fn log_of(frames: usize) -> MemoryLog {
    let log = MemoryLog::default();
    for _ in 0..frames {
        log.append(&frame(&log)).unwrap();
    }
    log
}

#[test]
fn a_history_that_continues_ours_is_followed() {
    let ours = log_of(2).lineage();
    let forked_at_4 = ours.with(Epoch(9), Position(4)).unwrap();
    for (last, theirs) in [(4, &ours), (4, &forked_at_4), (2, &forked_at_4), (0, &forked_at_4)] {
        assert!(check(&ours, Position(last), theirs).is_ok(), "{last}");
    }
}

#[test]
fn records_past_a_fork_are_counted_and_refused() {
    let ours = log_of(5).lineage();
    let theirs = ours.with(Epoch(9), Position(4)).unwrap();
    match check(&ours, Position(10), &theirs) {
        Err(FollowError::Beyond { beyond: 6, fork: Position(4) }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_history_is_refused() {
    let start = log_of(0).lineage();
    let nine = start.with(Epoch(9), Position(4)).unwrap();
    let eight = start.with(Epoch(8), Position(4)).unwrap();
    for (ours, theirs) in [(&nine, &start), (&nine, &eight)] {
        let refused = check(ours, Position(4), theirs);
        assert!(matches!(refused, Err(FollowError::OtherHistory)), "{refused:?}");
    }
}

#[test]
fn an_epoch_begins_where_the_primary_began_it() {
    let log = log_of(1);
    let theirs = log.lineage().with(Epoch(7), Position(4)).unwrap();
    let theirs = theirs.with(Epoch(9), Position(4)).unwrap();
    adopt(&log, &theirs).unwrap();
    assert_eq!(log.epoch(), Epoch(1), "not there yet");
    log.append(&frame(&log)).unwrap();
    adopt(&log, &theirs).unwrap();
    assert_eq!(log.lineage(), theirs, "both that forked off here");
    log.append(&frame(&log)).unwrap();
    adopt(&log, &theirs).unwrap();
    assert_eq!(log.epoch(), Epoch(9));
}
