//! The 64 bytes before a shard's blocks, and the values in them.
//!
//! | bytes | what |
//! |---|---|
//! | 0–7 | magic |
//! | 8–15 | seal, read with every question and checked by every set |
//! | 16–17 | format |
//! | 18, 19 | logarithms of the numbers of shards and of blocks in a shard |
//! | 20–23 | the shard's number |
//! | 24–31 | generation |
//! | 32–63 | zero |
//!
//! A reader looks at the seal alone: it is equal only where the plan's generation stands, with its
//! format and geometry. The rest is for the upkeep, which must know what it finds. Numbers are
//! big-endian, as `BITFIELD` reads them.

use crate::hash::hash128;

use super::geometry::Geometry;

/// A header is a block of its own, so that the others begin at multiples of 64 bytes.
pub const HEADER_BYTES: usize = 64;
/// Where the seal stands.
pub const SEAL_BYTE: usize = 8;
/// The hash, the bits of an item and the layout. An instance that does not know a plan's format
/// believes nothing and cannot set bits.
pub const FORMAT: u16 = 1;

const MAGIC: [u8; 8] = *b"gxfilter";

/// A filter built from a scan. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// A random number that tells one sealing of a generation from any other. Zero is none: it is what
/// an absent shard reads as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal(u64);

impl Seal {
    pub fn new(random: u64) -> Option<Seal> {
        (random != 0).then_some(Seal(random))
    }

    pub fn value(self) -> u64 {
        self.0
    }
}

/// Which history of which server a connection sees: a restart changes the run id; a failover, a
/// restored snapshot and a master that was a replica in between change the replication id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FilterLineage(pub u128);

impl FilterLineage {
    /// From `run_id` of `INFO server` and `role` and `master_replid` of `INFO replication`, read
    /// over the connection itself. None when it is not a master's: a replica may lag behind.
    pub fn new(run_id: &str, role: &str, replication_id: &str) -> Option<FilterLineage> {
        if role != "master" || run_id.is_empty() || replication_id.is_empty() {
            return None;
        }
        Some(FilterLineage(hash128(format!("{run_id} {replication_id}").as_bytes())))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardHeader {
    pub seal: Option<Seal>,
    pub format: u16,
    pub geometry: Geometry,
    pub shard: u32,
    pub generation: Generation,
}

impl ShardHeader {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.seal.map_or(0, Seal::value).to_be_bytes());
        bytes[16..18].copy_from_slice(&self.format.to_be_bytes());
        bytes[18] = self.geometry.shards_log2();
        bytes[19] = self.geometry.blocks_log2();
        bytes[20..24].copy_from_slice(&self.shard.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.generation.0.to_be_bytes());
        bytes
    }

    /// None for an absent shard, and for anything that is not one.
    pub fn decode(bytes: &[u8]) -> Option<ShardHeader> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        if bytes[..8] != MAGIC {
            return None;
        }
        Some(ShardHeader {
            seal: Seal::new(number(8, 16)),
            format: number(16, 18) as u16,
            geometry: Geometry::new(bytes[18], bytes[19])?,
            shard: number(20, 24) as u32,
            generation: Generation(number(24, 32)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_in_bytes() {
        let header = ShardHeader {
            seal: Seal::new(0x0102_0304_0506_0708),
            format: FORMAT,
            geometry: Geometry::new(4, 10).unwrap(),
            shard: 9,
            generation: Generation(77),
        };
        let bytes = header.encode();
        let mut expected = [0; HEADER_BYTES];
        expected[..32].copy_from_slice(
            b"gxfilter\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x04\x0a\x00\x00\x00\x09\
              \x00\x00\x00\x00\x00\x00\x00\x4d",
        );
        assert_eq!(bytes, expected);
        assert_eq!(ShardHeader::decode(&bytes), Some(header));
        // What follows the header does not matter, and neither does that nothing follows.
        assert_eq!(ShardHeader::decode(&[&bytes[..], &[0xff; 64]].concat()), Some(header));
    }

    #[test]
    fn what_is_no_header() {
        let header = ShardHeader {
            seal: None,
            format: FORMAT,
            geometry: Geometry::for_items(0),
            shard: 0,
            generation: Generation(1),
        };
        let bytes = header.encode();
        assert_eq!(ShardHeader::decode(&bytes).unwrap().seal, None);
        assert_eq!(ShardHeader::decode(b""), None);
        assert_eq!(ShardHeader::decode(&bytes[..63]), None);
        assert_eq!(ShardHeader::decode(&[0; 64]), None);
        let mut wrong = bytes;
        wrong[18] = 40;
        assert_eq!(ShardHeader::decode(&wrong), None);
    }

    #[test]
    fn a_lineage_is_a_masters_and_changes_with_either_id() {
        let lineage = FilterLineage::new("a", "master", "b").unwrap();
        assert_eq!(FilterLineage::new("a", "master", "b"), Some(lineage));
        assert_ne!(FilterLineage::new("c", "master", "b"), Some(lineage));
        assert_ne!(FilterLineage::new("a", "master", "c"), Some(lineage));
        assert_eq!(FilterLineage::new("a", "slave", "b"), None);
        assert_eq!(FilterLineage::new("", "master", "b"), None);
        assert_eq!(FilterLineage::new("a", "master", ""), None);
    }
}
