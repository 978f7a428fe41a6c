//! The commit path of the cluster: a write is one SQL transaction under the heads of its sources.
//!
//! Requests are gathered into transactions of many changes. A source's changes always go through
//! the same lane, so that transactions of one instance seldom wait for one another; what concerns
//! sources of several lanes is wide work, done while no lane runs. Across instances the heads'
//! locks alone keep writes apart, and every rule is decided on rows read under them.

mod catalog_in_force;
mod clock_check;
mod foresight;
mod held_rows;
mod plan;
mod script;
mod transaction;
mod turns;
mod worker;
mod writing;

use std::cmp::Reverse;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::clock::Clock;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::queue::{Queue, Ticket};
use guanxi_core::signal::{Next, Signal};
use guanxi_model::decide::built_in_kinds;
use guanxi_model::idempotency::Answers;
use guanxi_model::{
    Catalog, Change, Code, EdgeKey, Error, GroupsKey, KindId, Region, Request, SourceId, TenantId,
    places,
};

pub use self::clock_check::ClockCheck;
use self::turns::Turns;
pub use self::writing::excludes_more;
use super::catalog::SharedCatalog;
use super::memory::SharedMemory;
use super::outbox::OutboxMover;
use super::sql::{Database, SqlError};
use super::token_edges::SeenEdge;

/// How long creating the first kinds may take.
const BUILT_IN_WAIT: Duration = Duration::from_secs(30);

pub struct SqlCommitterParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub clock: Arc<dyn Clock>,
    /// The clock of what is forgotten: it does not follow a jump.
    pub steady: Arc<dyn Clock>,
    pub settings: SqlCommitSettings,
    pub region: Region,
    /// Takes the rows of the outbox that were committed.
    pub outgoing: Arc<dyn OutboxMover>,
    /// What reads may believe instead of asking the database is told of edges before they are
    /// committed.
    pub memory: Option<Arc<SharedMemory>>,
    /// Drawn at random by each process.
    pub instance: u64,
}

impl std::fmt::Debug for SqlCommitterParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = f.debug_struct("SqlCommitterParts");
        parts.field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct SqlCommitSettings {
    /// Changes that may wait; beyond, writes are refused as overloaded.
    pub queue_max: usize,
    /// Changes of one transaction; more amortise its round trips and its fsync.
    pub batch_changes_max: usize,
    /// Transactions that run beside each other.
    pub lanes: usize,
}

impl Default for SqlCommitSettings {
    fn default() -> SqlCommitSettings {
        SqlCommitSettings { queue_max: 16_384, batch_changes_max: 256, lanes: 2 }
    }
}

/// A request that is durable: one answer per change. The source's side is visible to all; the
/// target's follows the log.
#[derive(Debug, Clone, Default)]
pub struct SqlWritten {
    pub answers: Answers,
    /// The edges that the request changed, each with its last version.
    pub changed: Vec<SeenEdge>,
    /// The edges that it found as it wanted them.
    pub found: Vec<SeenEdge>,
}

impl SqlWritten {
    /// Takes in what a later part of the same request did.
    fn join(&mut self, later: SqlWritten) {
        self.answers.extend(later.answers);
        self.changed.extend(later.changed);
        self.changed.sort_unstable_by_key(|seen| Reverse((seen.edge, seen.version)));
        self.changed.dedup_by_key(|seen| seen.edge);
        self.found.extend(later.found);
        self.found.sort_unstable_by_key(|seen| Reverse((seen.edge, seen.version)));
        self.found.dedup_by_key(|seen| seen.edge);
        let changed = &self.changed;
        let is_changed = |edge: &EdgeKey| changed.binary_search_by(|at| edge.cmp(&at.edge)).is_ok();
        self.found.retain(|seen| !is_changed(&seen.edge));
    }
}

#[derive(Debug)]
pub struct SqlCommitter {
    shared: Arc<CommitterShared>,
    workers: Workers,
}

struct CommitterShared {
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    clock: Arc<dyn Clock>,
    steady: Arc<dyn Clock>,
    region: Region,
    instance: u64,
    outgoing: Arc<dyn OutboxMover>,
    memory: Option<Arc<SharedMemory>>,
    /// Transactions that were committed.
    batches: AtomicU64,
    batch_changes_max: usize,
    /// One per lane, and the last one for wide work.
    queues: Vec<Queue<SqlWritten>>,
    turns: Turns,
    clock_check: Arc<ClockCheck>,
    signal: Signal,
}

impl std::fmt::Debug for CommitterShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitterShared").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl CommitterShared {
    fn lanes(&self) -> usize {
        self.queues.len() - 1
    }

    fn close(&self) {
        // First, so that no lane's end comes unasked.
        self.signal.stop();
        for queue in &self.queues {
            queue.close();
        }
    }

    /// What waits is still tried once, but nothing again and again.
    fn is_closed(&self) -> bool {
        self.signal.is_stopped()
    }

    /// Which queue a request waits in: its lane's, or the last one when it has no single lane.
    fn queue_of(&self, request: &Request) -> usize {
        let wide = self.lanes();
        if request.import.is_some() || request.changes.len() > self.batch_changes_max {
            return wide;
        }
        let catalog = self.catalog.current();
        let mut lane = None;
        for change in &request.changes {
            let Some((tenant, source)) = only_source(change, &catalog) else {
                return wide;
            };
            let own = places::lane(tenant, source, self.lanes());
            if *lane.get_or_insert(own) != own {
                return wide;
            }
        }
        lane.unwrap_or(wide)
    }
}

impl SqlCommitter {
    /// Begins to take writes. Whoever starts first in a new cluster creates the built-in kinds.
    pub fn start(parts: SqlCommitterParts) -> io::Result<SqlCommitter> {
        let lanes = parts.settings.lanes.max(1);
        let each_max = (parts.settings.queue_max / (lanes + 1)).max(1);
        let workers = parts.crew.workers();
        let shared = Arc::new(CommitterShared {
            database: parts.database,
            catalog: parts.catalog,
            clock: parts.clock,
            steady: parts.steady,
            region: parts.region,
            instance: parts.instance,
            outgoing: parts.outgoing,
            memory: parts.memory,
            batches: AtomicU64::new(0),
            batch_changes_max: parts.settings.batch_changes_max.max(1),
            queues: (0..=lanes).map(|_| Queue::new(each_max)).collect(),
            turns: Turns::new(lanes),
            clock_check: Arc::default(),
            signal: workers.signal().clone(),
        });
        shared
            .clock_check
            .look(&shared.database, shared.clock.as_ref())
            .map_err(io::Error::other)?;
        let committer = SqlCommitter { shared: shared.clone(), workers };
        for lane in 0..=lanes {
            let shared = shared.clone();
            committer.workers.spawn(format!("guanxi-commit-{lane}"), move |_| {
                worker::serve(&shared, lane);
            })?;
        }
        let trouble = "the database's clock could not be looked at";
        committer.workers.repeat("guanxi-clock-check", trouble, Backoff::default(), move |_| {
            shared.clock_check.look(&shared.database, shared.clock.as_ref())?;
            Ok::<_, SqlError>(Next::After(clock_check::INTERVAL))
        })?;
        committer.create_built_in_kinds()?;
        Ok(committer)
    }

    pub async fn write(&self, request: Request, deadline: Instant) -> Result<SqlWritten, Error> {
        let mut ticket = self.push(request, deadline)?;
        match tokio::time::timeout_at(deadline.into(), &mut ticket.reply).await {
            Ok(reply) => reply.unwrap_or_else(|_gone| Err(stopped())),
            Err(_elapsed) => Err(ticket.withdraw()),
        }
    }

    /// As `write`, for threads of the instance's own. Every taken request is answered, so it waits
    /// without a deadline of its own.
    pub fn write_waiting(&self, request: Request, deadline: Instant) -> Result<SqlWritten, Error> {
        let ticket = self.push(request, deadline)?;
        ticket.reply.blocking_recv().unwrap_or_else(|_gone| Err(stopped()))
    }

    /// Whether this instance may write.
    pub fn clock_check(&self) -> &Arc<ClockCheck> {
        &self.shared.clock_check
    }

    /// Changes that wait.
    pub fn queue_len(&self) -> usize {
        self.shared.queues.iter().map(Queue::changes).sum()
    }

    /// Transactions that were committed so far.
    pub fn batches(&self) -> u64 {
        self.shared.batches.load(Ordering::Relaxed)
    }

    /// Serves what waits, takes nothing more, and returns when all is answered.
    pub fn close(&self) {
        self.shared.close();
        self.workers.finish();
    }

    fn push(&self, request: Request, deadline: Instant) -> Result<Ticket<SqlWritten>, Error> {
        self.shared.clock_check.check()?;
        let queue = &self.shared.queues[self.shared.queue_of(&request)];
        queue.push(request, deadline, false)
    }

    fn create_built_in_kinds(&self) -> io::Result<()> {
        let tenant = TenantId::DEFAULT;
        if self.shared.catalog.current().kinds(tenant).next().is_some() {
            return Ok(());
        }
        let specs = built_in_kinds().map_err(io::Error::other)?;
        let create = |spec| Change::CreateKind { tenant, spec: Box::new(spec) };
        let request = Request::new(tenant, specs.into_iter().map(create).collect());
        let deadline = Instant::now() + BUILT_IN_WAIT;
        let written = self.write_waiting(request, deadline).map_err(io::Error::other)?;
        for answer in written.answers {
            match answer {
                // Another instance started at the same time.
                Err(error) if error.code == Code::Conflict => {}
                Err(error) => return Err(io::Error::other(error)),
                Ok(_) => {}
            }
        }
        self.shared.catalog.refresh(&self.shared.database).map_err(io::Error::other)
    }
}

impl Drop for SqlCommitter {
    fn drop(&mut self) {
        self.close();
    }
}

/// The one source that a change concerns; none when there are several, or it is not known before.
pub(crate) fn only_source(change: &Change, catalog: &Catalog) -> Option<(TenantId, SourceId)> {
    if let Change::Put(_) | Change::ImportEdge(_) | Change::Approve { .. } = change {
        let (tenant, kind) = kind_of(change)?;
        if catalog.kind(tenant, kind).is_some_and(|kind| !kind.rules.excludes.is_empty()) {
            return None;
        }
    }
    let of_groups = |groups: &GroupsKey| Some((groups.tenant, groups.source));
    match change {
        Change::CreateGroup { groups, .. }
        | Change::RenameGroup { groups, .. }
        | Change::DeleteGroup { groups, .. }
        | Change::ImportGroup { groups, .. }
        | Change::RepairGroupSize { groups, .. } => of_groups(groups),
        Change::SetNode { node, .. } | Change::RepairTally { node, .. } => {
            Some((node.tenant, SourceId(node.id)))
        }
        Change::Count(count) => Some((count.tenant, SourceId(count.id))),
        Change::ImportCounter { tenant, id, .. } => Some((*tenant, SourceId(*id))),
        _ => edge_of(change).map(|edge| (edge.tenant, edge.source)),
    }
}

/// The edge of a change that concerns one.
fn edge_of(change: &Change) -> Option<&EdgeKey> {
    match change {
        Change::Put(put) => Some(&put.edge),
        Change::ImportEdge(line) => Some(&line.put.edge),
        Change::Delete { edge, .. }
        | Change::Approve { edge }
        | Change::Decline { edge }
        | Change::Expire { edge, .. }
        | Change::AddMember { edge, .. }
        | Change::DropMember { edge, .. } => Some(edge),
        Change::RepairEntry { entry } => Some(&entry.edge),
        _ => None,
    }
}

/// The kind that a change names.
fn kind_of(change: &Change) -> Option<(TenantId, KindId)> {
    match change {
        Change::CreateGroup { groups, .. }
        | Change::RenameGroup { groups, .. }
        | Change::DeleteGroup { groups, .. }
        | Change::ImportGroup { groups, .. }
        | Change::RepairGroupSize { groups, .. } => Some((groups.tenant, groups.kind)),
        Change::Count(count) => Some((count.tenant, count.kind)),
        Change::ImportCounter { tenant, kind, .. } => Some((*tenant, *kind)),
        Change::RepairTally { node, kind, .. } => Some((node.tenant, *kind)),
        _ => edge_of(change).map(|edge| (edge.tenant, edge.kind)),
    }
}

fn changes_catalog(change: &Change) -> bool {
    matches!(
        change,
        Change::CreateKind { .. } | Change::SetKind { .. } | Change::FinishBuildIndex { .. }
    )
}

fn stopped() -> Error {
    Error::new(Code::Unavailable, "the service is stopping").outcome_unknown()
}
