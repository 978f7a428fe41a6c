//! Answers kept in the process for less than a second: a node's target-side tallies, and the first
//! pages of popular incoming lists. Each is a whole answer, of one moment where the database gave it,
//! never a part that would be put together with others later; single edges are not kept at all, so
//! that a check of follow and block is of one moment. A read with a token asks nothing here.
//!
//! Many who ask for the same at once cause one read: the first reads, the others wait for it, and
//! not for long. Nothing here ever fails or holds up a read: what is not there is read, what finds
//! no room is not kept.
//!
//! What is pinned because it is hot (`guanxi_core::hot`) is read again behind its readers
//! (`refresher`): when its answer's life is over, they go on with it while one thread reads, up to
//! `PINNED_AGE_MAX`.

mod refresher;

pub use self::refresher::{RefresherParts, read_behind};

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::hot::{HotReads, ReadKey, What};
use guanxi_core::read::{ListQuery, Page};
use guanxi_core::signal::Signal;
use guanxi_core::snapshot::Direction;
use guanxi_model::page::Order;
use guanxi_model::{Error, KindId, NodeKey, State, TallyRow, TenantId};
use parking_lot::{Condvar, Mutex};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// How old an answer may be: within what instances promise each other about groups and settings.
const LIFE: Duration = Duration::from_millis(900);
/// How old an answer about what is pinned may be: beyond, a read waits for a fresh one.
pub const PINNED_AGE_MAX: Duration = Duration::from_secs(3);
/// How long one waits for another's read of the same, before reading alone.
const WAIT: Duration = Duration::from_millis(50);
const SHARDS: usize = 16;
/// Nodes whose tallies are kept: about 100 bytes each.
const TALLIES_MAX: usize = 64 * 1_024;
/// Pages are some kilobytes each.
const PAGES_MAX: usize = 4 * 1_024;
/// Answers about pinned keys that a shard keeps beyond its bound: a key has one for each set of
/// kinds, or size of a page, that is asked for.
const PINNED_BEYOND_MAX: usize = 256;
/// A list with fewer edges is read too seldom for its page to be met again.
const POPULAR_TOTAL_MIN: i64 = 1_000;

/// Target-side tallies of a node: of these kinds alone, or of all where there are none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TalliesKey {
    pub node: NodeKey,
    pub kinds: Box<[KindId]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PageKey {
    tenant: TenantId,
    kind: KindId,
    target: u64,
    state: State,
    limit: usize,
}

/// What the reads of an answer are noted by.
trait Noted {
    fn hot_key(&self) -> ReadKey;
}

impl Noted for TalliesKey {
    fn hot_key(&self) -> ReadKey {
        let NodeKey { tenant, node_type, id } = self.node;
        ReadKey { tenant, what: What::Tallies(node_type), id }
    }
}

impl Noted for PageKey {
    fn hot_key(&self) -> ReadKey {
        ReadKey { tenant: self.tenant, what: What::Incoming(self.kind), id: self.target }
    }
}

#[derive(Debug)]
pub struct ReadCache {
    tallies: Flights<TalliesKey, TallyRow>,
    pages: Flights<PageKey, Arc<Page>>,
    bell: Signal,
}

impl Default for ReadCache {
    fn default() -> ReadCache {
        ReadCache::new(Arc::default())
    }
}

impl ReadCache {
    /// Keeps what is pinned there, too.
    pub fn new(hot: Arc<HotReads>) -> ReadCache {
        let bell = Signal::default();
        ReadCache {
            tallies: Flights::new(TALLIES_MAX, hot.clone(), bell.clone()),
            pages: Flights::new(PAGES_MAX, hot, bell.clone()),
            bell,
        }
    }

    /// A page, kept if it is the first of a popular or pinned incoming list. `read` must be of one
    /// moment and of a reader without a token.
    pub fn page(
        &self,
        query: &ListQuery,
        read: impl FnOnce() -> Result<Page, Error>,
    ) -> Result<Page, Error> {
        let Some(key) = page_key(query) else {
            return read();
        };
        let popular = |page: &Arc<Page>| self.is_popular(&key, page);
        self.pages.get(key, popular, || read().map(Arc::new)).map(Arc::unwrap_or_clone)
    }

    fn is_popular(&self, key: &PageKey, page: &Page) -> bool {
        let popular = page.total.is_some_and(|total| total >= POPULAR_TOTAL_MIN);
        popular || self.pages.is_pinned(key)
    }

    /// Keeps a page that Redis gave, by the same rule; its age counts from before the question.
    pub(super) fn keep_page(&self, query: &ListQuery, page: &Page, asked: Instant) {
        if let Some(key) = page_key(query).filter(|key| self.is_popular(key, page)) {
            self.pages.keep(key, Arc::new(page.clone()), asked);
        }
    }

    /// The page, if it is kept.
    pub(super) fn kept_page(&self, query: &ListQuery) -> Option<Page> {
        self.pages.known(&page_key(query)?).map(Arc::unwrap_or_clone)
    }

    /// What is known of these, in their order; for the others the caller has the right to read
    /// (`Claimed::Mine`), or has waited for another's read in vain (`Claimed::Alone`).
    pub(super) fn tallies(&self, keys: Vec<TalliesKey>) -> Vec<Claimed<'_, TalliesKey, TallyRow>> {
        // All rights are taken before anything is waited for, so that two never wait for each
        // other's: whoever waits has not begun to read, and does not wait for long.
        let claims: Vec<_> = keys.into_iter().map(|key| self.tallies.claim(key)).collect();
        let mut mine = false;
        for claim in &claims {
            mine |= matches!(claim, Claimed::Mine(_));
        }
        let settle = |claim| match claim {
            // What must be read anyway waits for nobody.
            Claimed::Others(_) if mine => Claimed::Alone,
            Claimed::Others(key) => self.tallies.wait(&key).map_or(Claimed::Alone, Claimed::Known),
            other => other,
        };
        claims.into_iter().map(settle).collect()
    }

    /// What is known of this one, without the right to read what is not.
    pub(super) fn kept_tallies(&self, key: &TalliesKey) -> Option<TallyRow> {
        self.tallies.known(key)
    }

    /// Keeps what Redis said; its age counts from before the question.
    pub(super) fn keep_tallies(&self, key: TalliesKey, row: &TallyRow, asked: Instant) {
        self.tallies.keep(key, row.clone(), asked);
    }
}

fn page_key(query: &ListQuery) -> Option<PageKey> {
    let first = query.cursor.is_none() && query.page.is_none();
    let whole = query.since.is_none() && query.until.is_none() && query.group.is_none();
    let newest = query.direction == Direction::Incoming && query.order == Order::Newest;
    // Whether an item is mutual is a single edge's word.
    (first && whole && newest && !query.mutual).then_some(PageKey {
        tenant: query.tenant,
        kind: query.kind.id,
        target: query.id,
        state: query.state,
        limit: query.limit,
    })
}

/// Answers by key, each read by one at a time.
#[derive(Debug)]
struct Flights<K, V> {
    shards: Vec<CacheShard<K, V>>,
    shard_max: usize,
    hot: Arc<HotReads>,
    /// Pinned keys whose answer is to be read again.
    stale: Mutex<Vec<K>>,
    bell: Signal,
}

#[derive(Debug)]
struct CacheShard<K, V> {
    cells: Mutex<FxHashMap<K, CacheCell<V>>>,
    landed: Condvar,
}

#[derive(Debug)]
enum CacheCell<V> {
    Known {
        value: V,
        at: Instant,
        /// Whether it is to be read again behind its readers.
        asked: bool,
    },
    /// Someone reads it since then.
    Flying { since: Instant },
}

impl<V> CacheCell<V> {
    fn is_over(&self, pinned: impl FnOnce() -> bool) -> bool {
        match self {
            CacheCell::Known { at, .. } => {
                let age = at.elapsed();
                age >= LIFE && (age >= PINNED_AGE_MAX || !pinned())
            }
            // Whoever reads for so long is not waited for any more.
            CacheCell::Flying { since } => since.elapsed() >= WAIT,
        }
    }
}

/// What a key's cell says to one who asks.
#[derive(Debug)]
pub(super) enum Claimed<'a, K: Clone + Eq + Hash, V: Clone> {
    Known(V),
    /// The asker reads, and tells by it.
    Mine(Flight<'a, K, V>),
    /// Someone else reads.
    Others(K),
    /// The asker reads for itself alone.
    Alone,
}

/// The right to read a key for all who ask meanwhile; without a word in the end, they read alone.
#[derive(Debug)]
pub(super) struct Flight<'a, K: Clone + Eq + Hash, V: Clone> {
    shard: &'a CacheShard<K, V>,
    key: Option<K>,
    begun: Instant,
}

impl<K: Noted + Clone + Eq + Hash, V: Clone> Flights<K, V> {
    fn new(entries_max: usize, hot: Arc<HotReads>, bell: Signal) -> Flights<K, V> {
        let shard = || CacheShard { cells: Mutex::default(), landed: Condvar::new() };
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        let shard_max = entries_max.div_ceil(SHARDS);
        Flights { shards, shard_max, hot, stale: Mutex::default(), bell }
    }

    fn is_pinned(&self, key: &K) -> bool {
        self.hot.is_pinned(&key.hot_key())
    }

    /// What stands for the key. The first who finds its life over has it read again behind all.
    fn standing(&self, cells: &mut FxHashMap<K, CacheCell<V>>, key: &K) -> Option<V> {
        let Some(CacheCell::Known { value, at, asked }) = cells.get_mut(key) else {
            return None;
        };
        let age = at.elapsed();
        if age >= LIFE {
            if age >= PINNED_AGE_MAX || !self.is_pinned(key) {
                return None;
            }
            if !std::mem::replace(asked, true) {
                self.stale.lock().push(key.clone());
                self.bell.wake();
            }
        }
        Some(value.clone())
    }

    /// What is to be read again.
    fn take_stale(&self) -> Vec<K> {
        std::mem::take(&mut *self.stale.lock())
    }

    /// Puts what was read behind in the place of what is older; without an answer, the next reader
    /// asks again.
    fn renew(&self, key: &K, value: Option<V>, begun: Instant) {
        let mut cells = self.shard(key).cells.lock();
        if let Some(CacheCell::Known { value: old, at, asked }) = cells.get_mut(key) {
            *asked = false;
            if let Some(value) = value.filter(|_| *at < begun) {
                (*old, *at) = (value, begun);
            }
        }
    }

    fn get<E>(
        &self,
        key: K,
        keeps: impl FnOnce(&V) -> bool,
        read: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let flight = match self.claim(key) {
            Claimed::Known(value) => return Ok(value),
            Claimed::Mine(flight) => Some(flight),
            Claimed::Alone => None,
            Claimed::Others(key) => match self.wait(&key) {
                Some(value) => return Ok(value),
                None => None,
            },
        };
        let value = read()?;
        if let Some(flight) = flight.filter(|_| keeps(&value)) {
            flight.land(value.clone());
        }
        Ok(value)
    }

    /// Keeps a value, unless it is there or being read.
    fn keep(&self, key: K, value: V, at: Instant) {
        let mut cells = self.shard(&key).cells.lock();
        if cells.get(&key).is_some_and(|cell| !cell.is_over(|| self.is_pinned(&key))) {
            return;
        }
        if cells.len() >= self.shard_max {
            cells.retain(|key, cell| !cell.is_over(|| self.is_pinned(key)));
        }
        if cells.len() < self.shard_max {
            cells.insert(key, CacheCell::Known { value, at, asked: false });
        }
    }

    fn claim(&self, key: K) -> Claimed<'_, K, V> {
        let shard = self.shard(&key);
        let mut cells = shard.cells.lock();
        if let Some(value) = self.standing(&mut cells, &key) {
            return Claimed::Known(value);
        }
        if matches!(cells.get(&key), Some(CacheCell::Flying { since }) if since.elapsed() < WAIT) {
            return Claimed::Others(key);
        }
        let is_new = !cells.contains_key(&key);
        if is_new && cells.len() >= self.shard_max {
            cells.retain(|key, cell| !cell.is_over(|| self.is_pinned(key)));
        }
        if is_new && cells.len() >= self.shard_max {
            let beyond = if self.is_pinned(&key) { PINNED_BEYOND_MAX } else { 0 };
            if cells.len() >= self.shard_max + beyond {
                return Claimed::Alone;
            }
        }
        let begun = Instant::now();
        cells.insert(key.clone(), CacheCell::Flying { since: begun });
        Claimed::Mine(Flight { shard, key: Some(key), begun })
    }

    fn known(&self, key: &K) -> Option<V> {
        self.standing(&mut self.shard(key).cells.lock(), key)
    }

    /// The answer of whoever reads it, if it comes in time.
    fn wait(&self, key: &K) -> Option<V> {
        let shard = self.shard(key);
        let until = Instant::now() + WAIT;
        let mut cells = shard.cells.lock();
        loop {
            if let Some(value) = self.standing(&mut cells, key) {
                return Some(value);
            }
            match cells.get(key) {
                Some(CacheCell::Flying { since }) if since.elapsed() < WAIT => {}
                _ => return None,
            }
            let left = until.checked_duration_since(Instant::now())?;
            shard.landed.wait_for(&mut cells, left);
        }
    }

    fn shard(&self, key: &K) -> &CacheShard<K, V> {
        // The high bits: the map of a shard uses the low ones.
        let hash = FxBuildHasher.hash_one(key) >> 32;
        &self.shards[hash as usize % SHARDS]
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Flight<'_, K, V> {
    pub fn key(&self) -> Option<&K> {
        self.key.as_ref()
    }

    /// Says what was read. Its age counts from before the read.
    pub fn land(mut self, value: V) {
        if let Some(key) = self.key.take() {
            let mut cells = self.shard.cells.lock();
            // Another may have begun since, and would say something newer.
            if matches!(cells.get(&key), Some(CacheCell::Flying { since }) if *since == self.begun)
            {
                cells.insert(key, CacheCell::Known { value, at: self.begun, asked: false });
            }
            self.shard.landed.notify_all();
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Drop for Flight<'_, K, V> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let mut cells = self.shard.cells.lock();
            if matches!(cells.get(&key), Some(CacheCell::Flying { since }) if *since == self.begun)
            {
                cells.remove(&key);
            }
            self.shard.landed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
