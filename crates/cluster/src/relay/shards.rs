//! What the relay knows of each shard: from where to read next, when it was last swept, what is
//! on its way, and which barriers wait for what. It does no I/O.
//!
//! Rows appear in the order of their commits, not of their versions. A scan begins a little before
//! the time of the last one, which finds all but stragglers; a sweep begins at the shard's start
//! and finds them too. Reading from the start each time would be simpler, but a database keeps
//! deleted rows for a while and steps over each.

use guanxi_model::{BarrierId, Millis, Version};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::outbox::OutboxKey;

/// How far before the last scan's time a scan begins: commits that take this long are usual.
const LOOKBACK_MS: u64 = 150;
/// Now and then a scan begins further back: clocks may differ by two seconds.
const LOOKBACK_LONG_MS: u64 = 4_000;
const LOOKBACK_LONG_EVERY: Duration = Duration::from_millis(500);
/// And, more rarely, as far back as a transaction can be slow, with much to spare.
const LOOKBACK_WIDE_MS: u64 = 60_000;
const LOOKBACK_WIDE_EVERY: Duration = Duration::from_secs(5);
/// How long a straggler's lateness is remembered: clocks that differ stay so.
const LATENESS_REMEMBERED: Duration = Duration::from_secs(60);
/// How often a shard is swept; rarely, as some databases keep deleted rows for ten minutes.
const SWEEP_EVERY: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct OutboxShard {
    number: u8,
    owned: bool,
    /// From where to read on, after a scan that did not reach the end.
    resume: Option<Version>,
    /// Whether rows wait that were not read.
    behind: bool,
    /// The database's time of the first of those scans.
    resumed_ms: Option<u64>,
    /// The database's time when the last reading that reached the end began.
    drained_ms: u64,
    swept: Instant,
    /// The number of the scan with which the present sweep began.
    sweeping: Option<u64>,
    inherited: Inherited,
    /// Tickets of its rows that are known and not yet in the log.
    on_way: BTreeSet<u64>,
    barriers: Vec<Barrier>,
}

/// What stood in the shard when it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inherited {
    /// The first sweep is not over.
    Unread,
    /// It was.
    Read,
    /// All of it was given to the courier, or cannot be.
    Sent,
}

#[derive(Debug)]
struct Barrier {
    id: BarrierId,
    key: OutboxKey,
    stage: BarrierStage,
}

#[derive(Debug, Clone, Copy)]
enum BarrierStage {
    /// Read by this scan; needs a sweep that begins later.
    Read(u64),
    /// Swept: everything that must precede it has a ticket up to this one.
    Swept(u64),
}

impl OutboxShard {
    pub fn new(number: u8) -> OutboxShard {
        OutboxShard {
            number,
            owned: false,
            resume: None,
            behind: false,
            resumed_ms: None,
            drained_ms: 0,
            swept: Instant::now(),
            sweeping: None,
            inherited: Inherited::Unread,
            on_way: BTreeSet::new(),
            barriers: Vec::new(),
        }
    }

    pub fn is_owned(&self) -> bool {
        self.owned
    }

    pub fn is_behind(&self) -> bool {
        self.owned && self.behind
    }

    /// A new owner reads from the start. Sweeps of shards taken together spread by themselves.
    pub fn own(&mut self, scan: u64) {
        self.owned = true;
        self.inherited = Inherited::Unread;
        self.begin_sweep(scan);
    }

    /// Returns the barriers that were held back, which are no longer ours to send.
    pub fn disown(&mut self) -> Vec<OutboxKey> {
        self.owned = false;
        self.barriers.drain(..).map(|barrier| barrier.key).collect()
    }

    /// Begins a sweep if it is time, or if a barrier needs one.
    pub fn prepare(&mut self, scan: u64, now: Instant) {
        // Spread, so that not all shards are swept by one scan.
        let spread = SWEEP_EVERY / 64 * u32::from(self.number);
        let due = now.duration_since(self.swept) >= SWEEP_EVERY + spread;
        if self.sweeping.is_none() && (due || self.wants_sweep()) {
            self.begin_sweep(scan);
        }
    }

    fn begin_sweep(&mut self, scan: u64) {
        self.sweeping = Some(scan);
        self.resume = Some(Version::ZERO);
    }

    /// The version from which the next scan reads.
    pub fn from(&self, lookback_ms: u64) -> Version {
        let recent = Millis(self.drained_ms.saturating_sub(lookback_ms));
        self.resume.unwrap_or(Version::at(recent))
    }

    /// A scan has read all there was.
    pub fn drained(&mut self, scan: u64, now_ms: u64, last_ticket: u64) {
        self.resume = None;
        self.behind = false;
        self.drained_ms = self.resumed_ms.take().unwrap_or(now_ms);
        if let Some(began) = self.sweeping.take() {
            debug_assert!(began <= scan);
            self.swept = Instant::now();
            if self.inherited == Inherited::Unread {
                self.inherited = Inherited::Read;
            }
            for barrier in &mut self.barriers {
                if matches!(barrier.stage, BarrierStage::Read(read) if read < began) {
                    barrier.stage = BarrierStage::Swept(last_ticket);
                }
            }
        }
    }

    /// Whether it still has to send what stood there when it was taken.
    pub fn is_young(&self) -> bool {
        self.owned && self.inherited != Inherited::Sent
    }

    /// Whether all of that was not read yet.
    pub fn is_unread(&self) -> bool {
        self.owned && self.inherited == Inherited::Unread
    }

    /// All that stood there when it was taken is with the courier.
    pub fn grow_up(&mut self) {
        self.inherited = Inherited::Sent;
    }

    /// Some of it was not sent after all.
    pub fn send_again(&mut self) {
        if self.inherited == Inherited::Sent {
            self.inherited = Inherited::Read;
        }
    }

    /// A scan was cut off after this version.
    pub fn cut(&mut self, version: Version, now_ms: u64) {
        self.resume = Some(version);
        self.behind = true;
        self.resumed_ms.get_or_insert(now_ms);
    }

    /// How far behind the last scan's time this row is: what a lookback must cover.
    pub fn lateness_ms(&self, key: &OutboxKey) -> u64 {
        self.drained_ms.saturating_sub(key.version.time().0)
    }

    /// A row of this shard is known; no barrier that must follow it goes before it is in the log.
    pub fn takes(&mut self, ticket: u64) {
        self.on_way.insert(ticket);
    }

    /// The row is in the log, or no longer ours to send.
    pub fn is_done(&mut self, ticket: u64) {
        self.on_way.remove(&ticket);
    }

    pub fn hold_barrier(&mut self, id: BarrierId, key: OutboxKey, scan: u64) {
        self.barriers.push(Barrier { id, key, stage: BarrierStage::Read(scan) });
    }

    /// The barriers that are held back, and whether each may go now.
    pub fn barriers(&self) -> impl Iterator<Item = (BarrierId, bool)> {
        let first_on_way = self.on_way.first().copied().unwrap_or(u64::MAX);
        self.barriers.iter().map(move |barrier| {
            let ready = matches!(barrier.stage, BarrierStage::Swept(last) if first_on_way > last);
            (barrier.id, ready)
        })
    }

    /// Takes the rows of a barrier that goes.
    pub fn release_barrier(&mut self, id: BarrierId) -> Vec<OutboxKey> {
        let released = self.barriers.extract_if(.., |barrier| barrier.id == id);
        released.map(|barrier| barrier.key).collect()
    }

    /// Whether a barrier waits for a sweep.
    pub fn wants_sweep(&self) -> bool {
        self.barriers.iter().any(|barrier| matches!(barrier.stage, BarrierStage::Read(_)))
    }
}

/// How far back scans look: as far as stragglers were late of late.
#[derive(Debug)]
pub struct Lookback {
    late_ms: u64,
    late_at: Instant,
    long_at: Instant,
    wide_at: Instant,
}

impl Lookback {
    pub fn new() -> Lookback {
        let now = Instant::now();
        Lookback { late_ms: LOOKBACK_MS, late_at: now, long_at: now, wide_at: now }
    }

    pub fn next_ms(&mut self, now: Instant) -> u64 {
        if now.duration_since(self.late_at) > LATENESS_REMEMBERED {
            self.late_at = now;
            self.late_ms = (self.late_ms / 2).max(LOOKBACK_MS);
        }
        if now.duration_since(self.wide_at) >= LOOKBACK_WIDE_EVERY {
            self.wide_at = now;
            return LOOKBACK_WIDE_MS;
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

#[cfg(test)]
mod tests {
    use super::*;

    const BARRIER: OutboxKey = OutboxKey { shard: 3, version: Version(9), id: 9 };

    /// The barriers that may go, which do.
    fn go(shard: &mut OutboxShard) -> usize {
        let ready: Vec<BarrierId> =
            shard.barriers().filter(|(_, ready)| *ready).map(|(id, _)| id).collect();
        ready.into_iter().map(|id| shard.release_barrier(id).len()).sum()
    }

    fn prepared(shard: &mut OutboxShard, scan: u64) -> Version {
        shard.prepare(scan, Instant::now());
        shard.from(LOOKBACK_MS)
    }

    /// A shard that was read to its end at this time.
    fn settled(now_ms: u64) -> OutboxShard {
        let mut shard = OutboxShard::new(3);
        shard.own(1);
        assert_eq!(prepared(&mut shard, 1), Version::ZERO, "a new owner reads from the start");
        shard.drained(1, now_ms, 0);
        shard
    }

    #[test]
    fn scans_look_a_little_back_and_read_on_where_they_were_cut() {
        let mut shard = settled(10_000);
        assert_eq!(prepared(&mut shard, 2), Version::at(Millis(10_000 - LOOKBACK_MS)));
        shard.cut(Version(77), 10_050);
        assert!(shard.is_behind());
        assert_eq!(prepared(&mut shard, 3), Version(77));
        shard.drained(3, 20_000, 0);
        // What was committed while the scans went on may lie before their end.
        assert_eq!(prepared(&mut shard, 4), Version::at(Millis(10_050 - LOOKBACK_MS)));
    }

    #[test]
    fn a_barrier_waits_for_a_sweep_begun_after_it_was_read_and_for_all_before_it() {
        let mut shard = settled(10_000);
        prepared(&mut shard, 2);
        shard.takes(5);
        shard.hold_barrier(BarrierId(9), BARRIER, 2);
        shard.drained(2, 10_000, 5);
        assert_eq!(go(&mut shard), 0, "not swept");
        assert_eq!(prepared(&mut shard, 3), Version::ZERO, "it asks for a sweep");
        shard.takes(6);
        shard.cut(Version(77), 10_000);
        prepared(&mut shard, 4);
        assert_eq!(go(&mut shard), 0, "half swept");
        shard.takes(7);
        shard.drained(4, 10_000, 7);
        shard.takes(8);
        for ticket in [5, 7] {
            shard.is_done(ticket);
            assert_eq!(go(&mut shard), 0, "6 is on its way");
        }
        shard.is_done(6);
        assert_eq!(go(&mut shard), 1, "8 came later");
        assert_eq!(go(&mut shard), 0);
    }

    #[test]
    fn a_barrier_that_failed_waits_for_another_sweep() {
        let mut shard = settled(10_000);
        shard.hold_barrier(BarrierId(9), BARRIER, 2);
        prepared(&mut shard, 3);
        shard.drained(3, 10_000, 1);
        assert_eq!(go(&mut shard), 1);
        shard.hold_barrier(BarrierId(9), BARRIER, 3);
        assert_eq!(go(&mut shard), 0);
        assert_eq!(prepared(&mut shard, 4), Version::ZERO);
        shard.drained(4, 10_000, 2);
        assert_eq!(go(&mut shard), 1);
    }

    #[test]
    fn a_lost_shard_gives_its_barriers_up() {
        let mut shard = settled(10_000);
        shard.hold_barrier(BarrierId(9), BARRIER, 2);
        assert_eq!(shard.disown().len(), 1);
        assert!(shard.barriers().next().is_none() && !shard.is_owned());
    }

    #[test]
    fn a_shard_is_young_until_what_its_first_sweep_found_is_sent() {
        let mut shard = OutboxShard::new(3);
        assert!(!shard.is_young(), "not held");
        shard.own(1);
        assert!(shard.is_unread(), "not swept");
        prepared(&mut shard, 1);
        shard.cut(Version(77), 10_000);
        assert!(shard.is_unread(), "half swept");
        shard.drained(2, 10_000, 5);
        assert!(!shard.is_unread() && shard.is_young());
        shard.grow_up();
        assert!(!shard.is_young());
        shard.send_again();
        assert!(shard.is_young() && !shard.is_unread());
        shard.grow_up();
        shard.disown();
        shard.own(3);
        assert!(shard.is_unread() && shard.is_young(), "it begins anew");
    }

    #[test]
    fn lookback_follows_the_latest_and_forgets() {
        let mut lookback = Lookback::new();
        let now = lookback.long_at;
        assert_eq!(lookback.next_ms(now), LOOKBACK_MS);
        lookback.saw_late(1_000);
        assert_eq!(lookback.next_ms(now), 2_000);
        lookback.saw_late(LOOKBACK_LONG_MS + 1);
        assert_eq!(lookback.next_ms(now), 2_000);
        assert_eq!(lookback.next_ms(now + LOOKBACK_LONG_EVERY), LOOKBACK_LONG_MS);
        assert_eq!(lookback.next_ms(now + LOOKBACK_WIDE_EVERY), LOOKBACK_WIDE_MS);
        let later = now + LATENESS_REMEMBERED * 2;
        lookback.next_ms(later);
        lookback.next_ms(later);
        assert!(lookback.next_ms(later) < 2_000);
    }
}
