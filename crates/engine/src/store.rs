//! The store: the rows as they stand after a prefix of the log. It owns no rule; what a record
//! does to rows is `overlay`'s and the model's.
//!
//! `KeyedStore` keeps rows as sorted keys over a backend: fjall on disk, a map in memory. One
//! conformance suite holds every backend to the same answers.

pub(crate) mod carried;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod disk;
pub(crate) mod inventory;
pub mod keyed;
mod layout;
pub mod memory;
#[cfg(any(test, feature = "conformance"))]
pub mod planting;

pub use keyed::KeyedStore;

use std::ops::ControlFlow;
use std::sync::Arc;

use guanxi_model::group::Group;
use guanxi_model::job::{Job, JobId};
use guanxi_model::kind::TimeIndex;
use guanxi_model::page::{Order, Place};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, Epoch, Error, GroupsKey, IndexEntry, KindId, Millis, Node,
    NodeKey, NodeTypeId, Position, SourceId, State, TallyRow, TargetId, TenantId, Version, View,
    Which,
};

use crate::read::{ListQuery, Page};

use self::inventory::Kept;
use crate::overlay::Dirty;

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

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the store could not be read or written: {0}")]
    Io(String),
    /// Nothing is broken, and nothing was written: the same may be tried again.
    #[error("disk full: the store finds no room; make some on the disk of the data directory")]
    Full,
    /// It takes nothing more until it is opened anew; what it has can be read.
    #[error("the store has stopped at a write that failed")]
    Stopped,
    #[error("the store holds what it should not: {0}")]
    Damaged(String),
    /// Nothing is wrong: the rows were asked for where the store itself is not to be asked.
    #[error("the rows are not at hand")]
    NotAtHand,
}

impl From<guanxi_model::codec::CodecError> for StoreError {
    fn from(error: guanxi_model::codec::CodecError) -> StoreError {
        StoreError::Damaged(error.0)
    }
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    Outgoing = 0,
    Incoming = 1,
}

/// One list by time: all edges of a node, kind, direction and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline {
    pub tenant: TenantId,
    pub kind: KindId,
    pub direction: Direction,
    pub id: u64,
    pub state: State,
}

/// The part of a timeline that a page asks for: [since, until), after a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeRange {
    pub since: Option<Millis>,
    pub until: Option<Millis>,
    pub after: Option<Place>,
    pub order: Order,
}

/// Whose incoming edges of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IncomingList {
    pub tenant: TenantId,
    pub kind: KindId,
    pub target: TargetId,
}

impl IncomingList {
    /// The list that an edge is in, or comes into.
    pub fn of(edge: &EdgeKey) -> IncomingList {
        IncomingList { tenant: edge.tenant, kind: edge.kind, target: edge.target }
    }
}

/// A key and its value as the store keeps them, for whoever copies a store without looking inside.
pub type RawRow = (Vec<u8>, Vec<u8>);

/// Rows that a reader is about to ask for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub edges: Vec<EdgeKey>,
    /// Nodes of which every number is wanted.
    pub nodes: Vec<NodeKey>,
    /// Nodes of which `target_tallies` of `kinds` are wanted.
    pub targets: Vec<NodeKey>,
    pub kinds: Vec<KindId>,
    pub groups: Vec<GroupsKey>,
    /// Sources whose outgoing list of a kind is about to be walked.
    pub outgoing: Vec<GroupsKey>,
    /// Targets whose live incoming edges of a kind are about to be walked by time.
    pub incoming: Vec<IncomingList>,
    /// More will be asked of the same moment.
    pub more: bool,
}

/// What a walk along a list is likely to need, for stores that are far away.
pub struct Ahead<'a> {
    /// Places that the visitor will probably take.
    pub places: usize,
    /// Which rows it will ask for at a place.
    pub wants: &'a dyn Fn(Place, &mut Wanted),
}

impl std::fmt::Debug for Ahead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ahead").field("places", &self.places).finish_non_exhaustive()
    }
}

/// A consistent picture of the rows: what reads need. Walks stop when the visitor breaks.
pub trait Snapshot: View<Error = StoreError> + Send {
    /// Gets these rows ready at once. Only a hint: a store whose rows are near needs none. In a
    /// store far away, what is wanted before anything was read is of one moment, and what is asked
    /// beyond it later may be of a later one.
    fn prefetch(&self, _want: &mut dyn FnMut(&mut Wanted)) -> Result<(), StoreError> {
        Ok(())
    }

    /// What a snapshot of only what is at hand was asked for and did not have.
    fn lacked(&self) -> Option<Wanted> {
        None
    }

    /// A page of an incoming list, read by `read` unless a store far away keeps it at hand.
    fn through_kept(
        &self,
        _query: &ListQuery,
        read: &mut dyn FnMut() -> Result<Page, Error>,
    ) -> Result<Page, Error> {
        read()
    }

    /// `timeline`, told what will be asked on the way.
    fn timeline_ahead(
        &self,
        list: &Timeline,
        range: &TimeRange,
        _ahead: &Ahead<'_>,
        visit: &mut dyn FnMut(Place) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.timeline(list, range, visit)
    }

    /// Whether outgoing edges of the kind can be walked by time. The snapshot's own word: the
    /// caller's kind may be newer, and its index not there yet.
    fn lists_outgoing_by_time(&self, tenant: TenantId, kind: KindId) -> bool {
        let kind = self.catalog().kind(tenant, kind);
        kind.is_some_and(|kind| kind.time_index == TimeIndex::Ready)
    }

    /// At least a node's `Incoming`, `PendingIncoming` and `Value` of these kinds; cheaper than all
    /// of its numbers where those lie apart.
    fn target_tallies(&self, node: &NodeKey, _kinds: &[KindId]) -> Result<TallyRow, StoreError> {
        self.tallies(node)
    }

    /// How many live incoming edges of this kind a node has, of the moment of its list.
    fn incoming_tally(&self, node: &NodeKey, kind: KindId) -> Result<i64, StoreError> {
        Ok(self.target_tallies(node, &[kind])?.get(kind, Which::Incoming))
    }

    /// At least a node's `Outgoing` and `PendingOutgoing` of this kind, of the moment of its list.
    fn source_tallies(&self, node: &NodeKey, _kind: KindId) -> Result<TallyRow, StoreError> {
        self.tallies(node)
    }

    /// A node's settings and tallies at once.
    fn whole_node(&self, node: &NodeKey) -> Result<Node, StoreError>;

    /// A list by time, as its index has it.
    fn timeline(
        &self,
        list: &Timeline,
        range: &TimeRange,
        visit: &mut dyn FnMut(Place) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// One source's edges by target id, after one of them.
    fn edges_of_source(
        &self,
        tenant: TenantId,
        kind: KindId,
        source: SourceId,
        after: Option<TargetId>,
        visit: &mut dyn FnMut(TargetId, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// All edges of a kind by source and target id, after one of them.
    fn edges_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        after: Option<Ends>,
        visit: &mut dyn FnMut(Ends, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// All groups of a kind by source and id.
    fn groups_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        visit: &mut dyn FnMut(SourceId, Group) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// All nodes of a type that anything is kept for, by id.
    fn nodes_of_type(
        &self,
        tenant: TenantId,
        node_type: NodeTypeId,
        visit: &mut dyn FnMut(u64, Node) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// Edges whose expiry has come, the longest overdue first.
    fn due(&self, now: Millis, edges_max: usize) -> Result<Vec<(Millis, EdgeKey)>, StoreError>;

    /// A tenant's jobs, the newest first; with `before`, only those that are older than it.
    fn jobs(
        &self,
        tenant: TenantId,
        before: Option<JobId>,
        visit: &mut dyn FnMut(Job) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;
}

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
        visit: &mut dyn FnMut(&[u8], Kept) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// Whether an index entry is there.
    fn holds(&self, entry: &IndexEntry) -> Result<bool, StoreError>;
}
