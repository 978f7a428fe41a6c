//! Erasing a node: mark it, remove its edges step by step, then everything else about it.

use std::collections::HashSet;

use super::edges::{removal, standing};
use super::{Decided, Stamp, Undecided};
use crate::answer::Answer;
use crate::edge::{EdgeKey, SourceId};
use crate::error::{Code, Error};
use crate::footprint::jobs_head;
use crate::group::GroupsKey;
use crate::job::{Job, JobId, JobWork, Receipt};
use crate::node::{NodeKey, NodeRow, TenantId};
use crate::record::{Cause, Record};
use crate::tally::Which;
use crate::view::View;

/// Marks the node; from here on puts that touch it are refused. A node being erased already
/// answers with the job that does it.
pub(super) fn begin<V: View>(
    node: &NodeKey,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let row = view.node(node).map_err(Undecided::Failed)?;
    if let Some(job) = row.erased_by {
        return Ok(Decided::nothing(Answer::Job(job)));
    }
    let id = new_job_id(node.tenant, stamp);
    let job = Job {
        id,
        work: JobWork::Erase { node: *node },
        edges_done: 0,
        started: stamp.now,
        finished: None,
        receipt: None,
    };
    let records = vec![
        Record::Job { tenant: node.tenant, job: Box::new(job) },
        Record::Node { node: *node, row: NodeRow { erased_by: Some(id), ..row } },
    ];
    Ok(Decided { records, answer: Answer::Job(id) })
}

/// Removes these edges of the node, those that still stand.
pub(super) fn step<V: View>(
    tenant: TenantId,
    id: JobId,
    edges: &[EdgeKey],
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let mut job = running(tenant, id, view)?;
    erased_node(&job)?;
    let mut records = Vec::with_capacity(edges.len() + 1);
    let mut seen = HashSet::with_capacity(edges.len());
    for edge in edges.iter().filter(|edge| seen.insert(**edge)) {
        if let Some(row) = standing(view, edge)? {
            records.extend(removal(view, *edge, Cause::Erase, row, stamp)?.records);
        }
    }
    if records.is_empty() {
        return Ok(Decided::nothing(Answer::Job(id)));
    }
    job.edges_done += records.len() as u64;
    records.push(Record::Job { tenant, job: Box::new(job) });
    Ok(Decided { records, answer: Answer::Job(id) })
}

/// Drops settings, groups and counters, lifts the mark and writes the receipt. The caller has
/// seen that no edge is left; none can come while the mark stands.
pub(super) fn finish<V: View>(
    tenant: TenantId,
    id: JobId,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let mut job = running(tenant, id, view)?;
    let node = erased_node(&job)?;
    let mut records = Vec::new();
    let mut receipt = Receipt { groups_removed: 0, counters_removed: 0 };
    let tallies = view.tallies(&node).map_err(Undecided::Failed)?;
    for kind in view.catalog().kinds(tenant) {
        if kind.fixed.counter && kind.fixed.target_type == node.node_type {
            let value = tallies.get(kind.id, Which::Value);
            if value != 0 {
                let (kind, id) = (kind.id, node.id);
                records.push(Record::Counter { tenant, kind, id, delta: -value });
                receipt.counters_removed += 1;
            }
        } else if kind.fixed.source_type == node.node_type {
            let groups = GroupsKey { tenant, kind: kind.id, source: SourceId(node.id) };
            for group in view.groups(&groups).map_err(Undecided::Failed)?.groups {
                records.push(Record::Group { groups, id: group.id, name: None });
                receipt.groups_removed += 1;
            }
        }
    }
    records.push(Record::Node { node, row: NodeRow::default() });
    job.finished = Some(stamp.now);
    job.receipt = Some(receipt);
    records.push(Record::Job { tenant, job: Box::new(job) });
    Ok(Decided { records, answer: Answer::Job(id) })
}

pub(super) fn running<V: View>(
    tenant: TenantId,
    id: JobId,
    view: &V,
) -> Result<Job, Undecided<V::Error>> {
    let job = view.job(tenant, id).map_err(Undecided::Failed)?;
    let job = job.filter(|job| job.finished.is_none());
    job.ok_or_else(|| {
        Undecided::Refused(Error::new(Code::Conflict, "there is no such running job"))
    })
}

fn erased_node(job: &Job) -> Result<NodeKey, Error> {
    match job.work {
        JobWork::Erase { node } => Ok(node),
        JobWork::BuildIndex { .. } => Err(Error::invalid("this job does not erase a node")),
    }
}

/// Jobs take their ids from the versions of a head that no kind uses.
pub(super) fn new_job_id(tenant: TenantId, stamp: &mut Stamp<'_>) -> JobId {
    JobId((stamp.versions)(jobs_head(tenant)).0)
}
