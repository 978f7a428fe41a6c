//! The filter of edges: bits in memory by which most questions about an edge end with "surely
//! not". Bits are only ever set, so "surely not" is right at any moment for which the filter had
//! every row; who keeps it so is `keyed`'s and the keeper's affair.
//!
//! All kinds of a source and target share a block, which is a line of the processor's cache: a
//! like and a favourite of one post are one look into memory.

use std::sync::atomic::{AtomicU64, Ordering};

use guanxi_model::hash::seeded_hash64;
use guanxi_model::{EdgeKey, KindId};

use super::mixed;

const BLOCK_WORDS: usize = 8;
const BLOCK_BYTES: u64 = 64;
const WORD_BITS: u32 = 64;
/// Bits that an edge sets in its block: six of nine bits each fit one hash.
const BITS_SET: u32 = 6;
const PLACE_BITS: u32 = 9;
/// Bits a filter has for each edge that it is meant for. With six set, 0.6 % of the questions about
/// edges that are not there get "maybe" when it is full, 1 % where pairs have three kinds each.
const BITS_PER_EDGE: u64 = 12;
const BLOCK_BITS: u64 = BLOCK_BYTES * 8;
/// Odd, so that each kind's number gives another summand.
const KIND_STRIDE: u64 = 0xd1b5_4a32_d192_ed03;

/// How a block and the places in it are found; told apart in files.
pub(super) const HASHING: u8 = 1;

#[derive(Default)]
#[repr(align(64))]
struct Block([AtomicU64; BLOCK_WORDS]);

pub struct EdgeFilter {
    blocks: Box<[Block]>,
    /// Different edges that were added, but for the few that met only bits that stood already.
    added: AtomicU64,
    /// Removals since. What is removed keeps its bits until the filter is made anew.
    removed: AtomicU64,
}

impl std::fmt::Debug for EdgeFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeFilter").field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}

/// Where an edge stands.
#[derive(Clone, Copy)]
struct Spot {
    block: usize,
    places: u64,
}

impl Spot {
    /// Its words and the bit of each.
    fn bits(self) -> impl Iterator<Item = (usize, u64)> {
        (0..BITS_SET).map(move |number| {
            let place = (self.places >> (number * PLACE_BITS)) as u32;
            let word = (place / WORD_BITS) as usize % BLOCK_WORDS;
            (word, 1 << (place % WORD_BITS))
        })
    }
}

impl EdgeFilter {
    /// For so many edges, and no larger than that.
    pub fn for_edges(edges: u64, bytes_max: u64) -> EdgeFilter {
        EdgeFilter::of_blocks(EdgeFilter::blocks_for(edges, bytes_max))
    }

    pub fn blocks_for(edges: u64, bytes_max: u64) -> u64 {
        let wanted = edges.saturating_mul(BITS_PER_EDGE).div_ceil(BLOCK_BITS);
        wanted.clamp(1, (bytes_max / BLOCK_BYTES).max(1))
    }

    pub fn of_blocks(blocks: u64) -> EdgeFilter {
        let blocks = std::iter::repeat_with(Block::default).take(blocks as usize).collect();
        EdgeFilter { blocks, added: AtomicU64::new(0), removed: AtomicU64::new(0) }
    }

    fn spot(&self, edge: &EdgeKey) -> Spot {
        let mut ends = [0; 16];
        ends[..8].copy_from_slice(&edge.source.0.to_be_bytes());
        ends[8..].copy_from_slice(&edge.target.0.to_be_bytes());
        let pair = seeded_hash64(&ends, u64::from(edge.tenant.0));
        // The high bits say the block, and any number of blocks will do.
        let block = (u128::from(pair) * self.blocks.len() as u128) >> 64;
        Spot { block: block as usize, places: places(pair, edge.kind) }
    }

    /// False is "surely not".
    #[inline]
    pub fn may_hold(&self, edge: &EdgeKey) -> bool {
        let spot = self.spot(edge);
        let Block(words) = &self.blocks[spot.block];
        spot.bits().all(|(word, bit)| words[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// Whoever is to find the edge must learn of this call, as by the moment that follows it.
    pub fn add(&self, edge: &EdgeKey) {
        let spot = self.spot(edge);
        let Block(words) = &self.blocks[spot.block];
        let mut new = false;
        for (word, bit) in spot.bits() {
            // Mostly not written, so that the line stays in other processors' caches.
            if words[word].load(Ordering::Relaxed) & bit == 0 {
                words[word].fetch_or(bit, Ordering::Relaxed);
                new = true;
            }
        }
        if new {
            self.added.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn note_removal(&self) {
        self.removed.fetch_add(1, Ordering::Relaxed);
    }

    pub fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    pub fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// Edges that it is meant for.
    pub fn capacity(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BITS / BITS_PER_EDGE
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.blocks() * BLOCK_BYTES
    }

    /// Its words from one on, as they are now.
    pub fn read_words(&self, from: usize, words: &mut [u64]) {
        for (at, word) in words.iter_mut().enumerate() {
            let Block(block) = &self.blocks[(from + at) / BLOCK_WORDS];
            *word = block[(from + at) % BLOCK_WORDS].load(Ordering::Relaxed);
        }
    }

    /// Sets bits that were read once.
    pub fn join_words(&self, from: usize, words: &[u64]) {
        for (at, word) in words.iter().enumerate() {
            let Block(block) = &self.blocks[(from + at) / BLOCK_WORDS];
            block[(from + at) % BLOCK_WORDS].fetch_or(*word, Ordering::Relaxed);
        }
    }

    /// The counts of the filter whose words were read.
    pub fn count_as(&self, added: u64, removed: u64) {
        self.added.store(added, Ordering::Relaxed);
        self.removed.store(removed, Ordering::Relaxed);
    }

    pub fn words(&self) -> usize {
        self.blocks.len() * BLOCK_WORDS
    }
}

/// Six places of the block, in the low 54 bits.
fn places(pair: u64, kind: KindId) -> u64 {
    mixed(pair.wrapping_add(KIND_STRIDE.wrapping_mul(u64::from(kind.0))))
}

#[cfg(test)]
mod tests {
    use guanxi_model::{SourceId, TargetId, TenantId};

    use super::*;

    fn edge(source: u64, target: u64, kind: u16) -> EdgeKey {
        EdgeKey {
            tenant: TenantId::DEFAULT,
            kind: KindId(kind),
            source: SourceId(source),
            target: TargetId(target),
        }
    }

    /// The share of "maybe" among edges that are not there, with a filter as full as it may get.
    fn false_positives(kinds: u16, id: impl Fn(u64) -> u64) -> f64 {
        const EDGES: u64 = 600_000;
        let filter = EdgeFilter::for_edges(EDGES, u64::MAX);
        let pairs = EDGES / u64::from(kinds);
        for pair in 0..pairs {
            (0..kinds).for_each(|kind| filter.add(&edge(id(pair % 20_000), id(pair / 7), kind)));
        }
        for pair in 0..pairs {
            assert!(filter.may_hold(&edge(id(pair % 20_000), id(pair / 7), 0)));
        }
        let asked = (0..1_000_000u64).map(|n| edge(id(n % 20_000), id(pairs + n), n as u16 % 3));
        asked.filter(|edge| filter.may_hold(edge)).count() as f64 / 1_000_000.0
    }

    #[test]
    fn few_edges_that_are_not_there_get_maybe() {
        let plain = |n| n + 1;
        let long = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 60;
        for kinds in 1..=3 {
            for rate in [false_positives(kinds, plain), false_positives(kinds, long)] {
                assert!(rate <= 0.010, "{kinds} kinds: {:.3} %", 100.0 * rate);
                assert!(rate >= 0.002, "{kinds} kinds: {:.3} % is too good", 100.0 * rate);
            }
        }
    }

    #[test]
    fn different_edges_are_counted_once() {
        let filter = EdgeFilter::for_edges(100_000, u64::MAX);
        for round in 0..2 {
            (0..100_000).for_each(|n| filter.add(&edge(n, n * 3, 1)));
            let added = filter.added();
            assert!((99_000..=100_000).contains(&added), "round {round}: {added}");
        }
        assert!(filter.capacity() >= 100_000);
    }

    #[test]
    fn it_is_no_larger_than_it_may_be_and_stays_right() {
        let filter = EdgeFilter::for_edges(1_000_000, 64 * BLOCK_BYTES);
        assert_eq!(filter.bytes(), 64 * BLOCK_BYTES);
        (0..10_000).for_each(|n| filter.add(&edge(n, n, 1)));
        assert!((0..10_000).all(|n| filter.may_hold(&edge(n, n, 1))));
        assert_eq!(EdgeFilter::for_edges(0, 0).blocks(), 1);
    }

    /// Files keep the bits, so where an edge stands never changes while `HASHING` is the same.
    #[test]
    fn an_edge_stands_where_it_always_stood() {
        let filter = EdgeFilter::of_blocks(1_000);
        let places = |edge: EdgeKey| {
            let spot = filter.spot(&edge);
            (spot.block, spot.places & ((1 << (BITS_SET * PLACE_BITS)) - 1))
        };
        let found = [edge(1, 2, 3), edge(u64::MAX, 1 << 60, 1_000)].map(places);
        assert_eq!(found, [(382, 3_262_243_901_964_428), (73, 5_684_518_812_641_775)]);
    }

    #[test]
    fn its_words_make_another() {
        let filter = EdgeFilter::of_blocks(10);
        (0..50).for_each(|n| filter.add(&edge(n, n, 1)));
        let mut words = vec![0; filter.words()];
        filter.read_words(0, &mut words[..33]);
        filter.read_words(33, &mut words[33..]);
        let other = EdgeFilter::of_blocks(10);
        other.join_words(0, &words[..7]);
        other.join_words(7, &words[7..]);
        other.count_as(filter.added(), filter.removed());
        assert!((0..50).all(|n| other.may_hold(&edge(n, n, 1))));
        assert_eq!(other.added(), filter.added());
    }
}
