//! A store of sorted keys: turns a batch's rows into one atomic write. How rows are read is
//! `snapshot`'s affair.

mod snapshot;

use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use guanxi_core::snapshot::{Snapshot, StoreError};
use guanxi_model::codec::{
    Decoder, Encoder, FORMAT, decode_edge_row, decode_idempotency, decode_kind, encode_edge_row,
    encode_group, encode_idempotency, encode_import, encode_job, encode_kind, encode_node,
};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, Epoch, KindName, Millis, Node, NodeTypeId, Position, TenantId,
    Version,
};
use parking_lot::RwLock;

use self::snapshot::KeyedSnapshot;
use super::layout::{self, Key};
use super::{Applied, EmbeddedSnapshot, EmbeddedStore, Replay, Store};
use crate::overlay::{Dirty, IndexedRange};

/// What one atomic write does to a key: a value, or none to remove it.
pub type KeyWrite = (Key, Option<Vec<u8>>);

/// Where keys and values are kept.
pub trait Backend: Send + Sync + 'static {
    type View: KeyView;

    /// A consistent picture of all keys.
    fn view(&self) -> Self::View;
    /// All entries or none. Each key stands in it once.
    fn write(&self, entries: Vec<KeyWrite>) -> Result<(), StoreError>;
    /// Stopped where it takes nothing more.
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// What may be done before a batch, or at rest, while its writer looks at nothing.
    fn tidy(&self, _at_rest: bool) -> Result<(), StoreError> {
        Ok(())
    }
    fn persist(&self) -> Result<(), StoreError>;
    /// Whether what can be read need not be on the disk.
    fn is_in_doubt(&self) -> bool {
        false
    }
    /// Whether it can be read.
    fn is_open(&self) -> bool {
        true
    }
    /// Opens all of it anew once nobody looks at it, false while somebody does; `replay` brings it
    /// to where it was before anybody sees it.
    fn reopen(
        &self,
        _replay: &mut dyn FnMut(Self) -> Result<Self, StoreError>,
    ) -> Result<bool, StoreError>
    where
        Self: Sized,
    {
        Err(StoreError::Stopped)
    }
    fn bytes(&self) -> u64;
    /// Bytes that it still takes to bring what was written to its place on disk.
    fn room_needed(&self) -> u64 {
        0
    }
    /// Gets ready for a quick next start; nothing is written afterwards.
    fn settle(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What a walk over keys and values does with each.
pub type VisitKey<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StoreError> + 'a;

pub trait KeyView: Send + 'static {
    type Bytes: AsRef<[u8]>;

    fn get(&self, key: &[u8]) -> Result<Option<Self::Bytes>, StoreError>;

    /// Visits the keys of a range in order, or in reverse, until the visitor breaks.
    fn range(
        &self,
        range: (Bound<Key>, Bound<Key>),
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<(), StoreError>;
}

/// A value past a journal page could be torn in the middle, which the engine below refuses to
/// recover from; longer rows are kept in parts.
const VALUE_PART_BYTES_MAX: usize = 2_048;

/// Idempotency keys that one batch forgets beyond those that it adds.
const FORGOTTEN_KEYS_MARGIN: usize = 16;

#[derive(Debug)]
pub struct KeyedStore<B> {
    backend: B,
    state: RwLock<StorePoint>,
}

#[derive(Debug, Clone)]
struct StorePoint {
    applied: Applied,
    catalog: Arc<Catalog>,
}

impl<B: Backend> KeyedStore<B> {
    pub fn open(backend: B) -> Result<KeyedStore<B>, StoreError> {
        let view = backend.view();
        let applied = read_applied(&view)?;
        let catalog = Arc::new(read_catalog(&view)?);
        Ok(KeyedStore { backend, state: RwLock::new(StorePoint { applied, catalog }) })
    }

    pub fn backend(&self) -> &B {
        &self.backend
    }

    fn standing(&self) -> StorePoint {
        self.state.read().clone()
    }
}

impl<B: Backend> EmbeddedStore for KeyedStore<B> {
    fn picture(&self) -> Box<dyn EmbeddedSnapshot> {
        // Under the lock: a batch that changes the catalog holds it while its rows are written.
        let standing = self.state.read();
        Box::new(KeyedSnapshot { view: self.backend.view(), catalog: standing.catalog.clone() })
    }
}

impl<B: Backend> Store for KeyedStore<B> {
    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.picture()
    }

    fn write(&self, dirty: &Dirty, applied: Applied) -> Result<(), StoreError> {
        self.backend.tidy(false)?;
        let standing = self.standing();
        let catalog = dirty.catalog.as_ref().unwrap_or(&standing.catalog);
        let view = self.backend.view();
        let mut entries = Vec::with_capacity(4 * dirty.edges.len() + dirty.nodes.len() + 1);
        write_edges(dirty, catalog, &mut entries)?;
        for range in &dirty.indexed {
            write_index(range, dirty, catalog, &view, &mut entries)?;
        }
        write_repaired(dirty, catalog, &mut entries);
        write_nodes(dirty, &mut entries);
        write_groups(dirty, &mut entries);
        write_idempotency(dirty, &view, &mut entries)?;
        for ((tenant, id), row) in &dirty.imports {
            let prefix = layout::import_prefix(*tenant, id);
            write_parts(&view, &prefix, &encode_import(row), &mut entries)?;
        }
        for ((tenant, id), job) in &dirty.jobs {
            entries.push((layout::job(*tenant, *id), Some(encode_job(job))));
        }
        if let Some(after) = &dirty.catalog {
            write_catalog(&standing.catalog, after, dirty, &mut entries);
        }
        entries.push((layout::applied(), Some(encode_applied(&applied))));
        debug_assert_eq!(
            entries.iter().map(|(key, _)| key).collect::<HashSet<_>>().len(),
            entries.len(),
            "a key is written once per batch"
        );
        let lock = || self.state.write();
        // Only a batch that changes the catalog, which is rare, keeps readers out meanwhile.
        let held = dirty.catalog.is_some().then(lock);
        self.backend.write(entries)?;
        let catalog = catalog.clone();
        *held.unwrap_or_else(lock) = StorePoint { applied, catalog };
        Ok(())
    }

    fn applied(&self) -> Applied {
        self.standing().applied
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.standing().catalog
    }

    fn persist(&self) -> Result<Position, StoreError> {
        // Read first: what is written while the call runs may or may not be covered.
        let position = self.standing().applied.position;
        self.backend.persist()?;
        Ok(if self.backend.is_in_doubt() { Position(0) } else { position })
    }

    fn is_in_doubt(&self) -> bool {
        self.backend.is_in_doubt()
    }

    fn is_open(&self) -> bool {
        self.backend.is_open()
    }

    fn mend(&self, replay: &Replay<'_>) -> Result<bool, StoreError> {
        let last = self.standing().applied.position;
        self.backend.reopen(&mut |backend| {
            let store = KeyedStore::open(backend)?;
            replay(&store, last)?;
            // The batch at which it stopped may be in its journal already.
            match store.standing().applied.position >= last {
                true => Ok(store.backend),
                false => Err(damaged("what the log has up to where readers are")),
            }
        })
    }

    fn settle(&self) -> Result<(), StoreError> {
        self.backend.settle()
    }

    fn check(&self) -> Result<(), StoreError> {
        self.backend.check()
    }

    fn rest(&self) -> Result<(), StoreError> {
        self.backend.tidy(true)
    }

    fn bytes(&self) -> u64 {
        self.backend.bytes()
    }

    fn room_needed(&self) -> u64 {
        self.backend.room_needed()
    }
}

fn write_edges(
    dirty: &Dirty,
    catalog: &Catalog,
    entries: &mut Vec<KeyWrite>,
) -> Result<(), StoreError> {
    for (key, cell) in &dirty.edges {
        let Some(kind) = catalog.kind(key.tenant, key.kind) else {
            return Err(StoreError::Damaged(format!("an edge of unknown kind {}", key.kind.0)));
        };
        if cell.before.is_none() && cell.after.is_none() {
            continue;
        }
        let before = layout::index_entries(kind, key, cell.before.as_ref());
        let after = layout::index_entries(kind, key, cell.after.as_ref());
        let gone = before.iter().filter(|entry| !after.contains(entry));
        entries.extend(gone.map(|entry| (entry.clone(), None)));
        let come = after.iter().filter(|entry| !before.contains(entry));
        entries.extend(come.map(|entry| (entry.clone(), Some(Vec::new()))));
        entries.push((layout::edge(key), cell.after.as_ref().map(encode_edge_row)));
    }
    Ok(())
}

/// Enters what stood before. Entries that the batch itself moves are written with their edges.
fn write_index(
    range: &IndexedRange,
    dirty: &Dirty,
    catalog: &Catalog,
    view: &impl KeyView,
    entries: &mut Vec<KeyWrite>,
) -> Result<(), StoreError> {
    if catalog.kind(range.tenant, range.kind).is_none() {
        return Err(StoreError::Damaged(format!("an index of unknown kind {}", range.kind.0)));
    }
    let edge_key =
        |(source, target): Ends| EdgeKey { tenant: range.tenant, kind: range.kind, source, target };
    let from = match range.after {
        Some(after) => Bound::Excluded(layout::edge(&edge_key(after))),
        None => Bound::Included(layout::kind_prefix(range.tenant, range.kind)),
    };
    let to = Bound::Included(layout::edge(&edge_key(range.until)));
    view.range((from, to), false, &mut |key, value| {
        let ends = layout::ends(key).ok_or_else(|| damaged("an edge's key"))?;
        let key = edge_key(ends);
        let entry = |row: &EdgeRow| layout::outgoing_entry(&key, row);
        let stood = entry(&decode_edge_row(value)?);
        let stays = dirty
            .edges
            .get(&key)
            .is_none_or(|cell| cell.after.as_ref().is_some_and(|after| entry(after) == stood));
        if stays {
            entries.push((stood, Some(Vec::new())));
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Makes repaired entries be there or not. Where the batch changes the edge too, its last row
/// decides, and what is written with it needs no second write.
fn write_repaired(dirty: &Dirty, catalog: &Catalog, entries: &mut Vec<KeyWrite>) {
    if dirty.repaired.is_empty() {
        return;
    }
    let written: HashSet<Key> = entries.iter().map(|(key, _)| key.clone()).collect();
    for (entry, present) in &dirty.repaired {
        let key = layout::index_entry(entry);
        if written.contains(&key) {
            continue;
        }
        let kind = catalog.kind(entry.edge.tenant, entry.edge.kind);
        let present = match (dirty.edges.get(&entry.edge), kind) {
            (Some(cell), Some(kind)) => {
                layout::index_entries(kind, &entry.edge, cell.after.as_ref()).contains(&key)
            }
            _ => *present,
        };
        entries.push((key, present.then(Vec::new)));
    }
}

fn write_nodes(dirty: &Dirty, entries: &mut Vec<KeyWrite>) {
    for (key, node) in &dirty.nodes {
        let value = (*node != Node::default()).then(|| encode_node(node));
        entries.push((layout::node(key), value));
    }
}

fn write_groups(dirty: &Dirty, entries: &mut Vec<KeyWrite>) {
    for (key, cell) in &dirty.groups {
        for gone in &cell.before.groups {
            if cell.after.by_id(gone.id).is_none() {
                entries.push((layout::group(key, gone.id), None));
            }
        }
        for group in &cell.after.groups {
            if cell.before.by_id(group.id) != Some(group) {
                entries.push((layout::group(key, group.id), Some(encode_group(group))));
            }
        }
        if cell.before.next != cell.after.next {
            let mut out = Encoder::with_capacity(6);
            out.u8(FORMAT);
            out.varint(u64::from(cell.after.next.0));
            entries.push((layout::next_group(key), Some(out.into_bytes())));
        }
    }
}

/// Writes new keys and forgets old ones, by the new ones' time alone: the store stays a function
/// of the log.
fn write_idempotency(
    dirty: &Dirty,
    view: &impl KeyView,
    entries: &mut Vec<KeyWrite>,
) -> Result<(), StoreError> {
    let Some(newest) = dirty.idempotency.values().map(|row| row.at).max() else {
        return Ok(());
    };
    let mut forgotten = BTreeMap::new();
    let forget_max = 2 * dirty.idempotency.len() + FORGOTTEN_KEYS_MARGIN;
    let (from, to) = layout::idempotency_before(newest.saturating_sub(IDEMPOTENCY_TTL_MS));
    view.range((Bound::Included(from), Bound::Excluded(to)), false, &mut |key, _| {
        let parsed = layout::parse_idempotency_time(key);
        forgotten.insert(key.to_vec(), parsed.ok_or_else(|| damaged("an idempotency key"))?);
        Ok(if forgotten.len() < forget_max {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        })
    })?;
    // A key that was used again after its time has new parts and a new time, which replace the
    // old ones: its old time, left behind, would make a later batch forget the new use.
    for ((tenant, key), row) in &dirty.idempotency {
        if let Some(old) = read_answer(view, *tenant, key)? {
            let old_time = layout::idempotency_time(old.at, *tenant, key);
            forgotten.insert(old_time, (*tenant, key.clone()));
        }
        let prefix = layout::idempotency_prefix(*tenant, key);
        write_parts(view, &prefix, &encode_idempotency(row), entries)?;
        let time = layout::idempotency_time(row.at, *tenant, key);
        forgotten.remove(&time);
        entries.push((time, Some(Vec::new())));
    }
    for (time_key, (tenant, key)) in forgotten {
        entries.push((time_key, None));
        if !dirty.idempotency.contains_key(&(tenant, key.clone())) {
            write_parts(view, &layout::idempotency_prefix(tenant, &key), &[], entries)?;
        }
    }
    Ok(())
}

/// Makes these bytes the row under a prefix, in parts; those that stand already are not written.
fn write_parts(
    view: &impl KeyView,
    prefix: &Key,
    bytes: &[u8],
    entries: &mut Vec<KeyWrite>,
) -> Result<(), StoreError> {
    let mut standing = BTreeMap::new();
    view.range(prefixed(prefix.clone()), false, &mut |key, part| {
        standing.insert(key.to_vec(), part.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    for (number, part) in bytes.chunks(VALUE_PART_BYTES_MAX).enumerate() {
        let key = layout::part(prefix, number as u16);
        if standing.remove(&key).as_deref() != Some(part) {
            entries.push((key, Some(part.to_vec())));
        }
    }
    entries.extend(standing.into_keys().map(|key| (key, None)));
    Ok(())
}

/// A row put together from its parts; empty where there are none.
fn read_parts(view: &impl KeyView, prefix: Key) -> Result<Vec<u8>, StoreError> {
    let mut whole = Vec::new();
    view.range(prefixed(prefix), false, &mut |_, part| {
        whole.extend_from_slice(part);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(whole)
}

fn read_answer(
    view: &impl KeyView,
    tenant: TenantId,
    key: &IdempotencyKey,
) -> Result<Option<IdempotencyRow>, StoreError> {
    match read_parts(view, layout::idempotency_prefix(tenant, key))? {
        none if none.is_empty() => Ok(None),
        whole => Ok(Some(decode_idempotency(&whole)?)),
    }
}

fn write_catalog(before: &Catalog, after: &Catalog, dirty: &Dirty, entries: &mut Vec<KeyWrite>) {
    debug_assert!(dirty.catalog.is_some());
    for tenant in after.tenants() {
        for kind in after.kinds(tenant) {
            if before.kind(tenant, kind.id) != Some(kind) {
                entries.push((layout::kind(tenant, kind.id), Some(encode_kind(kind))));
            }
        }
        for (id, name) in after.types(tenant) {
            if before.type_name(tenant, id) != Some(name) {
                let value = name.as_str().as_bytes().to_vec();
                entries.push((layout::node_type(tenant, id), Some(value)));
            }
        }
    }
}

fn read_catalog(view: &impl KeyView) -> Result<Catalog, StoreError> {
    let mut catalog = Catalog::default();
    view.range(prefixed(layout::node_types_prefix()), false, &mut |key, value| {
        let parsed = layout::parse_catalog(key);
        let (tenant, id) = parsed.ok_or_else(|| damaged("a node type's key"))?;
        let name = std::str::from_utf8(value).ok().and_then(|name| KindName::new(name).ok());
        let name = name.ok_or_else(|| damaged("a node type's name"))?;
        catalog.set_type(tenant, NodeTypeId(id), name);
        Ok(ControlFlow::Continue(()))
    })?;
    view.range(prefixed(layout::kinds_prefix()), false, &mut |key, value| {
        let (tenant, _) = layout::parse_catalog(key).ok_or_else(|| damaged("a kind's key"))?;
        catalog.set_kind(tenant, decode_kind(value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(catalog)
}

fn read_applied(view: &impl KeyView) -> Result<Applied, StoreError> {
    match view.get(&layout::applied())? {
        Some(value) => decode_applied(value.as_ref()),
        None => Ok(Applied::NOTHING),
    }
}

fn encode_applied(applied: &Applied) -> Vec<u8> {
    let mut out = Encoder::with_capacity(32);
    out.u8(FORMAT);
    out.varint(u64::from(applied.epoch.0));
    out.varint(applied.position.0);
    out.varint(applied.commit.0);
    out.fixed_u64(applied.version.0);
    out.into_bytes()
}

fn decode_applied(bytes: &[u8]) -> Result<Applied, StoreError> {
    let mut input = Decoder::new(bytes);
    input.format()?;
    let applied = Applied {
        epoch: Epoch(input.varint_u32()?),
        position: Position(input.varint()?),
        commit: Millis(input.varint()?),
        version: Version(input.fixed_u64()?),
    };
    input.finish()?;
    Ok(applied)
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(format!("{what} cannot be read"))
}

/// The range of all keys that begin with a prefix.
fn prefixed(prefix: Key) -> (Bound<Key>, Bound<Key>) {
    let mut end = prefix.clone();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    let to = match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix), to)
}
