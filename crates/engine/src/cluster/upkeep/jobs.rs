//! Jobs: erasing a node, step by step through the normal commit path. A job's row carries its
//! progress; whoever holds the lease goes on with it. The index that a build-index job is about is
//! always there in SQL, so such a job only says so.

use std::time::{Duration, Instant};

use guanxi_model::codec::decode_job;
use guanxi_model::job::{Job, JobWork};
use guanxi_model::limits::JOB_STEP_EDGES_MAX;
use guanxi_model::{Change, EdgeKey, Kind, NodeKey, SourceId, TargetId, TenantId};

use super::{Chore, Halt};
use crate::cluster::barrier;
use crate::cluster::rows::cell;

const INTERVAL: Duration = Duration::from_secs(1);
/// Jobs of one look.
const JOBS_MAX: usize = 100;
/// Beyond the write deadline: a transaction may end this long after its caller was told.
const GHOST_WAIT: Duration = Duration::from_secs(5);
/// How long a job waits for a barrier before others have their turn.
const BARRIER_WAIT: Duration = Duration::from_secs(30);
const BARRIER_LOOK: Duration = Duration::from_millis(200);
/// Rounds of listing, removing and waiting for the log; the mark lets no new edge come, so the
/// second finds nothing, unless the log was rebuilt meanwhile.
const ROUNDS_MAX: usize = 20;

pub(super) fn run(chore: &Chore) {
    chore.repeat(INTERVAL, |chore| {
        for (tenant, job) in unfinished(chore)? {
            chore.go_on()?;
            let done = match job.work {
                JobWork::Erase { node } => erase(chore, &job, node),
                JobWork::BuildIndex { .. } => {
                    finish(chore, tenant, Change::FinishBuildIndex { tenant, job: job.id })
                }
            };
            match done {
                Ok(true) => tracing::info!(job = job.id.0, "the job is done"),
                Ok(false) => {}
                Err(Halt::Over) => return Err(Halt::Over),
                Err(error) => tracing::warn!(%error, job = job.id.0, "the job could not go on"),
            }
        }
        Ok(false)
    });
}

fn unfinished(chore: &Chore) -> Result<Vec<(TenantId, Job)>, Halt> {
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

fn finish(chore: &Chore, tenant: TenantId, change: Change) -> Result<bool, Halt> {
    let written = chore.write(tenant, vec![change])?;
    match written.answers.into_iter().find_map(Result::err) {
        Some(error) => Err(Halt::Refused(error)),
        None => Ok(true),
    }
}

/// Removes a marked node's edges, both ways. False when it is too early, or others' turn.
fn erase(chore: &Chore, job: &Job, node: NodeKey) -> Result<bool, Halt> {
    // Writes that were decided before the mark have ended by then.
    let wait = chore.parts.settings.write_deadline + GHOST_WAIT;
    if chore.now_ms() < job.started.0 + wait.as_millis() as u64 {
        return Ok(false);
    }
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

fn pass_barrier(chore: &Chore) -> Result<bool, Halt> {
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
fn erase_round(chore: &Chore, job: &Job, node: NodeKey) -> Result<usize, Halt> {
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
    page: impl Fn(u64) -> Result<Vec<(u64, EdgeKey)>, Halt>,
) -> Result<usize, Halt> {
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
) -> Result<Vec<(u64, EdgeKey)>, Halt> {
    let statement = format!(
        "SELECT target FROM outgoing FORCE INDEX (PRIMARY) WHERE tenant={} AND kind={} AND \
         source={} AND target>{after} AND state<2 ORDER BY tenant,kind,source,target \
         LIMIT {JOB_STEP_EDGES_MAX}",
        node.tenant.0, kind.id.0, node.id
    );
    let edge = |target| EdgeKey {
        tenant: node.tenant,
        kind: kind.id,
        source: SourceId(node.id),
        target: TargetId(target),
    };
    ids(chore, &statement).map(|ids| ids.into_iter().map(|id| (id, edge(id))).collect())
}

fn incoming(
    chore: &Chore,
    kind: &Kind,
    node: NodeKey,
    after: u64,
) -> Result<Vec<(u64, EdgeKey)>, Halt> {
    let statement = format!(
        "SELECT source FROM incoming FORCE INDEX (PRIMARY) WHERE tenant={} AND kind={} AND \
         target={} AND source>{after} AND state<2 ORDER BY tenant,kind,target,source \
         LIMIT {JOB_STEP_EDGES_MAX}",
        node.tenant.0, kind.id.0, node.id
    );
    let edge = |source| EdgeKey {
        tenant: node.tenant,
        kind: kind.id,
        source: SourceId(source),
        target: TargetId(node.id),
    };
    ids(chore, &statement).map(|ids| ids.into_iter().map(|id| (id, edge(id))).collect())
}

fn ids(chore: &Chore, statement: &str) -> Result<Vec<u64>, Halt> {
    let rows = chore.session()?.rows(statement)?;
    rows.iter().map(|row| Ok(cell(row, 0)?)).collect()
}
