//! Where an item stands: its place, its shard, its word and its bits. These never change their
//! meaning within a format; the vectors below hold them to it.

use crate::edge::{EdgeKey, SourceId, TargetId};
use crate::footprint::NO_KIND;
use crate::hash::hash64;
use crate::kind::KindId;
use crate::node::TenantId;

use super::geometry::{BITS_SET, Geometry, WORD_BITS};

/// The source of a request's questions: it alone says the shard, so that all that one viewer asks,
/// of any kinds and targets, is one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    tenant: TenantId,
    source: SourceId,
    hash: u64,
}

/// A word of the asker's shard, and the bits in it that an item sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    pub word: u32,
    /// The highest bit is the first of the string, as Redis counts them.
    pub mask: u64,
}

impl Asker {
    pub fn new(tenant: TenantId, source: SourceId) -> Asker {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&tenant.0.to_be_bytes());
        key[4..].copy_from_slice(&source.0.to_be_bytes());
        Asker { tenant, source, hash: hash64(&key) }
    }

    pub fn of(edge: &EdgeKey) -> Asker {
        Asker::new(edge.tenant, edge.source)
    }

    /// Which of `places` keeps this source: each has a plan, a ledger and a Redis server of its
    /// own. It takes other bits than `shard`.
    pub fn place(self, places: u32) -> u32 {
        (self.hash >> 32) as u32 % places
    }

    pub fn shard(self, geometry: Geometry) -> u32 {
        self.hash as u32 & (geometry.shards() - 1)
    }

    /// All kinds of a pair share a word: a like and a favourite of one post are one question.
    pub fn pair(self, target: TargetId) -> NodePair {
        let mut key = [0; 20];
        key[..4].copy_from_slice(&self.tenant.0.to_be_bytes());
        key[4..12].copy_from_slice(&self.source.0.to_be_bytes());
        key[12..].copy_from_slice(&target.0.to_be_bytes());
        NodePair { hash: hash64(&key) }
    }
}

/// A source and a target, of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePair {
    hash: u64,
}

impl NodePair {
    pub fn spot(self, kind: KindId, geometry: Geometry) -> Spot {
        let mut key = [0; 10];
        key[..8].copy_from_slice(&self.hash.to_be_bytes());
        key[8..].copy_from_slice(&kind.0.to_be_bytes());
        Spot { word: self.hash as u32 & (geometry.words() - 1), mask: mask(hash64(&key)) }
    }
}

impl Spot {
    pub fn of(edge: &EdgeKey, geometry: Geometry) -> Spot {
        Asker::of(edge).pair(edge.target).spot(edge.kind, geometry)
    }

    /// Whether the word may hold the item: false is "surely not".
    pub fn may_be_in(self, word: u64) -> bool {
        word & self.mask == self.mask
    }
}

/// The item that says that an id was met: as a source, a target or an owner, with a group, a setting
/// or a counter, of any type. It stands where an edge of no kind to nobody would. Of an id that was
/// surely not met there is no row at all.
pub fn met(tenant: TenantId, id: u64) -> EdgeKey {
    EdgeKey { tenant, kind: NO_KIND, source: SourceId(id), target: TargetId(0) }
}

/// The items of an edge that stands: itself, and the ids that it speaks of.
pub fn items_of(edge: EdgeKey, owner: Option<u64>) -> impl Iterator<Item = EdgeKey> {
    let ids = [Some(edge.source.0), Some(edge.target.0), owner];
    std::iter::once(edge).chain(ids.into_iter().flatten().map(move |id| met(edge.tenant, id)))
}

/// `BITS_SET` different bits; one that is taken already gives the next free one.
fn mask(mut hash: u64) -> u64 {
    let mut mask = 0_u64;
    for _ in 0..BITS_SET {
        let mut bit = hash as u32 % WORD_BITS;
        while mask >> bit & 1 == 1 {
            bit = (bit + 1) % WORD_BITS;
        }
        mask |= 1 << bit;
        hash >>= WORD_BITS.trailing_zeros();
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(tenant: u32, kind: u16, source: u64, target: u64) -> EdgeKey {
        EdgeKey {
            tenant: TenantId(tenant),
            kind: KindId(kind),
            source: SourceId(source),
            target: TargetId(target),
        }
    }

    #[test]
    fn vectors() {
        let geometry = Geometry::new(8, 14).unwrap();
        for (item, place, shard, word, mask) in [
            (edge(1, 1, 1, 2), 13, 0xb4, 0x3bf1, 0x1000_0060_02c0_0000),
            (edge(1, 2, 1, 2), 13, 0xb4, 0x3bf1, 0x2210_0000_8000_0240),
            (edge(1, 1, 2, 1), 11, 0x57, 0x371b, 0x0000_1020_0001_0094),
            (edge(u32::MAX, u16::MAX, u64::MAX, u64::MAX), 8, 0xb0, 0x8e0e, 0x0403_4000_2000_0040),
        ] {
            let asker = Asker::of(&item);
            let spot = Spot::of(&item, geometry);
            let found = (asker.place(16), asker.shard(geometry), spot.word, spot.mask);
            assert_eq!(found, (place, shard, word, mask), "{item:?}: {found:#x?}");
        }
    }

    #[test]
    fn a_mask_has_its_number_of_bits() {
        for hash in [0, u64::MAX, 0x3f, 0x41041, 0x9e37_79b9_7f4a_7c15] {
            assert_eq!(mask(hash).count_ones(), BITS_SET, "{hash:#x}");
        }
    }

    #[test]
    fn one_shard_for_a_source_and_one_word_for_a_pair() {
        let geometry = Geometry::for_items(1 << 30);
        let asker = Asker::new(TenantId(1), SourceId(7));
        let pair = asker.pair(TargetId(9));
        let [like, favorite] = [KindId(2), KindId(3)].map(|kind| pair.spot(kind, geometry));
        assert_eq!(like.word, favorite.word);
        assert_ne!(like.mask, favorite.mask);
        assert_eq!(like, Spot::of(&edge(1, 2, 7, 9), geometry));
        assert_ne!(asker.pair(TargetId(10)).spot(KindId(2), geometry).word, like.word);
    }

    #[test]
    fn sources_spread_evenly_over_shards_and_places() {
        const SOURCES: u64 = 100_000;
        let geometry = Geometry::new(4, 10).unwrap();
        let mut shards = [0_u64; 16];
        let mut places = [0_u64; 16];
        for source in 0..SOURCES {
            let asker = Asker::new(TenantId(1), SourceId(source));
            shards[asker.shard(geometry) as usize] += 1;
            places[asker.place(16) as usize] += 1;
        }
        for count in shards.iter().chain(&places) {
            // Eight standard deviations of a binomial around 6,250.
            assert!(count.abs_diff(SOURCES / 16) < 613, "{shards:?} {places:?}");
        }
    }
}
