//! Records: decided changes, as the log carries them. All durable state comes from them.

use crate::edge::{EdgeKey, EdgeRow, Ends};
use crate::entry::IndexEntry;
use crate::group::{GroupId, GroupName, GroupsKey};
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::import::{ImportId, ImportRow};
use crate::job::{Job, JobId};
use crate::kind::{Kind, KindId, KindName};
use crate::node::{NodeKey, NodeRow, NodeTypeId, TenantId};
use crate::origin::Origin;
use crate::tally::Which;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Edge(Box<EdgeRecord>),
    /// No name: the group is gone.
    Group {
        groups: GroupsKey,
        id: GroupId,
        name: Option<GroupName>,
    },
    Node {
        node: NodeKey,
        row: NodeRow,
    },
    NodeType {
        tenant: TenantId,
        id: NodeTypeId,
        name: KindName,
    },
    Kind {
        tenant: TenantId,
        kind: Box<Kind>,
    },
    Counter {
        tenant: TenantId,
        kind: KindId,
        id: u64,
        delta: i64,
    },
    Idempotency {
        tenant: TenantId,
        key: IdempotencyKey,
        row: IdempotencyRow,
    },
    Job {
        tenant: TenantId,
        job: Box<Job>,
    },
    /// An import stands here; in the same frame as the lines that brought it there.
    Import {
        tenant: TenantId,
        id: ImportId,
        row: ImportRow,
    },
    /// The edges of `kind` in (`after`, `until`] enter the outgoing index by time.
    BuildIndex {
        tenant: TenantId,
        kind: KindId,
        job: JobId,
        after: Option<Ends>,
        until: Ends,
    },
    Repair(Repair),
}

/// What an audit found wrong, as it must be from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    Tally { node: NodeKey, kind: KindId, which: Which, value: i64 },
    GroupSize { groups: GroupsKey, id: GroupId, size: i64 },
    Entry { entry: IndexEntry, present: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeRecord {
    pub key: EdgeKey,
    pub cause: Cause,
    /// What stood before; a removed edge reads as none.
    pub old: Option<EdgeRow>,
    pub new: EdgeRow,
    /// The names that the rows' groups had at the commit, for readers of the log.
    pub old_group: Option<GroupName>,
    pub new_group: Option<GroupName>,
    /// A new edge whose source had few of its kind before, live or pending. Never told of a kind
    /// that does not count them.
    pub fresh: bool,
    pub origin: Origin,
}

impl EdgeRecord {
    /// The record of a row as it stands, where nothing is known of how it came to be.
    pub fn of(key: EdgeKey, new: EdgeRow) -> EdgeRecord {
        EdgeRecord {
            key,
            cause: Cause::Put,
            old: None,
            new,
            old_group: None,
            new_group: None,
            fresh: false,
            origin: Origin::default(),
        }
    }
}

/// Why an edge changed: the public name of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    Put = 1,
    Delete = 2,
    Approve = 3,
    Decline = 4,
    Move = 5,
    Expire = 6,
    /// An edge of a kind that excludes it was put.
    Cut = 7,
    Erase = 8,
    Import = 9,
    Repair = 10,
}

impl Cause {
    pub const ALL: [Cause; 10] = [
        Cause::Put,
        Cause::Delete,
        Cause::Approve,
        Cause::Decline,
        Cause::Move,
        Cause::Expire,
        Cause::Cut,
        Cause::Erase,
        Cause::Import,
        Cause::Repair,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Cause::Put => "put",
            Cause::Delete => "delete",
            Cause::Approve => "approve",
            Cause::Decline => "decline",
            Cause::Move => "move",
            Cause::Expire => "expire",
            Cause::Cut => "cut",
            Cause::Erase => "erase",
            Cause::Import => "import",
            Cause::Repair => "repair",
        }
    }

    pub(crate) fn from_u8(value: u8) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| *cause as u8 == value)
    }
}
