//! A consistent picture of the rows, which is all that reads need of where they are kept: a store
//! beside its log, or a database far away.

use std::ops::ControlFlow;

use guanxi_model::group::Group;
use guanxi_model::job::{Job, JobId};
use guanxi_model::kind::TimeIndex;
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{
    EdgeKey, EdgeRow, Ends, Error, GroupsKey, KindId, Millis, Node, NodeKey, NodeTypeId, SourceId,
    State, TallyRow, TargetId, TenantId, View, Which,
};

use crate::read::{ListQuery, Page};

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
    pub after: Option<PagePlace>,
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
    pub wants: &'a dyn Fn(PagePlace, &mut Wanted),
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
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
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

    /// Some of a node's `Incoming`, `PendingIncoming` and `Value`, in the order asked for.
    fn target_numbers(
        &self,
        node: &NodeKey,
        wanted: &[(KindId, Which)],
        numbers: &mut [i64],
    ) -> Result<(), StoreError> {
        let kinds: Vec<KindId> = wanted.iter().map(|(kind, _)| *kind).collect();
        let row = self.target_tallies(node, &kinds)?;
        for ((kind, which), number) in wanted.iter().zip(numbers) {
            *number = row.get(*kind, *which);
        }
        Ok(())
    }

    /// An edge's state, where there is a row of it.
    fn edge_state(&self, key: &EdgeKey) -> Result<Option<State>, StoreError> {
        Ok(self.edge(key)?.map(|row| row.state))
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
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
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
