//! Plants wrong rows in a store, behind the back of log and rules: what audits must find.

use std::path::Path;

use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::{encode_group, encode_node};
use guanxi_model::{EdgeKey, EdgeRow, GroupId, GroupsKey, IndexEntry, KindId, NodeKey, Which};

use super::disk::{DiskBackend, StoreSettings};
use super::keyed::{Backend, KeyedStore};
use super::{Store, layout};

/// The store of a data directory that nobody serves.
pub fn open(data_dir: &Path) -> Result<KeyedStore<DiskBackend>, StoreError> {
    let backend = DiskBackend::open(&data_dir.join("store"), &StoreSettings::default())?;
    KeyedStore::open(backend)
}

/// Makes what was planted stay, as a clean stop would.
pub fn close(store: KeyedStore<DiskBackend>) -> Result<(), StoreError> {
    store.persist()?;
    store.settle()
}

impl<B: Backend> KeyedStore<B> {
    pub fn row_of(&self, edge: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        self.snapshot().edge(edge)
    }

    pub fn plant_entry(&self, entry: &IndexEntry, present: bool) -> Result<(), StoreError> {
        self.plant(layout::index_entry(entry), present.then(Vec::new))
    }

    pub fn plant_tally(
        &self,
        node: &NodeKey,
        kind: KindId,
        which: Which,
        delta: i64,
    ) -> Result<(), StoreError> {
        let mut row = self.snapshot().whole_node(node)?;
        row.tallies.add(kind, which, delta);
        self.plant(layout::node(node), Some(encode_node(&row)))
    }

    pub fn plant_group_size(
        &self,
        groups: &GroupsKey,
        id: GroupId,
        delta: i64,
    ) -> Result<(), StoreError> {
        let mut set = self.snapshot().groups(groups)?;
        set.resize(id, delta);
        let group = set.by_id(id).ok_or_else(|| StoreError::Damaged("no such group".into()))?;
        self.plant(layout::group(groups, id), Some(encode_group(group)))
    }

    /// A row that says nothing any more.
    pub fn plant_unreadable_edge(&self, edge: &EdgeKey) -> Result<(), StoreError> {
        self.plant(layout::edge(edge), Some(b"\xff\xff".to_vec()))
    }

    fn plant(&self, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        self.backend().write(&[(key, value)])?;
        self.show_planted();
        Ok(())
    }
}
