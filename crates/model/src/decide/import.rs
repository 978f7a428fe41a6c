//! Lines of an import: edges with their own since and state, groups that may be there already,
//! counters by their value. Everything else about them is as in a put.

use super::edges::{Manner, put_as};
use super::{Decided, Stamp, Undecided, groups, kind_of, nodes};
use crate::answer::Answer;
use crate::change::ImportEdge;
use crate::edge::State;
use crate::error::Error;
use crate::group::{GroupName, GroupsKey};
use crate::kind::KindId;
use crate::limits::IMPORT_OUTGOING_MAX;
use crate::node::TenantId;
use crate::record::Cause;
use crate::view::View;

pub(super) fn edge<V: View>(
    line: &ImportEdge,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let kind = kind_of(view, line.put.edge.tenant, line.put.edge.kind)?;
    match line.state {
        Some(State::Removed) => {
            return Err(Error::invalid("state: an imported edge is live or pending").into());
        }
        Some(State::Pending) if !kind.rules.approval => {
            let message = format!("state: kind {} knows no approval", kind.name);
            return Err(Error::invalid(message).into());
        }
        _ => {}
    }
    if line.since.is_some_and(|since| since > stamp.now) {
        return Err(Error::invalid("since: it lies in the future").into());
    }
    let manner = Manner {
        cause: Cause::Import,
        since: line.since,
        state: line.state,
        outgoing_least: if line.ignore_limits { IMPORT_OUTGOING_MAX } else { 0 },
        creates_groups: true,
    };
    put_as(&line.put, manner, view, stamp)
}

/// Creates the group unless it is there.
pub(super) fn group<V: View>(
    key: &GroupsKey,
    name: &GroupName,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let groups = view.groups(key).map_err(Undecided::Failed)?;
    match groups.by_name(name.as_str()) {
        Some(group) => {
            let answer = Answer::Group { name: name.clone(), size: group.size };
            Ok(Decided::nothing(answer))
        }
        None => groups::create(key, name, view),
    }
}

/// Brings a counter to a value, so that the same line again changes nothing.
pub(super) fn counter<V: View>(
    tenant: TenantId,
    kind: KindId,
    id: u64,
    value: i64,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let kind = kind_of(view, tenant, kind)?;
    kind.require_counter()?;
    nodes::refuse_erased(tenant, kind.fixed.target_type, id, view)?;
    nodes::add(&kind, tenant, id, nodes::CounterStep::To(value), view)
}
