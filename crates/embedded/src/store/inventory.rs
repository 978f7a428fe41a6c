//! The inventory: every edge, index entry, node and group as it lies in the store, sound or not,
//! for whoever holds one against the other. It reads keys and values; what goes together is said
//! elsewhere.

use guanxi_core::snapshot::IncomingList;
use guanxi_model::codec::{decode_edge_row, decode_group, decode_node};
use guanxi_model::group::Group;
use guanxi_model::page::PagePlace;
use guanxi_model::{
    EdgeKey, EdgeRow, GroupId, GroupsKey, Index, IndexEntry, KindId, Millis, Node, NodeKey,
    NodeTypeId, SourceId, State, TargetId, TenantId,
};

use super::layout;

/// Before the first row of an edge, and so of everything.
pub(crate) const EDGES: &[u8] = &[layout::EDGE];
/// Before the first row of a node.
pub(crate) const NODES: &[u8] = &[layout::NODE];
/// Before the first row of a group.
pub(crate) const GROUPS: &[u8] = &[layout::GROUP];
/// Behind everything.
pub(crate) const END: &[u8] = &[layout::GROUP + 1];

/// Where an edge's row lies.
pub(crate) fn edge_key(edge: &EdgeKey) -> Vec<u8> {
    layout::edge(edge)
}

/// Where an index entry lies.
pub(crate) fn entry_key(entry: &IndexEntry) -> Vec<u8> {
    layout::index_entry(entry)
}

/// Where a node's row lies.
pub(crate) fn node_key(node: &NodeKey) -> Vec<u8> {
    layout::node(node)
}

/// One piece of the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InventoryPiece {
    Edge(EdgeKey, EdgeRow),
    Entry(IndexEntry),
    Node(NodeKey, Node),
    Group(GroupsKey, Group),
    /// The key or its value says nothing that is known; the key as far as it does.
    Unreadable(UnreadablePiece),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreadablePiece {
    Edge(EdgeKey),
    Node(NodeKey),
    Group(GroupsKey, GroupId),
    Key,
}

impl InventoryPiece {
    pub(super) fn read(key: &[u8], value: &[u8]) -> InventoryPiece {
        InventoryPiece::parse(key, value)
            .unwrap_or(InventoryPiece::Unreadable(UnreadablePiece::Key))
    }

    fn parse(key: &[u8], value: &[u8]) -> Option<InventoryPiece> {
        let (table, rest) = key.split_first()?;
        let mut parts = KeyRest(rest);
        let kept = match *table {
            layout::EDGE => {
                let edge = parts.edge()?;
                let row = decode_edge_row(value).ok().filter(EdgeRow::stands);
                row.map_or(InventoryPiece::Unreadable(UnreadablePiece::Edge(edge)), |row| {
                    InventoryPiece::Edge(edge, row)
                })
            }
            layout::INCOMING | layout::OUTGOING => InventoryPiece::Entry(parts.listed(*table)?),
            layout::EXPIRY => {
                let (at, edge) = (Millis(parts.time()?), parts.edge()?);
                InventoryPiece::Entry(IndexEntry { edge, index: Index::Expiry { at } })
            }
            layout::NODE => {
                let node = parts.node()?;
                let row = decode_node(value).ok();
                row.map_or(InventoryPiece::Unreadable(UnreadablePiece::Node(node)), |row| {
                    InventoryPiece::Node(node, row)
                })
            }
            layout::GROUP => {
                let (tenant, kind) = (parts.tenant()?, parts.kind()?);
                let groups = GroupsKey { tenant, kind, source: SourceId(parts.id()?) };
                let id = GroupId(u32::from_be_bytes(parts.take()?));
                let unreadable = InventoryPiece::Unreadable(UnreadablePiece::Group(groups, id));
                decode_group(id, value)
                    .map_or(unreadable, |group| InventoryPiece::Group(groups, group))
            }
            _ => return None,
        };
        parts.0.is_empty().then_some(kept)
    }
}

/// Whose row or place a key is, of those that may be at hand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOf {
    Edge(EdgeKey),
    Node(NodeKey),
    /// A live edge's place in its target's list.
    Incoming(IncomingList, PagePlace),
}

impl KeyOf {
    pub fn read(key: &[u8]) -> Option<KeyOf> {
        let (table, rest) = key.split_first()?;
        let mut parts = KeyRest(rest);
        match *table {
            layout::EDGE => parts.edge().map(KeyOf::Edge),
            layout::NODE => parts.node().map(KeyOf::Node),
            layout::INCOMING => match parts.listed(layout::INCOMING)? {
                IndexEntry { edge, index: Index::Incoming { state: State::Live, since } } => {
                    let place = PagePlace { since, id: edge.source.0 };
                    Some(KeyOf::Incoming(IncomingList::of(&edge), place))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// What is left of a key.
struct KeyRest<'a>(&'a [u8]);

impl KeyRest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn tenant(&mut self) -> Option<TenantId> {
        Some(TenantId(u32::from_be_bytes(self.take()?)))
    }

    fn kind(&mut self) -> Option<KindId> {
        Some(KindId(u16::from_be_bytes(self.take()?)))
    }

    fn id(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take()?))
    }

    fn edge(&mut self) -> Option<EdgeKey> {
        let (tenant, kind) = (self.tenant()?, self.kind()?);
        let (source, target) = (SourceId(self.id()?), TargetId(self.id()?));
        Some(EdgeKey { tenant, kind, source, target })
    }

    fn node(&mut self) -> Option<NodeKey> {
        let tenant = self.tenant()?;
        let node_type = NodeTypeId(u16::from_be_bytes(self.take()?));
        Some(NodeKey { tenant, node_type, id: self.id()? })
    }

    /// Six bytes.
    fn time(&mut self) -> Option<u64> {
        let [a, b, c, d, e, f] = self.take()?;
        Some(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// The rest of an entry of a list by time, whose times and ids are inverted.
    fn listed(&mut self, table: u8) -> Option<IndexEntry> {
        let (tenant, kind, own) = (self.tenant()?, self.kind()?, self.id()?);
        let [state] = self.take()?;
        let state = [State::Live, State::Pending].into_iter().find(|s| *s as u8 == state)?;
        let since = Millis(!self.time()? & layout::TIME_MASK);
        let other = !self.id()?;
        let (source, target, index) = match table {
            layout::OUTGOING => (own, other, Index::Outgoing { state, since }),
            _ => (other, own, Index::Incoming { state, since }),
        };
        let edge = EdgeKey { tenant, kind, source: SourceId(source), target: TargetId(target) };
        Some(IndexEntry { edge, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: EdgeKey = EdgeKey {
        tenant: TenantId(0x0102_0304),
        kind: KindId(0x0506),
        source: SourceId(u64::MAX - 1),
        target: TargetId(7),
    };

    #[test]
    fn entries_are_read_as_they_were_written() {
        let (state, since) = (State::Pending, Millis(1_700_000_000_000));
        for index in [
            Index::Incoming { state, since },
            Index::Outgoing { state, since },
            Index::Incoming { state: State::Live, since: Millis(0) },
            Index::Expiry { at: since },
        ] {
            let entry = IndexEntry { edge: EDGE, index };
            let key = layout::index_entry(&entry);
            assert_eq!(InventoryPiece::read(&key, b""), InventoryPiece::Entry(entry));
            for wrong in [&key[..key.len() - 1], &[&key[..], &[0]].concat()] {
                assert_eq!(
                    InventoryPiece::read(wrong, b""),
                    InventoryPiece::Unreadable(UnreadablePiece::Key)
                );
            }
        }
    }

    #[test]
    fn a_key_says_whose_it_is() {
        let node = NodeKey { tenant: TenantId(1), node_type: NodeTypeId(2), id: 3 };
        assert_eq!(KeyOf::read(&layout::edge(&EDGE)), Some(KeyOf::Edge(EDGE)));
        assert_eq!(KeyOf::read(&layout::node(&node)), Some(KeyOf::Node(node)));
        let since = Millis(1_700_000_000_000);
        let of_index = |index| KeyOf::read(&layout::index_entry(&IndexEntry { edge: EDGE, index }));
        let place = PagePlace { since, id: EDGE.source.0 };
        let live = Index::Incoming { state: State::Live, since };
        assert_eq!(of_index(live), Some(KeyOf::Incoming(IncomingList::of(&EDGE), place)));
        assert_eq!(of_index(Index::Incoming { state: State::Pending, since }), None);
        assert_eq!(of_index(Index::Outgoing { state: State::Live, since }), None);
        assert_eq!(KeyOf::read(&layout::applied()), None);
    }

    #[test]
    fn what_cannot_be_read_is_named_as_far_as_its_key_goes() {
        let node = NodeKey { tenant: TenantId(1), node_type: NodeTypeId(2), id: 3 };
        let groups = GroupsKey::of(&EDGE);
        for (key, unreadable) in [
            (layout::edge(&EDGE), UnreadablePiece::Edge(EDGE)),
            (layout::node(&node), UnreadablePiece::Node(node)),
            (layout::group(&groups, GroupId(9)), UnreadablePiece::Group(groups, GroupId(9))),
        ] {
            assert_eq!(InventoryPiece::read(&key, b"\xff"), InventoryPiece::Unreadable(unreadable));
        }
        let mut key = layout::index_entry(&IndexEntry {
            edge: EDGE,
            index: Index::Incoming { state: State::Live, since: Millis(1) },
        });
        key[15] = State::Removed as u8;
        assert_eq!(
            InventoryPiece::read(&key, b""),
            InventoryPiece::Unreadable(UnreadablePiece::Key)
        );
    }
}
