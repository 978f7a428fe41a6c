//! Index entries: what a store keeps beside an edge's row so that lists and expiry need no search.
//! Which of them a row has is said here alone; where they lie is the store's affair.

use crate::edge::{EdgeKey, EdgeRow, State};
use crate::kind::Kind;
use crate::time::Millis;

/// One entry of one edge in one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexEntry {
    pub edge: EdgeKey,
    pub index: Index,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// The target's list by time.
    Incoming { state: State, since: Millis },
    /// The source's list by time.
    Outgoing { state: State, since: Millis },
    /// What expires, by when.
    Expiry { at: Millis },
}

/// The entries that an edge's row has: none for a row that is gone.
pub fn entries(
    kind: &Kind,
    key: &EdgeKey,
    row: Option<&EdgeRow>,
) -> impl Iterator<Item = IndexEntry> + use<> {
    let mut indexes = [None; 3];
    if let Some(row) = row.filter(|row| row.stands()) {
        let (state, since) = (row.state, row.since);
        if kind.fixed.incoming_list {
            indexes[0] = Some(Index::Incoming { state, since });
        }
        if kind.keeps_time_index() {
            indexes[1] = Some(Index::Outgoing { state, since });
        }
        indexes[2] = row.expires_at.map(|at| Index::Expiry { at });
    }
    let edge = *key;
    indexes.into_iter().flatten().map(move |index| IndexEntry { edge, index })
}
