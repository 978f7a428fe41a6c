//! One applier thread: takes what its partitions have, in batches, and applies it. After any error
//! it forgets where it stood and asks the database: a COMMIT whose answer was lost may have
//! happened, and only the locked position tells.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_model::Millis;

use super::super::kafka::{LogError, ReadError, Reader, Taken};
use super::super::sql::SqlError;
use super::batch::{Applied, Item, Placed, Slice, apply_batch, positions};
use super::foreseen::Way;
use super::isolate::apply_isolating;
use super::rebuild::{Behind, Rebuilt, rebuild};
use super::shared::Shared;
use super::source::{is_known, read, unknown_kind};
use super::statements;

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
const BUSY_PAUSE_FIRST: Duration = Duration::from_millis(5);
/// Pauses after other errors.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often an operator is told that it still does not work.
const TELL_AGAIN: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Log(#[from] LogError),
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    /// Which of the applier's threads this is.
    index: u32,
    reader: Option<Reader>,
    /// The partitions that are ours, and where each stands.
    own: BTreeMap<u32, u64>,
    /// Partitions whose log begins after what they need.
    behind: Behind,
    rebuilding: Option<Rebuilding>,
    leases_looked_at: Option<Instant>,
    /// Whether the last look found records.
    flowing: bool,
    pause: Duration,
    /// When an error was last told of, and how many there were since.
    told: Option<Instant>,
    untold: u64,
}

struct Rebuilding {
    partitions: Vec<u32>,
    thread: std::thread::JoinHandle<()>,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, index: u32) -> Worker {
        Worker {
            shared,
            index,
            reader: None,
            own: BTreeMap::new(),
            behind: Behind::default(),
            rebuilding: None,
            leases_looked_at: None,
            flowing: false,
            pause: PAUSE_FIRST,
            told: None,
            untold: 0,
        }
    }

    pub fn run(mut self) {
        while !self.shared.stop.is_set() {
            match self.turn() {
                Ok(()) => self.pause = PAUSE_FIRST,
                Err(error) => {
                    self.tell(&error);
                    if matches!(error, TurnError::Log(_)) {
                        // A client that lost its way is not asked to find it.
                        self.reader = None;
                    }
                    self.shared.counts.add(|counts| &counts.retries, 1);
                    self.forget_positions();
                    self.shared.stop.wait(jittered(self.pause));
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                }
            }
        }
        self.forget_positions();
        if let Some(rebuilding) = self.rebuilding.take() {
            let _panicked = rebuilding.thread.join();
        }
    }

    /// Tells of an error, with the partitions that stand still; again only after a while.
    fn tell(&mut self, error: &TurnError) {
        self.untold += 1;
        if self.told.is_some_and(|told| told.elapsed() < TELL_AGAIN) {
            return;
        }
        let partitions: Vec<u32> = match self.own.is_empty() {
            true => self.shared.leased(self.index),
            false => self.own.keys().copied().collect(),
        };
        let (topic, times) = (&self.shared.place.topic, self.untold);
        tracing::warn!(%error, topic, ?partitions, times, "the applier tries again");
        (self.told, self.untold) = (Some(Instant::now()), 0);
    }

    fn turn(&mut self) -> Result<(), TurnError> {
        if self.leases_looked_at.is_none_or(|at| at.elapsed() >= LEASES_LOOK) {
            self.take_partitions()?;
        }
        if self.own.is_empty() {
            self.shared.stop.wait(POLL_WAIT);
            return Ok(());
        }
        let taken = match self.gather() {
            Ok(taken) => taken,
            Err(ReadError::Log(error)) => return Err(error.into()),
            Err(error) => {
                tracing::error!(%error, "the log does not have what is to be applied next: the \
                                partition is rebuilt from the database");
                return self.fall_behind();
            }
        };
        self.flowing = !taken.is_empty();
        for portion in portions(taken) {
            self.apply(portion)?;
        }
        Ok(())
    }

    /// Makes the partitions that are read those that are leased.
    fn take_partitions(&mut self) -> Result<(), TurnError> {
        self.leases_looked_at = Some(Instant::now());
        self.look_after_rebuild();
        let apart = |partition: &u32| {
            self.behind.from.contains_key(partition)
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
            for (partition, next) in self.stored_positions(&new)? {
                self.own.insert(partition, next);
                self.shared.progress_at(partition, next, None);
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
                let reader = Reader::open(&self.shared.kafka, &self.shared.place.topic, from)?;
                self.reader = Some(reader);
            }
        }
        Ok(())
    }

    /// Positions as they stand when no transaction is under way. A partition that never had one
    /// begins at 0; if the log begins later, that is found out by reading.
    fn stored_positions(&self, partitions: &[u32]) -> Result<BTreeMap<u32, u64>, SqlError> {
        let topic = &self.shared.place.topic;
        let lock = statements::lock_positions(topic, partitions);
        let note = statements::note_positions(topic, partitions);
        let mut session = self.shared.database.session(Instant::now() + SESSION_WAIT)?;
        let mut sets = session.run(&format!("BEGIN;{note};{lock};COMMIT"))?;
        let found = if sets.len() > 2 { sets.swap_remove(2) } else { Default::default() };
        positions(found)
    }

    /// What the log has: at once when it was idle, after a moment's gathering when it flows.
    fn gather(&mut self) -> Result<Vec<Taken>, ReadError> {
        let Some(reader) = &mut self.reader else {
            return Ok(Vec::new());
        };
        let mut taken = reader.next(BATCH_RECORDS_MAX, POLL_WAIT)?;
        if !self.flowing || taken.is_empty() {
            return Ok(taken);
        }
        let until = Instant::now() + LINGER;
        while taken.len() < BATCH_RECORDS_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match reader.next(BATCH_RECORDS_MAX - taken.len(), left) {
                Ok(more) => taken.extend(more),
                // It comes again with the next look, when nothing is in hand.
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    fn apply(&mut self, taken: Vec<Taken>) -> Result<(), TurnError> {
        let mut times = BTreeMap::new();
        let slices = self.slices(taken, &mut times)?;
        if slices.is_empty() {
            return Ok(());
        }
        let nexts: Vec<(u32, u64)> =
            slices.iter().map(|slice| (slice.partition, slice.next)).collect();
        let shared = self.shared.clone();
        let applied = apply_isolating(slices, &mut |slices| patiently(&shared, slices))?;
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
            self.shared.letters_waiting.set();
        }
        for (partition, next) in nexts {
            if applied.foreign.contains(&partition) {
                tracing::warn!(partition, "another instance applies this partition; it is left");
                self.shared.counts.add(|counts| &counts.abandoned, 1);
                self.drop_partition(partition);
                continue;
            }
            self.own.insert(partition, next);
            let times = times.remove(&partition).unwrap_or_default();
            self.shared.progress_at(partition, next, times.last().copied());
            self.shared.count_ages(&times);
        }
        if !applied.foreign.is_empty() {
            self.read_from_positions()?;
        }
        Ok(())
    }

    /// Records by partition, read; the times at which they were committed beside them.
    fn slices(
        &self,
        taken: Vec<Taken>,
        times: &mut BTreeMap<u32, Vec<Millis>>,
    ) -> Result<Vec<Slice>, SqlError> {
        let mut slices: BTreeMap<u32, Slice> = BTreeMap::new();
        for Taken { partition, offset, value } in taken {
            let Some(expected) = self.own.get(&partition) else {
                continue;
            };
            let (item, time) = read(self.shared.place.source, &value);
            times.entry(partition).or_default().extend(time);
            let slice = slices.entry(partition).or_insert_with(|| Slice {
                partition,
                expected: *expected,
                items: Vec::new(),
                next: *expected,
            });
            slice.items.push(Placed { position: offset, item, value });
            slice.next = offset + 1;
        }
        let mut slices: Vec<Slice> = slices.into_values().collect();
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
                        Item::Dead { cause, .. } => cause.clone(),
                        _ => unknown_kind(&edge),
                    };
                    placed.item = Item::Dead { edge: Some(edge), cause };
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets apart the partitions whose log no longer has what they need.
    fn fall_behind(&mut self) -> Result<(), TurnError> {
        let Some(reader) = &self.reader else {
            return Ok(());
        };
        for (partition, next) in self.own.clone() {
            let ends = reader.ends(partition)?;
            if next < ends.first || next > ends.end {
                self.behind.from.insert(partition, next);
                self.behind.to.insert(partition, ends.first);
            }
        }
        for partition in self.behind.from.keys().copied().collect::<Vec<_>>() {
            self.drop_partition(partition);
        }
        self.read_from_positions()?;
        self.look_after_rebuild();
        Ok(())
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
        let spawned = std::thread::Builder::new()
            .name("guanxi-rebuild".into())
            .spawn(move || rebuild_until_done(&shared, &behind));
        match spawned {
            Ok(thread) => self.rebuilding = Some(Rebuilding { partitions, thread }),
            // The partitions are taken again with the leases, and found to be behind again.
            Err(error) => tracing::error!(%error, "a rebuild could not begin"),
        }
    }

    fn drop_partition(&mut self, partition: u32) {
        self.own.remove(&partition);
        self.shared.forget_progress(partition);
    }

    fn forget_positions(&mut self) {
        for partition in self.own.keys().copied().collect::<Vec<_>>() {
            self.drop_partition(partition);
        }
        self.leases_looked_at = None;
    }
}

/// A transaction that another was in the way of is undone as a whole, so it is simply tried again.
fn patiently(shared: &Shared, slices: &[Slice]) -> Result<Applied, SqlError> {
    let mut pause = BUSY_PAUSE_FIRST;
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
        shared.stop.wait(jittered(pause));
        pause *= 2;
        tries += 1;
    }
}

/// The rebuild of these partitions, whatever the database does meanwhile.
fn rebuild_until_done(shared: &Shared, behind: &Behind) {
    let mut pause = PAUSE_FIRST;
    while !shared.stop.is_set() {
        let partitions = behind.from.keys();
        tracing::info!(?partitions, "rebuilding the target's side from the database");
        let rebuilt = shared.catalog.refresh(&shared.database).and_then(|()| {
            let catalog = shared.catalog.current();
            rebuild(&shared.database, &catalog, &shared.place, behind, &|| shared.stop.is_set())
        });
        match rebuilt {
            Ok(Rebuilt::Done { changed }) => {
                tracing::info!(changed, "the rebuild is done");
                shared.counts.add(|counts| &counts.rebuilt, behind.from.len() as u64);
                return;
            }
            // Positions are read again when the partitions are taken again.
            Ok(Rebuilt::Foreign | Rebuilt::Stopped) => return,
            Err(error) => {
                tracing::warn!(%error, "the rebuild begins again");
                shared.stop.wait(jittered(pause));
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Pieces of bounded size.
fn portions(taken: Vec<Taken>) -> Vec<Vec<Taken>> {
    let mut portions: Vec<Vec<Taken>> = Vec::new();
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

/// Between one and two times the pause, so that those who met once do not meet again.
fn jittered(pause: Duration) -> Duration {
    pause + pause.mul_f64(fastrand::f64())
}
