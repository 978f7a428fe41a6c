//! Changes: what a caller (or a sweeper, or a job) wants done.

use crate::codec::Encoder;
use crate::edge::{EdgeKey, Ends, State};
use crate::entry::IndexEntry;
use crate::filter::{items_of, met};
use crate::group::{GroupId, GroupName, GroupsKey};
use crate::hash::hash128;
use crate::idempotency::IdempotencyKey;
use crate::job::JobId;
use crate::kind::{KindId, KindName, OnOverload};
use crate::node::{NodeKey, TenantId};
use crate::tally::Which;
use crate::time::Millis;

/// A field of a put: absent keeps what stands, null clears it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Field<T> {
    #[default]
    Keep,
    Clear,
    Set(T),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(Put),
    Delete {
        edge: EdgeKey,
        strict: bool,
    },
    Approve {
        edge: EdgeKey,
    },
    Decline {
        edge: EdgeKey,
    },
    /// The sweeper's removal, void unless the edge still expires at that time.
    Expire {
        edge: EdgeKey,
        expires_at: Millis,
    },
    AddMember {
        edge: EdgeKey,
        group: GroupName,
    },
    DropMember {
        edge: EdgeKey,
        group: GroupName,
    },
    CreateGroup {
        groups: GroupsKey,
        name: GroupName,
    },
    RenameGroup {
        groups: GroupsKey,
        name: GroupName,
        to: GroupName,
    },
    DeleteGroup {
        groups: GroupsKey,
        name: GroupName,
    },
    SetNode {
        node: NodeKey,
        private: Option<bool>,
    },
    Count(CounterDelta),
    ImportEdge(Box<ImportEdge>),
    /// Creates the group unless it is there.
    ImportGroup {
        groups: GroupsKey,
        name: GroupName,
    },
    /// Brings a counter to a value.
    ImportCounter {
        tenant: TenantId,
        kind: KindId,
        id: u64,
        value: i64,
    },
    CreateKind {
        tenant: TenantId,
        spec: Box<KindSpec>,
    },
    SetKind {
        tenant: TenantId,
        kind: KindId,
        patch: Box<KindPatch>,
    },
    BeginErase {
        node: NodeKey,
    },
    EraseStep {
        tenant: TenantId,
        job: JobId,
        edges: Vec<EdgeKey>,
    },
    FinishErase {
        tenant: TenantId,
        job: JobId,
    },
    /// Enters the edges after the job's place, up to and with `until`, into the index.
    BuildIndexStep {
        tenant: TenantId,
        job: JobId,
        until: Ends,
        edges: u64,
    },
    FinishBuildIndex {
        tenant: TenantId,
        job: JobId,
    },
    /// A tally is short of the truth by `delta`.
    RepairTally {
        node: NodeKey,
        kind: KindId,
        which: Which,
        delta: i64,
    },
    /// A group's size is short of the truth by `delta`.
    RepairGroupSize {
        groups: GroupsKey,
        id: GroupId,
        delta: i64,
    },
    /// An index entry is missing, or is there without cause.
    RepairEntry {
        entry: IndexEntry,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    pub edge: EdgeKey,
    pub group: Field<GroupName>,
    pub owner: Field<u64>,
    pub data: Field<Box<str>>,
    pub expires_at: Field<Millis>,
    /// Asks that the target approve it first, whatever the target's settings.
    pub approval: bool,
    pub strict: bool,
}

impl Put {
    /// Relate, and say nothing more.
    pub fn plain(edge: EdgeKey) -> Put {
        Put {
            edge,
            group: Field::Keep,
            owner: Field::Keep,
            data: Field::Keep,
            expires_at: Field::Keep,
            approval: false,
            strict: false,
        }
    }

    fn filter_items(&self, items: &mut Vec<EdgeKey>) {
        let owner = match self.owner {
            Field::Set(owner) => Some(owner),
            // One that stays was met when it was set.
            Field::Keep | Field::Clear => None,
        };
        items.extend(items_of(self.edge, owner));
    }
}

/// An edge as a line of an import gives it: a put that may also say since when and in which state.
/// An edge that stands keeps both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportEdge {
    pub put: Put,
    pub since: Option<Millis>,
    pub state: Option<State>,
    /// Lifts the kind's outgoing limit to `IMPORT_OUTGOING_MAX`.
    pub ignore_limits: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterDelta {
    pub tenant: TenantId,
    pub kind: KindId,
    pub id: u64,
    pub delta: i64,
    pub key: Option<IdempotencyKey>,
}

/// A kind as its creator describes it, by names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSpec {
    pub name: KindName,
    pub source_type: KindName,
    pub target_type: KindName,
    pub owner_type: Option<KindName>,
    pub counter: bool,
    pub reconciled: bool,
    pub outgoing_list: bool,
    pub incoming_list: bool,
    pub outgoing_tally: bool,
    pub incoming_tally: bool,
    pub self_allowed: bool,
    pub outgoing_max: Option<u32>,
    pub groups_max: u32,
    pub approval: bool,
    pub data_bytes_max: u32,
    pub excludes: Vec<String>,
    pub expires: bool,
    pub list_depth_max: u64,
    pub on_overload: OnOverload,
}

impl KindSpec {
    /// A kind of edges that keeps every list and tally and has no further rule.
    pub fn edges(name: KindName, source_type: KindName, target_type: KindName) -> KindSpec {
        KindSpec {
            name,
            source_type,
            target_type,
            owner_type: None,
            counter: false,
            reconciled: false,
            outgoing_list: true,
            incoming_list: true,
            outgoing_tally: true,
            incoming_tally: true,
            self_allowed: false,
            outgoing_max: None,
            groups_max: 0,
            approval: false,
            data_bytes_max: 0,
            excludes: Vec::new(),
            expires: false,
            list_depth_max: 0,
            on_overload: OnOverload::Refuse,
        }
    }

    /// A pure counter on nodes of one type.
    pub fn counter(name: KindName, node_type: KindName) -> KindSpec {
        let mut spec = KindSpec::edges(name, node_type.clone(), node_type);
        spec.counter = true;
        spec
    }
}

/// The rules of a kind that may be changed; what is absent stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KindPatch {
    pub self_allowed: Option<bool>,
    pub outgoing_max: Field<u32>,
    pub groups_max: Option<u32>,
    pub approval: Option<bool>,
    pub data_bytes_max: Option<u32>,
    pub excludes: Option<Vec<String>>,
    pub expires: Option<bool>,
    pub list_depth_max: Option<u64>,
    pub on_overload: Option<OnOverload>,
}

impl Change {
    /// Adds what the existence filter must know before this is committed: the edge that stands after
    /// it and may not have stood before, and ids that it may be the first to speak of. Every change
    /// is named here, so that a new one cannot be forgotten.
    pub fn filter_items(&self, items: &mut Vec<EdgeKey>) {
        match self {
            Change::Put(put) => put.filter_items(items),
            Change::ImportEdge(import) => import.put.filter_items(items),
            Change::CreateGroup { groups, .. }
            | Change::RenameGroup { groups, .. }
            | Change::ImportGroup { groups, .. } => {
                items.push(met(groups.tenant, groups.source.0));
            }
            Change::SetNode { node, .. }
            | Change::BeginErase { node }
            | Change::RepairTally { node, .. } => items.push(met(node.tenant, node.id)),
            Change::Count(CounterDelta { tenant, id, .. })
            | Change::ImportCounter { tenant, id, .. } => {
                items.push(met(*tenant, *id));
            }
            Change::Delete { .. }
            | Change::Approve { .. }
            | Change::Decline { .. }
            | Change::Expire { .. }
            | Change::AddMember { .. }
            | Change::DropMember { .. }
            | Change::DeleteGroup { .. }
            | Change::CreateKind { .. }
            | Change::SetKind { .. }
            | Change::EraseStep { .. }
            | Change::FinishErase { .. }
            | Change::BuildIndexStep { .. }
            | Change::FinishBuildIndex { .. }
            | Change::RepairGroupSize { .. }
            | Change::RepairEntry { .. } => {}
        }
    }

    /// Writes what makes two requests the same one; only changes that take an idempotency key
    /// have something to say.
    fn fingerprint(&self, out: &mut Encoder) {
        let mut op = |name: &str, edge: &EdgeKey| {
            out.str(name);
            out.edge_key(edge);
        };
        match self {
            Change::Put(put) => {
                op("put", &put.edge);
                out.field(&put.group, |out, group| out.str(group.as_str()));
                out.field(&put.owner, |out, owner| out.varint(*owner));
                out.field(&put.data, |out, data| out.str(data));
                out.field(&put.expires_at, |out, at| out.varint(at.0));
                out.u8(u8::from(put.approval));
                out.u8(u8::from(put.strict));
            }
            Change::Delete { edge, strict } => {
                op("delete", edge);
                out.u8(u8::from(*strict));
            }
            Change::Approve { edge } => op("approve", edge),
            Change::Decline { edge } => op("decline", edge),
            Change::Count(count) => {
                out.str("count");
                out.varint(u64::from(count.tenant.0));
                out.varint(u64::from(count.kind.0));
                out.varint(count.id);
                out.signed(count.delta);
            }
            _ => {}
        }
    }
}

/// The hash that an idempotency key is bound to.
pub fn request_hash(changes: &[Change]) -> u128 {
    let mut out = Encoder::with_capacity(64);
    for change in changes {
        change.fingerprint(&mut out);
    }
    hash128(&out.into_bytes())
}
