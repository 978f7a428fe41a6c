//! What goes before what: the oldest first, when a shard is taken and after the log failed. It is a
//! courtesy, as versions decide; of more rows than are remembered the order is not kept.

use super::RelayWork;
use crate::relay::shards::OutboxShard;

impl RelayWork {
    /// What stood in shards that were just taken waits until all of it was seen, or as much as is
    /// remembered: the oldest goes first, and a scan sees it shard by shard.
    pub(super) fn may_fetch(&self) -> bool {
        let reads = || self.shards.iter().any(OutboxShard::is_unread);
        !self.found.is_empty() && (self.is_full() || !reads())
    }

    /// Lets rows pass that are handed over, once all that stood before them is with the courier: in
    /// any of the shards that were taken with theirs, as an edge's records may lie in each.
    pub(super) fn let_handed_pass(&mut self) {
        let is_read = !self.shards.iter().any(OutboxShard::is_unread);
        if !(is_read && self.found.is_empty() && self.shards.iter().any(OutboxShard::is_young)) {
            return;
        }
        let mut grown = 0_u64;
        for (number, shard) in self.shards.iter_mut().enumerate() {
            if shard.is_young() {
                shard.grow_up();
                grown |= 1 << number;
            }
        }
        self.shared.inbox.let_pass(grown);
    }

    /// What the log failed to take is to be sent again, and what is handed over waits for it as it
    /// waits for what stood in a shard that was just taken.
    pub(super) fn keep_handed_back(&mut self) {
        self.shards.iter_mut().for_each(OutboxShard::send_again);
        self.shared.inbox.keep_back();
    }
}
