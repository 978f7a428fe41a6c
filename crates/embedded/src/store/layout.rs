//! Every key of the embedded store, in one file. Numbers are big-endian, so that keys sort as
//! they count; times take six bytes and, like ids in lists, are inverted so that the newest comes
//! first. The first byte says which table; all tables share one keyspace.
//!
//! An edge has one row and at most two index entries (incoming by time, outgoing by time), plus
//! one where it expires. Index entries have no value.

use guanxi_model::entry::entries;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::import::ImportId;
use guanxi_model::job::JobId;
use guanxi_model::page::PagePlace;
use guanxi_model::{
    EdgeKey, EdgeRow, Ends, GroupId, GroupsKey, Index, IndexEntry, Kind, KindId, Millis, NodeKey,
    NodeTypeId, SourceId, State, TargetId, TenantId,
};

use guanxi_core::snapshot::{Direction, Timeline};

pub(crate) const APPLIED: u8 = 0x01;
pub(crate) const EDGE: u8 = 0x10;
pub(crate) const INCOMING: u8 = 0x11;
pub(crate) const OUTGOING: u8 = 0x12;
pub(crate) const EXPIRY: u8 = 0x13;
pub(crate) const NODE: u8 = 0x20;
pub(crate) const GROUP: u8 = 0x30;
pub(crate) const NEXT_GROUP: u8 = 0x31;
pub(crate) const KIND: u8 = 0x50;
pub(crate) const NODE_TYPE: u8 = 0x51;
pub(crate) const IDEMPOTENCY: u8 = 0x60;
pub(crate) const IDEMPOTENCY_TIME: u8 = 0x61;
pub(crate) const IMPORT: u8 = 0x68;
pub(crate) const JOB: u8 = 0x70;

pub(crate) const TIME_MASK: u64 = (1 << 48) - 1;

/// The table, tenant, kind and source, and of a group its id.
pub(crate) const NEXT_GROUP_KEY_BYTES: usize = 1 + 4 + 2 + 8;
pub(crate) const GROUP_KEY_BYTES: usize = NEXT_GROUP_KEY_BYTES + 4;

pub type Key = Vec<u8>;

struct KeyWriter(Key);

impl KeyWriter {
    fn new(table: u8) -> KeyWriter {
        let mut key = Vec::with_capacity(32);
        key.push(table);
        KeyWriter(key)
    }

    fn tenant(self, tenant: TenantId) -> KeyWriter {
        self.bytes(&tenant.0.to_be_bytes())
    }

    fn kind(self, kind: KindId) -> KeyWriter {
        self.bytes(&kind.0.to_be_bytes())
    }

    fn id(self, id: u64) -> KeyWriter {
        self.bytes(&id.to_be_bytes())
    }

    fn time(self, time: Millis) -> KeyWriter {
        self.bytes(&time.0.to_be_bytes()[2..])
    }

    fn bytes(mut self, bytes: &[u8]) -> KeyWriter {
        self.0.extend_from_slice(bytes);
        self
    }

    fn done(self) -> Key {
        self.0
    }
}

/// Reads a key's parts from its end, where they have a known place.
fn last_u64(key: &[u8], from_end: usize) -> Option<u64> {
    let at = key.len().checked_sub(from_end)?;
    let bytes = key.get(at..at + 8)?;
    bytes.try_into().ok().map(u64::from_be_bytes)
}

/// Where the store is along the log.
pub fn applied() -> Key {
    vec![APPLIED]
}

pub fn edge(key: &EdgeKey) -> Key {
    edges_of_source(key.tenant, key.kind, key.source).bytes(&key.target.0.to_be_bytes()).done()
}

fn edges_of_source(tenant: TenantId, kind: KindId, source: SourceId) -> KeyWriter {
    KeyWriter::new(EDGE).tenant(tenant).kind(kind).id(source.0)
}

pub fn source_prefix(tenant: TenantId, kind: KindId, source: SourceId) -> Key {
    edges_of_source(tenant, kind, source).done()
}

pub fn kind_prefix(tenant: TenantId, kind: KindId) -> Key {
    KeyWriter::new(EDGE).tenant(tenant).kind(kind).done()
}

pub fn ends(edge_key: &[u8]) -> Option<Ends> {
    Some((SourceId(last_u64(edge_key, 16)?), TargetId(last_u64(edge_key, 8)?)))
}

pub fn timeline_prefix(list: &Timeline) -> Key {
    let table = match list.direction {
        Direction::Outgoing => OUTGOING,
        Direction::Incoming => INCOMING,
    };
    let key = KeyWriter::new(table).tenant(list.tenant).kind(list.kind).id(list.id);
    key.bytes(&[list.state as u8]).done()
}

pub fn timeline_entry(list: &Timeline, place: PagePlace) -> Key {
    let key = KeyWriter(timeline_prefix(list));
    // A caller's bound may lie past what six bytes hold; it must not come round to the beginning.
    let since = place.since.0.min(TIME_MASK);
    key.time(Millis(!since & TIME_MASK)).id(!place.id).done()
}

pub fn timeline_place(key: &[u8]) -> Option<PagePlace> {
    let id = !last_u64(key, 8)?;
    // The six bytes of time stand behind two others, which the mask takes away.
    let since = !last_u64(key, 16)? & TIME_MASK;
    Some(PagePlace { since: Millis(since), id })
}

/// The index entries that an edge's row has, besides the row.
pub fn index_entries(kind: &Kind, key: &EdgeKey, row: Option<&EdgeRow>) -> Vec<Key> {
    entries(kind, key, row).map(|entry| index_entry(&entry)).collect()
}

pub fn index_entry(entry: &IndexEntry) -> Key {
    let edge = &entry.edge;
    match entry.index {
        Index::Incoming { state, since } => {
            let list = timeline_of(edge, Direction::Incoming, state);
            timeline_entry(&list, PagePlace { since, id: edge.source.0 })
        }
        Index::Outgoing { state, since } => {
            let list = timeline_of(edge, Direction::Outgoing, state);
            timeline_entry(&list, PagePlace { since, id: edge.target.0 })
        }
        Index::Expiry { at } => expiry(at, edge),
    }
}

pub fn outgoing_entry(key: &EdgeKey, row: &EdgeRow) -> Key {
    let index = Index::Outgoing { state: row.state, since: row.since };
    index_entry(&IndexEntry { edge: *key, index })
}

fn timeline_of(key: &EdgeKey, direction: Direction, state: State) -> Timeline {
    let id = match direction {
        Direction::Outgoing => key.source.0,
        Direction::Incoming => key.target.0,
    };
    Timeline { tenant: key.tenant, kind: key.kind, direction, id, state }
}

fn expiry(at: Millis, key: &EdgeKey) -> Key {
    let entry = KeyWriter::new(EXPIRY).time(at).tenant(key.tenant).kind(key.kind);
    entry.id(key.source.0).id(key.target.0).done()
}

/// Everything that expires up to and at `now`.
pub fn expiry_range(now: Millis) -> (Key, Key) {
    let after = Millis(now.0.min(TIME_MASK - 1) + 1);
    (vec![EXPIRY], KeyWriter::new(EXPIRY).time(after).done())
}

pub fn parse_expiry(key: &[u8]) -> Option<(Millis, EdgeKey)> {
    let at = last_u64(key, 28)? >> 16;
    let tenant_and_kind = last_u64(key, 24)? & TIME_MASK;
    let edge = EdgeKey {
        tenant: TenantId((tenant_and_kind >> 16) as u32),
        kind: KindId(tenant_and_kind as u16),
        source: SourceId(last_u64(key, 16)?),
        target: TargetId(last_u64(key, 8)?),
    };
    Some((Millis(at), edge))
}

pub fn node(node: &NodeKey) -> Key {
    let key = KeyWriter::new(NODE).tenant(node.tenant);
    key.bytes(&node.node_type.0.to_be_bytes()).id(node.id).done()
}

pub fn nodes_prefix(tenant: TenantId, node_type: NodeTypeId) -> Key {
    KeyWriter::new(NODE).tenant(tenant).bytes(&node_type.0.to_be_bytes()).done()
}

/// The id at the end of a node's key.
pub fn parse_node(key: &[u8]) -> Option<u64> {
    last_u64(key, 8)
}

pub fn groups_of_kind_prefix(tenant: TenantId, kind: KindId) -> Key {
    KeyWriter::new(GROUP).tenant(tenant).kind(kind).done()
}

/// Whose group a key is.
pub fn parse_group_source(key: &[u8]) -> Option<SourceId> {
    last_u64(key, 12).map(SourceId)
}

pub fn group_prefix(groups: &GroupsKey) -> Key {
    KeyWriter::new(GROUP).tenant(groups.tenant).kind(groups.kind).id(groups.source.0).done()
}

pub fn group(groups: &GroupsKey, id: GroupId) -> Key {
    KeyWriter(group_prefix(groups)).bytes(&id.0.to_be_bytes()).done()
}

pub fn parse_group(key: &[u8]) -> Option<GroupId> {
    Some(GroupId(last_u64(key, 8)? as u32))
}

pub fn next_group(groups: &GroupsKey) -> Key {
    KeyWriter::new(NEXT_GROUP).tenant(groups.tenant).kind(groups.kind).id(groups.source.0).done()
}

pub fn kind(tenant: TenantId, id: KindId) -> Key {
    KeyWriter::new(KIND).tenant(tenant).kind(id).done()
}

pub fn kinds_prefix() -> Key {
    vec![KIND]
}

pub fn node_type(tenant: TenantId, id: NodeTypeId) -> Key {
    KeyWriter::new(NODE_TYPE).tenant(tenant).bytes(&id.0.to_be_bytes()).done()
}

pub fn node_types_prefix() -> Key {
    vec![NODE_TYPE]
}

/// The tenant and the number of a key of kinds or node types.
pub fn parse_catalog(key: &[u8]) -> Option<(TenantId, u16)> {
    let tenant = key.get(1..5)?.try_into().ok().map(u32::from_be_bytes)?;
    let number = key.get(5..7)?.try_into().ok().map(u16::from_be_bytes)?;
    Some((TenantId(tenant), number))
}

/// A row may be longer than one journal page; then it is kept in parts under its prefix.
pub fn part(prefix: &Key, number: u16) -> Key {
    KeyWriter(prefix.clone()).bytes(&number.to_be_bytes()).done()
}

/// Of the parts of an answer.
pub fn idempotency_prefix(tenant: TenantId, key: &IdempotencyKey) -> Key {
    let length = [key.as_str().len() as u8];
    KeyWriter::new(IDEMPOTENCY).tenant(tenant).bytes(&length).bytes(key.as_str().as_bytes()).done()
}

pub fn idempotency_time(at: Millis, tenant: TenantId, key: &IdempotencyKey) -> Key {
    let entry = KeyWriter::new(IDEMPOTENCY_TIME).time(at).tenant(tenant);
    entry.bytes(key.as_str().as_bytes()).done()
}

/// Idempotency keys of frames before `time`.
pub fn idempotency_before(time: Millis) -> (Key, Key) {
    (vec![IDEMPOTENCY_TIME], KeyWriter::new(IDEMPOTENCY_TIME).time(time).done())
}

pub fn parse_idempotency_time(key: &[u8]) -> Option<(TenantId, IdempotencyKey)> {
    let tenant = key.get(7..11)?.try_into().ok().map(u32::from_be_bytes)?;
    let text = std::str::from_utf8(key.get(11..)?).ok()?;
    Some((TenantId(tenant), IdempotencyKey::new(text).ok()?))
}

/// Of the parts of an import's row, which tells of the lines that were rejected.
pub fn import_prefix(tenant: TenantId, id: &ImportId) -> Key {
    let length = [id.as_str().len() as u8];
    KeyWriter::new(IMPORT).tenant(tenant).bytes(&length).bytes(id.as_str().as_bytes()).done()
}

pub fn job(tenant: TenantId, id: JobId) -> Key {
    KeyWriter(jobs_prefix(tenant)).id(id.0).done()
}

pub fn jobs_prefix(tenant: TenantId) -> Key {
    KeyWriter::new(JOB).tenant(tenant).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_place_sorts_first_and_survives_its_key() {
        let list = Timeline {
            tenant: TenantId(1),
            kind: KindId(2),
            direction: Direction::Incoming,
            id: 7,
            state: State::Live,
        };
        let place = |since, id| PagePlace { since: Millis(since), id };
        let newest_first =
            [place(900, 1), place(5, u64::MAX), place(5, 2), place(5, 1), place(0, 1)];
        let keys: Vec<Key> = newest_first.iter().map(|p| timeline_entry(&list, *p)).collect();
        assert!(keys.is_sorted());
        for (place, key) in newest_first.iter().zip(&keys) {
            assert_eq!(timeline_place(key), Some(*place));
        }
    }

    #[test]
    fn keys_of_groups_are_as_long_as_said() {
        let groups = GroupsKey { tenant: TenantId(1), kind: KindId(2), source: SourceId(u64::MAX) };
        assert_eq!(group(&groups, GroupId(u32::MAX)).len(), GROUP_KEY_BYTES);
        assert_eq!(next_group(&groups).len(), NEXT_GROUP_KEY_BYTES);
    }

    #[test]
    fn expiry_and_edge_keys_survive() {
        let edge = EdgeKey {
            tenant: TenantId(0x01020304),
            kind: KindId(0x0506),
            source: SourceId(u64::MAX),
            target: TargetId(3),
        };
        assert_eq!(parse_expiry(&expiry(Millis(77), &edge)), Some((Millis(77), edge)));
        assert_eq!(ends(&super::edge(&edge)), Some((edge.source, edge.target)));
        let (from, to) = expiry_range(Millis(77));
        let key = expiry(Millis(77), &edge);
        assert!(from < key && key < to && expiry(Millis(78), &edge) > to);
    }
}
