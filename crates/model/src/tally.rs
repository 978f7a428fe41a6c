//! Tallies by contribution: a row says which numbers it adds to, and a change of a row changes
//! them by the difference. No replay, reordering or skipped version can make them drift.

use crate::edge::{EdgeKey, EdgeRow, State};
use crate::group::{GroupId, GroupsKey};
use crate::kind::{Kind, KindId};
use crate::node::NodeKey;
use crate::record::EdgeRecord;

/// Which number of a node and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Which {
    Outgoing = 0,
    Incoming = 1,
    PendingOutgoing = 2,
    PendingIncoming = 3,
    /// Live edges that name the node as owner.
    Owned = 4,
    /// A pure counter's value.
    Value = 5,
}

impl Which {
    pub const ALL: [Which; 6] = [
        Which::Outgoing,
        Which::Incoming,
        Which::PendingOutgoing,
        Which::PendingIncoming,
        Which::Owned,
        Which::Value,
    ];

    pub(crate) fn from_u8(value: u8) -> Option<Which> {
        Which::ALL.into_iter().find(|which| *which as u8 == value)
    }
}

/// All numbers of one node over all kinds; a number that is 0 has no entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TallyRow {
    entries: Vec<((KindId, Which), i64)>,
}

impl TallyRow {
    pub fn get(&self, kind: KindId, which: Which) -> i64 {
        match self.find(kind, which) {
            Ok(at) => self.entries[at].1,
            Err(_) => 0,
        }
    }

    pub fn add(&mut self, kind: KindId, which: Which, delta: i64) {
        match self.find(kind, which) {
            Ok(at) => {
                self.entries[at].1 += delta;
                if self.entries[at].1 == 0 {
                    self.entries.remove(at);
                }
            }
            Err(at) if delta != 0 => self.entries.insert(at, ((kind, which), delta)),
            Err(_) => {}
        }
    }

    pub fn set(&mut self, kind: KindId, which: Which, value: i64) {
        match self.find(kind, which) {
            Ok(at) if value == 0 => {
                self.entries.remove(at);
            }
            Ok(at) => self.entries[at].1 = value,
            Err(at) if value != 0 => self.entries.insert(at, ((kind, which), value)),
            Err(_) => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Its numbers in the order of kind and which.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (KindId, Which, i64)> + '_ {
        self.entries.iter().map(|((kind, which), value)| (*kind, *which, *value))
    }

    fn find(&self, kind: KindId, which: Which) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&(kind, which), |(key, _)| *key)
    }
}

/// A number that an edge adds one to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CountedTally {
    Node { node: NodeKey, kind: KindId, which: Which },
    Group { groups: GroupsKey, id: GroupId },
}

/// What an edge record does to the row as it stands, tombstone or none: the only place where an
/// edge's fate and its tallies are computed, in every deployment. Each number changes by what the
/// rows' contributions differ. None when the row that stands is as new or newer: the record came late
/// or twice, and changes nothing.
pub fn apply_edge(
    kind: &Kind,
    record: &EdgeRecord,
    standing: Option<&EdgeRow>,
) -> Option<impl Iterator<Item = (CountedTally, i64)> + use<>> {
    if standing.is_some_and(|row| row.version >= record.new.version) {
        return None;
    }
    let after = contribution(kind, &record.key, Some(&record.new));
    let before = contribution(kind, &record.key, standing);
    let (stays, stayed) = (after.clone(), before.clone());
    let more = after.filter(move |counted| !stayed.clone().any(|other| other == *counted));
    let less = before.filter(move |counted| !stays.clone().any(|other| other == *counted));
    Some(more.map(|counted| (counted, 1)).chain(less.map(|counted| (counted, -1))))
}

/// At most the two ends, the owner and the group.
const CONTRIBUTIONS_MAX: usize = 4;

/// The numbers that this row adds one to.
pub fn contribution(
    kind: &Kind,
    key: &EdgeKey,
    row: Option<&EdgeRow>,
) -> impl Iterator<Item = CountedTally> + Clone + use<> {
    let mut counted: [Option<CountedTally>; CONTRIBUTIONS_MAX] = [None; CONTRIBUTIONS_MAX];
    if let Some(row) = row {
        let ends = match row.state {
            State::Live => Some((Which::Outgoing, Which::Incoming)),
            State::Pending => Some((Which::PendingOutgoing, Which::PendingIncoming)),
            State::Removed => None,
        };
        let at = |node_type, id, which| {
            let node = NodeKey { tenant: key.tenant, node_type, id };
            Some(CountedTally::Node { node, kind: key.kind, which })
        };
        if let Some((outgoing, incoming)) = ends {
            if kind.fixed.outgoing_tally {
                counted[0] = at(kind.fixed.source_type, key.source.0, outgoing);
            }
            if kind.fixed.incoming_tally {
                counted[1] = at(kind.fixed.target_type, key.target.0, incoming);
            }
        }
        if row.is_live() {
            if let (Some(owner), Some(owner_type)) = (row.owner, kind.fixed.owner_type) {
                counted[2] = at(owner_type, owner, Which::Owned);
            }
            counted[3] = row.group.map(|id| CountedTally::Group { groups: GroupsKey::of(key), id });
        }
    }
    counted.into_iter().flatten()
}
