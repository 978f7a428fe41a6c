//! One applier thread: takes what its partitions have, in batches, and applies it. After any error
//! it forgets where it stood and asks the database: a COMMIT whose answer was lost may have
//! happened, and only the locked position tells.

mod acknowledged;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::signal::Next;
use guanxi_model::Millis;

use self::acknowledged::AcknowledgedCheck;
use super::super::kafka::{
    BrokerError, LogPosition, LogReader, ReadError, RecordMark, TakenRecord,
};
use super::super::sql::SqlError;
use super::batch::{ApplyItem, BatchOutcome, Placed, Slice, apply_batch};
use super::binding::stored_positions;
use super::foreseen::Way;
use super::isolating::apply_isolating;
use super::rebuild::{LostPartitions, rebuild_until_done};
use super::shared::{ApplierShared, AskError};
use super::source::{doubted, is_known, read, unknown_kind};

/// Records of one transaction.
const BATCH_RECORDS_MAX: usize = 1024;
/// Bytes of values handled at once: as dead letters they must fit a statement.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a look into an empty log waits.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// How long a batch gathers while records are flowing: each transaction has its price, and each
/// partition in it.
const LINGER: Duration = Duration::from_millis(20);
/// How often the leases are looked at.
const LEASES_LOOK: Duration = Duration::from_millis(250);
/// How long a transaction may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);
/// Tries of a transaction that another was in the way of, before positions are read again.
const BUSY_TRIES_MAX: u32 = 6;
const BUSY_PAUSE_FIRST: Duration = Duration::from_millis(10);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(320);
/// How long a lost partition is left alone whose log does not tell where it begins: to ask takes up
/// to as long again, in which the thread's other partitions wait.
const ASIDE_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Log(#[from] BrokerError),
    #[error(transparent)]
    Unbound(#[from] AskError),
    #[error("what was read is not applied: {0}")]
    Lost(ReadError),
    /// Applied, it would pass by what lies between.
    #[error(
        "what was read of partition {partition} follows {read:?} and not {expected:?}: it is read \
         again from where the database says"
    )]
    Elsewhere { partition: u32, expected: LogPosition, read: LogPosition },
}

#[derive(Debug, thiserror::Error)]
#[error("{topic}, partitions {partitions:?}: {error}")]
struct Stands {
    topic: String,
    partitions: Vec<u32>,
    #[source]
    error: TurnError,
}

pub(super) struct Worker {
    shared: Arc<ApplierShared>,
    /// Which of the applier's threads this is.
    index: u32,
    reader: Option<LogReader>,
    /// The partitions that are ours, and where each stands.
    own: BTreeMap<u32, LogPosition>,
    /// Partitions whose log does not have what they need.
    behind: LostPartitions,
    /// Partitions that are lost and whose log does not tell where it begins: until when they are
    /// left alone, so that the others go on meanwhile.
    aside: BTreeMap<u32, Instant>,
    rebuilding: Option<Rebuilding>,
    acknowledged: AcknowledgedCheck,
    leases_looked_at: Option<Instant>,
    /// Whether the last look found records.
    flowing: bool,
}

struct Rebuilding {
    partitions: Vec<u32>,
    thread: std::thread::JoinHandle<()>,
}

impl Worker {
    pub fn new(shared: Arc<ApplierShared>, index: u32) -> Worker {
        Worker {
            shared,
            index,
            reader: None,
            own: BTreeMap::new(),
            behind: LostPartitions::default(),
            aside: BTreeMap::new(),
            rebuilding: None,
            acknowledged: AcknowledgedCheck::new(),
            leases_looked_at: None,
            flowing: false,
        }
    }

    pub fn run(mut self) {
        let signal = self.shared.signal.clone();
        signal.repeat("the applier could not go on", Backoff::default(), || {
            let turned = self.turn();
            turned.map(|()| Next::Now).map_err(|error| {
                if !matches!(error, TurnError::Sql(_) | TurnError::Unbound(_)) {
                    // A client that lost its way is not asked to find it.
                    self.reader = None;
                }
                self.shared.counts.add(|counts| &counts.retries, 1);
                let stands = self.stands(error);
                self.forget_positions();
                stands
            })
        });
        self.forget_positions();
        if let Some(rebuilding) = self.rebuilding.take() {
            let _panicked = rebuilding.thread.join();
        }
    }

    /// The error, with the partitions that stand still.
    fn stands(&self, error: TurnError) -> Stands {
        let partitions = match self.own.is_empty() {
            true => self.shared.leased(self.index),
            false => self.own.keys().copied().collect(),
        };
        Stands { topic: self.shared.place.topic.clone(), partitions, error }
    }

    fn turn(&mut self) -> Result<(), TurnError> {
        if self.leases_looked_at.is_none_or(|at| at.elapsed() >= LEASES_LOOK) {
            self.take_partitions()?;
        }
        if self.own.is_empty() {
            self.shared.signal.wait(POLL_WAIT);
            return Ok(());
        }
        if self.acknowledged.is_due() {
            self.look_at_acknowledged()?;
        }
        let (taken, trouble) = self.gather();
        self.flowing = !taken.is_empty();
        for portion in portions(taken) {
            self.apply(portion)?;
        }
        match trouble {
            None => Ok(()),
            Some(ReadError::Log(error)) => Err(error.into()),
            Some(_) => self.fall_behind(),
        }
    }

    /// Makes the partitions that are read those that are leased.
    fn take_partitions(&mut self) -> Result<(), TurnError> {
        self.leases_looked_at = Some(Instant::now());
        self.look_after_rebuild();
        self.aside.retain(|_, until| Instant::now() < *until);
        let apart = |partition: &u32| {
            self.behind.from.contains_key(partition)
                || self.aside.contains_key(partition)
                || self.rebuilding.as_ref().is_some_and(|one| one.partitions.contains(partition))
        };
        let leased = self.shared.leased(self.index);
        let wanted: Vec<u32> = leased.into_iter().filter(|partition| !apart(partition)).collect();
        let lost: Vec<u32> =
            self.own.keys().copied().filter(|partition| !wanted.contains(partition)).collect();
        for partition in lost {
            self.drop_partition(partition);
        }
        let new: Vec<u32> =
            wanted.into_iter().filter(|partition| !self.own.contains_key(partition)).collect();
        if !new.is_empty() {
            for (partition, next) in stored_positions(&self.shared, &new)? {
                self.own.insert(partition, next);
                self.shared.progress_at(partition, next.next, None);
            }
        }
        self.read_from_positions()
    }

    fn read_from_positions(&mut self) -> Result<(), TurnError> {
        let from = self.own.iter().map(|(partition, next)| (*partition, *next));
        match &mut self.reader {
            Some(reader) => reader.assign(from)?,
            None if self.own.is_empty() => {}
            None => {
                let reader = LogReader::open(&self.shared.kafka, &self.shared.place.topic, from)?;
                self.reader = Some(reader);
            }
        }
        Ok(())
    }

    /// What the log has: at once when it was idle, after a moment's gathering when it flows; and
    /// what went wrong after that was taken.
    fn gather(&mut self) -> (Vec<TakenRecord>, Option<ReadError>) {
        let Some(reader) = &mut self.reader else {
            return (Vec::new(), None);
        };
        let mut taken = match reader.next(BATCH_RECORDS_MAX, POLL_WAIT) {
            Ok(taken) => taken,
            Err(error) => return (Vec::new(), Some(error)),
        };
        if !self.flowing || taken.is_empty() {
            return (taken, None);
        }
        let until = Instant::now() + LINGER;
        while taken.len() < BATCH_RECORDS_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match reader.next(BATCH_RECORDS_MAX - taken.len(), left) {
                Ok(more) => taken.extend(more),
                Err(error) => return (taken, Some(error)),
            }
        }
        (taken, None)
    }

    fn apply(&mut self, taken: Vec<TakenRecord>) -> Result<(), TurnError> {
        let mut times = BTreeMap::new();
        let slices = self.slices(taken, &mut times)?;
        if slices.is_empty() {
            return Ok(());
        }
        self.confirm_topic(&slices)?;
        let nexts: Vec<(u32, LogPosition)> =
            slices.iter().map(|slice| (slice.partition, slice.next)).collect();
        let shared = self.shared.clone();
        let mut read = marks(&slices);
        let applied = apply_isolating(slices, &mut |slices| patiently(&shared, slices))?;
        let lost = not_acknowledged(&applied.lost);
        if let Some((_, error)) = lost.first().cloned() {
            self.set_apart(lost)?;
            return Err(TurnError::Lost(error));
        }
        let counts = &self.shared.counts;
        counts.add(|counts| &counts.batches, 1);
        counts.add(|counts| &counts.records, applied.records);
        counts.add(|counts| &counts.stale, applied.stale);
        counts.add(|counts| &counts.dead, applied.dead);
        if applied.dead > 0 {
            tracing::error!(
                records = applied.dead,
                "records that can never be applied went to the dead letters"
            );
            self.shared.letters_waiting.store(true, Ordering::Release);
        }
        for (partition, next) in nexts {
            if applied.foreign.contains(&partition) {
                tracing::warn!(partition, "another instance applies this partition; it is left");
                self.shared.counts.add(|counts| &counts.abandoned, 1);
                self.drop_partition(partition);
                continue;
            }
            self.own.insert(partition, next);
            self.acknowledged.applied(partition, read.remove(&partition).unwrap_or_default());
            let times = times.remove(&partition).unwrap_or_default();
            self.shared.progress_at(partition, next.next, times.last().copied());
            self.shared.count_ages(&times);
        }
        if !applied.foreign.is_empty() {
            self.read_from_positions()?;
        }
        Ok(())
    }

    /// A barrier says that all before it was applied. One that was read of a topic made anew, whose
    /// beginning nobody read, would say so falsely; so the topic is looked at once more. What was
    /// read before it is found to be the same is of this topic.
    fn confirm_topic(&mut self, slices: &[Slice]) -> Result<(), TurnError> {
        let items = || slices.iter().flat_map(|slice| &slice.items);
        if !items().any(|placed| matches!(placed.item, ApplyItem::Barrier { .. })) {
            return Ok(());
        }
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        reader.look_at_topic()?;
        let is_applied = |part: u32| slices.iter().any(|slice| slice.partition == part);
        match reader.lost().find(|(part, _)| is_applied(*part)) {
            // It is found to be lost again by whoever reads from the position that stands.
            Some((_, error)) => Err(TurnError::Lost(error.clone())),
            None => Ok(()),
        }
    }

    /// Records by partition, read; the times at which they were committed beside them.
    fn slices(
        &self,
        taken: Vec<TakenRecord>,
        times: &mut BTreeMap<u32, Vec<Millis>>,
    ) -> Result<Vec<Slice>, TurnError> {
        let now_ms = self.shared.clock.now_ms();
        let mut slices = Vec::new();
        for (partition, (expected, taken)) in following(&self.own, taken)? {
            let mut slice = Slice { partition, expected, items: Vec::new(), next: expected };
            for TakenRecord { offset, after, value, .. } in taken {
                let (item, time) = read(self.shared.place.source, &value);
                let item = doubted(item, now_ms);
                times.entry(partition).or_default().extend(time);
                slice.items.push(Placed { position: offset, after, item, value });
                slice.next = after;
            }
            slices.push(slice);
        }
        self.give_up_unknown_kinds(&mut slices)?;
        Ok(slices)
    }

    /// A kind that the catalog does not know may be new; one that the database does not know
    /// either never was.
    fn give_up_unknown_kinds(&self, slices: &mut [Slice]) -> Result<(), SqlError> {
        let edges = |slices: &[Slice]| -> Vec<_> {
            let items = slices.iter().flat_map(|slice| &slice.items);
            items.filter_map(|placed| placed.item.edge()).collect()
        };
        let catalog = self.shared.catalog.current();
        if edges(slices).iter().all(|edge| is_known(&catalog, edge)) {
            return Ok(());
        }
        self.shared.catalog.refresh(&self.shared.database)?;
        let catalog = self.shared.catalog.current();
        for placed in slices.iter_mut().flat_map(|slice| &mut slice.items) {
            match placed.item.edge() {
                Some(edge) if !is_known(&catalog, &edge) => {
                    let cause = match &placed.item {
                        ApplyItem::Dead { cause, .. } => cause.clone(),
                        _ => unknown_kind(&edge),
                    };
                    placed.item = ApplyItem::Dead { edge: Some(edge), cause };
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets apart the partitions whose log no longer has what they need, or is another.
    fn fall_behind(&mut self) -> Result<(), TurnError> {
        let lost = self.reader.iter().flat_map(LogReader::lost);
        self.set_apart(lost.map(|(partition, error)| (partition, error.clone())).collect())
    }

    fn set_apart(&mut self, lost: Vec<(u32, ReadError)>) -> Result<(), TurnError> {
        let Some(reader) = &self.reader else {
            return Ok(());
        };
        let topic = &self.shared.place.topic;
        let mut unknown = Vec::new();
        for (partition, error) in lost {
            let Some(from) = self.own.get(&partition) else { continue };
            let to = match reader.beginning(partition) {
                Ok(to) => to,
                Err(error) => {
                    unknown.push((partition, error));
                    continue;
                }
            };
            tracing::error!(%error, topic, "the log does not have what is to be applied next: the \
                            partition is rebuilt from the database, and applied from {} on",
                            to.next);
            self.behind.from.insert(partition, *from);
            self.behind.to.insert(partition, to);
        }
        for partition in self.behind.from.keys().copied().collect::<Vec<_>>() {
            self.drop_partition(partition);
        }
        for (partition, error) in unknown {
            let topic = &self.shared.place.topic;
            tracing::warn!(%error, topic, partition, "the log does not tell where it begins");
            self.drop_partition(partition);
            self.aside.insert(partition, Instant::now() + ASIDE_FOR);
        }
        self.read_from_positions()?;
        self.look_after_rebuild();
        Ok(())
    }

    /// Sets apart the partitions whose log no longer has what was acknowledged.
    fn look_at_acknowledged(&mut self) -> Result<(), TurnError> {
        let Some(reader) = &self.reader else {
            return Ok(());
        };
        let lost = self.acknowledged.look(&self.shared, &self.own, reader)?;
        match lost.is_empty() {
            true => Ok(()),
            false => self.set_apart(not_acknowledged(&lost)),
        }
    }

    /// Begins a rebuild of what fell behind when none is running.
    fn look_after_rebuild(&mut self) {
        if self.rebuilding.as_ref().is_some_and(|one| one.thread.is_finished())
            && let Some(rebuilding) = self.rebuilding.take()
        {
            let _panicked = rebuilding.thread.join();
        }
        if self.rebuilding.is_some() || self.behind.from.is_empty() {
            return;
        }
        let behind = std::mem::take(&mut self.behind);
        let partitions = behind.from.keys().copied().collect();
        let shared = self.shared.clone();
        let crew = shared.crew.clone();
        let spawned = crew.errand("guanxi-rebuild", move || rebuild_until_done(&shared, behind));
        match spawned {
            Ok(thread) => self.rebuilding = Some(Rebuilding { partitions, thread }),
            // The partitions are taken again with the leases, and found to be behind again.
            Err(error) => tracing::error!(%error, "a rebuild could not begin"),
        }
    }

    fn drop_partition(&mut self, partition: u32) {
        self.own.remove(&partition);
        self.acknowledged.forget(partition);
        self.shared.forget_progress(partition);
    }

    fn forget_positions(&mut self) {
        for partition in self.own.keys().copied().collect::<Vec<_>>() {
            self.drop_partition(partition);
        }
        self.leases_looked_at = None;
    }
}

/// What is said of partitions that have something else where a record was acknowledged.
fn not_acknowledged(lost: &BTreeMap<u32, u64>) -> Vec<(u32, ReadError)> {
    let cause = "it no longer has what was acknowledged there: the log lost its end";
    let said = |(part, at): (&u32, &u64)| {
        (*part, ReadError::Broken { partition: *part, wanted: *at, cause })
    };
    lost.iter().map(said).collect()
}

/// What the records of each partition look like, with their offsets.
fn marks(slices: &[Slice]) -> BTreeMap<u32, Vec<(u64, RecordMark)>> {
    let marks = |slice: &Slice| {
        let items = slice.items.iter();
        (slice.partition, items.map(|placed| (placed.position, placed.after.before)).collect())
    };
    slices.iter().map(marks).collect()
}

/// A transaction that another was in the way of is undone as a whole, so it is simply tried again.
fn patiently(shared: &ApplierShared, slices: &[Slice]) -> Result<BatchOutcome, SqlError> {
    let mut backoff = Backoff::new(BUSY_PAUSE_FIRST, BUSY_PAUSE_MAX);
    let mut tries = 1;
    loop {
        let catalog = shared.catalog.current();
        let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
        let now_ms = shared.clock.now_ms();
        // Whoever met another's locks looks before it writes.
        let way = if tries == 1 { Way::Foreseeing } else { Way::Looking };
        match apply_batch(&mut session, &shared.place, slices, &catalog, now_ms, way) {
            Err(SqlError::Busy(cause)) if tries < BUSY_TRIES_MAX => {
                tracing::debug!(cause, "another transaction was in the applier's way");
                shared.counts.add(|counts| &counts.retries, 1);
            }
            other => return other,
        }
        drop(session);
        backoff.failed();
        shared.signal.wait(backoff.left());
        tries += 1;
    }
}

/// The records of each partition that is ours, and the position that they follow. Each must follow
/// the one before it: applied otherwise, they would pass by what lies between.
fn following(
    own: &BTreeMap<u32, LogPosition>,
    taken: Vec<TakenRecord>,
) -> Result<BTreeMap<u32, (LogPosition, Vec<TakenRecord>)>, TurnError> {
    let mut partitions: BTreeMap<u32, (LogPosition, Vec<TakenRecord>)> = BTreeMap::new();
    for one in taken {
        let partition = one.partition;
        let Some(position) = own.get(&partition) else {
            continue;
        };
        let (_, before) = partitions.entry(partition).or_insert_with(|| (*position, Vec::new()));
        let expected = before.last().map_or(*position, |last| last.after);
        if !expected.is_continued_by(&one.from) {
            return Err(TurnError::Elsewhere { partition, expected, read: one.from });
        }
        before.push(one);
    }
    Ok(partitions)
}

/// Pieces of bounded size.
fn portions(taken: Vec<TakenRecord>) -> Vec<Vec<TakenRecord>> {
    let mut portions: Vec<Vec<TakenRecord>> = Vec::new();
    let mut bytes = 0;
    for one in taken {
        bytes += one.value.len();
        match portions.last_mut() {
            Some(portion) if bytes <= BATCH_BYTES_MAX => portion.push(one),
            _ => {
                bytes = one.value.len();
                portions.push(vec![one]);
            }
        }
    }
    portions
}

#[cfg(test)]
mod tests;
