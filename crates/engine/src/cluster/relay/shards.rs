//! What the relay knows of each shard: from where to read next, when it was last swept, what is
//! on its way, and which barriers wait for what. It does no I/O.
//!
//! Rows appear in the order of their commits, not of their versions. A scan begins a little before
//! the time of the last one, which finds all but stragglers; a sweep begins at the shard's start
//! and finds them too. Reading from the start each time would be simpler, but a database keeps
//! deleted rows for a while and steps over each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::outbox::{Key, Waiting};

/// How far before the last scan's time a scan begins: commits that take this long are usual.
const LOOKBACK_MS: u64 = 150;
/// Now and then a scan begins this far back.
const LOOKBACK_LONG_MS: u64 = 4_000;
const LOOKBACK_LONG_EVERY: Duration = Duration::from_millis(500);
/// How long a straggler's lateness is remembered: clocks that differ stay so.
const LATENESS_REMEMBERED: Duration = Duration::from_secs(60);
/// How often a shard is swept.
const SWEEP_EVERY: Duration = Duration::from_secs(20);
/// A version's milliseconds.
const TIME_SHIFT: u32 = 20;

#[derive(Debug)]
pub struct Shard {
    number: u8,
    owned: bool,
    /// From where to read on, after a scan that did not reach the end.
    resume: Option<u64>,
    /// The database's time of the first of those scans.
    resumed_ms: Option<u64>,
    /// The database's time when the last reading that reached the end began.
    drained_ms: u64,
    swept: Instant,
    /// The number of the scan with which the present sweep began.
    sweeping: Option<u64>,
    /// Tickets of its rows that the broker has not answered for.
    on_way: BTreeSet<u64>,
    barriers: Vec<Barrier>,
}

#[derive(Debug)]
struct Barrier {
    row: Waiting,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Read by this scan; needs a sweep that begins later.
    Read(u64),
    /// Swept: everything that must precede it has a ticket up to this one.
    Swept(u64),
}

impl Shard {
    pub fn new(number: u8) -> Shard {
        Shard {
            number,
            owned: false,
            resume: None,
            resumed_ms: None,
            drained_ms: 0,
            swept: Instant::now(),
            sweeping: None,
            on_way: BTreeSet::new(),
            barriers: Vec::new(),
        }
    }

    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// A new owner reads from the start. Sweeps of shards taken together spread by themselves.
    pub fn own(&mut self, scan: u64) {
        self.owned = true;
        self.begin_sweep(scan);
    }

    /// Returns the barriers that were held back, which are no longer ours to send.
    pub fn disown(&mut self) -> Vec<Key> {
        self.owned = false;
        self.barriers.drain(..).map(|barrier| barrier.row.key).collect()
    }

    /// Begins a sweep if it is time, or if a barrier needs one.
    pub fn prepare(&mut self, scan: u64, now: Instant) {
        // Spread over the interval, so that not all shards are swept by one scan.
        let spread = SWEEP_EVERY / 64 * u32::from(self.number % 8);
        let due = now.duration_since(self.swept) >= SWEEP_EVERY + spread;
        let asked = self.barriers.iter().any(|barrier| matches!(barrier.stage, Stage::Read(_)));
        if self.sweeping.is_none() && (due || asked) {
            self.begin_sweep(scan);
        }
    }

    fn begin_sweep(&mut self, scan: u64) {
        self.sweeping = Some(scan);
        self.resume = Some(0);
    }

    /// The version from which the next scan reads.
    pub fn from(&self, lookback_ms: u64) -> u64 {
        let recent = self.drained_ms.saturating_sub(lookback_ms) << TIME_SHIFT;
        self.resume.unwrap_or(recent)
    }

    /// A scan has read all there was.
    pub fn drained(&mut self, scan: u64, now_ms: u64, last_ticket: u64) {
        self.resume = None;
        self.drained_ms = self.resumed_ms.take().unwrap_or(now_ms);
        if let Some(began) = self.sweeping.take() {
            debug_assert!(began <= scan);
            self.swept = Instant::now();
            for barrier in &mut self.barriers {
                if matches!(barrier.stage, Stage::Read(read) if read < began) {
                    barrier.stage = Stage::Swept(last_ticket);
                }
            }
        }
    }

    /// A scan was cut off after this version.
    pub fn cut(&mut self, version: u64, now_ms: u64) {
        self.resume = Some(version);
        self.resumed_ms.get_or_insert(now_ms);
    }

    /// How far behind the last scan's time this row is: what a lookback must cover.
    pub fn lateness_ms(&self, key: &Key) -> u64 {
        self.drained_ms.saturating_sub(key.version >> TIME_SHIFT)
    }

    pub fn sent(&mut self, ticket: u64) {
        self.on_way.insert(ticket);
    }

    pub fn answered(&mut self, ticket: u64) {
        self.on_way.remove(&ticket);
    }

    /// A row did not reach the log, as far as is known: it is read again, and no barrier may go
    /// before it has.
    pub fn failed(&mut self, version: u64, scan: u64) {
        self.resume = Some(self.resume.map_or(version, |resume| resume.min(version)));
        for barrier in &mut self.barriers {
            barrier.stage = Stage::Read(scan);
        }
    }

    pub fn hold_barrier(&mut self, row: Waiting, scan: u64) {
        self.barriers.push(Barrier { row, stage: Stage::Read(scan) });
    }

    /// Barriers that may go now.
    pub fn ready_barriers(&mut self) -> Vec<Waiting> {
        let first_on_way = self.on_way.first().copied().unwrap_or(u64::MAX);
        let ready = self.barriers.extract_if(
            ..,
            |barrier| matches!(barrier.stage, Stage::Swept(last) if first_on_way > last),
        );
        ready.map(|barrier| barrier.row).collect()
    }

    pub fn has_barriers(&self) -> bool {
        !self.barriers.is_empty()
    }
}

/// How far back scans look: as far as stragglers were late of late.
#[derive(Debug)]
pub struct Lookback {
    late_ms: u64,
    late_at: Instant,
    long_at: Instant,
}

impl Lookback {
    pub fn new() -> Lookback {
        let now = Instant::now();
        Lookback { late_ms: LOOKBACK_MS, late_at: now, long_at: now }
    }

    pub fn next_ms(&mut self, now: Instant) -> u64 {
        if now.duration_since(self.late_at) > LATENESS_REMEMBERED {
            self.late_at = now;
            self.late_ms = (self.late_ms / 2).max(LOOKBACK_MS);
        }
        if now.duration_since(self.long_at) >= LOOKBACK_LONG_EVERY {
            self.long_at = now;
            return LOOKBACK_LONG_MS;
        }
        self.late_ms
    }

    pub fn saw_late(&mut self, late_ms: u64) {
        if late_ms <= LOOKBACK_LONG_MS && late_ms * 2 > self.late_ms {
            self.late_ms = (late_ms * 2).min(LOOKBACK_LONG_MS);
            self.late_at = Instant::now();
        }
    }
}
