//! The read budget: how much an instance asks of the database at a moment, whatever its callers
//! want. Each read takes a place before it asks and keeps it until the database has answered, also
//! when nobody waits for the answer any more. Quick reads and lists have places of their own, so
//! that long walks leave the quick ones theirs; writes, the log's parts and chores have bounds of
//! their own and take no place here.
//!
//! Who finds no place waits for a while behind those that came before, and so may as many as the
//! queue holds. What a caller is told who found none is not decided here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use guanxi_core::deployment::ReadLane;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long an instance is called overloaded after a read was turned away: whoever looks every
/// second or two sees it.
const OVERLOAD_SHOWN: Duration = Duration::from_secs(5);
/// What a pool of the default size answers within the wait below when a read takes some
/// milliseconds.
const WAITING_MAX_DEFAULT: usize = 1_024;
/// A feed can wait for a second before it does without.
const WAIT_DEFAULT: Duration = Duration::from_secs(1);
/// Much longer than a read by keys takes, much shorter than a statement may take.
const ANSWER_DEFAULT: Duration = Duration::from_secs(3);
/// How long a list waits for its place. Nobody makes a list up, so it may wait longer than what
/// has a default.
const LISTS_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBudgetSettings {
    /// Quick reads that the database has at once.
    pub reads_max: usize,
    /// Lists, large reads and exports that it has at once.
    pub lists_max: usize,
    /// Reads of each sort that may wait; more are turned away at once.
    pub waiting_max: usize,
    /// How long a quick read waits for its place.
    pub wait: Duration,
    /// How long it waits for the database's answer.
    pub answer: Duration,
}

impl ReadBudgetSettings {
    /// Half of the connections for quick reads and a quarter for lists, which leaves one for writes
    /// and the log's parts.
    pub fn of_connections(connections_max: usize) -> ReadBudgetSettings {
        ReadBudgetSettings {
            reads_max: (connections_max / 2).max(1),
            lists_max: (connections_max / 4).max(1),
            waiting_max: WAITING_MAX_DEFAULT,
            wait: WAIT_DEFAULT,
            answer: ANSWER_DEFAULT,
        }
    }
}

#[derive(Debug)]
pub struct ReadBudget {
    settings: ReadBudgetSettings,
    reads: LanePermits,
    lists: LanePermits,
    begun: Instant,
    /// When a read was last turned away, in milliseconds after `begun` and one more; 0 for never.
    overloaded_at: AtomicU64,
    unanswered: AtomicU64,
    degraded: AtomicU64,
}

/// How the places of one lane stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneFigures {
    pub places_max: usize,
    pub taken: usize,
    pub waiting: usize,
    /// Reads that found no place in time.
    pub turned_away: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetFigures {
    pub reads: LaneFigures,
    pub lists: LaneFigures,
    /// Reads that had a place and no answer in time.
    pub unanswered: u64,
    /// Answers that were made up in part.
    pub degraded: u64,
    /// Whether reads were turned away in the last seconds.
    pub overloaded: bool,
}

impl ReadBudget {
    pub fn new(settings: ReadBudgetSettings) -> ReadBudget {
        let places = |places_max| LanePermits {
            semaphore: Arc::new(Semaphore::new(places_max)),
            places_max,
            waiting: AtomicUsize::new(0),
            waiting_max: settings.waiting_max,
            turned_away: AtomicU64::new(0),
        };
        ReadBudget {
            settings,
            reads: places(settings.reads_max),
            lists: places(settings.lists_max),
            begun: Instant::now(),
            overloaded_at: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
        }
    }

    /// A place for a read, the right to ask the database, in the order in which they were asked for; none when there was none in
    /// time, or when too many wait already.
    pub async fn enter(&self, lane: ReadLane, deadline: Instant) -> Option<OwnedSemaphorePermit> {
        let (places, wait) = match lane {
            ReadLane::Reads => (&self.reads, self.settings.wait),
            ReadLane::Lists => (&self.lists, LISTS_WAIT),
        };
        let place = places.enter(deadline.min(Instant::now() + wait)).await;
        if place.is_none() {
            places.turned_away.fetch_add(1, Ordering::Relaxed);
            self.note_overload();
        }
        place
    }

    /// Until when a read that got its place now is waited for.
    pub fn answer_by(&self, lane: ReadLane, deadline: Instant) -> Instant {
        match lane {
            ReadLane::Reads => deadline.min(Instant::now() + self.settings.answer),
            ReadLane::Lists => deadline,
        }
    }

    /// The database took too long with a read.
    pub fn note_unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        self.note_overload();
    }

    /// An answer was made up in part.
    pub fn note_degraded(&self) {
        self.degraded.fetch_add(1, Ordering::Relaxed);
    }

    fn note_overload(&self) {
        let at = self.begun.elapsed().as_millis() as u64 + 1;
        self.overloaded_at.fetch_max(at, Ordering::Relaxed);
    }

    pub fn figures(&self) -> BudgetFigures {
        let overloaded = match self.overloaded_at.load(Ordering::Relaxed) {
            0 => false,
            at => self.begun.elapsed() < Duration::from_millis(at) + OVERLOAD_SHOWN,
        };
        BudgetFigures {
            reads: self.reads.figures(),
            lists: self.lists.figures(),
            unanswered: self.unanswered.load(Ordering::Relaxed),
            degraded: self.degraded.load(Ordering::Relaxed),
            overloaded,
        }
    }
}

/// The places of one lane.
#[derive(Debug)]
struct LanePermits {
    semaphore: Arc<Semaphore>,
    places_max: usize,
    waiting: AtomicUsize,
    waiting_max: usize,
    turned_away: AtomicU64,
}

impl LanePermits {
    async fn enter(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        // Only where nobody waits: a place that comes free goes to the first of those.
        if let Ok(place) = self.semaphore.clone().try_acquire_owned() {
            return Some(place);
        }
        let _waiting = WaitingReader::among(&self.waiting, self.waiting_max)?;
        let place = tokio::time::timeout_at(until.into(), self.semaphore.clone().acquire_owned());
        place.await.ok()?.ok()
    }

    fn figures(&self) -> LaneFigures {
        LaneFigures {
            places_max: self.places_max,
            taken: self.places_max.saturating_sub(self.semaphore.available_permits()),
            waiting: self.waiting.load(Ordering::Relaxed),
            turned_away: self.turned_away.load(Ordering::Relaxed),
        }
    }
}

/// One of those that wait, also when it is given up halfway.
struct WaitingReader<'a>(&'a AtomicUsize);

impl<'a> WaitingReader<'a> {
    fn among(waiting: &'a AtomicUsize, max: usize) -> Option<WaitingReader<'a>> {
        let counted = WaitingReader(waiting);
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        (before < max).then_some(counted)
    }
}

impl Drop for WaitingReader<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
