//! Rows at hand: values of edges and nodes as the store has them, and that there is none. Right by
//! construction: each shard knows the last batch that touched any of its keys, whether it was at hand
//! or not. A batch replaces what it changed, with its position, before its moment is published.
//! A reader takes an entry only if it is no newer than the reader's moment, and puts there what
//! it read itself only if no batch has come since.

use guanxi_model::{EdgeKey, NodeKey, Position};
use parking_lot::RwLock;

use super::clock::{ClockKey, ClockTable, HEAP_BYTES, Weighed};
use super::planted::{ResidentBug, planted};
use super::{Figures, mixed};

/// Enough that a batch and the readers seldom meet at one.
const SHARDS: usize = 128;
/// Values up to so long lie in the entry itself; nearly all are shorter.
const INLINE_BYTES_MAX: usize = 22;

const EDGE: u8 = 1;
const NODE: u8 = 2;

/// Which row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowKey {
    /// Table, tenant, and kind or node type.
    of: u64,
    first: u64,
    second: u64,
}

impl RowKey {
    pub fn edge(key: &EdgeKey) -> RowKey {
        let of = table(EDGE, key.tenant.0, key.kind.0);
        RowKey { of, first: key.source.0, second: key.target.0 }
    }

    pub fn node(key: &NodeKey) -> RowKey {
        let of = table(NODE, key.tenant.0, key.node_type.0);
        RowKey { of, first: key.id, second: 0 }
    }
}

fn table(table: u8, tenant: u32, number: u16) -> u64 {
    u64::from(table) << 48 | u64::from(tenant) << 16 | u64::from(number)
}

impl ClockKey for RowKey {
    fn hash(&self) -> u64 {
        mixed(mixed(self.of ^ self.first) ^ self.second)
    }
}

#[derive(Debug)]
struct Row {
    /// The batch after which it is so.
    since: Position,
    value: RowValue,
}

#[derive(Debug)]
enum RowValue {
    None,
    Inline(u8, [u8; INLINE_BYTES_MAX]),
    Heap(Box<[u8]>),
}

impl RowValue {
    fn new(bytes: Option<&[u8]>) -> RowValue {
        match bytes {
            None => RowValue::None,
            Some(bytes) if bytes.len() <= INLINE_BYTES_MAX => {
                let mut inline = [0; INLINE_BYTES_MAX];
                inline[..bytes.len()].copy_from_slice(bytes);
                RowValue::Inline(bytes.len() as u8, inline)
            }
            Some(bytes) => RowValue::Heap(bytes.into()),
        }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            RowValue::None => None,
            RowValue::Inline(len, bytes) => Some(&bytes[..usize::from(*len)]),
            RowValue::Heap(bytes) => Some(bytes),
        }
    }
}

impl Weighed for Row {
    fn heap_bytes(&self) -> usize {
        match &self.value {
            RowValue::Heap(bytes) => bytes.len() + HEAP_BYTES,
            _ => 0,
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    /// The last batch that touched any key of the shard.
    last: Position,
    rows: ClockTable<RowKey, Row>,
}

#[derive(Debug)]
pub(crate) struct RowCache {
    shards: Box<[RwLock<Shard>]>,
    shard_bytes_max: usize,
}

impl RowCache {
    /// With 0 bytes nothing is kept.
    pub fn new(bytes_max: u64) -> RowCache {
        let shards = std::iter::repeat_with(RwLock::<Shard>::default).take(SHARDS).collect();
        let shard_bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX) / SHARDS;
        RowCache { shards, shard_bytes_max }
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        // Other bits than the index of a shard takes first.
        &self.shards[(hash >> 40) as usize % SHARDS]
    }

    /// Hands the row to `take` as it is at this moment; none where that is not at hand. `take` must
    /// not ask for another row.
    #[inline]
    pub fn read<T>(
        &self,
        key: &RowKey,
        at: Position,
        take: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Option<T> {
        let hash = key.hash();
        let shard = self.shard(hash).read();
        let row = shard.rows.get(key, hash).filter(|row| row.since <= at)?;
        Some(take(row.value.bytes()))
    }

    /// Keeps what was read at this moment, if no batch has touched it since.
    pub fn fill(&self, key: &RowKey, at: Position, value: Option<&[u8]>) {
        let hash = key.hash();
        let mut shard = self.shard(hash).write();
        let is_late = shard.last > at && !planted(ResidentBug::StaleFill);
        if is_late || shard.rows.contains(key, hash) {
            return;
        }
        // It has been so since the last batch that touched the shard.
        let row = Row { since: shard.last, value: RowValue::new(value) };
        shard.rows.insert(*key, hash, row, self.shard_bytes_max);
    }

    /// What a batch makes of a row. Called for each row that it changes, at hand or not.
    pub fn change(&self, key: &RowKey, by: Position, value: Option<&[u8]>) {
        let hash = key.hash();
        let mut shard = self.shard(hash).write();
        shard.last = shard.last.max(by);
        if planted(ResidentBug::EntryNotUpdated) {
            return;
        }
        shard.rows.change(key, hash, |row| *row = Row { since: by, value: RowValue::new(value) });
    }

    /// Forgets everything; what is put here from now on is of this position or later.
    pub fn clear(&self, last: Position) {
        for shard in &self.shards {
            *shard.write() = Shard { last, rows: ClockTable::default() };
        }
    }

    pub fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for shard in &self.shards {
            let shard = shard.read();
            figures.entries += shard.rows.len() as u64;
            figures.bytes += shard.rows.bytes() as u64;
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use guanxi_model::{NodeTypeId, TenantId};

    use super::*;

    fn node(id: u64) -> RowKey {
        RowKey::node(&NodeKey { tenant: TenantId::DEFAULT, node_type: NodeTypeId(1), id })
    }

    fn read(rows: &RowCache, id: u64, at: u64) -> Option<Option<Vec<u8>>> {
        rows.read(&node(id), Position(at), |bytes| bytes.map(<[u8]>::to_vec))
    }

    #[test]
    fn an_entry_is_as_large_as_a_line_of_the_processor_s_cache() {
        assert_eq!(size_of::<RowKey>() + size_of::<Row>() + 8, 64);
    }

    #[test]
    fn a_reader_takes_nothing_newer_than_its_moment() {
        let rows = RowCache::new(1 << 20);
        rows.fill(&node(1), Position(5), Some(b"old"));
        assert_eq!(read(&rows, 1, 5), Some(Some(b"old".to_vec())));
        assert_eq!(read(&rows, 1, 3), Some(Some(b"old".to_vec())), "no batch has touched it");
        rows.change(&node(1), Position(7), Some(b"new"));
        assert_eq!(read(&rows, 1, 6), None);
        assert_eq!(read(&rows, 1, 7), Some(Some(b"new".to_vec())));
        rows.change(&node(1), Position(8), None);
        assert_eq!(read(&rows, 1, 8), Some(None));
        assert_eq!(read(&rows, 1, 7), None);
    }

    #[test]
    fn a_fill_of_before_the_last_batch_is_refused() {
        let rows = RowCache::new(1 << 20);
        // Not at hand, but touched.
        rows.change(&node(1), Position(7), Some(b"new"));
        rows.fill(&node(1), Position(6), Some(b"old"));
        assert_eq!(read(&rows, 1, 9), None);
        rows.fill(&node(1), Position(9), Some(b"new"));
        assert_eq!(read(&rows, 1, 6), None);
        assert_eq!(read(&rows, 1, 7), Some(Some(b"new".to_vec())));
        rows.clear(Position(10));
        assert_eq!(rows.figures().entries, 0);
        rows.fill(&node(1), Position(9), Some(b"old"));
        assert_eq!(read(&rows, 1, 10), None);
    }

    #[test]
    fn every_length_comes_back() {
        let rows = RowCache::new(1 << 20);
        for len in 0..100 {
            let value: Vec<u8> = (0..len).collect();
            rows.fill(&node(len.into()), Position(1), Some(&value));
            assert_eq!(read(&rows, len.into(), 1), Some(Some(value)));
        }
    }

    #[test]
    fn without_bytes_nothing_is_kept() {
        let rows = RowCache::new(0);
        rows.fill(&node(1), Position(1), None);
        assert_eq!((read(&rows, 1, 1), rows.figures().bytes), (None, 0));
    }
}
