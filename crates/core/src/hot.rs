//! Hot keys: what is read most. Every read notes what it reads; a sketch of fixed size keeps the
//! keys that are noted often and how often (`sketch`), and what other instances of a cluster have
//! noted is added to it (`shared`). A key that is hot over all of them is pinned for a while
//! (`pins`): a cluster's instance then keeps its answers at hand.
//!
//! To note a key costs a random number; one in `SAMPLED_ONE_IN` is counted, for all of them. Nothing
//! here fails, waits or grows.

mod pins;
mod shared;
mod sketch;

pub use self::pins::{HOT_PER_SECOND, PINNED_KEYS_MAX, PINNED_MS};
pub use self::shared::{SHARED_KEYS_MAX, decode, encode};
pub use self::sketch::{HotSketch, KEYS_MAX};

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guanxi_model::{KindId, NodeTypeId, TenantId};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxBuildHasher, FxHashMap};
use rustix::time::{ClockId, clock_gettime};

use self::pins::Pins;

/// One note in so many is counted, with their weight. They are chosen by chance: every eighth would
/// be the same key again and again where requests are alike.
const SAMPLED_ONE_IN: u8 = 8;
/// Counts of different keys are behind different locks.
const SHARDS: usize = 8;

/// Something that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadKey {
    pub tenant: TenantId,
    pub what: What,
    pub id: u64,
}

/// What is read of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// Tallies of a node of this type.
    Tallies(NodeTypeId),
    /// Who relates to it.
    Incoming(KindId),
    /// Whom it relates to.
    Outgoing(KindId),
    /// Whether a node of this type relates to others.
    Checks(NodeTypeId),
}

/// Keys and how often a second each is read.
pub type Rates = Vec<(ReadKey, f64)>;

/// A key and how often it is read, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotRead {
    pub key: ReadKey,
    /// Over all instances.
    pub per_second: f64,
    pub pinned: bool,
}

/// What is read most, in this process and in those that it hears of.
#[derive(Debug)]
pub struct HotReads {
    shards: Vec<Mutex<HotSketch>>,
    /// What each of the other instances said last.
    others: Mutex<Vec<Rates>>,
    pins: RwLock<Arc<Pins>>,
    /// Mostly nothing is pinned, and then nobody needs to look.
    some_pinned: AtomicBool,
}

impl Default for HotReads {
    fn default() -> HotReads {
        let shards = std::iter::repeat_with(Mutex::<HotSketch>::default).take(SHARDS);
        HotReads {
            shards: shards.collect(),
            others: Mutex::default(),
            pins: RwLock::default(),
            some_pinned: AtomicBool::new(false),
        }
    }
}

impl HotReads {
    /// Notes a read of the key.
    pub fn note(&self, key: ReadKey) {
        if fastrand::u8(..).is_multiple_of(SAMPLED_ONE_IN) {
            self.count(key, f64::from(SAMPLED_ONE_IN));
        }
    }

    fn count(&self, key: ReadKey, weight: f64) {
        // The high bits: the map of a shard uses the low ones.
        let hash = FxBuildHasher.hash_one(key) >> 32;
        let mut sketch = self.shards[hash as usize % SHARDS].lock();
        sketch.add(key, weight, now_ms());
    }

    /// What this process reads most, the most first.
    pub fn own(&self, keys_max: usize) -> Rates {
        let now_ms = now_ms();
        let shards = self.shards.iter();
        let mut own: Vec<_> = shards.flat_map(|shard| shard.lock().rates(now_ms)).collect();
        own.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
        own.truncate(keys_max);
        own
    }

    /// What the other instances read most, in place of what was heard of them before.
    pub fn hear(&self, others: Vec<Rates>) {
        *self.others.lock() = others;
    }

    /// How many instances the numbers are of.
    pub fn instances(&self) -> usize {
        1 + self.others.lock().len()
    }

    /// Pins what is hot now, and lets go what has not been for a while.
    pub fn turn(&self) {
        let rates = self.rates();
        let mut pins = self.pins.write();
        let turned = pins.turned(now_ms(), &rates);
        self.some_pinned.store(!turned.is_empty(), Ordering::Relaxed);
        *pins = Arc::new(turned);
    }

    pub fn is_pinned(&self, key: &ReadKey) -> bool {
        let pins = || self.pins.read();
        self.some_pinned.load(Ordering::Relaxed) && pins().contains(key)
    }

    pub fn pinned(&self) -> usize {
        self.pins().len()
    }

    /// What a tenant reads most, the most first.
    pub fn hottest(&self, tenant: TenantId, keys_max: usize) -> Vec<HotRead> {
        let pins = self.pins();
        let rates = self.rates().into_iter().filter(|(key, _)| key.tenant == tenant);
        let hot = |(key, per_second)| HotRead { key, per_second, pinned: pins.contains(&key) };
        let mut hottest: Vec<HotRead> = rates.map(hot).collect();
        hottest
            .sort_unstable_by(|a, b| b.per_second.total_cmp(&a.per_second).then(a.key.cmp(&b.key)));
        hottest.truncate(keys_max);
        hottest
    }

    /// Reads a second of each key over all instances.
    fn rates(&self) -> Rates {
        let own = self.own(usize::MAX);
        let others = self.others.lock();
        if others.is_empty() {
            return own;
        }
        let mut sums: FxHashMap<ReadKey, f64> = own.into_iter().collect();
        for (key, rate) in others.iter().flatten() {
            *sums.entry(*key).or_default() += rate;
        }
        sums.into_iter().collect()
    }

    fn pins(&self) -> Arc<Pins> {
        self.pins.read().clone()
    }
}

/// Milliseconds of a clock that is cheap to read, and exact to a few.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId::DEFAULT;

    fn list(id: u64) -> ReadKey {
        ReadKey { tenant: TENANT, what: What::Incoming(KindId(1)), id }
    }

    #[test]
    fn what_is_hot_only_in_sum_is_pinned() {
        let hot = HotReads::default();
        hot.hear(vec![vec![(list(1), HOT_PER_SECOND * 0.6), (list(2), HOT_PER_SECOND * 0.6)]; 1]);
        hot.turn();
        assert_eq!((hot.pinned(), hot.instances()), (0, 2));
        hot.hear(vec![vec![(list(1), HOT_PER_SECOND * 0.6)]; 2]);
        hot.turn();
        assert!(hot.is_pinned(&list(1)) && !hot.is_pinned(&list(2)));
        let hottest = hot.hottest(TENANT, 10);
        assert_eq!(hottest[0].key, list(1));
        assert!(hottest[0].pinned);
        assert_eq!(hot.hottest(TenantId(9), 10), []);
        // Those that went are not counted, and what was pinned stays so.
        hot.hear(Vec::new());
        hot.turn();
        assert_eq!((hot.pinned(), hot.instances()), (1, 1));
    }

    #[test]
    fn a_sample_tells_what_is_read_most() {
        let hot = HotReads::default();
        for round in 0..100_000 {
            hot.note(list(1));
            hot.note(list(2 + round % 5_000));
            hot.note(list(20_000 + round));
        }
        let hottest = hot.hottest(TENANT, 3);
        assert_eq!(hottest[0].key, list(1), "{hottest:?}");
        assert!(hottest[0].per_second > 100.0 * hottest[1].per_second, "{hottest:?}");
    }

    /// What a note costs; run it by name with `--ignored --nocapture` on an optimised build.
    #[test]
    #[ignore = "it measures"]
    fn cost() {
        const NOTES: u64 = 20_000_000;
        for (name, ids) in [("one key", 1), ("a thousand keys", 1_000), ("all different", NOTES)] {
            for threads in [1_u64, 2] {
                let hot = HotReads::default();
                // Of the processor: others may run beside.
                let spent = || clock_gettime(ClockId::ProcessCPUTime);
                let begun = spent();
                std::thread::scope(|scope| {
                    for _ in 0..threads {
                        scope.spawn(|| (0..NOTES).for_each(|n| hot.note(list(1 + n % ids))));
                    }
                });
                let (ended, notes) = (spent(), (NOTES * threads) as f64);
                let spent_s = (ended.tv_sec - begun.tv_sec) as f64;
                let each = (spent_s * 1e9 + (ended.tv_nsec - begun.tv_nsec) as f64) / notes;
                println!("{name}, {threads} threads: {each:.1} ns a note");
            }
        }
    }
}
