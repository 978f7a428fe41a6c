//! Keys and values in memory, with the history of writes: for tests, and for the simulator, which
//! cuts a store back to any prefix that a crash could leave.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use guanxi_core::snapshot::StoreError;

use super::keyed::{Backend, KeyView, KeyWrite, VisitKey};
use super::layout::Key;

type Map = BTreeMap<Key, Vec<u8>>;

#[derive(Debug, Default)]
pub struct MemoryBackend {
    inner: Mutex<MemoryRows>,
}

#[derive(Debug, Default)]
struct MemoryRows {
    map: Arc<Map>,
    history: Vec<Vec<KeyWrite>>,
    /// How many writes of the history a power cut cannot take back.
    persisted: usize,
}

impl MemoryBackend {
    /// What a crash leaves when `lost` of the writes since the last persist are gone; more than
    /// there are means all of them.
    pub fn crashed(&self, lost: usize) -> MemoryBackend {
        let inner = self.inner.lock();
        let kept = inner.history.len().saturating_sub(lost).max(inner.persisted);
        let history = inner.history[..kept].to_vec();
        let mut map = Map::new();
        for write in &history {
            put(&mut map, write);
        }
        let inner = MemoryRows { map: Arc::new(map), history, persisted: kept };
        MemoryBackend { inner: Mutex::new(inner) }
    }

    /// Writes that a crash now could take back.
    pub fn unpersisted(&self) -> usize {
        let inner = self.inner.lock();
        inner.history.len() - inner.persisted
    }
}

impl Backend for MemoryBackend {
    type View = MemoryView;

    fn view(&self) -> MemoryView {
        MemoryView { map: self.inner.lock().map.clone() }
    }

    fn write(&self, entries: &[KeyWrite]) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        put(Arc::make_mut(&mut inner.map), entries);
        inner.history.push(entries.to_vec());
        Ok(())
    }

    fn persist(&self) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        inner.persisted = inner.history.len();
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let map = self.inner.lock().map.clone();
        map.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
    }
}

fn put(map: &mut Map, entries: &[KeyWrite]) {
    for (key, value) in entries {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

#[derive(Debug)]
pub struct MemoryView {
    map: Arc<Map>,
}

impl KeyView for MemoryView {
    type Bytes = Vec<u8>;

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.map.get(key).cloned())
    }

    fn range(
        &self,
        range: (Bound<Key>, Bound<Key>),
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<(), StoreError> {
        let range = self.map.range::<Key, _>(range);
        let mut each = |(key, value): (&Key, &Vec<u8>)| visit(key, value);
        let mut forward = range.clone();
        let mut backward = range.rev();
        while let Some(entry) = if reverse { backward.next() } else { forward.next() } {
            if each(entry)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{KeyedStore, conformance};

    #[test]
    fn a_memory_store_conforms() {
        let make = || KeyedStore::open(MemoryBackend::default()).unwrap();
        conformance::run(|| conformance::Subject::Embedded(Box::new(make()))).unwrap();
    }

    #[test]
    fn a_memory_store_with_rows_at_hand_conforms() {
        let make = || Box::new(conformance::with_all_at_hand(MemoryBackend::default()));
        conformance::run(|| conformance::Subject::Embedded(make())).unwrap();
    }

    #[test]
    fn a_crash_takes_at_most_what_was_not_persisted() {
        let backend = MemoryBackend::default();
        for number in 0..6 {
            let entry = (vec![number], Some(vec![number]));
            backend.write(&[entry]).unwrap();
            if number == 2 {
                backend.persist().unwrap();
            }
        }
        assert_eq!(backend.unpersisted(), 3);
        for (lost, kept) in [(0, 6), (2, 4), (3, 3), (100, 3)] {
            let left = backend.crashed(lost);
            assert_eq!(left.view().map.len(), kept, "{lost} writes lost");
            assert_eq!(left.unpersisted(), 0);
        }
    }
}
