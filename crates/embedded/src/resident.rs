//! What the store has in memory so that most reads need not ask it: the filter of edges (`filter`),
//! rows (`rows`) and the newest places of lists (`newest`). `keyed` asks here first and tells of
//! every batch; `keeper` builds, grows, saves and loads the filter. Nothing here can be wrong, only
//! missing: then the store is asked.

mod clock;
pub(crate) mod file;
mod filter;
pub(crate) mod keeper;
mod newest;
mod planted;
mod rows;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use guanxi_model::Position;

pub use self::filter::EdgeFilter;
pub use self::newest::PLACES_MAX;
pub(crate) use self::newest::{Looked, NewestLists, NewestPlaces};
pub use self::planted::ResidentBug;
#[cfg(any(test, feature = "conformance"))]
pub use self::planted::plant;
pub(crate) use self::planted::planted;
pub(crate) use self::rows::{RowCache, RowKey};
use crate::store::inventory::KeyOf;
use crate::store::keyed::KeyWrite;

/// The part of the bytes for rows that newest lists may have.
const LISTS_SHARE: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentSettings {
    /// Rows and newest lists; with 0 none are kept.
    pub rows_bytes_max: u64,
    /// A filter that has no more room errs towards "maybe" more often, and stays right. With 0
    /// there is none.
    pub filter_bytes_max: u64,
    /// Places of a newest list.
    pub list_places_max: usize,
}

impl Default for ResidentSettings {
    fn default() -> ResidentSettings {
        ResidentSettings {
            rows_bytes_max: 128 << 20,
            filter_bytes_max: 1 << 30,
            list_places_max: PLACES_MAX,
        }
    }
}

impl ResidentSettings {
    /// For stores that nobody reads much.
    pub const NOTHING: ResidentSettings =
        ResidentSettings { rows_bytes_max: 0, filter_bytes_max: 0, list_places_max: 0 };
}

/// What takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    pub entries: u64,
    pub bytes: u64,
}

/// How a question was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnsweredBy {
    Filter,
    EdgeAtHand,
    EdgeRead,
    NodeAtHand,
    NodeRead,
    ListAtHand,
    ListRead,
}

const ANSWERS: usize = AnsweredBy::ListRead as usize + 1;

/// What one reader counts.
#[derive(Debug, Default)]
pub(crate) struct AnswerCounts([Cell<u64>; ANSWERS]);

impl AnswerCounts {
    pub fn count(&self, by: AnsweredBy) {
        let count = &self.0[by as usize];
        count.set(count.get() + 1);
    }
}

/// How questions were answered, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answered {
    /// "Surely not", by the filter.
    pub by_filter: u64,
    pub edges_at_hand: u64,
    /// Read from the store.
    pub edges_read: u64,
    pub nodes_at_hand: u64,
    pub nodes_read: u64,
    pub lists_at_hand: u64,
    pub lists_read: u64,
}

impl Answered {
    /// All that the store was not asked for.
    pub fn at_hand(&self) -> u64 {
        self.by_filter + self.edges_at_hand + self.nodes_at_hand + self.lists_at_hand
    }
}

/// The filter that readers believe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterFigures {
    pub bytes: u64,
    /// Edges that were added since it was built.
    pub edges: u64,
    /// Edges that it is meant for.
    pub edges_max: u64,
    pub removed: u64,
}

/// What is at hand in memory, and what it was good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentStatus {
    pub rows: Figures,
    pub lists: Figures,
    /// None as long as it is not whole.
    pub filter: Option<FilterFigures>,
    pub answered: Answered,
}

#[derive(Debug)]
pub(crate) struct Resident {
    pub rows: RowCache,
    pub lists: NewestLists,
    answered: [AtomicU64; ANSWERS],
}

impl Resident {
    pub fn new(settings: ResidentSettings) -> Resident {
        let lists_bytes_max = settings.rows_bytes_max / LISTS_SHARE;
        Resident {
            rows: RowCache::new(settings.rows_bytes_max - lists_bytes_max),
            lists: NewestLists::new(lists_bytes_max, settings.list_places_max),
            answered: Default::default(),
        }
    }

    /// What a batch has written, before its moment is published.
    pub fn change(&self, entries: &[KeyWrite], by: Position) {
        for (key, value) in entries {
            let value = value.as_deref();
            match KeyOf::read(key) {
                Some(KeyOf::Edge(edge)) => self.rows.change(&RowKey::edge(&edge), by, value),
                Some(KeyOf::Node(node)) => self.rows.change(&RowKey::node(&node), by, value),
                Some(KeyOf::Incoming(list, place)) => {
                    self.lists.change(&list, by, place, value.is_some());
                }
                None => {}
            }
        }
    }

    /// Forgets everything; what is read from now on is of this position or later.
    pub fn clear(&self, last: Position) {
        self.rows.clear(last);
        self.lists.clear(last);
    }

    /// Adds what a reader has counted.
    pub fn count(&self, counts: &AnswerCounts) {
        for (sum, count) in self.answered.iter().zip(&counts.0) {
            if count.get() > 0 {
                sum.fetch_add(count.get(), Ordering::Relaxed);
            }
        }
    }

    pub fn status(&self, filter: Option<&EdgeFilter>) -> ResidentStatus {
        ResidentStatus {
            rows: self.rows.figures(),
            lists: self.lists.figures(),
            filter: filter.map(|filter| FilterFigures {
                bytes: filter.bytes(),
                edges: filter.added(),
                edges_max: filter.capacity(),
                removed: filter.removed(),
            }),
            answered: self.answered(),
        }
    }

    fn answered(&self) -> Answered {
        let count = |by: AnsweredBy| self.answered[by as usize].load(Ordering::Relaxed);
        Answered {
            by_filter: count(AnsweredBy::Filter),
            edges_at_hand: count(AnsweredBy::EdgeAtHand),
            edges_read: count(AnsweredBy::EdgeRead),
            nodes_at_hand: count(AnsweredBy::NodeAtHand),
            nodes_read: count(AnsweredBy::NodeRead),
            lists_at_hand: count(AnsweredBy::ListAtHand),
            lists_read: count(AnsweredBy::ListRead),
        }
    }
}

/// Each bit of the number moves about half of the others: the finish of SplitMix64.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
