//! Changes of the catalog: new kinds, changed rules, and the index that a raised limit needs.

use super::erase::{new_job_id, running};
use super::{Decided, Stamp, Undecided, kind_of};
use crate::answer::Answer;
use crate::catalog::Catalog;
use crate::change::{Field, KindPatch, KindSpec};
use crate::edge::Ends;
use crate::error::{Code, Error};
use crate::job::{Job, JobId, JobWork};
use crate::kind::{FixedRules, Kind, KindId, KindName, Rules, TimeIndex};
use crate::limits::{DATA_BYTES_MAX, KINDS_MAX, OUTGOING_SORTED_MAX};
use crate::node::{NodeTypeId, TenantId};
use crate::record::Record;
use crate::view::View;

pub(super) fn create<V: View>(
    tenant: TenantId,
    spec: &KindSpec,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let catalog = view.catalog();
    if catalog.find(tenant, spec.name.as_str()).is_some() {
        let message = format!("there is a kind {} already", spec.name);
        return Err(Undecided::Refused(Error::new(Code::Conflict, message)));
    }
    if catalog.kinds(tenant).count() >= KINDS_MAX {
        let message = format!("there are {KINDS_MAX} kinds already, the limit");
        return Err(Undecided::Refused(Error::new(Code::LimitReached, message)));
    }
    let mut records = Vec::new();
    let mut new_types: Vec<(&KindName, NodeTypeId)> = Vec::new();
    let mut type_id = |name| node_type(catalog, tenant, name, &mut new_types);
    let fixed = FixedRules {
        source_type: type_id(&spec.source_type),
        target_type: type_id(&spec.target_type),
        owner_type: spec.owner_type.as_ref().map(type_id),
        counter: spec.counter,
        reconciled: spec.reconciled,
        outgoing_list: spec.outgoing_list,
        incoming_list: spec.incoming_list,
        outgoing_tally: spec.outgoing_tally,
        incoming_tally: spec.incoming_tally,
    };
    let rules = Rules {
        self_allowed: spec.self_allowed,
        outgoing_max: spec.outgoing_max,
        groups_max: spec.groups_max,
        approval: spec.approval,
        data_bytes_max: spec.data_bytes_max,
        excludes: excluded_ids(catalog, tenant, &spec.excludes)?,
        expires: spec.expires,
        list_depth_max: spec.list_depth_max,
        on_overload: spec.on_overload,
    };
    let id = catalog.next_kind_id(tenant);
    let mut kind =
        Kind { id, name: spec.name.clone(), fixed, rules, time_index: TimeIndex::Absent };
    if kind.wants_time_index() {
        kind.time_index = TimeIndex::Ready;
    }
    check(catalog, tenant, &kind)?;
    for (name, id) in new_types {
        records.push(Record::NodeType { tenant, id, name: name.clone() });
    }
    records.push(Record::Kind { tenant, kind: Box::new(kind.clone()) });
    Ok(Decided { records, answer: Answer::Kind(Box::new(kind)) })
}

pub(super) fn set<V: View>(
    tenant: TenantId,
    id: KindId,
    patch: &KindPatch,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let old = kind_of(view, tenant, id)?;
    let mut kind = Kind::clone(&old);
    let rules = &mut kind.rules;
    match patch.outgoing_max {
        Field::Keep => {}
        Field::Clear => rules.outgoing_max = None,
        Field::Set(max) => rules.outgoing_max = Some(max),
    }
    if let Some(names) = &patch.excludes {
        rules.excludes = excluded_ids(view.catalog(), tenant, names)?;
    }
    rules.self_allowed = patch.self_allowed.unwrap_or(rules.self_allowed);
    rules.groups_max = patch.groups_max.unwrap_or(rules.groups_max);
    rules.approval = patch.approval.unwrap_or(rules.approval);
    rules.data_bytes_max = patch.data_bytes_max.unwrap_or(rules.data_bytes_max);
    rules.expires = patch.expires.unwrap_or(rules.expires);
    rules.list_depth_max = patch.list_depth_max.unwrap_or(rules.list_depth_max);
    rules.on_overload = patch.on_overload.unwrap_or(rules.on_overload);
    check(view.catalog(), tenant, &kind)?;
    let mut records = Vec::with_capacity(2);
    if kind.wants_time_index() && kind.time_index == TimeIndex::Absent {
        kind.time_index = TimeIndex::Building;
        let job = Job {
            id: new_job_id(tenant, stamp),
            work: JobWork::BuildIndex { kind: id, after: None },
            edges_done: 0,
            started: stamp.now,
            finished: None,
            receipt: None,
        };
        records.push(Record::Job { tenant, job: Box::new(job) });
    }
    if kind == *old {
        return Ok(Decided::nothing(Answer::Kind(Box::new(kind))));
    }
    records.push(Record::Kind { tenant, kind: Box::new(kind.clone()) });
    Ok(Decided { records, answer: Answer::Kind(Box::new(kind)) })
}

/// One step of the job that fills a kind's index: the edges after the job's place up to `until`.
pub(super) fn build_index_step<V: View>(
    tenant: TenantId,
    id: JobId,
    until: Ends,
    edges: u64,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let mut job = running(tenant, id, view)?;
    let (kind, after) = index_work(&job)?;
    if after.is_some_and(|after| until <= after) {
        return Err(Undecided::Refused(Error::invalid("the job is past these edges already")));
    }
    job.work = JobWork::BuildIndex { kind, after: Some(until) };
    job.edges_done += edges;
    let records = vec![
        Record::BuildIndex { tenant, kind, job: id, after, until },
        Record::Job { tenant, job: Box::new(job) },
    ];
    Ok(Decided { records, answer: Answer::Job(id) })
}

pub(super) fn finish_build_index<V: View>(
    tenant: TenantId,
    id: JobId,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let mut job = running(tenant, id, view)?;
    let (kind, _) = index_work(&job)?;
    let mut kind = Kind::clone(kind_of(view, tenant, kind)?.as_ref());
    kind.time_index = TimeIndex::Ready;
    job.finished = Some(stamp.now);
    let records = vec![
        Record::Kind { tenant, kind: Box::new(kind) },
        Record::Job { tenant, job: Box::new(job) },
    ];
    Ok(Decided { records, answer: Answer::Job(id) })
}

/// The kinds that every new service begins with.
pub fn built_in_kinds() -> Result<Vec<KindSpec>, Error> {
    let user = KindName::new("user")?;
    let post = KindName::new("post")?;
    let edges = |name, target: &KindName| {
        let spec = KindSpec::edges(KindName::new(name)?, user.clone(), target.clone());
        let data_bytes_max = DATA_BYTES_MAX as u32;
        Ok::<_, Error>(KindSpec { data_bytes_max, expires: true, ..spec })
    };
    Ok(vec![
        KindSpec {
            outgoing_max: Some(OUTGOING_SORTED_MAX),
            groups_max: 20,
            approval: true,
            ..edges("follow", &user)?
        },
        KindSpec { owner_type: Some(user.clone()), ..edges("like", &post)? },
        KindSpec { owner_type: Some(user.clone()), ..edges("favorite", &post)? },
        KindSpec { excludes: vec!["follow".into()], ..edges("block", &user)? },
        KindSpec::counter(KindName::new("view")?, post.clone()),
        KindSpec::counter(KindName::new("play_seconds")?, post),
    ])
}

fn index_work<E>(job: &Job) -> Result<(KindId, Option<Ends>), Undecided<E>> {
    match job.work {
        JobWork::BuildIndex { kind, after } => Ok((kind, after)),
        JobWork::Erase { .. } => {
            Err(Undecided::Refused(Error::invalid("this job does not build an index")))
        }
    }
}

/// The id of a node type, a new one for a name that is not there yet.
fn node_type<'a>(
    catalog: &Catalog,
    tenant: TenantId,
    name: &'a KindName,
    new_types: &mut Vec<(&'a KindName, NodeTypeId)>,
) -> NodeTypeId {
    if let Some(id) = catalog.type_named(tenant, name.as_str()) {
        return id;
    }
    if let Some((_, id)) = new_types.iter().find(|(new, _)| *new == name) {
        return *id;
    }
    let id = NodeTypeId(catalog.next_type_id(tenant).0 + new_types.len() as u16);
    new_types.push((name, id));
    id
}

fn excluded_ids(
    catalog: &Catalog,
    tenant: TenantId,
    names: &[String],
) -> Result<Vec<KindId>, Error> {
    let mut ids = Vec::with_capacity(names.len());
    for name in names {
        let kind = catalog
            .find(tenant, name)
            .ok_or_else(|| Error::invalid(format!("excludes: there is no kind '{name}'")))?;
        if !ids.contains(&kind.id) {
            ids.push(kind.id);
        }
    }
    Ok(ids)
}

fn check(catalog: &Catalog, tenant: TenantId, kind: &Kind) -> Result<(), Error> {
    kind.check()?;
    for excluded in &kind.rules.excludes {
        let Some(other) = catalog.kind(tenant, *excluded) else {
            continue;
        };
        let same_ends = other.fixed.source_type == kind.fixed.source_type
            && other.fixed.target_type == kind.fixed.target_type;
        if other.fixed.counter || !same_ends || other.id == kind.id {
            return Err(Error::invalid(format!(
                "kind {}: it can only exclude other kinds of its own node types, not {}",
                kind.name, other.name
            )));
        }
    }
    Ok(())
}
