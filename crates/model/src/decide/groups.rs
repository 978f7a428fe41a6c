//! Changes of groups and of an edge's membership.

use super::edges::{edge_kind, edge_record, next_version, standing};
use super::{Decided, Stamp, Undecided, kind_of, nodes};
use crate::answer::Answer;
use crate::edge::{EdgeKey, EdgeRow};
use crate::error::{Code, Error};
use crate::group::{Group, GroupId, GroupName, GroupSet, GroupsKey};
use crate::record::{Cause, Record};
use crate::view::View;

pub(super) fn create<V: View>(
    key: &GroupsKey,
    name: &GroupName,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let kind = kind_of(view, key.tenant, key.kind)?;
    kind.require_edges()?;
    nodes::refuse_erased(key.tenant, kind.fixed.source_type, key.source.0, view)?;
    let groups = view.groups(key).map_err(Undecided::Failed)?;
    refuse_taken(&groups, name)?;
    if groups.groups.len() >= kind.rules.groups_max as usize {
        return Err(Undecided::Refused(Error::new(
            Code::LimitReached,
            format!(
                "source {} has {} groups of kind {}, its limit",
                key.source.0,
                groups.groups.len(),
                kind.name
            ),
        )));
    }
    let record = Record::Group { groups: *key, id: groups.next, name: Some(name.clone()) };
    Ok(Decided { records: vec![record], answer: Answer::Group { name: name.clone(), size: 0 } })
}

pub(super) fn rename<V: View>(
    key: &GroupsKey,
    name: &GroupName,
    to: &GroupName,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let groups = view.groups(key).map_err(Undecided::Failed)?;
    let group = find(&groups, name)?;
    let answer = Answer::Group { name: to.clone(), size: group.size };
    if name == to {
        return Ok(Decided::nothing(answer));
    }
    refuse_taken(&groups, to)?;
    let record = Record::Group { groups: *key, id: group.id, name: Some(to.clone()) };
    Ok(Decided { records: vec![record], answer })
}

/// Constant work however many members it has: their rows keep the dead id, which reads as none.
pub(super) fn delete<V: View>(
    key: &GroupsKey,
    name: &GroupName,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let groups = view.groups(key).map_err(Undecided::Failed)?;
    let group = find(&groups, name)?;
    let record = Record::Group { groups: *key, id: group.id, name: None };
    let answer = Answer::Group { name: name.clone(), size: group.size };
    Ok(Decided { records: vec![record], answer })
}

pub(super) fn add_member<V: View>(
    edge: &EdgeKey,
    name: &GroupName,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let kind = edge_kind(view, edge)?;
    let groups = view.groups(&GroupsKey::of(edge)).map_err(Undecided::Failed)?;
    let group = find(&groups, name)?;
    let Some(row) = standing(view, edge)? else {
        return Err(Undecided::Refused(Error::new(
            Code::NotRelated,
            format!(
                "there is no {} edge {} → {} to put into a group",
                kind.name, edge.source.0, edge.target.0
            ),
        )));
    };
    if row.group == Some(group.id) {
        return Ok(Decided::nothing(answer(group, 0)));
    }
    let grown = i64::from(row.is_live());
    moved(view, edge, row, Some(group.id), answer(group, grown), stamp)
}

pub(super) fn drop_member<V: View>(
    edge: &EdgeKey,
    name: &GroupName,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    edge_kind(view, edge)?;
    let groups = view.groups(&GroupsKey::of(edge)).map_err(Undecided::Failed)?;
    let group = find(&groups, name)?;
    match standing(view, edge)?.filter(|row| row.group == Some(group.id)) {
        Some(row) => {
            let shrunk = -i64::from(row.is_live());
            moved(view, edge, row, None, answer(group, shrunk), stamp)
        }
        None => Ok(Decided::nothing(answer(group, 0))),
    }
}

/// A move raises the version and keeps since.
fn moved<V: View>(
    view: &V,
    edge: &EdgeKey,
    old: EdgeRow,
    group: Option<GroupId>,
    answer: Answer,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let new = EdgeRow { version: next_version(stamp, edge), group, ..old.clone() };
    let record = edge_record(view, *edge, Cause::Move, Some(old), new)?;
    Ok(Decided { records: vec![Record::Edge(record)], answer })
}

pub(super) fn find<'a>(groups: &'a GroupSet, name: &GroupName) -> Result<&'a Group, Error> {
    groups.by_name(name.as_str()).ok_or_else(|| {
        let message = format!("there is no group '{}'; create it first", name.as_str());
        Error::new(Code::UnknownGroup, message)
    })
}

fn refuse_taken(groups: &GroupSet, name: &GroupName) -> Result<(), Error> {
    if groups.by_name(name.as_str()).is_none() {
        return Ok(());
    }
    Err(Error::new(Code::Conflict, format!("there is a group '{}' already", name.as_str())))
}

fn answer(group: &Group, delta: i64) -> Answer {
    Answer::Group { name: group.name.clone(), size: group.size + delta }
}
