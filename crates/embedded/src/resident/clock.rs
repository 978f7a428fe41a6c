//! A table that keeps within its bytes: what was not asked for since the hand went by gives way
//! first. It owns no lock and no rule about what is true.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashTable;

/// What an entry takes beside itself: its place in the index, and what half empty tables cost.
const PLACE_BYTES: usize = 16;
/// What a table begins with.
const ENTRIES_MIN: usize = 4;
/// What an allocation takes beyond its bytes, about.
pub(super) const HEAP_BYTES: usize = 16;

/// A key that is kept with its hash: the same for equal keys.
pub(super) trait ClockKey: Copy + Eq {
    fn hash(&self) -> u64;
}

/// A value that knows what it takes beside itself.
pub(super) trait Weighed {
    fn heap_bytes(&self) -> usize;
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    /// Asked for since the hand went by.
    used: AtomicBool,
}

#[derive(Debug)]
pub(super) struct ClockTable<K, V> {
    index: HashTable<u32>,
    entries: Vec<Entry<K, V>>,
    /// The next entry that may go.
    hand: usize,
    heap_bytes: usize,
}

impl<K, V> Default for ClockTable<K, V> {
    fn default() -> ClockTable<K, V> {
        ClockTable { index: HashTable::new(), entries: Vec::new(), hand: 0, heap_bytes: 0 }
    }
}

impl<K: ClockKey, V: Weighed> ClockTable<K, V> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> usize {
        self.entries.len() * Self::ENTRY_BYTES + self.heap_bytes
    }

    const ENTRY_BYTES: usize = size_of::<Entry<K, V>>() + PLACE_BYTES;

    fn place(&self, key: &K, hash: u64) -> Option<usize> {
        let found = self.index.find(hash, |at| self.entries[*at as usize].key == *key);
        found.map(|at| *at as usize)
    }

    pub fn contains(&self, key: &K, hash: u64) -> bool {
        self.place(key, hash).is_some()
    }

    #[inline]
    pub fn get(&self, key: &K, hash: u64) -> Option<&V> {
        let entry = &self.entries[self.place(key, hash)?];
        // Mostly not written, so that the line stays in other processors' caches.
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(&entry.value)
    }

    /// Changes a value that is there. It may then take more than the table should, until the next
    /// one comes.
    pub fn change(&mut self, key: &K, hash: u64, change: impl FnOnce(&mut V)) {
        let Some(at) = self.place(key, hash) else { return };
        let value = &mut self.entries[at].value;
        self.heap_bytes -= value.heap_bytes();
        change(value);
        self.heap_bytes += value.heap_bytes();
    }

    /// Takes in a value whose key is not there, unless it alone is too large.
    pub fn insert(&mut self, key: K, hash: u64, value: V, bytes_max: usize) {
        let bytes = Self::ENTRY_BYTES + value.heap_bytes();
        while self.bytes() + bytes > bytes_max {
            if self.entries.is_empty() {
                return;
            }
            self.evict();
        }
        self.heap_bytes += value.heap_bytes();
        if self.entries.len() == self.entries.capacity() {
            // Twice as many, but no more than there can ever be.
            let entries_max = bytes_max / Self::ENTRY_BYTES;
            let more = self.entries.len().max(ENTRIES_MIN).min(entries_max - self.entries.len());
            self.entries.reserve_exact(more);
        }
        let at = self.entries.len() as u32;
        self.entries.push(Entry { key, value, used: AtomicBool::new(false) });
        let entries = &self.entries;
        self.index.insert_unique(hash, at, |at| entries[*at as usize].key.hash());
    }

    /// Lets the next entry go that was not asked for: the hand goes round once at most.
    fn evict(&mut self) {
        loop {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let used = self.entries[self.hand].used.get_mut();
            if !std::mem::take(used) {
                break;
            }
            self.hand += 1;
        }
        self.remove_at(self.hand);
        self.hand += 1;
    }

    pub fn remove(&mut self, key: &K, hash: u64) {
        if let Some(at) = self.place(key, hash) {
            self.remove_at(at);
        }
    }

    /// The last entry takes its place.
    fn remove_at(&mut self, at: usize) {
        let hash = self.entries[at].key.hash();
        if let Ok(place) = self.index.find_entry(hash, |place| *place as usize == at) {
            place.remove();
        }
        let gone = self.entries.swap_remove(at);
        self.heap_bytes -= gone.value.heap_bytes();
        if let Some(moved) = self.entries.get(at) {
            let (hash, from) = (moved.key.hash(), self.entries.len() as u32);
            if let Some(place) = self.index.find_mut(hash, |place| *place == from) {
                *place = at as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::resident::mixed;

    impl ClockKey for u64 {
        fn hash(&self) -> u64 {
            // Many meet.
            mixed(*self % 1_000)
        }
    }

    impl Weighed for Vec<u8> {
        fn heap_bytes(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn it_says_what_was_put_there_whatever_goes() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut table, mut known) = (ClockTable::default(), HashMap::new());
        let bytes_max = 20_000;
        for _ in 0..200_000 {
            let key = random.u64(..2_000);
            let value = vec![random.u8(..); random.usize(..60)];
            match random.u8(..8) {
                0 => {
                    table.remove(&key, key.hash());
                    assert!(!table.contains(&key, key.hash()));
                }
                1 => table.change(&key, key.hash(), |old| {
                    known.insert(key, value.clone());
                    *old = value;
                }),
                2 | 3 if !table.contains(&key, key.hash()) => {
                    known.insert(key, value.clone());
                    table.insert(key, key.hash(), value, bytes_max);
                    assert!(table.bytes() <= bytes_max);
                }
                _ => {
                    let found = table.get(&key, key.hash());
                    assert!(found.is_none_or(|found| known.get(&key) == Some(found)));
                }
            }
        }
        assert!(table.len() > 100);
        assert!(table.entries.capacity() * ClockTable::<u64, Vec<u8>>::ENTRY_BYTES <= bytes_max);
        let heap: usize = table.entries.iter().map(|entry| entry.value.len()).sum();
        assert_eq!((table.heap_bytes, table.index.len()), (heap, table.len()));
    }

    #[test]
    fn what_is_asked_for_stays() {
        let mut table = ClockTable::default();
        for key in 0..100_000u64 {
            table.insert(key, key.hash(), Vec::new(), 40_000);
            assert!((0..100.min(key)).all(|key| table.get(&key, key.hash()).is_some()));
        }
        assert!(table.len() > 300);
        assert_eq!((0..100).filter(|key| table.contains(key, key.hash())).count(), 100);
    }
}
