//! A store of sorted keys: reads rows through a backend's consistent view and turns a batch's
//! rows into one atomic write.

use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, RwLock};

use guanxi_model::codec::{
    Decoder, Encoder, FORMAT, decode_edge_row, decode_group, decode_idempotency, decode_import,
    decode_job, decode_kind, decode_node, encode_edge_row, encode_group, encode_idempotency,
    encode_import, encode_job, encode_kind, encode_node,
};
use guanxi_model::group::Group;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::page::{Order, Place};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, Epoch, GroupId, GroupSet, GroupsKey, IndexEntry, KindId,
    KindName, Millis, Node, NodeKey, NodeRow, NodeTypeId, Position, SourceId, TallyRow, TargetId,
    TenantId, Version, View,
};

use super::inventory::{self, Kept};
use super::layout::{self, Key};
use super::{Applied, RawRow, Snapshot, Store, StoreError, TimeRange, Timeline};
use crate::overlay::{Dirty, IndexedRange};

/// What one atomic write does to a key: a value, or none to remove it.
pub type Entry = (Key, Option<Vec<u8>>);

/// Where keys and values are kept.
pub trait Backend: Send + Sync + 'static {
    type View: KeyView;

    /// A consistent picture of all keys.
    fn view(&self) -> Self::View;
    /// All entries or none. Each key stands in it once.
    fn write(&self, entries: Vec<Entry>) -> Result<(), StoreError>;
    fn persist(&self) -> Result<(), StoreError>;
    fn bytes(&self) -> u64;
    /// Gets ready for a quick next start; nothing is written afterwards.
    fn settle(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What a walk over keys and values does with each.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StoreError> + 'a;

pub trait KeyView: Send + 'static {
    type Bytes: AsRef<[u8]>;

    fn get(&self, key: &[u8]) -> Result<Option<Self::Bytes>, StoreError>;

    /// Visits the keys of a range in order, or in reverse, until the visitor breaks.
    fn range(
        &self,
        range: (Bound<Key>, Bound<Key>),
        reverse: bool,
        visit: &mut Visit<'_>,
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
    state: RwLock<Standing>,
}

#[derive(Debug, Clone)]
struct Standing {
    applied: Applied,
    catalog: Arc<Catalog>,
}

impl<B: Backend> KeyedStore<B> {
    pub fn open(backend: B) -> Result<KeyedStore<B>, StoreError> {
        let view = backend.view();
        let applied = read_applied(&view)?;
        let catalog = Arc::new(read_catalog(&view)?);
        Ok(KeyedStore { backend, state: RwLock::new(Standing { applied, catalog }) })
    }

    pub fn backend(&self) -> &B {
        &self.backend
    }

    fn standing(&self) -> Standing {
        self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

impl<B: Backend> Store for KeyedStore<B> {
    fn snapshot(&self) -> Box<dyn Snapshot> {
        // Under the lock: a batch that changes the catalog holds it while its rows are written.
        let standing = self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Box::new(KeyedSnapshot { view: self.backend.view(), catalog: standing.catalog.clone() })
    }

    fn write(&self, dirty: &Dirty, applied: Applied) -> Result<(), StoreError> {
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
        write_idempotency(dirty, applied.commit, &view, &mut entries)?;
        for ((tenant, id), row) in &dirty.imports {
            entries.push((layout::import(*tenant, id), Some(encode_import(row))));
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
        let lock = || self.state.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Only a batch that changes the catalog, which is rare, keeps readers out meanwhile.
        let held = dirty.catalog.is_some().then(lock);
        self.backend.write(entries)?;
        let catalog = catalog.clone();
        *held.unwrap_or_else(lock) = Standing { applied, catalog };
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
        Ok(position)
    }

    fn settle(&self) -> Result<(), StoreError> {
        self.backend.settle()
    }

    fn bytes(&self) -> u64 {
        self.backend.bytes()
    }
}

fn write_edges(
    dirty: &Dirty,
    catalog: &Catalog,
    entries: &mut Vec<Entry>,
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
    entries: &mut Vec<Entry>,
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
fn write_repaired(dirty: &Dirty, catalog: &Catalog, entries: &mut Vec<Entry>) {
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

fn write_nodes(dirty: &Dirty, entries: &mut Vec<Entry>) {
    for (key, node) in &dirty.nodes {
        let value = (*node != Node::default()).then(|| encode_node(node));
        entries.push((layout::node(key), value));
    }
}

fn write_groups(dirty: &Dirty, entries: &mut Vec<Entry>) {
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

/// Writes new keys and forgets old ones, by the frames' time alone: the store stays a function
/// of the log.
fn write_idempotency(
    dirty: &Dirty,
    commit: Millis,
    view: &impl KeyView,
    entries: &mut Vec<Entry>,
) -> Result<(), StoreError> {
    if dirty.idempotency.is_empty() {
        return Ok(());
    }
    let mut forgotten = BTreeMap::new();
    let forget_max = 2 * dirty.idempotency.len() + FORGOTTEN_KEYS_MARGIN;
    let (from, to) = layout::idempotency_before(commit.saturating_sub(IDEMPOTENCY_TTL_MS));
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
        let mut stale = parts_of(view, *tenant, key)?;
        if let Some(old) = read_answer(view, *tenant, key)? {
            let old_time = layout::idempotency_time(old.at, *tenant, key);
            forgotten.insert(old_time, (*tenant, key.clone()));
        }
        for (part, value) in encode_idempotency(row).chunks(VALUE_PART_BYTES_MAX).enumerate() {
            let part_key = layout::idempotency_part(*tenant, key, part as u16);
            stale.retain(|stale| *stale != part_key);
            entries.push((part_key, Some(value.to_vec())));
        }
        entries.extend(stale.into_iter().map(|key| (key, None)));
        let time = layout::idempotency_time(row.at, *tenant, key);
        forgotten.remove(&time);
        entries.push((time, Some(Vec::new())));
    }
    for (time_key, (tenant, key)) in forgotten {
        entries.push((time_key, None));
        if !dirty.idempotency.contains_key(&(tenant, key.clone())) {
            let stale = parts_of(view, tenant, &key)?;
            entries.extend(stale.into_iter().map(|key| (key, None)));
        }
    }
    Ok(())
}

fn parts_of(
    view: &impl KeyView,
    tenant: TenantId,
    key: &IdempotencyKey,
) -> Result<Vec<Key>, StoreError> {
    let mut parts = Vec::new();
    view.range(prefixed(layout::idempotency_prefix(tenant, key)), false, &mut |key, _| {
        parts.push(key.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(parts)
}

/// A key's row, put together from its parts.
fn read_answer(
    view: &impl KeyView,
    tenant: TenantId,
    key: &IdempotencyKey,
) -> Result<Option<IdempotencyRow>, StoreError> {
    let mut whole = Vec::new();
    let range = prefixed(layout::idempotency_prefix(tenant, key));
    view.range(range, false, &mut |_, part| {
        whole.extend_from_slice(part);
        Ok(ControlFlow::Continue(()))
    })?;
    if whole.is_empty() {
        return Ok(None);
    }
    Ok(Some(decode_idempotency(&whole)?))
}

fn write_catalog(before: &Catalog, after: &Catalog, dirty: &Dirty, entries: &mut Vec<Entry>) {
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

struct KeyedSnapshot<V> {
    view: V,
    catalog: Arc<Catalog>,
}

impl<V: KeyView> KeyedSnapshot<V> {
    fn row<T>(
        &self,
        key: Key,
        decode: impl FnOnce(&[u8]) -> Result<T, guanxi_model::codec::CodecError>,
    ) -> Result<Option<T>, StoreError> {
        let value = self.view.get(&key)?;
        Ok(value.map(|value| decode(value.as_ref())).transpose()?)
    }

    /// Edge rows of a range, by their ends.
    fn edges(
        &self,
        range: (Bound<Key>, Bound<Key>),
        visit: &mut dyn FnMut(Ends, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.view.range(range, false, &mut |key, value| {
            let ends = layout::ends(key).ok_or_else(|| damaged("an edge's key"))?;
            Ok(visit(ends, decode_edge_row(value)?))
        })
    }
}

impl<V: KeyView> View for KeyedSnapshot<V> {
    type Error = StoreError;

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        self.row(layout::edge(key), decode_edge_row)
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, StoreError> {
        Ok(self.whole_node(node)?.tallies)
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, StoreError> {
        let next = self.row(layout::next_group(key), |bytes| {
            let mut input = Decoder::new(bytes);
            input.format()?;
            Ok(GroupId(input.varint_u32()?))
        })?;
        let Some(next) = next else {
            return Ok(GroupSet::default());
        };
        let mut groups = Vec::new();
        self.view.range(prefixed(layout::group_prefix(key)), false, &mut |key, value| {
            let id = layout::parse_group(key).ok_or_else(|| damaged("a group's key"))?;
            groups.push(decode_group(id, value)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(GroupSet { next, groups })
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, StoreError> {
        Ok(self.whole_node(node)?.settings)
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        read_answer(&self.view, tenant, key)
    }

    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, StoreError> {
        self.row(layout::import(tenant, id), decode_import)
    }

    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, StoreError> {
        self.row(layout::job(tenant, id), decode_job)
    }
}

impl<V: KeyView> Snapshot for KeyedSnapshot<V> {
    fn applied(&self) -> Result<Applied, StoreError> {
        read_applied(&self.view)
    }

    fn raw_rows(&self, after: Option<&[u8]>, bytes_max: usize) -> Result<Vec<RawRow>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec()));
        let (mut rows, mut bytes) = (Vec::new(), 0);
        self.view.range((from, Bound::Unbounded), false, &mut |key, value| {
            bytes += key.len() + value.len();
            if bytes > bytes_max && !rows.is_empty() {
                return Ok(ControlFlow::Break(()));
            }
            rows.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(rows)
    }

    fn inventory(
        &self,
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], Kept) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let range = (Bound::Excluded(after.to_vec()), Bound::Excluded(inventory::END.to_vec()));
        self.view.range(range, false, &mut |key, value| Ok(visit(key, Kept::read(key, value))))
    }

    fn holds(&self, entry: &IndexEntry) -> Result<bool, StoreError> {
        Ok(self.view.get(&layout::index_entry(entry))?.is_some())
    }

    fn whole_node(&self, node: &NodeKey) -> Result<Node, StoreError> {
        Ok(self.row(layout::node(node), decode_node)?.unwrap_or_default())
    }

    fn timeline(
        &self,
        list: &Timeline,
        range: &TimeRange,
        visit: &mut dyn FnMut(Place) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (mut from, mut to) = prefixed(layout::timeline_prefix(list));
        let entry = |since, id| layout::timeline_entry(list, Place { since, id });
        // Keys run from the newest to the oldest, so `until` bounds their beginning.
        if let Some(until) = range.until {
            if until.0 == 0 {
                return Ok(());
            }
            from = Bound::Included(entry(Millis(until.0 - 1), u64::MAX));
        }
        if let Some(since) = range.since {
            to = Bound::Included(entry(since, 0));
        }
        match (range.after, range.order) {
            (Some(after), Order::Newest) => {
                let after = layout::timeline_entry(list, after);
                if bound_key(&from).is_none_or(|from| *from <= after) {
                    from = Bound::Excluded(after);
                }
            }
            (Some(after), Order::Oldest) => {
                let after = layout::timeline_entry(list, after);
                if bound_key(&to).is_none_or(|to| *to >= after) {
                    to = Bound::Excluded(after);
                }
            }
            (None, _) => {}
        }
        let empty = matches!((bound_key(&from), bound_key(&to)), (Some(a), Some(b)) if a > b
            || (a == b && !matches!((&from, &to), (Bound::Included(_), Bound::Included(_)))));
        if empty {
            return Ok(());
        }
        self.view.range((from, to), range.order == Order::Oldest, &mut |key, _| {
            Ok(visit(layout::timeline_place(key).ok_or_else(|| damaged("a list's key"))?))
        })
    }

    fn edges_of_source(
        &self,
        tenant: TenantId,
        kind: KindId,
        source: SourceId,
        after: Option<TargetId>,
        visit: &mut dyn FnMut(TargetId, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (mut from, to) = prefixed(layout::source_prefix(tenant, kind, source));
        if let Some(target) = after {
            from = Bound::Excluded(layout::edge(&EdgeKey { tenant, kind, source, target }));
        }
        self.edges((from, to), &mut |(_, target), row| visit(target, row))
    }

    fn edges_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        after: Option<Ends>,
        visit: &mut dyn FnMut(Ends, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (mut from, to) = prefixed(layout::kind_prefix(tenant, kind));
        if let Some((source, target)) = after {
            from = Bound::Excluded(layout::edge(&EdgeKey { tenant, kind, source, target }));
        }
        self.edges((from, to), visit)
    }

    fn groups_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        visit: &mut dyn FnMut(SourceId, Group) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let range = prefixed(layout::groups_of_kind_prefix(tenant, kind));
        self.view.range(range, false, &mut |key, value| {
            let parsed = layout::parse_group_source(key).zip(layout::parse_group(key));
            let (source, id) = parsed.ok_or_else(|| damaged("a group's key"))?;
            Ok(visit(source, decode_group(id, value)?))
        })
    }

    fn nodes_of_type(
        &self,
        tenant: TenantId,
        node_type: NodeTypeId,
        visit: &mut dyn FnMut(u64, Node) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let range = prefixed(layout::nodes_prefix(tenant, node_type));
        self.view.range(range, false, &mut |key, value| {
            let id = layout::parse_node(key).ok_or_else(|| damaged("a node's key"))?;
            Ok(visit(id, decode_node(value)?))
        })
    }

    fn due(&self, now: Millis, edges_max: usize) -> Result<Vec<(Millis, EdgeKey)>, StoreError> {
        let mut due = Vec::new();
        let (from, to) = layout::expiry_range(now);
        self.view.range((Bound::Included(from), Bound::Excluded(to)), false, &mut |key, _| {
            due.push(layout::parse_expiry(key).ok_or_else(|| damaged("an expiry's key"))?);
            Ok(if due.len() < edges_max {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        Ok(due)
    }

    fn jobs(
        &self,
        tenant: TenantId,
        visit: &mut dyn FnMut(Job) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.view.range(prefixed(layout::jobs_prefix(tenant)), true, &mut |_, value| {
            Ok(visit(decode_job(value)?))
        })
    }
}

fn bound_key(bound: &Bound<Key>) -> Option<&Key> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}
