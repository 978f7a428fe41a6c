//! What every log must do, as one suite that each implementation runs in full.
//!
//! `make` gives an empty log each time. Where a log trims in steps, a step must hold less than
//! 4 KiB, so that trimming shows.

use guanxi_model::Position;

use super::{Epoch, FRAME_BYTES_MAX, FRAME_RECORDS_MAX, Frame, Log, LogError};

type LogCase = (&'static str, fn(&dyn Log) -> Result<(), String>);

const CASES: &[LogCase] = &[
    ("an empty log", empty),
    ("frames come back as they went", round_trip),
    ("a read begins with the frame that holds the position", read_inside),
    ("a read keeps to its bytes", read_bounded),
    ("a frame must continue the log", continuity),
    ("a frame must have a fit size", sizes),
    ("trimming keeps what it must", trimming),
    ("a new epoch forks off at the end", epochs),
    ("a reader beside the writer sees whole, durable frames", beside),
];

/// Runs every case on a log of its own; the error names the first case that failed and why.
pub fn run(make: impl Fn() -> Box<dyn Log>) -> Result<(), String> {
    for (name, case) in CASES {
        case(&*make()).map_err(|what| format!("{name}: {what}"))?;
    }
    Ok(())
}

fn empty(log: &dyn Log) -> Result<(), String> {
    same("last", log.last(), Position(0))?;
    same("first", log.first(), Position(1))?;
    same("epoch", log.epoch(), Epoch(1))?;
    same("last_commit_ms", log.last_commit_ms(), 0)?;
    same("read", read(log, 1, 1000)?, vec![])?;
    worked("trim", log.trim(Position(1)))
}

fn round_trip(log: &dyn Log) -> Result<(), String> {
    let frames = fill(log, 60)?;
    same("read", read_all(log, Position(1))?, frames.clone())?;
    same("first", log.first(), Position(1))?;
    same("last", Some(log.last()), frames.last().map(Frame::last))?;
    same("last_commit_ms", Some(log.last_commit_ms()), frames.last().map(|f| f.commit_ms))?;
    let payload: usize = frames.iter().flat_map(|frame| &frame.records).map(Vec::len).sum();
    check(log.bytes() >= payload as u64, "bytes() is less than the records' own")
}

fn read_inside(log: &dyn Log) -> Result<(), String> {
    let frames = fill(log, 30)?;
    for position in 1..=log.last().0 {
        let holder = frames.iter().find(|frame| frame.last().0 >= position);
        let found = read(log, position, 1)?;
        same(&format!("read from {position}"), found.first(), holder)?;
        same(&format!("frames for 1 byte from {position}"), found.len(), 1)?;
    }
    same("read past the end", read(log, log.last().0 + 1, 1000)?, vec![])?;
    same("read far past the end", read(log, u64::MAX, 1000)?, vec![])
}

fn read_bounded(log: &dyn Log) -> Result<(), String> {
    fill(log, 60)?;
    for bytes_max in [0, 100, 1000, 5000] {
        let frames = read(log, 1, bytes_max)?;
        let bytes: usize = frames.iter().flat_map(|frame| &frame.records).map(Vec::len).sum();
        check(frames.len() == 1 || bytes <= bytes_max, "a read returned more than it was asked")?;
        check(!frames.is_empty(), "a read returned nothing where there is something")?;
    }
    check(read(log, 1, 5000)?.len() > read(log, 1, 1000)?.len(), "more bytes give no more frames")
}

fn continuity(log: &dyn Log) -> Result<(), String> {
    fill(log, 3)?;
    let good = next_frame(log, 2);
    let mut wrong = Vec::new();
    for first in [0, 1, good.first.0 - 1, good.first.0 + 1, u64::MAX] {
        wrong.push(Frame { first: Position(first), ..good.clone() });
    }
    wrong.push(Frame { epoch: Epoch(0), ..good.clone() });
    wrong.push(Frame { epoch: Epoch(2), ..good.clone() });
    wrong.push(Frame { commit_ms: log.last_commit_ms() - 1, ..good.clone() });
    for frame in wrong {
        match log.append(&frame) {
            Err(
                LogError::OutOfOrder { .. }
                | LogError::WrongEpoch { .. }
                | LogError::TimeBack { .. },
            ) => {}
            other => return Err(format!("{frame:?} gave {other:?}")),
        }
    }
    let same_time = Frame { commit_ms: log.last_commit_ms(), ..good };
    worked("append after refusals", log.append(&same_time))?;
    same("last", log.last(), same_time.last())
}

fn sizes(log: &dyn Log) -> Result<(), String> {
    let with = |records: Vec<Vec<u8>>| Frame { records, ..next_frame(log, 1) };
    let wrong = [
        with(vec![]),
        with(vec![vec![]; FRAME_RECORDS_MAX + 1]),
        with(vec![vec![0; FRAME_BYTES_MAX]]),
    ];
    for frame in wrong {
        let records = frame.records.len();
        match log.append(&frame) {
            Err(LogError::FrameSize { .. }) => {}
            other => return Err(format!("a frame of {records} records gave {other:?}")),
        }
    }
    same("last", log.last(), Position(0))?;
    let largest = with(vec![vec![7; 1000]; 1000]);
    worked("append of a large frame", log.append(&largest))?;
    same("read", read(log, 500, 1)?, vec![largest])
}

fn trimming(log: &dyn Log) -> Result<(), String> {
    let frames = fill(log, 200)?;
    let keep_from = frames[120].first;
    let (last, bytes) = (log.last(), log.bytes());
    worked("trim", log.trim(keep_from))?;
    check(log.first() > Position(1), "nothing was trimmed")?;
    check(log.first() <= keep_from, "more was trimmed than allowed")?;
    check(log.bytes() < bytes, "trimming gave nothing back")?;
    same("last", log.last(), last)?;
    match log.read(Position(log.first().0 - 1), 1000) {
        Err(LogError::Trimmed { first, .. }) => same("Trimmed's first", first, log.first())?,
        other => return Err(format!("a read before first() gave {other:?}")),
    }
    let kept: Vec<Frame> = frames.into_iter().filter(|frame| frame.first >= log.first()).collect();
    same("read", read_all(log, log.first())?, kept)?;
    let first = log.first();
    worked("trim of less", log.trim(Position(1)))?;
    same("first after a trim of less", log.first(), first)?;
    worked("trim of all", log.trim(Position(u64::MAX)))?;
    same("last after a trim of all", log.last(), last)?;
    let next = next_frame(log, 3);
    worked("append after a trim of all", log.append(&next))?;
    same("read", read(log, next.last().0, 1)?, vec![next])
}

fn epochs(log: &dyn Log) -> Result<(), String> {
    let mut frames = fill(log, 10)?;
    let fork = log.last();
    match log.begin_epoch(Epoch(1)) {
        Err(LogError::WrongEpoch { .. }) => {}
        other => return Err(format!("begin_epoch of the present epoch gave {other:?}")),
    }
    worked("begin_epoch", log.begin_epoch(Epoch(5)))?;
    same("epoch", log.epoch(), Epoch(5))?;
    same("current", log.lineage().current(), Epoch(5))?;
    let old = Frame { epoch: Epoch(1), ..next_frame(log, 1) };
    check(log.append(&old).is_err(), "a frame of the old epoch was taken")?;
    frames.extend(fill(log, 10)?);
    same("read", read_all(log, Position(1))?, frames)?;
    let lineage = log.lineage();
    check(lineage.accepts(Epoch(1), fork), "the fork is good in the old epoch")?;
    let beyond = Position(fork.0 + 1);
    check(!lineage.accepts(Epoch(1), beyond), "beyond the fork the old epoch is not good")?;
    check(lineage.accepts(Epoch(5), beyond), "beyond the fork the new epoch is good")
}

fn beside(log: &dyn Log) -> Result<(), String> {
    const FRAMES: usize = 300;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fill(log, FRAMES));
        let mut seen: Vec<Frame> = Vec::new();
        while seen.len() < FRAMES {
            let next = seen.last().map_or(1, |frame| frame.last().0 + 1);
            let finished = writer.is_finished();
            let durable = log.last();
            let found = read(log, next, 2000)?;
            if durable.0 >= next {
                same("first of a read", found.first().map(|f| f.first), Some(Position(next)))?;
            } else if finished {
                break;
            }
            seen.extend(found);
        }
        match writer.join() {
            Ok(written) => same("what the reader saw", seen, written?),
            Err(_) => Err("the writer panicked".to_owned()),
        }
    })
}

/// Appends this many frames of mixed sizes and returns them.
fn fill(log: &dyn Log, frames: usize) -> Result<Vec<Frame>, String> {
    let mut appended = Vec::new();
    for _ in 0..frames {
        let frame = next_frame(log, 1 + log.last().0 % 5);
        worked("append", log.append(&frame))?;
        same("last", log.last(), frame.last())?;
        appended.push(frame);
    }
    Ok(appended)
}

/// A frame that continues the log; its content follows from its position.
fn next_frame(log: &dyn Log, records: u64) -> Frame {
    let first = log.last().0 + 1;
    let record = |position: u64| vec![position as u8; (position * 7 % 90) as usize];
    Frame {
        epoch: log.epoch(),
        first: Position(first),
        commit_ms: log.last_commit_ms() + first % 3,
        records: (first..first + records).map(record).collect(),
    }
}

/// Everything from this position on, in many small reads.
fn read_all(log: &dyn Log, from: Position) -> Result<Vec<Frame>, String> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut next = from.0;
    loop {
        let more = read(log, next, 700)?;
        match more.last() {
            None => return Ok(frames),
            Some(frame) if frame.last().0 < next => return Err("a read stands still".to_owned()),
            Some(frame) => next = frame.last().0 + 1,
        }
        frames.extend(more);
    }
}

fn read(log: &dyn Log, from: u64, bytes_max: usize) -> Result<Vec<Frame>, String> {
    log.read(Position(from), bytes_max).map_err(|error| format!("read from {from}: {error}"))
}

fn worked<T>(what: &str, done: Result<T, LogError>) -> Result<T, String> {
    done.map_err(|error| format!("{what}: {error}"))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    check(found == expected, &format!("{what}: expected {expected:?}, found {found:?}"))
}

fn check(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::disk::{Disk, RealDisk, SimDisk};
    use crate::log::{FileLog, Lineage, LogOptions, MemoryLog};

    fn file_log(disk: Arc<dyn Disk>, folder: &Path) -> Box<dyn Log> {
        let options = LogOptions { segment_bytes: 2048 };
        Box::new(FileLog::open(disk, folder, 1, options).unwrap())
    }

    #[test]
    fn a_memory_log_conforms() {
        run(|| Box::new(MemoryLog::new())).unwrap();
    }

    #[test]
    fn a_file_log_on_a_simulated_disk_conforms() {
        run(|| file_log(Arc::new(SimDisk::new(1)), Path::new("/log"))).unwrap();
    }

    #[test]
    fn a_file_log_on_a_real_disk_conforms() {
        let folder = tempfile::tempdir().unwrap();
        let logs = std::cell::Cell::new(0);
        run(|| {
            logs.set(logs.get() + 1);
            file_log(Arc::new(RealDisk), &folder.path().join(logs.get().to_string()))
        })
        .unwrap();
    }

    /// What a planted log does wrong.
    #[derive(Clone, Copy, Debug)]
    enum LogBug {
        TakesAnyFrame,
        LosesTheLastRecordOnRead,
        StartsAtTheNextFrame,
        ReadsWithoutBound,
        TrimsOneFrameTooMany,
        ForgetsTheFork,
        AnnouncesEarly,
    }

    struct PlantedLog {
        log: MemoryLog,
        bug: LogBug,
    }

    impl Log for PlantedLog {
        fn append(&self, frame: &Frame) -> Result<(), LogError> {
            match (self.bug, self.log.append(frame)) {
                (LogBug::TakesAnyFrame, Err(LogError::OutOfOrder { .. })) => Ok(()),
                (_, done) => done,
            }
        }

        fn last(&self) -> Position {
            let last = self.log.last();
            match self.bug {
                LogBug::AnnouncesEarly if last.0 > 0 => Position(last.0 + 1),
                _ => last,
            }
        }

        fn first(&self) -> Position {
            self.log.first()
        }

        fn epoch(&self) -> Epoch {
            self.log.epoch()
        }

        fn last_commit_ms(&self) -> u64 {
            self.log.last_commit_ms()
        }

        fn read(&self, from: Position, bytes_max: usize) -> Result<Vec<Frame>, LogError> {
            match self.bug {
                LogBug::LosesTheLastRecordOnRead => {
                    let mut frames = self.log.read(from, bytes_max)?;
                    if let Some(frame) = frames.last_mut() {
                        frame.records.pop();
                    }
                    Ok(frames)
                }
                LogBug::StartsAtTheNextFrame => {
                    let mut frames = self.log.read(from, bytes_max)?;
                    frames.retain(|frame| frame.first >= from);
                    Ok(frames)
                }
                LogBug::ReadsWithoutBound => self.log.read(from, usize::MAX),
                _ => self.log.read(from, bytes_max),
            }
        }

        fn trim(&self, keep_from: Position) -> Result<(), LogError> {
            match self.bug {
                LogBug::TrimsOneFrameTooMany => {
                    self.log.trim(Position(keep_from.0.saturating_add(9)))
                }
                _ => self.log.trim(keep_from),
            }
        }

        fn bytes(&self) -> u64 {
            self.log.bytes()
        }

        fn lineage(&self) -> Lineage {
            match self.bug {
                LogBug::ForgetsTheFork => Lineage::start(),
                _ => self.log.lineage(),
            }
        }

        fn begin_epoch(&self, epoch: Epoch) -> Result<(), LogError> {
            self.log.begin_epoch(epoch)
        }
    }

    #[test]
    fn every_planted_bug_is_caught() {
        let bugs = [
            LogBug::TakesAnyFrame,
            LogBug::LosesTheLastRecordOnRead,
            LogBug::StartsAtTheNextFrame,
            LogBug::ReadsWithoutBound,
            LogBug::TrimsOneFrameTooMany,
            LogBug::ForgetsTheFork,
            LogBug::AnnouncesEarly,
        ];
        for bug in bugs {
            let verdict = run(|| Box::new(PlantedLog { log: MemoryLog::new(), bug }));
            assert!(verdict.is_err(), "{bug:?} was not caught");
        }
    }
}
