//! Reads of what is at hand: rows that the process or Redis knew, and nothing else. A read that
//! needs more fails with `NotAtHand`, and the snapshot says what to look up before it is tried
//! again. The database is never asked, so such a read may be done anywhere.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use guanxi_core::snapshot::{IncomingList, StoreError, Wanted};
use guanxi_model::{EdgeKey, EdgeRow, GroupsKey, KindId, NodeKey, TallyRow};

use super::SqlSnapshot;
use crate::memory::incoming::packed::Newest;
use crate::memory::lists::packed::OutgoingList;
use crate::memory::tallies::TallyClaim;

/// Facts for a read, each of its own moment, none older than what the caches promise.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// Edges with their rows; none where one surely does not stand.
    pub edges: Vec<(EdgeKey, Option<EdgeRow>)>,
    /// Complete outgoing lists, and their sources' groups.
    pub lists: Vec<(GroupsKey, Arc<OutgoingList>)>,
    /// Nodes that nobody has ever written about.
    pub strangers: Vec<NodeKey>,
    /// The newest edges of incoming lists.
    pub incoming: Vec<(IncomingList, Arc<Newest>)>,
    /// Target-side tallies of `kinds`.
    pub targets: Vec<(NodeKey, TallyRow)>,
    pub kinds: Vec<KindId>,
    /// Strings in Redis that may be filled with what the database says from now on.
    pub claims: Vec<TallyClaim>,
    /// When the first of these was asked for.
    pub asked: Option<Instant>,
}

/// What was wanted and is not at hand.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    wanted: Wanted,
    /// Whether a read went on without it in vain; what is wanted may turn out not to be needed.
    missed: bool,
}

impl Lacking {
    pub fn missed(&self) -> Option<Wanted> {
        self.missed.then(|| self.wanted.clone())
    }
}

impl SqlSnapshot {
    /// Shows what is at hand, and asks the database nothing.
    pub fn at_hand(mut self) -> SqlSnapshot {
        self.lacking = Some(RefCell::default());
        self
    }

    /// Knows these from the beginning.
    pub fn with_remembered(self, remembered: &Remembered) -> SqlSnapshot {
        self.known.borrow_mut().learn(remembered);
        self
    }

    /// Notes what of this is not at hand.
    pub(super) fn look_at_hand(&self, mut wanted: Wanted, lacking: &RefCell<Lacking>) {
        self.known.borrow_mut().strip(&mut wanted);
        self.take_kept(&mut wanted);
        let noted = &mut lacking.borrow_mut().wanted;
        noted.edges.append(&mut wanted.edges);
        noted.nodes.append(&mut wanted.nodes);
        noted.groups.append(&mut wanted.groups);
        noted.outgoing.append(&mut wanted.outgoing);
        noted.incoming.append(&mut wanted.incoming);
        if !wanted.targets.is_empty() {
            noted.targets = wanted.targets;
            noted.kinds = wanted.kinds;
        }
    }

    /// Refuses to ask the database where it is not to be asked.
    pub(super) fn may_ask(&self) -> Result<(), StoreError> {
        match &self.lacking {
            None => Ok(()),
            Some(lacking) => {
                lacking.borrow_mut().missed = true;
                Err(StoreError::NotAtHand)
            }
        }
    }
}
