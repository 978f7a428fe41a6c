//! The log's tip, read once for all watchers: the last records of each partition.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use guanxi_core::crew;

use super::{FeedError, FeedEvent, FeedLog, FeedRecord, Told, expired, give};
use crate::kafka::{Ends, KafkaSettings, LogError, LogPosition, Offsets, ReadError, Reader};

/// Records and bytes of values that all rings keep together; whoever is further behind reads with
/// a client of its own.
const KEPT_RECORDS_MAX: usize = 65_536;
const KEPT_BYTES_MAX: usize = 32 << 20;
/// What one reading takes.
const TAKE_MAX: usize = 2_048;
const TAKE_WAIT: Duration = Duration::from_millis(200);
/// After an error.
const RETRY: Duration = Duration::from_millis(500);
/// The tip is read on for this long after the last watcher left: many come back at once.
const LINGER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Tip {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    rings: Vec<Ring>,
    /// Whether the rings follow the log; else watchers wait.
    live: bool,
    watchers: usize,
    left_at: Instant,
    closing: bool,
}

#[derive(Debug, Default)]
struct Ring {
    /// The position from which on the ring has everything.
    first: LogPosition,
    /// The position after all that it has.
    next: LogPosition,
    records: VecDeque<Kept>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    after: LogPosition,
    bytes: usize,
    event: Option<Arc<FeedEvent>>,
}

impl Tip {
    pub fn new(partitions: u32) -> Tip {
        let rings = (0..partitions).map(|_| Ring::default()).collect();
        let left_at = Instant::now();
        let state = State { rings, live: false, watchers: 0, left_at, closing: false };
        Tip { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn enter(&self) {
        self.lock().watchers += 1;
        self.changed.notify_all();
    }

    pub fn leave(&self) {
        let mut state = self.lock();
        state.watchers -= 1;
        state.left_at = Instant::now();
    }

    pub fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    pub fn is_closing(&self) -> bool {
        self.lock().closing
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
        let state = self.lock();
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
        let mut state = self.lock();
        loop {
            let more = state.rings.iter().zip(positions).any(|(ring, at)| ring.next.next > at.next);
            let left = deadline.saturating_duration_since(Instant::now());
            if (state.live && more) || left.is_zero() || state.closing {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn begin(&self, from: impl IntoIterator<Item = LogPosition>) {
        let mut state = self.lock();
        for (ring, next) in state.rings.iter_mut().zip(from) {
            *ring = Ring { first: next, next, ..Ring::default() };
        }
        state.live = true;
        self.changed.notify_all();
    }

    fn keep(&self, told: Vec<Told>) {
        let mut state = self.lock();
        let share = state.rings.len().max(1);
        for Told { partition, after, bytes, event } in told {
            if let Some(ring) = state.rings.get_mut(partition as usize) {
                let kept = Kept { after, bytes, event };
                ring.push(kept, KEPT_RECORDS_MAX / share, KEPT_BYTES_MAX / share);
            }
        }
        self.changed.notify_all();
    }

    /// Stops being live; false when closing.
    fn rest(&self, until: impl Fn(&State) -> bool, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.lock();
        while !state.closing && !until(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        !state.closing
    }

    fn is_wanted(&self) -> bool {
        let mut state = self.lock();
        let wanted = state.watchers > 0 || (state.live && state.left_at.elapsed() < LINGER);
        if !wanted && state.live {
            state.live = false;
            for ring in &mut state.rings {
                *ring = Ring::default();
            }
        }
        wanted && !state.closing
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

    fn push(&mut self, kept: Kept, records_max: usize, bytes_max: usize) {
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

/// The thread that reads the tip.
pub fn run(tip: &Tip, settings: &KafkaSettings, log: &FeedLog) {
    let mut reader = None;
    while !tip.is_closing() {
        crew::turn();
        if !tip.is_wanted() {
            reader = None;
            tip.rest(|state| state.watchers > 0, TAKE_WAIT);
            continue;
        }
        let read = match &mut reader {
            Some(reader) => read(tip, reader, log),
            None => {
                open(tip, settings, log).map(|opened| reader = Some(opened)).map_err(Into::into)
            }
        };
        match read {
            Ok(()) => {}
            Err(ReadError::Log(error)) => {
                tracing::warn!(%error, "the log's tip cannot be read; trying again");
                tip.rest(|_| false, RETRY);
            }
            // So far behind that the log was trimmed, or another log: watchers find out for
            // themselves whether their places still are.
            Err(error) => {
                tracing::warn!(%error, "the log's tip is read from its end again");
                reader = None;
            }
        }
    }
}

fn open(tip: &Tip, settings: &KafkaSettings, log: &FeedLog) -> Result<Reader, LogError> {
    let topic = log.topic(settings);
    let offsets = Offsets::open(settings)?;
    let id = offsets.topic_id(topic)?;
    let ends = offsets.all(topic, settings.partitions)?;
    // One record before the end, by which places at the end are known to be of this history.
    let begin = |ends: &Ends| LogPosition::at(ends.end.saturating_sub(1).max(ends.first), id);
    let begins: Vec<LogPosition> = ends.iter().map(begin).collect();
    let reader = Reader::open(settings, topic, (0..).zip(begins.iter().copied()))?;
    tip.begin(begins);
    Ok(reader)
}

fn read(tip: &Tip, reader: &mut Reader, log: &FeedLog) -> Result<(), ReadError> {
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
                if !tip.rest(|_| false, RETRY) {
                    break;
                }
            }
        }
    }
    Ok(())
}
