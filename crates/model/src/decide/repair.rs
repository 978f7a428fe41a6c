//! Repairs: what an audit found wrong is decided anew against the rows as they stand. Edge rows are
//! the truth. Records say how it must be, never by how much it changes, so that whoever replays
//! them over rows that were right all along leaves them right.

use super::{Decided, Undecided, kind_of};
use crate::answer::Answer;
use crate::entry::{IndexEntry, entries};
use crate::error::{Code, Error};
use crate::group::{GroupId, GroupsKey};
use crate::kind::KindId;
use crate::node::NodeKey;
use crate::record::{Record, Repair};
use crate::tally::Which;
use crate::view::View;

/// The difference was seen at an earlier position; writes since then have moved both the tally and
/// the truth alike, so it still is the difference.
pub(super) fn tally<V: View>(
    node: &NodeKey,
    kind: KindId,
    which: Which,
    delta: i64,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let known = kind_of(view, node.tenant, kind)?;
    if known.fixed.counter && which == Which::Value {
        return Err(Undecided::Refused(Error::invalid(format!(
            "kind {} is a counter: its value is the only truth about it",
            known.name
        ))));
    }
    let standing = view.tallies(node).map_err(Undecided::Failed)?.get(kind, which);
    let value = mended(standing, delta)?;
    Ok(decided(Repair::Tally { node: *node, kind, which, value }))
}

/// A group that was deleted meanwhile has no size to mend.
pub(super) fn group_size<V: View>(
    groups: &GroupsKey,
    id: GroupId,
    delta: i64,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let standing = view.groups(groups).map_err(Undecided::Failed)?;
    let Some(group) = standing.by_id(id) else {
        return Ok(Decided::nothing(Answer::Repaired));
    };
    let size = mended(group.size, delta)?;
    Ok(decided(Repair::GroupSize { groups: *groups, id, size }))
}

/// Whether the entry must be there is what the edge's row says now.
pub(super) fn entry<V: View>(entry: &IndexEntry, view: &V) -> Result<Decided, Undecided<V::Error>> {
    let kind = kind_of(view, entry.edge.tenant, entry.edge.kind)?;
    let row = view.edge(&entry.edge).map_err(Undecided::Failed)?;
    let present = entries(&kind, &entry.edge, row.as_ref()).any(|implied| implied == *entry);
    Ok(decided(Repair::Entry { entry: *entry, present }))
}

fn mended(standing: i64, delta: i64) -> Result<i64, Error> {
    standing.checked_add(delta).ok_or_else(|| {
        let message = format!("{standing} cannot be mended by {delta}: it is no number of edges");
        Error::new(Code::LimitReached, message)
    })
}

fn decided(repair: Repair) -> Decided {
    Decided { records: vec![Record::Repair(repair)], answer: Answer::Repaired }
}
