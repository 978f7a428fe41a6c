//! The log's tip, read once for all watchers: the last records of each partition.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::signal::{Next, Signal};
use parking_lot::{Condvar, Mutex};

use super::{FeedError, FeedEvent, FeedLog, FeedRecord, LoggedEvent, expired, give};
use crate::kafka::{
    BrokerError, KafkaSettings, LogPosition, LogReader, Offsets, PartitionEnds, ReadError,
};

/// Records and bytes of values that all rings keep together; whoever is further behind reads with
/// a client of its own.
const KEPT_RECORDS_MAX: usize = 65_536;
const KEPT_BYTES_MAX: usize = 32 << 20;
/// What one reading takes.
const TAKE_MAX: usize = 2_048;
const TAKE_WAIT: Duration = Duration::from_millis(200);
/// After an error of the database.
const RETRY: Duration = Duration::from_millis(500);
/// The tip is read on for this long after the last watcher left: many come back at once.
const LINGER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct TopicTip {
    state: Mutex<TipState>,
    changed: Condvar,
    signal: Signal,
}

#[derive(Debug)]
struct TipState {
    rings: Vec<Ring>,
    /// Whether the rings follow the log; else watchers wait.
    live: bool,
    watchers: usize,
    left_at: Instant,
}

#[derive(Debug, Default)]
struct Ring {
    /// The position from which on the ring has everything.
    first: LogPosition,
    /// The position after all that it has.
    next: LogPosition,
    records: VecDeque<TipRecord>,
    bytes: usize,
}

#[derive(Debug)]
struct TipRecord {
    after: LogPosition,
    bytes: usize,
    event: Option<Arc<FeedEvent>>,
}

impl TopicTip {
    /// `signal` wakes the thread that reads, and ends all.
    pub fn new(partitions: u32, signal: Signal) -> TopicTip {
        let rings = (0..partitions).map(|_| Ring::default()).collect();
        let left_at = Instant::now();
        let state = TipState { rings, live: false, watchers: 0, left_at };
        TopicTip { state: Mutex::new(state), changed: Condvar::new(), signal }
    }

    pub fn enter(&self) {
        self.state.lock().watchers += 1;
        self.signal.wake();
    }

    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.watchers -= 1;
        state.left_at = Instant::now();
    }

    pub fn close(&self) {
        self.signal.stop();
        // Whoever has looked sleeps by now.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    pub fn is_closing(&self) -> bool {
        self.signal.is_stopped()
    }

    /// Gives what the rings have from these positions on, and moves them; returns the partitions
    /// whose positions lie before their rings. Begins with another partition each turn. A position
    /// of another history than its ring's is an error, once all that was found before is given.
    pub fn take(
        &self,
        positions: &mut [LogPosition],
        turn: usize,
        records_max: usize,
        found: &mut Vec<FeedRecord>,
    ) -> Result<Vec<u32>, FeedError> {
        let state = self.state.lock();
        let mut behind = Vec::new();
        if !state.live {
            return Ok(behind);
        }
        let count = state.rings.len();
        let rings = (0..).zip(&state.rings).cycle().skip(turn % count.max(1)).take(count);
        for (partition, ring) in rings {
            let at = positions[partition as usize];
            if at.next < ring.first.next {
                behind.push(partition);
                continue;
            }
            let begin = ring.records.partition_point(|kept| kept.after.next <= at.next);
            let before = ring.before(begin);
            if before.next == at.next && !at.before.is_known() && at.topic.may_be(before.topic) {
                // Whoever began at the log's end did not see the record before it.
                positions[partition as usize] = before;
            }
            if !ring.leads_on_from(&at, begin) {
                if found.is_empty() {
                    return Err(expired(partition, &at));
                }
                continue;
            }
            for kept in ring.records.range(begin..) {
                if found.len() >= records_max {
                    break;
                }
                give(positions, partition, kept.after, kept.event.clone(), found);
            }
        }
        Ok(behind)
    }

    /// Waits until there is something past these positions.
    pub fn wait(&self, positions: &[LogPosition], deadline: Instant) {
        let mut state = self.state.lock();
        loop {
            let more = state.rings.iter().zip(positions).any(|(ring, at)| ring.next.next > at.next);
            let left = deadline.saturating_duration_since(Instant::now());
            if (state.live && more) || left.is_zero() || self.is_closing() {
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    fn begin(&self, from: impl IntoIterator<Item = LogPosition>) {
        let mut state = self.state.lock();
        for (ring, next) in state.rings.iter_mut().zip(from) {
            *ring = Ring { first: next, next, ..Ring::default() };
        }
        state.live = true;
        self.changed.notify_all();
    }

    fn keep(&self, told: Vec<LoggedEvent>) {
        let mut state = self.state.lock();
        let share = state.rings.len().max(1);
        for LoggedEvent { partition, after, bytes, event } in told {
            if let Some(ring) = state.rings.get_mut(partition as usize) {
                let kept = TipRecord { after, bytes, event };
                ring.push(kept, KEPT_RECORDS_MAX / share, KEPT_BYTES_MAX / share);
            }
        }
        self.changed.notify_all();
    }

    fn is_wanted(&self) -> bool {
        let mut state = self.state.lock();
        let wanted = state.watchers > 0 || (state.live && state.left_at.elapsed() < LINGER);
        if !wanted && state.live {
            state.live = false;
            for ring in &mut state.rings {
                *ring = Ring::default();
            }
        }
        wanted
    }
}

impl Ring {
    /// Whether what the ring has from this index on is what follows the position.
    fn leads_on_from(&self, at: &LogPosition, begin: usize) -> bool {
        let before = self.before(begin);
        if !at.topic.may_be(before.topic) {
            return false;
        }
        // A known record before it ends exactly there, unless the ring has not come so far.
        match before.next == at.next {
            true => {
                let known = at.before.is_known() && before.before.is_known();
                !known || at.before == before.before
            }
            false => !at.before.is_known() || begin == self.records.len(),
        }
    }

    /// The position before what the ring has from this index on.
    fn before(&self, begin: usize) -> LogPosition {
        match begin.checked_sub(1).and_then(|last| self.records.get(last)) {
            Some(kept) => kept.after,
            None => self.first,
        }
    }

    fn push(&mut self, kept: TipRecord, records_max: usize, bytes_max: usize) {
        self.next = kept.after;
        self.bytes += kept.bytes;
        self.records.push_back(kept);
        while self.records.len() > records_max || (self.bytes > bytes_max && self.records.len() > 1)
        {
            if let Some(gone) = self.records.pop_front() {
                self.bytes -= gone.bytes;
                self.first = gone.after;
            }
        }
    }
}

/// One reading of the tip.
pub fn turn(
    tip: &TopicTip,
    reader: &mut Option<LogReader>,
    settings: &KafkaSettings,
    log: &FeedLog,
) -> Result<Next, BrokerError> {
    if !tip.is_wanted() {
        *reader = None;
        return Ok(Next::Woken);
    }
    let read = match reader {
        Some(reader) => read(tip, reader, log),
        None => {
            *reader = Some(open(tip, settings, log)?);
            Ok(())
        }
    };
    match read {
        Ok(()) => {}
        Err(ReadError::Log(error)) => return Err(error),
        // So far behind that the log was trimmed, or another log: watchers find out for
        // themselves whether their places still are.
        Err(error) => {
            tracing::warn!(%error, "the log's tip is read from its end again");
            *reader = None;
        }
    }
    Ok(Next::Now)
}

fn open(tip: &TopicTip, settings: &KafkaSettings, log: &FeedLog) -> Result<LogReader, BrokerError> {
    let topic = log.topic(settings);
    let offsets = Offsets::open(settings)?;
    let id = offsets.topic_id(topic)?;
    let ends = offsets.all(topic, settings.partitions)?;
    // One record before the end, by which places at the end are known to be of this history.
    let begin =
        |ends: &PartitionEnds| LogPosition::at(ends.end.saturating_sub(1).max(ends.first), id);
    let begins: Vec<LogPosition> = ends.iter().map(begin).collect();
    let reader = LogReader::open(settings, topic, (0..).zip(begins.iter().copied()))?;
    tip.begin(begins);
    Ok(reader)
}

fn read(tip: &TopicTip, reader: &mut LogReader, log: &FeedLog) -> Result<(), ReadError> {
    let taken = reader.next(TAKE_MAX, TAKE_WAIT)?;
    // Reading values takes time; no watcher waits for it, but for what it finds.
    while !taken.is_empty() {
        match log.read(&taken) {
            Ok(told) => {
                tip.keep(told);
                break;
            }
            Err(error) => {
                tracing::warn!(%error, "watchers wait for the database");
                if tip.signal.wait(RETRY) {
                    break;
                }
            }
        }
    }
    Ok(())
}
