//! Room that the store can give back of its own on a full disk: rows from its journal go into a
//! table, and tables become one, which leaves out what was removed. fjall's worker begins either
//! only where there is room for all that may follow, as it takes a write that fails for the end of
//! the store. Here it is done by hand, one step at a time, while nobody looks: a step that finds no
//! room leaves all as it was, and what it had written goes when the store is opened anew.

use std::time::{Duration, Instant};

use fjall::AbstractTree as _;
use guanxi_core::snapshot::StoreError;

use super::{DiskBackend, OpenStore, TABLE_BYTES, fjall_error, not_open};
use crate::disk::{Disk as _, RealDisk};

/// Tables of so many bytes are merged within a second or two, for which readers wait.
const MERGE_BY_HAND_BYTES_MAX: u64 = 64 << 20;
/// After a step that found no room it is not tried again for so long.
const PAUSE: Duration = Duration::from_secs(5);
/// What a step writes is seldom less than this share of what it takes in: a journal tells a row as
/// often as it was written, and tables have rows that were removed. With less room it is not tried.
const WRITTEN_SHARE: u64 = 4;

/// What a full disk can be given back by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gain {
    /// The room of the journal, whose rows go into a table.
    Journal,
    /// That of removed rows, and of tables that say the same.
    Tables,
}

/// What was done by hand, over all openings.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// What the tables took after they were merged last: as long as that is so, nothing is gained.
    merged_bytes: u64,
    /// When a step found no room.
    failed_at: Option<Instant>,
}

impl Packing {
    /// What could be gained, where the disk has less room than the store wants.
    pub fn gain(&self, opened: &OpenStore, wanted_bytes: u64) -> Option<Gain> {
        if self.failed_at.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return None;
        }
        let free_bytes = RealDisk.room(opened.rows.path()).ok()?.free_bytes;
        if free_bytes >= wanted_bytes {
            return None;
        }
        let fits = |bytes: u64| bytes / WRITTEN_SHARE <= free_bytes;
        let journal = opened.journal();
        if journal.is_worth_giving_back() {
            return fits(journal.written()).then_some(Gain::Journal);
        }
        drop(journal);
        let bytes = opened.rows.disk_space();
        let merges = bytes != self.merged_bytes && bytes <= MERGE_BY_HAND_BYTES_MAX && fits(bytes);
        merges.then_some(Gain::Tables)
    }
}

impl DiskBackend {
    /// Gives back by hand what the disk may gain.
    pub(super) fn pack(&self, gain: Gain, look_away: &mut dyn FnMut()) -> Result<(), StoreError> {
        let text = self.settled_text()?;
        look_away();
        let Some(opened) = self.alone(false) else { return Ok(()) };
        let packed = match opened.as_ref() {
            None => return Err(StoreError::Stopped),
            Some(opened) => opened.pack(gain),
        };
        // Nobody writes before the mark is gone again. Without it the journal is read once more.
        let settled = match (&packed, gain) {
            (Ok(()), Gain::Journal) => self.mark_settled(&text),
            _ => Ok(false),
        };
        if let Err(error) = packed.as_ref().and(settled.as_ref().map(|_| &())) {
            tracing::warn!(%error, ?gain, "the store found no room to give some back");
        }
        let failed = packed.is_err() || settled.is_err();
        self.open_anew(opened, Ok).map_err(not_open)?;
        if matches!(settled, Ok(true)) {
            self.end_doubt();
        }
        let merged_bytes = match gain {
            Gain::Journal => None,
            Gain::Tables => Some(self.with(|opened| Ok(opened.rows.disk_space()))?),
        };
        let mut packing = self.packing.lock();
        packing.failed_at = failed.then(Instant::now);
        packing.merged_bytes = merged_bytes.unwrap_or(packing.merged_bytes);
        Ok(())
    }
}

impl OpenStore {
    fn pack(&self, gain: Gain) -> Result<(), StoreError> {
        let tree = &self.rows.tree;
        // Nobody looks, so of each row the newest version is enough.
        let newest = tree.get_highest_seqno().unwrap_or(0);
        let packed = match gain {
            Gain::Journal => {
                let _sealed = tree.rotate_memtable();
                tree.flush(&tree.get_flush_lock(), newest).map(drop)
            }
            Gain::Tables => tree.major_compact(TABLE_BYTES, newest),
        };
        packed.map_err(|error| fjall_error(error.into()))
    }
}
