//! How large a generation is: its shards, their blocks, how many items it is meant for, and how
//! often it then says "maybe" of what is not there.
//!
//! A block is a cache line of eight words. An item has one word of its shard and sets
//! `BITS_SET` bits in it. The word, not the line, is the unit because `BITFIELD_RO` hands out at
//! most 64 bits for a question: a whole line is eight questions, and a script that reads lines
//! costs the server several times as much (`command` has the figures). The price is memory.
//!
//! The arithmetic: a word of `n` items, each of six different bits, has six given bits set with the
//! probability `sum over j of (-1)^j C(6, j) (C(64 - j, 6) / C(64, 6))^n`. With `b` bits for an item
//! the items of a word are Poisson distributed around `64 / b`, which makes of each power an
//! exponential. So, in percent of the negative questions that get "maybe":
//!
//! | bits for an item | 10 | 12 | 14 | 16 | 20 | 32 |
//! |---|---|---|---|---|---|---|
//! | one word, 5 bits set | 1.69 | 0.96 | 0.59 | 0.38 | 0.19 | 0.04 |
//! | **one word, 6 bits set** | 1.83 | 0.99 | 0.58 | **0.37** | 0.17 | 0.03 |
//! | one word, 8 bits set | 2.51 | 1.30 | 0.73 | 0.44 | 0.19 | 0.03 |
//! | two words of a line, best number of bits | 1.04 | 0.49 | 0.23 | 0.12 | 0.04 | 0.002 |
//! | a whole line, best number of bits | 0.96 | 0.41 | 0.18 | 0.08 | 0.02 | 0.001 |
//!
//! 16 bits are nominal: 0.37 % when a generation is full, two bytes for an item. It is begun at most
//! half full (0.03 %), and one that is a third over its nominal load (12 bits) still ends 99 % of
//! the negative checks. All kinds of a pair share a word, which makes loads less even: when every
//! pair has two kinds, a full generation has 0.8 %.

/// Bits in a word: what one `GET` of `BITFIELD_RO` can return.
pub const WORD_BITS: u32 = 64;
/// Words in a block, which is a cache line and begins at a multiple of 64 bytes.
pub const BLOCK_WORDS: u32 = 8;
/// Distinct bits of its word that an item sets. It is part of the format.
pub const BITS_SET: u32 = 6;
/// Bits for an item at the nominal load.
pub const BITS_PER_ITEM: u64 = 16;

/// Fewer shards would put all of a small service's questions on one key.
const SHARDS_LOG2_MIN: u8 = 4;
/// 65,536 shards of 16 MiB are a TiB: far more than anyone keeps in Redis.
const SHARDS_LOG2_MAX: u8 = 16;
/// 64 KiB: a small service's whole filter is one MiB.
const BLOCKS_LOG2_MIN: u8 = 10;
/// 16 MiB, far below Redis' 512: growing, copying or deleting one string stalls a server for a few
/// milliseconds at most.
const BLOCKS_LOG2_MAX: u8 = 18;
/// A new generation has room for this many times the items that there are.
const ROOM: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    shards_log2: u8,
    blocks_log2: u8,
}

impl Geometry {
    pub fn new(shards_log2: u8, blocks_log2: u8) -> Option<Geometry> {
        let good = (SHARDS_LOG2_MIN..=SHARDS_LOG2_MAX).contains(&shards_log2)
            && (BLOCKS_LOG2_MIN..=BLOCKS_LOG2_MAX).contains(&blocks_log2);
        good.then_some(Geometry { shards_log2, blocks_log2 })
    }

    /// The smallest that has room for twice `items`, or the largest that there is. Shards get
    /// longer first, then more: a request asks one of them, a batch of puts several.
    pub fn for_items(items: u64) -> Geometry {
        let wanted = items.saturating_mul(ROOM);
        let longer = (BLOCKS_LOG2_MIN..=BLOCKS_LOG2_MAX)
            .map(|blocks_log2| Geometry { shards_log2: SHARDS_LOG2_MIN, blocks_log2 });
        let more = (SHARDS_LOG2_MIN..=SHARDS_LOG2_MAX)
            .map(|shards_log2| Geometry { shards_log2, blocks_log2: BLOCKS_LOG2_MAX });
        let largest = Geometry { shards_log2: SHARDS_LOG2_MAX, blocks_log2: BLOCKS_LOG2_MAX };
        longer.chain(more).find(|geometry| geometry.items_nominal() >= wanted).unwrap_or(largest)
    }

    pub fn shards_log2(self) -> u8 {
        self.shards_log2
    }

    pub fn blocks_log2(self) -> u8 {
        self.blocks_log2
    }

    pub fn shards(self) -> u32 {
        1 << self.shards_log2
    }

    /// Words of one shard.
    pub fn words(self) -> u32 {
        BLOCK_WORDS << self.blocks_log2
    }

    /// Words of all shards.
    pub fn words_all(self) -> u64 {
        u64::from(self.words()) << self.shards_log2
    }

    /// The items that a generation is meant for: beyond them it is time to grow.
    pub fn items_nominal(self) -> u64 {
        self.words_all() * u64::from(WORD_BITS) / BITS_PER_ITEM
    }

    /// About how many different items were added, from the bits set in a sample of words (of
    /// shards chosen evenly, say by `BITCOUNT`). Removed edges count until a new generation.
    pub fn items_estimated(self, ones: u64, words_sampled: u64) -> u64 {
        let bits = words_sampled.saturating_mul(u64::from(WORD_BITS));
        if bits == 0 {
            return 0;
        }
        // One zero more than seen keeps a full sample finite.
        let zeros = bits.saturating_sub(ones).max(1) as f64 / bits as f64;
        // A word without item i keeps a bit at zero with 1 - 6/64; over Poisson loads that is
        // exp(-load * 6/64).
        let load = -zeros.ln() * f64::from(WORD_BITS) / f64::from(BITS_SET);
        (load * self.words_all() as f64) as u64
    }

    /// The geometry to grow to, when `items` are past what this one is meant for.
    pub fn grown(self, items: u64) -> Option<Geometry> {
        let next = Geometry::for_items(items);
        (items > self.items_nominal() && next.items_nominal() > self.items_nominal())
            .then_some(next)
    }

    /// The share of negative questions that get "maybe", by the arithmetic above.
    pub fn false_positive_rate(self, items: u64) -> f64 {
        let load = items as f64 / self.words_all() as f64;
        let mut missed = 1.0; // the chance that an item sets none of j given bits
        let mut choices = 1.0; // C(6, j)
        let mut rate = 0.0;
        for j in 0..=BITS_SET {
            let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
            rate += sign * choices * (load * (missed - 1.0)).exp();
            missed *= f64::from(WORD_BITS - BITS_SET - j) / f64::from(WORD_BITS - j);
            choices *= f64::from(BITS_SET - j) / f64::from(j + 1);
        }
        rate.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_twice_the_items() {
        for (items, shards, blocks) in [
            (0, 16, 1 << 10),
            (262_144, 16, 1 << 10),
            (262_145, 16, 1 << 11),
            (67_108_864, 16, 1 << 18),
            (67_108_865, 32, 1 << 18),
            (10_000_000_000, 4_096, 1 << 18),
            (u64::MAX, 65_536, 1 << 18),
        ] {
            let geometry = Geometry::for_items(items);
            assert_eq!(geometry.shards(), shards, "{items} items");
            assert_eq!(geometry.words(), blocks * BLOCK_WORDS, "{items} items");
        }
        assert_eq!(Geometry::new(3, 10), None);
        assert_eq!(Geometry::new(4, 19), None);
    }

    #[test]
    fn grows_past_the_nominal_load() {
        let small = Geometry::for_items(0);
        assert_eq!(small.items_nominal(), 524_288);
        assert_eq!(small.grown(524_288), None);
        let grown = small.grown(524_289).unwrap();
        assert_eq!(grown.items_nominal(), 2_097_152);
        let largest = Geometry::for_items(u64::MAX);
        assert_eq!(largest.grown(u64::MAX), None);
    }

    #[test]
    fn the_table_of_the_arithmetic() {
        let geometry = Geometry::for_items(0);
        for (bits, percent) in
            [(10, 1.8255), (12, 0.9895), (14, 0.5834), (16, 0.3673), (20, 0.1688), (32, 0.0332)]
        {
            let rate = 100.0 * geometry.false_positive_rate(geometry.words_all() * 64 / bits);
            assert!((rate - percent).abs() < 0.0001, "{bits} bits: {rate} %");
        }
    }
}
