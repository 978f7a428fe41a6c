//! What a batch writes: its rows, index entries and place as keys and values, each key once.

use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, ControlFlow};

use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::{
    Encoder, FORMAT, decode_edge_row, encode_edge_row, encode_group, encode_idempotency,
    encode_import, encode_job, encode_kind, encode_node,
};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{Catalog, EdgeKey, EdgeRow, Ends, GroupId, Node};

use super::moment::Moment;
use super::{KeyView, KeyWrite, damaged, prefixed, read_answer};
use crate::overlay::{Dirty, IndexedRange};
use crate::store::Applied;
use crate::store::layout::{self, Key};

/// A value past a journal page could be torn in the middle, which the engine below refuses to
/// recover from; longer rows are kept in parts.
const VALUE_PART_BYTES_MAX: usize = 2_048;

/// Idempotency keys that one batch forgets beyond those that it adds.
const FORGOTTEN_KEYS_MARGIN: usize = 16;

/// All that a batch writes, on the rows of this moment.
pub(super) fn entries_of<V: KeyView>(
    dirty: &Dirty,
    applied: Applied,
    standing: &Moment<V>,
) -> Result<Vec<KeyWrite>, StoreError> {
    let catalog = dirty.catalog.as_ref().unwrap_or(&standing.catalog);
    let view = &standing.view;
    let mut entries = Vec::with_capacity(4 * dirty.edges.len() + dirty.nodes.len() + 1);
    write_edges(dirty, catalog, &mut entries)?;
    for range in &dirty.indexed {
        write_index(range, dirty, catalog, view, &mut entries)?;
    }
    write_repaired(dirty, catalog, &mut entries);
    write_nodes(dirty, &mut entries);
    write_groups(dirty, &mut entries);
    write_idempotency(dirty, view, &mut entries)?;
    for ((tenant, id), row) in &dirty.imports {
        let prefix = layout::import_prefix(*tenant, id);
        write_parts(view, &prefix, &encode_import(row), &mut entries)?;
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
    Ok(entries)
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
            let value = encode_next_group(cell.after.next);
            entries.push((layout::next_group(key), Some(value)));
        }
    }
}

/// The id that a source's next group gets.
pub(crate) fn encode_next_group(next: GroupId) -> Vec<u8> {
    let mut out = Encoder::with_capacity(6);
    out.u8(FORMAT);
    out.varint(u64::from(next.0));
    out.into_bytes()
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

fn encode_applied(applied: &Applied) -> Vec<u8> {
    let mut out = Encoder::with_capacity(32);
    out.u8(FORMAT);
    out.varint(u64::from(applied.epoch.0));
    out.varint(applied.position.0);
    out.varint(applied.commit.0);
    out.fixed_u64(applied.version.0);
    out.into_bytes()
}
