//! `decide`: one change against the rows as they stand gives records and an answer, or a refusal
//! that leaves nothing. Every rule of every kind is enforced below here and nowhere else.

mod edges;
mod erase;
mod groups;
mod import;
mod kinds;
mod nodes;
mod repair;

pub use kinds::built_in_kinds;

use std::sync::Arc;

use crate::answer::Answer;
use crate::change::Change;
use crate::error::{Code, Error};
use crate::group::GroupsKey;
use crate::kind::{Kind, KindId};
use crate::node::TenantId;
use crate::record::Record;
use crate::time::Millis;
use crate::version::Version;
use crate::view::View;

/// A decided change: what is to be logged, and what its caller is told once it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub records: Vec<Record>,
    pub answer: Answer,
}

impl Decided {
    fn nothing(answer: Answer) -> Decided {
        Decided { records: Vec::new(), answer }
    }
}

/// Why nothing was decided.
#[derive(Debug)]
pub enum Undecided<E> {
    /// A rule says no; the caller is told.
    Refused(Error),
    /// A row could not be read.
    Failed(E),
}

impl<E> From<Error> for Undecided<E> {
    fn from(error: Error) -> Undecided<E> {
        Undecided::Refused(error)
    }
}

/// The time of a decision and the source of its versions.
pub struct Stamp<'a> {
    pub now: Millis,
    /// The time by which idempotency keys age, and which those that are new get.
    pub keys_age_by: Millis,
    /// Gives out the next version of a head.
    pub versions: &'a mut dyn FnMut(GroupsKey) -> Version,
}

impl std::fmt::Debug for Stamp<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stamp").field("now", &self.now).finish_non_exhaustive()
    }
}

pub fn decide<V: View>(
    change: &Change,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    match change {
        Change::Put(put) => edges::put(put, view, stamp),
        Change::Delete { edge, strict } => edges::delete(edge, *strict, view, stamp),
        Change::Approve { edge } => edges::approve(edge, view, stamp),
        Change::Decline { edge } => edges::decline(edge, view, stamp),
        Change::Expire { edge, expires_at } => edges::expire(edge, *expires_at, view, stamp),
        Change::AddMember { edge, group } => groups::add_member(edge, group, view, stamp),
        Change::DropMember { edge, group } => groups::drop_member(edge, group, view, stamp),
        Change::CreateGroup { groups, name } => groups::create(groups, name, view),
        Change::RenameGroup { groups, name, to } => groups::rename(groups, name, to, view),
        Change::DeleteGroup { groups, name } => groups::delete(groups, name, view),
        Change::SetNode { node, private } => nodes::set(node, *private, view),
        Change::Count(count) => nodes::count(count, view, stamp),
        Change::ImportEdge(line) => import::edge(line, view, stamp),
        Change::ImportGroup { groups, name } => import::group(groups, name, view),
        Change::ImportCounter { tenant, kind, id, value } => {
            import::counter(*tenant, *kind, *id, *value, view)
        }
        Change::CreateKind { tenant, spec } => kinds::create(*tenant, spec, view),
        Change::SetKind { tenant, kind, patch } => kinds::set(*tenant, *kind, patch, view, stamp),
        Change::BeginErase { node } => erase::begin(node, view, stamp),
        Change::EraseStep { tenant, job, edges } => erase::step(*tenant, *job, edges, view, stamp),
        Change::FinishErase { tenant, job } => erase::finish(*tenant, *job, view, stamp),
        Change::BuildIndexStep { tenant, job, until, edges } => {
            kinds::build_index_step(*tenant, *job, *until, *edges, view)
        }
        Change::FinishBuildIndex { tenant, job } => {
            kinds::finish_build_index(*tenant, *job, view, stamp)
        }
        Change::RepairTally { node, kind, which, delta } => {
            repair::tally(node, *kind, *which, *delta, view)
        }
        Change::RepairGroupSize { groups, id, delta } => {
            repair::group_size(groups, *id, *delta, view)
        }
        Change::RepairEntry { entry } => repair::entry(entry, view),
    }
}

/// The kind of an edge change. The catalog only grows, so a kind that a caller resolved is there.
fn kind_of<V: View>(view: &V, tenant: TenantId, id: KindId) -> Result<Arc<Kind>, Error> {
    let kind = view.catalog().kind(tenant, id);
    kind.cloned().ok_or_else(|| Error::new(Code::UnknownKind, "there is no such kind"))
}
