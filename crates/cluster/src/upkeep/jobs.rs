//! Jobs: erasing a node, step by step through the normal commit path. A job's row carries its
//! progress; whoever holds the lease goes on with it. The index that a build-index job is about is
//! always there in SQL, so such a job only says so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use guanxi_model::codec::decode_job;
use guanxi_model::job::{Job, JobId, JobWork};
use guanxi_model::limits::JOB_STEP_EDGES_MAX;
use guanxi_model::{Change, EdgeKey, Kind, KindId, NodeKey, SourceId, TargetId, TenantId};

use super::{Chore, ChoreHalt};
use crate::barrier;
use crate::rows::cell;
use crate::sql::commit_deadline::ENDED_AFTER;
use crate::sql::commit_in_doubt;

const INTERVAL: Duration = Duration::from_secs(1);
/// Jobs of one look.
const JOBS_MAX: usize = 100;
/// How long a job waits for a barrier before others have their turn.
const BARRIER_WAIT: Duration = Duration::from_secs(30);
const BARRIER_LOOK: Duration = Duration::from_millis(200);
/// Rounds of listing, removing and waiting for the log; the mark lets no new edge come, so the
/// second finds nothing, unless the log was rebuilt meanwhile.
const ROUNDS_MAX: usize = 20;

pub(super) fn run(chore: &Chore) {
    // Erasures whose edges were removed once already, and when.
    let mut begun = HashMap::new();
    chore.repeat(INTERVAL, |chore| {
        let unfinished = unfinished(chore)?;
        begun.retain(|id, _| unfinished.iter().any(|(_, job)| job.id == *id));
        for (tenant, job) in unfinished {
            chore.go_on()?;
            let done = match job.work {
                JobWork::Erase { node } => erase(chore, &job, node, &mut begun),
                JobWork::BuildIndex { .. } => {
                    finish(chore, tenant, Change::FinishBuildIndex { tenant, job: job.id })
                }
            };
            match done {
                Ok(true) => tracing::info!(job = job.id.0, "the job is done"),
                Ok(false) => {}
                Err(ChoreHalt::Over) => return Err(ChoreHalt::Over),
                Err(error) => tracing::warn!(%error, job = job.id.0, "the job could not go on"),
            }
        }
        Ok(false)
    });
}

fn unfinished(chore: &Chore) -> Result<Vec<(TenantId, Job)>, ChoreHalt> {
    let statement = format!("SELECT tenant,job FROM jobs WHERE finished=0 LIMIT {JOBS_MAX}");
    let mut jobs = Vec::new();
    for row in chore.session()?.rows(&statement)? {
        let encoded: Vec<u8> = cell(&row, 1)?;
        match decode_job(&encoded) {
            Ok(job) => jobs.push((TenantId(cell(&row, 0)?), job)),
            Err(error) => tracing::error!(error = error.0, "a job cannot be read"),
        }
    }
    Ok(jobs)
}

fn finish(chore: &Chore, tenant: TenantId, change: Change) -> Result<bool, ChoreHalt> {
    let written = chore.write(tenant, vec![change])?;
    match written.answers.into_iter().find_map(Result::err) {
        Some(error) => Err(ChoreHalt::Refused(error)),
        None => Ok(true),
    }
}

/// Removes a marked node's edges, both ways: at once those that stand, so that nobody reads them
/// any longer, and later those of writes that were decided before the mark. False when it is too
/// early for these, or others' turn.
fn erase(
    chore: &Chore,
    job: &Job,
    node: NodeKey,
    begun: &mut HashMap<JobId, Instant>,
) -> Result<bool, ChoreHalt> {
    let Some(begun_at) = begun.get(&job.id).copied() else {
        erase_round(chore, job, node)?;
        // Those that were on their way to its incoming lists.
        if !pass_barrier(chore)? {
            return Ok(false);
        }
        erase_round(chore, job, node)?;
        begun.insert(job.id, Instant::now());
        return Ok(false);
    };
    // Such writes have ended by then, or are being committed: the mark was committed before anything
    // was removed.
    if begun_at.elapsed() < ENDED_AFTER {
        return Ok(false);
    }
    commit_in_doubt::await_all(&mut chore.session()?)?;
    for _ in 0..ROUNDS_MAX {
        // What they wrote stands in the incoming lists when a barrier has passed.
        if !pass_barrier(chore)? {
            return Ok(false);
        }
        if erase_round(chore, job, node)? == 0 {
            let tenant = node.tenant;
            return finish(chore, tenant, Change::FinishErase { tenant, job: job.id });
        }
    }
    Ok(false)
}

fn pass_barrier(chore: &Chore) -> Result<bool, ChoreHalt> {
    let database = &chore.parts.database;
    let until = Instant::now() + BARRIER_WAIT;
    let partitions = chore.parts.kafka.partitions;
    let id = barrier::raise(database, until)?;
    while Instant::now() < until {
        if barrier::wait(database, id, partitions, Instant::now() + BARRIER_LOOK)? {
            return Ok(true);
        }
        chore.go_on()?;
    }
    tracing::warn!("an erasure waits for the log's records to reach the target side");
    Ok(false)
}

/// Removes all edges that are listed now; returns how many were.
fn erase_round(chore: &Chore, job: &Job, node: NodeKey) -> Result<usize, ChoreHalt> {
    // Every kind that had edges before the mark, also one that another instance has just created.
    chore.parts.catalog.refresh(&chore.parts.database)?;
    let catalog = chore.parts.catalog.current();
    let mut found = 0;
    for kind in catalog.kinds(node.tenant).filter(|kind| !kind.fixed.counter) {
        if kind.fixed.source_type == node.node_type {
            found += erase_list(chore, job, |after| outgoing(chore, kind, node, after))?;
        }
        if kind.fixed.target_type == node.node_type {
            found += erase_list(chore, job, |after| incoming(chore, kind, node, after))?;
        }
    }
    Ok(found)
}

/// Removes what `page` finds after an id, page by page; both give the ids at the other end.
fn erase_list(
    chore: &Chore,
    job: &Job,
    page: impl Fn(u64) -> Result<Vec<(u64, EdgeKey)>, ChoreHalt>,
) -> Result<usize, ChoreHalt> {
    let (mut after, mut found) = (0, 0);
    loop {
        chore.go_on()?;
        let listed = page(after)?;
        let Some((last, first)) = listed.last().copied() else {
            return Ok(found);
        };
        after = last;
        found += listed.len();
        let edges = listed.into_iter().map(|(_, edge)| edge).collect();
        let step = Change::EraseStep { tenant: first.tenant, job: job.id, edges };
        finish(chore, first.tenant, step)?;
    }
}

fn outgoing(
    chore: &Chore,
    kind: &Kind,
    node: NodeKey,
    after: u64,
) -> Result<Vec<(u64, EdgeKey)>, ChoreHalt> {
    let (tenant, kind, source) = (node.tenant, kind.id, SourceId(node.id));
    let targets = others(chore, ("outgoing", "source", "target"), kind, node, after)?;
    let edge = |target| EdgeKey { tenant, kind, source, target: TargetId(target) };
    Ok(targets.into_iter().map(|target| (target, edge(target))).collect())
}

fn incoming(
    chore: &Chore,
    kind: &Kind,
    node: NodeKey,
    after: u64,
) -> Result<Vec<(u64, EdgeKey)>, ChoreHalt> {
    let (tenant, kind, target) = (node.tenant, kind.id, TargetId(node.id));
    let sources = others(chore, ("incoming", "target", "source"), kind, node, after)?;
    let edge = |source| EdgeKey { tenant, kind, source: SourceId(source), target };
    Ok(sources.into_iter().map(|source| (source, edge(source))).collect())
}

/// A page of the ids at the other end of a node's edges, by the table and its columns.
fn others(
    chore: &Chore,
    (table, own, other): (&str, &str, &str),
    kind: KindId,
    node: NodeKey,
    after: u64,
) -> Result<Vec<u64>, ChoreHalt> {
    let statement = format!(
        "SELECT {other} FROM {table} FORCE INDEX (PRIMARY) WHERE tenant={} AND kind={} AND \
         {own}={} AND {other}>{after} AND state<2 ORDER BY tenant,kind,{own},{other} \
         LIMIT {JOB_STEP_EDGES_MAX}",
        node.tenant.0, kind.0, node.id
    );
    let rows = chore.session()?.rows(&statement)?;
    rows.iter().map(|row| Ok(cell(row, 0)?)).collect()
}
