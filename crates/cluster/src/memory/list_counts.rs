//! What became of questions for lists in Redis, and of what was read to fill them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListFigures {
    /// Lists that were asked for and there.
    pub found: u64,
    /// Not there, or not to be believed.
    pub missed: u64,
    pub filled: u64,
    /// Fills that a write overtook.
    pub overtaken: u64,
}

#[derive(Debug, Default)]
pub(super) struct ListCounts {
    found: AtomicU64,
    missed: AtomicU64,
    filled: AtomicU64,
    overtaken: AtomicU64,
}

impl ListCounts {
    pub fn asked(&self, lists: usize, found: usize) {
        self.found.fetch_add(found as u64, Ordering::Relaxed);
        self.missed.fetch_add((lists - found) as u64, Ordering::Relaxed);
    }

    pub fn filled(&self, filled: bool) {
        let count = if filled { &self.filled } else { &self.overtaken };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn figures(&self) -> ListFigures {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ListFigures {
            found: count(&self.found),
            missed: count(&self.missed),
            filled: count(&self.filled),
            overtaken: count(&self.overtaken),
        }
    }
}
