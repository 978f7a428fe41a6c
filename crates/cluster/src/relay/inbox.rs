//! Where committers of the same process leave their rows for the relay's thread. It is bounded, and
//! what does not fit is simply not here: it stands in the outbox, where a scan finds it.
//!
//! Rows of a shard that was just taken are kept back until the relay has sent what stood there
//! before, so that they do not overtake it. Those that a scan meets meanwhile go with what it finds.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::places::SHARDS;

use crate::outbox::{OutboxKey, OutboxMover, OutboxRow};
use parking_lot::{Condvar, Mutex};

/// Records that wait here, kept back or not; some megabytes, and a moment's work.
const RECORDS_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<InboxRows>,
    rung: Condvar,
    /// The shards that the relay holds, a bit for each.
    held: AtomicU64,
}

#[derive(Debug, Default)]
struct InboxRows {
    rows: VecDeque<OutboxRow>,
    /// Rows of `young` shards, in the order in which they came.
    kept: VecDeque<OutboxRow>,
    /// Of both.
    records: usize,
    /// The shards that are held and whose rows are kept back, a bit for each.
    young: u64,
    /// Something stands in the outbox that was not handed over.
    look: bool,
}

impl OutboxMover for Inbox {
    /// One that this relay holds, else any.
    fn shard(&self) -> u8 {
        let held = self.held.load(Ordering::Relaxed);
        let mut skip = match held.count_ones() {
            0 => return fastrand::u8(..SHARDS),
            count => fastrand::u32(..count),
        };
        let mut left = held;
        while skip > 0 {
            // Drops the lowest bit.
            left &= left - 1;
            skip -= 1;
        }
        left.trailing_zeros() as u8
    }

    fn committed(&self, rows: Vec<OutboxRow>) {
        if rows.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for row in rows {
            if !self.holds(row.key.shard) || state.records + row.records.len() > RECORDS_MAX {
                state.look = true;
                continue;
            }
            state.records += row.records.len();
            match state.keeps(&row) {
                true => state.kept.push_back(row),
                false => state.rows.push_back(row),
            }
        }
        self.rung.notify_all();
    }
}

impl Inbox {
    fn holds(&self, shard: u8) -> bool {
        self.held.load(Ordering::Relaxed) & (1 << shard) != 0
    }

    /// Rows of a shard that was not held before are kept back, those too that were handed over when
    /// it was held the last time.
    pub fn set_held(&self, held: u64) {
        let mut state = self.state.lock();
        let before = self.held.swap(held, Ordering::Relaxed);
        state.young = (state.young & held) | (held & !before);
        if held != before {
            state.sort_out();
        }
    }

    /// Rows of all shards that are held are kept back, until they are let pass.
    pub fn keep_back(&self) {
        let mut state = self.state.lock();
        state.young = self.held.load(Ordering::Relaxed);
        state.sort_out();
    }

    /// Rows of these shards need not be kept back any longer.
    pub fn let_pass(&self, shards: u64) {
        let mut state = self.state.lock();
        state.young &= !shards;
        state.sort_out();
    }

    /// Takes what is kept back, with the number of its records: the relay comes to know it as if a
    /// scan had found it.
    pub fn take_kept(&self) -> Vec<(OutboxKey, u32)> {
        let mut state = self.state.lock();
        let InboxRows { kept, records, .. } = &mut *state;
        *records -= kept.iter().map(|row| row.records.len()).sum::<usize>();
        kept.drain(..).map(|row| (row.key, row.records.len() as u32)).collect()
    }

    /// Asks for a scan.
    pub fn look(&self) {
        self.state.lock().look = true;
        self.rung.notify_all();
    }

    /// Whether a scan was asked for since the last call.
    pub fn was_asked(&self) -> bool {
        std::mem::take(&mut self.state.lock().look)
    }

    pub fn pop(&self) -> Option<OutboxRow> {
        let mut state = self.state.lock();
        let row = state.rows.pop_front()?;
        state.records -= row.records.len();
        Some(row)
    }

    pub fn is_empty(&self) -> bool {
        self.state.lock().rows.is_empty()
    }

    /// Waits until there is a row or a scan is asked for, or until the time has passed.
    pub fn wait(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.look && state.rows.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.rung.wait_for(&mut state, left);
        }
    }
}

impl InboxRows {
    fn keeps(&self, row: &OutboxRow) -> bool {
        self.young & (1 << row.key.shard) != 0
    }

    /// Puts each row where it belongs, in the order in which they came.
    fn sort_out(&mut self) {
        let mut all = std::mem::take(&mut self.rows);
        all.append(&mut self.kept);
        for row in all {
            match self.keeps(&row) {
                true => self.kept.push_back(row),
                false => self.rows.push_back(row),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use guanxi_model::record::EdgeRecord;
    use guanxi_model::{
        EdgeKey, EdgeRow, KindId, Millis, SourceId, State as EdgeState, TargetId, TenantId, Version,
    };

    use super::*;

    fn row(shard: u8, records: usize) -> OutboxRow {
        let (tenant, kind) = (TenantId(1), KindId(1));
        let key = EdgeKey { tenant, kind, source: SourceId(1), target: TargetId(1) };
        let new = EdgeRow {
            version: Version(1),
            state: EdgeState::Live,
            since: Millis(1),
            group: None,
            owner: None,
            data: None,
            expires_at: None,
        };
        let (old_group, new_group) = (None, None);
        let record = EdgeRecord { old_group, new_group, ..EdgeRecord::of(key, new) };
        let key = OutboxKey { shard, version: Version(1), id: fastrand::u64(..) };
        OutboxRow { key, time: Millis(1), records: vec![record; records] }
    }

    /// Takes all that may be taken; returns how many records each row has.
    fn taken(inbox: &Inbox) -> Vec<usize> {
        std::iter::from_fn(|| inbox.pop()).map(|row| row.records.len()).collect()
    }

    #[test]
    fn rows_go_to_shards_that_are_held() {
        let inbox = Inbox::default();
        let any: std::collections::BTreeSet<u8> = (0..2_000).map(|_| inbox.shard()).collect();
        assert!(any.len() > 40 && any.last() < Some(&SHARDS));
        inbox.set_held(1 << 3 | 1 << 40 | 1 << 63);
        let held: std::collections::BTreeSet<u8> = (0..200).map(|_| inbox.shard()).collect();
        assert_eq!(held.into_iter().collect::<Vec<u8>>(), [3, 40, 63]);
    }

    #[test]
    fn what_is_not_taken_is_asked_to_be_looked_for() {
        let inbox = Inbox::default();
        inbox.set_held(1 << 3);
        inbox.let_pass(1 << 3);
        inbox.committed(vec![row(3, RECORDS_MAX - 1)]);
        assert!(!inbox.was_asked());
        inbox.committed(vec![row(3, 2), row(3, 1)]);
        assert!(inbox.was_asked(), "it is full");
        inbox.committed(vec![row(4, 1)]);
        assert!(inbox.was_asked(), "the shard is another's");
        assert_eq!(taken(&inbox), [RECORDS_MAX - 1, 1]);
        inbox.committed(vec![row(3, 2)]);
        assert!(!inbox.was_asked() && !inbox.is_empty(), "there is room again");
    }

    #[test]
    fn rows_of_a_new_shard_are_kept_back_until_they_may_pass() {
        let inbox = Inbox::default();
        inbox.set_held(1 << 3 | 1 << 4);
        inbox.let_pass(1 << 4);
        inbox.committed(vec![row(3, 5), row(4, 6)]);
        assert_eq!(inbox.take_kept().len(), 1, "the other shard's is not kept");
        inbox.committed(vec![row(3, 1), row(4, 2), row(3, 3)]);
        inbox.set_held(1 << 3 | 1 << 4);
        assert_eq!(taken(&inbox), [6, 2], "the other shard's alone");
        inbox.let_pass(1 << 3);
        inbox.committed(vec![row(3, 4)]);
        assert_eq!(taken(&inbox), [1, 3, 4], "in their order");
        // Lost and taken again: it begins anew, also with what it was given before.
        inbox.committed(vec![row(3, 6), row(4, 7)]);
        inbox.set_held(1 << 4);
        inbox.set_held(1 << 3 | 1 << 4);
        assert_eq!(taken(&inbox), [7]);
        inbox.let_pass(1 << 3);
        assert_eq!(taken(&inbox), [6]);
        inbox.committed(vec![row(3, 8), row(4, 9)]);
        inbox.keep_back();
        assert!(taken(&inbox).is_empty());
        inbox.let_pass(1 << 3 | 1 << 4);
        assert_eq!(taken(&inbox), [8, 9]);
        inbox.set_held(1 << 4);
        inbox.set_held(1 << 3 | 1 << 4);
        inbox.committed(vec![row(3, RECORDS_MAX)]);
        assert!(inbox.is_empty() && !inbox.was_asked());
        inbox.committed(vec![row(4, 1)]);
        assert!(inbox.was_asked(), "what is kept back takes room");
        inbox.take_kept();
        inbox.committed(vec![row(4, RECORDS_MAX)]);
        assert_eq!((taken(&inbox), inbox.was_asked()), (vec![RECORDS_MAX], false));
    }
}
