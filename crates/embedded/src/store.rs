//! The store: the rows as they stand after a prefix of the log. It owns no rule; what a record
//! does to rows is `overlay`'s and the model's.
//!
//! `KeyedStore` keeps rows as sorted keys over a backend: fjall on disk, a map in memory. One
//! conformance suite holds every backend to the same answers.

pub mod carried;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod disk;
pub(crate) mod inventory;
pub mod keyed;
pub(crate) mod layout;
pub mod memory;
#[cfg(any(test, feature = "conformance"))]
pub mod planting;

pub use keyed::KeyedStore;

use std::ops::ControlFlow;
use std::sync::Arc;

use guanxi_core::snapshot::{Snapshot, StoreError};
use guanxi_model::{Catalog, EdgeKey, Epoch, IndexEntry, Millis, Position, Version};

use self::inventory::InventoryPiece;
use crate::overlay::Dirty;
use crate::resident::{EdgeFilter, ResidentStatus};

/// How far the store is along the log; written in the same atomic batch as the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    pub epoch: Epoch,
    pub position: Position,
    /// The time of the last frame.
    pub commit: Millis,
    /// The last version that was given out.
    pub version: Version,
}

impl Applied {
    pub const NOTHING: Applied = Applied {
        epoch: Epoch(0),
        position: Position(0),
        commit: Millis(0),
        version: Version::ZERO,
    };
}

/// Brings a store to this position.
pub type Replay<'a> = dyn Fn(&dyn Store, Position) -> Result<(), StoreError> + 'a;

/// The rows after a prefix of the log, and the way to the next prefix.
pub trait Store: Send + Sync {
    /// A consistent picture: no batch is ever seen by half.
    fn snapshot(&self) -> Box<dyn Snapshot>;

    /// Makes one batch's rows and its place in the log stand, all or nothing. The rows were
    /// computed on exactly the state before.
    fn write(&self, dirty: &Dirty, applied: Applied) -> Result<(), StoreError>;

    fn applied(&self) -> Applied;

    fn catalog(&self) -> Arc<Catalog>;

    /// Makes everything written so far durable; returns the position that is safe now, and
    /// position 0 as long as the store is in doubt.
    fn persist(&self) -> Result<Position, StoreError>;

    /// Whether what can be read need not be on the disk: it was opened anew after a write that
    /// failed, which may have been a sync, and has not brought all of it to a new place since.
    /// The log has it, and must keep it meanwhile.
    fn is_in_doubt(&self) -> bool {
        false
    }

    /// Whether it can be read: not while it is opened anew, nor where that has failed.
    fn is_open(&self) -> bool {
        true
    }

    /// Opens a store that has stopped anew, and brings it by `replay` to where readers were. False
    /// where readers still look at it; nothing is done then. Nobody writes meanwhile.
    fn mend(&self, _replay: &Replay<'_>) -> Result<bool, StoreError> {
        Err(StoreError::Stopped)
    }

    /// Stopped where it takes nothing more, which may have come about since the last write.
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// What may be done after the disk was full while nothing is written, by whoever writes.
    fn rest(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Bytes on disk.
    fn bytes(&self) -> u64;

    /// Bytes that it still takes to bring what was written to its place on disk.
    fn room_needed(&self) -> u64 {
        0
    }

    /// Gets ready for a quick next start; nothing is written afterwards.
    fn settle(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A store beside its log in one data directory: it can be copied, and looked into key by key.
pub trait EmbeddedStore: Store {
    /// What `snapshot` gives, with all that this sort of store can say.
    fn picture(&self) -> Box<dyn EmbeddedSnapshot>;

    /// The same with nothing from memory: for whoever holds what lies in the store against itself.
    fn picture_as_it_lies(&self) -> Box<dyn EmbeddedSnapshot>;

    /// From the next batch on, batches set their bits in this filter too. Pictures that are taken
    /// from now on have all that the batches before it wrote.
    fn begin_filter(&self, filter: Arc<EdgeFilter>);

    /// The filter that was begun has every edge that stands: readers believe it from now on, and no
    /// other.
    fn finish_filter(&self);

    /// The filter that was begun comes to nothing.
    fn abandon_filter(&self);

    /// The filter that readers believe, and a place in the log up to which it has everything.
    fn filter(&self) -> Option<(Arc<EdgeFilter>, Applied)>;

    /// What is at hand in memory.
    fn resident(&self) -> ResidentStatus;
}

/// A key and its value as the store keeps them, for whoever copies a store without looking inside.
pub type RawRow = (Vec<u8>, Vec<u8>);

/// What only a store beside its log can say: its place there, and what lies in it as it lies.
pub trait EmbeddedSnapshot: Snapshot {
    /// How far along the log the picture is.
    fn applied(&self) -> Result<Applied, StoreError>;

    /// The rows after this key in the order of keys, that of `applied` among them: at least one if
    /// there is any, then as long as their bytes stay within `bytes_max`.
    fn raw_rows(&self, after: Option<&[u8]>, bytes_max: usize) -> Result<Vec<RawRow>, StoreError>;

    /// Every edge, index entry, node and group as it lies, sound or not, behind a key of this very
    /// walk or one of those where a part begins.
    fn inventory(
        &self,
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], InventoryPiece) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// The keys of all edges in their order, after one of them.
    fn edge_keys(
        &self,
        after: Option<&EdgeKey>,
        visit: &mut dyn FnMut(EdgeKey) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// Whether an index entry is there.
    fn holds(&self, entry: &IndexEntry) -> Result<bool, StoreError>;
}
