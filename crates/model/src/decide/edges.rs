//! Changes of one edge: put, delete, approve, decline and expire, with limits, approval and
//! exclusion.

use std::sync::Arc;

use super::{Decided, Stamp, Undecided, kind_of, nodes};
use crate::answer::EdgeAnswer;
use crate::change::{Field, Put};
use crate::edge::{EdgeKey, EdgeRow, State};
use crate::error::{Code, Error};
use crate::group::{GroupId, GroupsKey};
use crate::kind::Kind;
use crate::limits::{FRESH_EDGES_MAX, TIME_MAX};
use crate::node::{NodeKey, NodeRow};
use crate::origin::Origin;
use crate::record::{Cause, EdgeRecord, Record};
use crate::tally::Which;
use crate::time::Millis;
use crate::version::Version;
use crate::view::View;

type EdgeDecision<V> = Result<Decided, Undecided<<V as View>::Error>>;

/// What a caller's put and a line of an import do differently.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    pub cause: Cause,
    /// Since when a new edge stands; now, where nobody says.
    pub since: Option<Millis>,
    /// The state of a new edge; where nobody says, approval decides.
    pub state: Option<State>,
    /// A kind's limit counts as no lower than this.
    pub outgoing_least: u32,
    /// Whether a group that is not there is created.
    pub creates_groups: bool,
}

impl Manner {
    const PUT: Manner = Manner {
        cause: Cause::Put,
        since: None,
        state: None,
        outgoing_least: 0,
        creates_groups: false,
    };
}

pub(super) fn put<V: View>(put: &Put, view: &V, stamp: &mut Stamp<'_>) -> EdgeDecision<V> {
    put_as(put, Manner::PUT, view, stamp)
}

pub(super) fn put_as<V: View>(
    put: &Put,
    manner: Manner,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> EdgeDecision<V> {
    let kind = edge_kind(view, &put.edge)?;
    forbid_self(&kind, &put.edge)?;
    check_fields(&kind, put, stamp.now)?;
    let target = refuse_erased(view, &kind, &put.edge)?;
    match standing(view, &put.edge)? {
        Some(row) => amend(&kind, put, manner, row, view, stamp),
        None => relate(&kind, put, manner, target, view, stamp),
    }
}

/// A put where nothing stands.
fn relate<V: View>(
    kind: &Kind,
    put: &Put,
    manner: Manner,
    target: NodeRow,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> EdgeDecision<V> {
    refuse_excluded(view, kind, &put.edge)?;
    let held = outgoing(view, kind, &put.edge)?;
    refuse_over_limit(kind, &put.edge, manner, held)?;
    let group = named_group(view, put, manner)?;
    let mut records = cuts(view, kind, &put.edge, stamp)?;
    let waits = kind.rules.approval && (put.approval || target.private);
    let decided = if waits { State::Pending } else { State::Live };
    let new = EdgeRow {
        version: next_version(stamp, &put.edge),
        state: manner.state.unwrap_or(decided),
        since: manner.since.unwrap_or(stamp.now),
        group: group.id,
        owner: set(&put.owner).copied(),
        data: set(&put.data).cloned(),
        expires_at: set(&put.expires_at).copied(),
    };
    let answer = EdgeAnswer::changed(&new);
    let mut record = edge_record(view, put.edge, manner.cause, None, new)?;
    record.fresh = kind.fixed.outgoing_tally && held < FRESH_EDGES_MAX;
    group.push(put, record, &mut records);
    Ok(Decided { records, answer })
}

/// A put on an edge that stands: absent fields keep, null clears, state and since stay.
fn amend<V: View>(
    kind: &Kind,
    put: &Put,
    manner: Manner,
    old: EdgeRow,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> EdgeDecision<V> {
    if put.strict {
        return Err(Undecided::Refused(Error::new(
            Code::AlreadyRelated,
            format!(
                "the {} edge {} → {} stands already ({})",
                kind.name,
                put.edge.source.0,
                put.edge.target.0,
                old.state.name()
            ),
        )));
    }
    // A group that is gone reads as ungrouped, so clearing it changes nothing.
    let stood_in = living_group(view, &put.edge, old.group)?;
    let group = match &put.group {
        Field::Keep => NamedGroup { id: stood_in, created: None },
        _ => named_group(view, put, manner)?,
    };
    let owner = amended(&put.owner, old.owner);
    let data = amended(&put.data, old.data.clone());
    let expires_at = amended(&put.expires_at, old.expires_at);
    let same = group.id == stood_in
        && owner == old.owner
        && data == old.data
        && expires_at == old.expires_at;
    if same {
        return Ok(Decided::nothing(EdgeAnswer::unchanged(Some(&old))));
    }
    let version = next_version(stamp, &put.edge);
    let new = EdgeRow { version, group: group.id, owner, data, expires_at, ..old.clone() };
    let answer = EdgeAnswer::changed(&new);
    let record = edge_record(view, put.edge, manner.cause, Some(old), new)?;
    let mut records = Vec::with_capacity(2);
    group.push(put, record, &mut records);
    Ok(Decided { records, answer })
}

pub(super) fn delete<V: View>(
    edge: &EdgeKey,
    strict: bool,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> EdgeDecision<V> {
    let kind = edge_kind(view, edge)?;
    // What was put while the kind allowed it can always be removed.
    if let Some(row) = standing(view, edge)? {
        return removal(view, *edge, Cause::Delete, row, stamp);
    }
    forbid_self(&kind, edge)?;
    if strict {
        return Err(Undecided::Refused(Error::new(
            Code::NotRelated,
            format!("there is no {} edge {} → {}", kind.name, edge.source.0, edge.target.0),
        )));
    }
    Ok(Decided::nothing(EdgeAnswer::unchanged(None)))
}

pub(super) fn approve<V: View>(edge: &EdgeKey, view: &V, stamp: &mut Stamp<'_>) -> EdgeDecision<V> {
    let kind = edge_kind(view, edge)?;
    refuse_erased(view, &kind, edge)?;
    match standing(view, edge)? {
        Some(row) if row.is_live() => Ok(Decided::nothing(EdgeAnswer::unchanged(Some(&row)))),
        Some(old) => {
            refuse_excluded(view, &kind, edge)?;
            // It may exclude others since it was put.
            let mut records = cuts(view, &kind, edge, stamp)?;
            let version = next_version(stamp, edge);
            let new = EdgeRow { version, state: State::Live, since: stamp.now, ..old.clone() };
            let answer = EdgeAnswer::changed(&new);
            let record = edge_record(view, *edge, Cause::Approve, Some(old), new)?;
            records.push(Record::Edge(record));
            Ok(Decided { records, answer })
        }
        None => Err(Undecided::Refused(not_pending(&kind, edge))),
    }
}

pub(super) fn decline<V: View>(edge: &EdgeKey, view: &V, stamp: &mut Stamp<'_>) -> EdgeDecision<V> {
    let kind = edge_kind(view, edge)?;
    match standing(view, edge)? {
        Some(row) if row.state == State::Pending => {
            removal(view, *edge, Cause::Decline, row, stamp)
        }
        _ => Err(Undecided::Refused(not_pending(&kind, edge))),
    }
}

pub(super) fn expire<V: View>(
    edge: &EdgeKey,
    expires_at: Millis,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> EdgeDecision<V> {
    match standing(view, edge)? {
        Some(row) if row.expires_at == Some(expires_at) && expires_at <= stamp.now => {
            removal(view, *edge, Cause::Expire, row, stamp)
        }
        row => Ok(Decided::nothing(EdgeAnswer::unchanged(row.as_ref()))),
    }
}

/// The removal of an edge that stands, for whatever cause.
pub(super) fn removal<V: View>(
    view: &V,
    edge: EdgeKey,
    cause: Cause,
    old: EdgeRow,
    stamp: &mut Stamp<'_>,
) -> EdgeDecision<V> {
    let new = EdgeRow::removed(next_version(stamp, &edge), stamp.now);
    let answer = EdgeAnswer::changed(&new);
    let record = edge_record(view, edge, cause, Some(old), new)?;
    Ok(Decided { records: vec![Record::Edge(record)], answer })
}

pub(super) fn edge_record<V: View>(
    view: &V,
    key: EdgeKey,
    cause: Cause,
    old: Option<EdgeRow>,
    new: EdgeRow,
) -> Result<Box<EdgeRecord>, Undecided<V::Error>> {
    let old_id = old.as_ref().and_then(|row| row.group);
    let (old_group, new_group) = if old_id.is_none() && new.group.is_none() {
        (None, None)
    } else {
        let groups = view.groups(&GroupsKey::of(&key)).map_err(Undecided::Failed)?;
        (groups.name_of(old_id).cloned(), groups.name_of(new.group).cloned())
    };
    let (fresh, origin) = (false, Origin::default());
    Ok(Box::new(EdgeRecord { key, cause, old, new, old_group, new_group, fresh, origin }))
}

/// The edge's row when it stands, live or pending; a tombstone reads as none.
pub(super) fn standing<V: View>(
    view: &V,
    edge: &EdgeKey,
) -> Result<Option<EdgeRow>, Undecided<V::Error>> {
    Ok(view.edge(edge).map_err(Undecided::Failed)?.filter(EdgeRow::stands))
}

pub(super) fn edge_kind<V: View>(view: &V, edge: &EdgeKey) -> Result<Arc<Kind>, Error> {
    let kind = kind_of(view, edge.tenant, edge.kind)?;
    kind.require_edges()?;
    Ok(kind)
}

pub(super) fn next_version(stamp: &mut Stamp<'_>, edge: &EdgeKey) -> Version {
    (stamp.versions)(GroupsKey::of(edge))
}

fn forbid_self(kind: &Kind, edge: &EdgeKey) -> Result<(), Error> {
    if kind.same_type() && !kind.rules.self_allowed && edge.source.0 == edge.target.0 {
        return Err(Error::new(
            Code::SelfRelation,
            format!("kind {} does not relate a node to itself ({})", kind.name, edge.source.0),
        ));
    }
    Ok(())
}

fn check_fields(kind: &Kind, put: &Put, now: Millis) -> Result<(), Error> {
    let rules = &kind.rules;
    if let Field::Set(data) = &put.data
        && data.len() > rules.data_bytes_max as usize
    {
        return Err(Error::new(
            Code::TooLarge,
            format!(
                "data has {} bytes, kind {} takes at most {}",
                data.len(),
                kind.name,
                rules.data_bytes_max
            ),
        ));
    }
    if matches!(put.owner, Field::Set(_)) && kind.fixed.owner_type.is_none() {
        return Err(Error::invalid(format!("owner: kind {} keeps no owner", kind.name)));
    }
    if put.approval && !rules.approval {
        return Err(Error::invalid(format!("approval: kind {} knows no approval", kind.name)));
    }
    if let Field::Set(at) = put.expires_at {
        if !rules.expires {
            return Err(Error::invalid(format!(
                "expires_at: edges of kind {} do not expire",
                kind.name
            )));
        }
        if at <= now || at > TIME_MAX {
            return Err(Error::invalid(
                "expires_at: it must lie in the future, at the latest in June 2527",
            ));
        }
    }
    Ok(())
}

/// Refuses a change that touches a node being erased; returns the target's settings.
fn refuse_erased<V: View>(
    view: &V,
    kind: &Kind,
    edge: &EdgeKey,
) -> Result<NodeRow, Undecided<V::Error>> {
    nodes::refuse_erased(edge.tenant, kind.fixed.source_type, edge.source.0, view)?;
    nodes::refuse_erased(edge.tenant, kind.fixed.target_type, edge.target.0, view)
}

fn refuse_excluded<V: View>(
    view: &V,
    kind: &Kind,
    edge: &EdgeKey,
) -> Result<(), Undecided<V::Error>> {
    for excluder in view.catalog().excluders(edge.tenant, kind.id) {
        let there = edge.of_kind(excluder.id);
        for blocking in [there, there.reversed()] {
            if view.edge(&blocking).map_err(Undecided::Failed)?.is_some_and(|row| row.is_live()) {
                return Err(Undecided::Refused(Error::new(
                    Code::Excluded,
                    format!(
                        "the {} edge {} → {} stands and excludes kind {}",
                        excluder.name, blocking.source.0, blocking.target.0, kind.name
                    ),
                )));
            }
        }
    }
    Ok(())
}

/// The edges of the kind that a source has, live and pending.
fn outgoing<V: View>(view: &V, kind: &Kind, edge: &EdgeKey) -> Result<i64, Undecided<V::Error>> {
    let source =
        NodeKey { tenant: edge.tenant, node_type: kind.fixed.source_type, id: edge.source.0 };
    let number = |which| view.tally(&source, kind.id, which).map_err(Undecided::Failed);
    Ok(number(Which::Outgoing)? + number(Which::PendingOutgoing)?)
}

fn refuse_over_limit(kind: &Kind, edge: &EdgeKey, manner: Manner, held: i64) -> Result<(), Error> {
    let Some(max) = kind.rules.outgoing_max.map(|max| max.max(manner.outgoing_least)) else {
        return Ok(());
    };
    if held < i64::from(max) {
        return Ok(());
    }
    Err(Error::new(
        Code::LimitReached,
        format!(
            "source {} already has {held} outgoing {} edges, the limit of kind {} is {max}",
            edge.source.0, kind.name, kind.name
        ),
    ))
}

/// The removals that a new live edge of an excluding kind brings: both directions, live or pending.
fn cuts<V: View>(
    view: &V,
    kind: &Kind,
    edge: &EdgeKey,
    stamp: &mut Stamp<'_>,
) -> Result<Vec<Record>, Undecided<V::Error>> {
    let mut records = Vec::new();
    for excluded in &kind.rules.excludes {
        let there = edge.of_kind(*excluded);
        let back = there.reversed();
        let both = if there == back { vec![there] } else { vec![there, back] };
        for cut in both {
            if let Some(row) = standing(view, &cut)? {
                records.extend(removal(view, cut, Cause::Cut, row, stamp)?.records);
            }
        }
    }
    Ok(records)
}

/// The group that a put names.
struct NamedGroup {
    id: Option<GroupId>,
    /// Its record, when the put creates it.
    created: Option<Record>,
}

impl NamedGroup {
    /// Adds the edge's record behind that of its group. The view does not know a new group yet,
    /// so its name is set here.
    fn push(self, put: &Put, mut record: Box<EdgeRecord>, records: &mut Vec<Record>) {
        if let Some(created) = self.created {
            record.new_group = set(&put.group).cloned();
            records.push(created);
        }
        records.push(Record::Edge(record));
    }
}

/// An unknown group is refused, or created where the manner says so.
fn named_group<V: View>(
    view: &V,
    put: &Put,
    manner: Manner,
) -> Result<NamedGroup, Undecided<V::Error>> {
    let Field::Set(name) = &put.group else {
        return Ok(NamedGroup { id: None, created: None });
    };
    let key = GroupsKey::of(&put.edge);
    let groups = view.groups(&key).map_err(Undecided::Failed)?;
    if manner.creates_groups && groups.by_name(name.as_str()).is_none() {
        let created = super::groups::create(&key, name, view)?.records.pop();
        return Ok(NamedGroup { id: Some(groups.next), created });
    }
    let id = Some(super::groups::find(&groups, name)?.id);
    Ok(NamedGroup { id, created: None })
}

/// The edge's group unless it was deleted meanwhile.
fn living_group<V: View>(
    view: &V,
    edge: &EdgeKey,
    group: Option<GroupId>,
) -> Result<Option<GroupId>, Undecided<V::Error>> {
    let Some(id) = group else {
        return Ok(None);
    };
    let groups = view.groups(&GroupsKey::of(edge)).map_err(Undecided::Failed)?;
    Ok(groups.by_id(id).map(|group| group.id))
}

fn not_pending(kind: &Kind, edge: &EdgeKey) -> Error {
    Error::new(
        Code::NotPending,
        format!("no {} edge {} → {} awaits approval", kind.name, edge.source.0, edge.target.0),
    )
}

fn set<T>(field: &Field<T>) -> Option<&T> {
    match field {
        Field::Set(value) => Some(value),
        Field::Keep | Field::Clear => None,
    }
}

fn amended<T: Clone>(field: &Field<T>, old: Option<T>) -> Option<T> {
    match field {
        Field::Keep => old,
        Field::Clear => None,
        Field::Set(value) => Some(value.clone()),
    }
}
