//! The rows of a store from what was decided: edges as they come, in the order of their keys, and
//! what has another order (index entries, groups, tallies) through a sort. Then all of them, table
//! by table, in the order of the store's keys.

use std::collections::BTreeMap;

use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::{Decoder, encode_edge_row, encode_group, encode_node};
use guanxi_model::entry::entries;
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupSet, KindId, Node, NodeKey, NodeRow, NodeTypeId, SourceId,
    State, TargetId, TenantId, Which,
};

use super::IngestError;
use super::line::big_endian;
use super::sorter::{RunFile, RunReader, RunWriter, Sorter, SpillFolder};
use super::source::SourceView;
use crate::store::RawRow;
use crate::store::keyed::encode_next_group;
use crate::store::layout;

/// Takes what was decided.
pub(super) struct RowsOut {
    tenant: TenantId,
    folder: SpillFolder,
    /// Edges of the present kind: both ends and the row.
    edges: Option<(KindId, RunWriter)>,
    done: BTreeMap<KindId, RunFile>,
    edge_rows: u64,
    /// Index entries and groups by their keys.
    entries: Sorter,
    nodes: NodeSums,
    /// The edges of a source, before they are in order.
    unordered: Vec<(TargetId, EdgeRow)>,
    /// What the source counts, of which another unit may come.
    source: Option<SourceCounts>,
    record: Vec<u8>,
}

/// How many edges a source has, live and pending.
#[derive(Debug, Clone, Copy)]
struct SourceCounts {
    node: NodeKey,
    kind: KindId,
    live: i64,
    pending: i64,
}

impl RowsOut {
    pub fn new(tenant: TenantId, folder: &SpillFolder, bytes_max: usize) -> RowsOut {
        RowsOut {
            tenant,
            folder: folder.clone(),
            edges: None,
            done: BTreeMap::new(),
            edge_rows: 0,
            entries: Sorter::new(folder, bytes_max / 4 * 3),
            nodes: NodeSums(Sorter::new(folder, bytes_max / 4)),
            unordered: Vec::new(),
            source: None,
            record: Vec::new(),
        }
    }

    /// Edges of this kind come next, and of no other again.
    pub fn begin_kind(&mut self, kind: KindId) -> Result<(), IngestError> {
        self.end_kind()?;
        self.edges = Some((kind, RunWriter::create(&self.folder)?));
        Ok(())
    }

    fn end_kind(&mut self) -> Result<(), IngestError> {
        if let Some((kind, writer)) = self.edges.take() {
            self.edge_rows += writer.records();
            self.done.insert(kind, writer.finish()?);
        }
        self.end_source()
    }

    fn end_source(&mut self) -> Result<(), IngestError> {
        if let Some(SourceCounts { node, kind, live, pending }) = self.source.take() {
            self.nodes.add(&node, kind, Which::Outgoing, live)?;
            self.nodes.add(&node, kind, Which::PendingOutgoing, pending)?;
        }
        Ok(())
    }

    /// A node's settings and counters.
    pub fn node(&mut self, key: &NodeKey, node: &Node) -> Result<(), IngestError> {
        self.nodes.set_private(key, node.settings.private)?;
        for (kind, which, value) in node.tallies.entries() {
            self.nodes.add(key, kind, which, value)?;
        }
        Ok(())
    }

    /// The edges and groups of a source, or one of its edges.
    pub fn source(&mut self, view: &mut SourceView<'_>) -> Result<(), IngestError> {
        let mut unordered = std::mem::take(&mut self.unordered);
        unordered.extend(view.edges.drain());
        unordered.sort_unstable_by_key(|(target, _)| *target);
        for (target, row) in unordered.drain(..) {
            self.edge(view, target, &row)?;
        }
        self.unordered = unordered;
        self.groups(view)
    }

    fn edge(
        &mut self,
        view: &mut SourceView<'_>,
        target: TargetId,
        row: &EdgeRow,
    ) -> Result<(), IngestError> {
        let (kind, key) = (view.kind, view.key(target));
        self.record.clear();
        self.record.extend_from_slice(&key.source.0.to_be_bytes());
        self.record.extend_from_slice(&key.target.0.to_be_bytes());
        self.record.extend_from_slice(&encode_edge_row(row));
        if let Some((_, writer)) = &mut self.edges {
            writer.write(&self.record)?;
        }
        for entry in entries(kind, &key, Some(row)) {
            self.entries.push(&layout::index_entry(&entry))?;
        }
        for counted in contribution(kind, &key, Some(row)) {
            match counted {
                CountedTally::Node { node, kind, which: Which::Outgoing } => {
                    self.counts(node, kind)?.live += 1;
                }
                CountedTally::Node { node, kind, which: Which::PendingOutgoing } => {
                    self.counts(node, kind)?.pending += 1;
                }
                // They are counted when the lists are written.
                CountedTally::Node { which: Which::Incoming | Which::PendingIncoming, .. }
                    if kind.fixed.incoming_list => {}
                CountedTally::Node { node, kind, which } => {
                    self.nodes.add(&node, kind, which, 1)?
                }
                CountedTally::Group { id, .. } => view.groups.resize(id, 1),
            }
        }
        Ok(())
    }

    fn counts(&mut self, node: NodeKey, kind: KindId) -> Result<&mut SourceCounts, IngestError> {
        if self.source.is_some_and(|counts| (counts.node, counts.kind) != (node, kind)) {
            self.end_source()?;
        }
        Ok(self.source.get_or_insert(SourceCounts { node, kind, live: 0, pending: 0 }))
    }

    fn groups(&mut self, view: &SourceView<'_>) -> Result<(), IngestError> {
        if view.groups.next == GroupSet::default().next {
            return Ok(());
        }
        let key = view.groups_key();
        for group in &view.groups.groups {
            let row = [layout::group(&key, group.id), encode_group(group)].concat();
            self.entries.push(&row)?;
        }
        let next = [layout::next_group(&key), encode_next_group(view.groups.next)].concat();
        Ok(self.entries.push(&next)?)
    }

    /// All that was taken, to be written with these rows of other tables.
    pub fn into_rows(mut self, others: Vec<RawRow>) -> Result<RowsInOrder, IngestError> {
        self.end_kind()?;
        let RowsOut { tenant, done, edge_rows, entries, nodes, .. } = self;
        let rows = edge_rows + entries.records() + others.len() as u64;
        Ok(RowsInOrder { tenant, edges: done, entries, nodes, others, rows })
    }
}

/// What nodes have, one number at a time, which are added up in the end.
struct NodeSums(Sorter);

/// Stands where a number has its kind; no kind has it.
const SETTINGS: KindId = KindId(0);

impl NodeSums {
    fn set_private(&mut self, node: &NodeKey, private: bool) -> Result<(), IngestError> {
        self.add(node, SETTINGS, Which::Outgoing, i64::from(private))
    }

    fn add(
        &mut self,
        node: &NodeKey,
        kind: KindId,
        which: Which,
        value: i64,
    ) -> Result<(), IngestError> {
        if value == 0 {
            return Ok(());
        }
        self.0.push_with(|out| {
            out.extend_from_slice(&node.node_type.0.to_be_bytes());
            out.extend_from_slice(&node.id.to_be_bytes());
            out.extend_from_slice(&kind.0.to_be_bytes());
            out.push(which as u8);
            out.extend_from_slice(&value.to_be_bytes());
        })?;
        Ok(())
    }
}

/// All rows of a store.
pub(super) struct RowsInOrder {
    tenant: TenantId,
    edges: BTreeMap<KindId, RunFile>,
    entries: Sorter,
    nodes: NodeSums,
    others: Vec<RawRow>,
    /// About how many there are: all but those of nodes.
    pub rows: u64,
}

/// Takes a key and its value.
pub(super) type PutRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), IngestError> + 'a;

impl RowsInOrder {
    /// Gives every row in the order of the keys.
    pub fn give(self, catalog: &Catalog, put: &mut PutRow<'_>) -> Result<(), IngestError> {
        let RowsInOrder { tenant, edges, entries, nodes, others, .. } = self;
        let behind = others.partition_point(|(key, _)| key.as_slice() < [layout::EDGE].as_slice());
        let (before, behind) = others.split_at(behind);
        before.iter().try_for_each(|(key, value)| put(key, value))?;
        for (kind, run) in edges {
            give_edges(tenant, kind, run, put)?;
        }
        let mut writing = EntriesInOrder { tenant, catalog, nodes: Some(nodes), list: None };
        let mut merge = entries.into_merge()?;
        while let Some(record) = merge.next()? {
            let (key, value) = split(record)?;
            writing.before(key, put)?;
            put(key, value)?;
        }
        writing.end(put)?;
        behind.iter().try_for_each(|(key, value)| put(key, value))
    }
}

fn give_edges(
    tenant: TenantId,
    kind: KindId,
    run: RunFile,
    put: &mut PutRow<'_>,
) -> Result<(), IngestError> {
    const ENDS_BYTES: usize = 16;
    let mut reader = RunReader::open(run)?;
    let (source, target) = (SourceId(0), TargetId(0));
    let mut key = layout::edge(&EdgeKey { tenant, kind, source, target });
    let ends_at = key.len() - ENDS_BYTES;
    while let Some(record) = reader.next()? {
        let (ends, row) = record.split_at_checked(ENDS_BYTES).ok_or_else(damaged)?;
        key[ends_at..].copy_from_slice(ends);
        put(&key, row)?;
    }
    Ok(())
}

/// A key and its value. Keys of a table have the same length.
fn split(record: &[u8]) -> Result<(&[u8], &[u8]), IngestError> {
    let key_bytes = match record.first() {
        Some(&layout::GROUP) => layout::GROUP_KEY_BYTES,
        Some(&layout::NEXT_GROUP) => layout::NEXT_GROUP_KEY_BYTES,
        // Index entries have no value.
        _ => record.len(),
    };
    record.split_at_checked(key_bytes).ok_or_else(damaged)
}

fn damaged() -> IngestError {
    StoreError::Damaged("what was kept beside the sort cannot be read".to_owned()).into()
}

/// What comes between index entries: nodes, whose incoming tallies are counted by the lists.
struct EntriesInOrder<'a> {
    tenant: TenantId,
    catalog: &'a Catalog,
    /// None once they were given.
    nodes: Option<NodeSums>,
    /// The list whose entries are passing.
    list: Option<IncomingList>,
}

struct IncomingList {
    /// The beginning of the keys of its entries.
    prefix: [u8; LIST_BYTES],
    entries: i64,
}

const LIST_BYTES: usize = 16;

impl EntriesInOrder<'_> {
    fn before(&mut self, key: &[u8], put: &mut PutRow<'_>) -> Result<(), IngestError> {
        match key.first() {
            Some(&layout::INCOMING) => {
                let prefix = *key.first_chunk::<LIST_BYTES>().ok_or_else(damaged)?;
                match &mut self.list {
                    Some(list) if list.prefix == prefix => list.entries += 1,
                    _ => {
                        self.end_list()?;
                        self.list = Some(IncomingList { prefix, entries: 1 });
                    }
                }
                Ok(())
            }
            Some(table) if *table > layout::NODE => self.end(put),
            _ => self.end_list(),
        }
    }

    fn end_list(&mut self) -> Result<(), IngestError> {
        let Some(IncomingList { prefix, entries }) = self.list.take() else { return Ok(()) };
        let mut input = Decoder::new(&prefix[5..]);
        let kind = KindId(big_endian(input.take(2)?) as u16);
        let (id, state) = (input.fixed_u64()?, input.u8()?);
        let kind = self.catalog.kind(self.tenant, kind).ok_or_else(damaged)?;
        if !kind.fixed.incoming_tally {
            return Ok(());
        }
        let node = NodeKey { tenant: self.tenant, node_type: kind.fixed.target_type, id };
        let which = match state == State::Live as u8 {
            true => Which::Incoming,
            false => Which::PendingIncoming,
        };
        match &mut self.nodes {
            Some(nodes) => nodes.add(&node, kind.id, which, entries),
            None => Err(damaged()),
        }
    }

    fn end(&mut self, put: &mut PutRow<'_>) -> Result<(), IngestError> {
        self.end_list()?;
        match self.nodes.take() {
            Some(nodes) => give_nodes(self.tenant, nodes, put),
            None => Ok(()),
        }
    }
}

fn give_nodes(tenant: TenantId, nodes: NodeSums, put: &mut PutRow<'_>) -> Result<(), IngestError> {
    let mut merge = nodes.0.into_merge()?;
    let mut present: Option<(NodeKey, Node)> = None;
    let mut give = |present: Option<(NodeKey, Node)>| match present {
        Some((key, node)) if node != Node::default() => {
            put(&layout::node(&key), &encode_node(&node))
        }
        _ => Ok(()),
    };
    while let Some(record) = merge.next()? {
        let mut input = Decoder::new(record);
        let node_type = NodeTypeId(big_endian(input.take(2)?) as u16);
        let key = NodeKey { tenant, node_type, id: input.fixed_u64()? };
        let kind = KindId(big_endian(input.take(2)?) as u16);
        let find = |number| Which::ALL.into_iter().find(|which| *which as u8 == number);
        let which = input.closed("tally", find)?;
        let value = input.fixed_u64()?.cast_signed();
        if present.as_ref().is_none_or(|(present, _)| *present != key) {
            give(present.replace((key, Node::default())))?;
        }
        let Some((_, node)) = &mut present else { continue };
        match kind {
            SETTINGS => node.settings = NodeRow { private: value != 0, ..NodeRow::default() },
            kind => node.tallies.add(kind, which, value),
        }
    }
    give(present)
}
