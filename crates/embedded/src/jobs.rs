//! Jobs: erasing a node and building an index, step by step through the normal commit path. A
//! job's row carries its progress, so a restart goes on where it was.

use std::ops::ControlFlow;
use std::time::Duration;

use guanxi_core::snapshot::{Direction, Snapshot, StoreError, TimeRange, Timeline};
use guanxi_model::job::{Job, JobId, JobWork};
use guanxi_model::limits::JOB_STEP_EDGES_MAX;
use guanxi_model::{
    Change, EdgeKey, Ends, Kind, KindId, NodeKey, SourceId, State, TargetId, TenantId,
};

use crate::background::Workbench;

/// The pause before a job that could not go on is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) fn run(bench: &Workbench) {
    loop {
        let found = unfinished(bench);
        let mut is_left = found.is_err();
        for (tenant, job) in found.unwrap_or_default() {
            let done = match job.work {
                JobWork::Erase { node } => erase(bench, job.id, node),
                JobWork::BuildIndex { kind, after } => {
                    build_index(bench, tenant, &job, kind, after)
                }
            };
            match done {
                Ok(Some(())) => tracing::info!(job = job.id.0, "the job is done"),
                // Stopping, or not written now.
                Ok(None) => is_left = true,
                Err(error) => {
                    tracing::error!(%error, job = job.id.0, "the job could not go on");
                    is_left = true;
                }
            }
        }
        let goes_on = match is_left {
            true => !bench.signal.wait(RETRY_INTERVAL),
            false => bench.signal.wait_for_jobs(),
        };
        if !goes_on {
            return;
        }
    }
}

fn unfinished(bench: &Workbench) -> Result<Vec<(TenantId, Job)>, StoreError> {
    let snapshot = bench.store.snapshot();
    let mut found = Vec::new();
    for tenant in snapshot.catalog().tenants() {
        let read = snapshot.jobs(tenant, None, &mut |job| {
            if job.finished.is_none() {
                found.push((tenant, job));
            }
            ControlFlow::Continue(())
        });
        read.inspect_err(|error| tracing::error!(%error, "the jobs could not be read"))?;
    }
    Ok(found)
}

/// Removes a marked node's edges, kind by kind and both ways. No new one can come, so each list
/// is done when it is empty. None when the engine stops meanwhile.
fn erase(bench: &Workbench, job: JobId, node: NodeKey) -> Result<Option<()>, StoreError> {
    let catalog = bench.store.catalog();
    let kinds = catalog.kinds(node.tenant).filter(|kind| !kind.fixed.counter);
    for kind in kinds {
        if kind.fixed.source_type == node.node_type
            && erase_edges(bench, job, node.tenant, |snapshot, _| outgoing(snapshot, kind, node))?
                .is_none()
        {
            return Ok(None);
        }
        if kind.fixed.target_type == node.node_type
            && erase_edges(bench, job, node.tenant, |snapshot, after| {
                incoming(snapshot, kind, node, after)
            })?
            .is_none()
        {
            return Ok(None);
        }
    }
    let finish = Change::FinishErase { tenant: node.tenant, job };
    Ok(bench.write_all(node.tenant, vec![finish]))
}

/// Removes what `find` finds, a step at a time, until it finds nothing.
fn erase_edges(
    bench: &Workbench,
    job: JobId,
    tenant: TenantId,
    find: impl Fn(&dyn Snapshot, Option<Ends>) -> Result<Vec<EdgeKey>, StoreError>,
) -> Result<Option<()>, StoreError> {
    let mut after = None;
    loop {
        let edges = find(bench.store.snapshot().as_ref(), after)?;
        let Some(last) = edges.last() else {
            return Ok(Some(()));
        };
        after = Some((last.source, last.target));
        if bench.write_all(tenant, vec![Change::EraseStep { tenant, job, edges }]).is_none() {
            return Ok(None);
        }
    }
}

fn outgoing(
    snapshot: &dyn Snapshot,
    kind: &Kind,
    node: NodeKey,
) -> Result<Vec<EdgeKey>, StoreError> {
    let (tenant, kind, source) = (node.tenant, kind.id, SourceId(node.id));
    let mut edges = Vec::new();
    snapshot.edges_of_source(tenant, kind, source, None, &mut |target, _| {
        edges.push(EdgeKey { tenant, kind, source, target });
        until_full(&edges)
    })?;
    Ok(edges)
}

fn incoming(
    snapshot: &dyn Snapshot,
    kind: &Kind,
    node: NodeKey,
    after: Option<Ends>,
) -> Result<Vec<EdgeKey>, StoreError> {
    let (tenant, target) = (node.tenant, TargetId(node.id));
    let mut edges = Vec::new();
    if !kind.fixed.incoming_list {
        // Without a list of them, all edges of the kind are looked through, once.
        snapshot.edges_of_kind(tenant, kind.id, after, &mut |(source, to), _| {
            if to == target {
                edges.push(EdgeKey { tenant, kind: kind.id, source, target });
            }
            until_full(&edges)
        })?;
        return Ok(edges);
    }
    for state in [State::Live, State::Pending] {
        let (direction, id) = (Direction::Incoming, node.id);
        let list = Timeline { tenant, kind: kind.id, direction, id, state };
        snapshot.timeline(&list, &TimeRange::default(), &mut |place| {
            edges.push(EdgeKey { tenant, kind: kind.id, source: SourceId(place.id), target });
            until_full(&edges)
        })?;
    }
    edges.truncate(JOB_STEP_EDGES_MAX);
    Ok(edges)
}

fn until_full(edges: &[EdgeKey]) -> ControlFlow<()> {
    match edges.len() < JOB_STEP_EDGES_MAX {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}

/// Enters the edges that stood before the index was wanted, in the order of their keys.
fn build_index(
    bench: &Workbench,
    tenant: TenantId,
    job: &Job,
    kind: KindId,
    mut after: Option<Ends>,
) -> Result<Option<()>, StoreError> {
    loop {
        let mut edges = 0;
        let mut last = None;
        bench.store.snapshot().edges_of_kind(tenant, kind, after, &mut |ends, _| {
            edges += 1;
            last = Some(ends);
            match edges < JOB_STEP_EDGES_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        let step = match last {
            Some(until) => {
                Change::BuildIndexStep { tenant, job: job.id, until, edges: edges as u64 }
            }
            None => Change::FinishBuildIndex { tenant, job: job.id },
        };
        if bench.write_all(tenant, vec![step]).is_none() {
            return Ok(None);
        }
        if last.is_none() {
            return Ok(Some(()));
        }
        after = last;
    }
}
