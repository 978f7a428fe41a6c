//! One transaction: lock and fetch in one round trip, decide every change, write and commit in a
//! second. The head of its lane is its witness: when the COMMIT is in doubt, it tells whether it
//! happened.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use guanxi_model::codec::decode_job;
use guanxi_model::idempotency::Answers;
use guanxi_model::job::{Job, JobId, JobWork};
use guanxi_model::{
    Answer, Catalog, Change, Code, EdgeKey, Error, GroupsKey, HeadVersion, Index, Ledger, Millis,
    NodeKey, Origin, Record, Region, Request, TenantId, Version, Which, absorb, decide_request,
};
use rustc_hash::FxHashMap;

use super::catalog_in_force::{Locked, catalog_for, wait_for_rules};
use super::held_rows::{HeldRows, Missing};
use super::plan::{CommitPlan, Fetched, PlanFacts};
use super::script::FetchScript;
use super::{CommitterShared, SqlWritten, writing};
use crate::catalog::ReadCatalog;
use crate::memory::SharedMemory;
use crate::memory::lists::WriteMark;
use crate::rows::cell;
use crate::sql::commit_deadline::CommitBy;
pub(super) use crate::sql::commit_in_doubt::CommitFailure;
use crate::sql::commit_in_doubt::{self, Raised, Witness};
use crate::sql::{Session, SqlError};
use crate::token_edges::SeenEdge;

/// How long a transaction waits for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);
/// Rows that one change may turn out to need, one by one, beyond its footprint: the groups of
/// edges that an exclusion cuts.
const UNFORESEEN_MAX: usize = 64;
/// How often a transaction begins anew because the catalog has changed meanwhile. It changes by an
/// operator's hand, so once is the rule.
const OUTDATED_MAX: u32 = 4;

pub(super) type SqlResults = Vec<Result<SqlWritten, Error>>;

/// Runs the requests as one transaction; a result for each.
pub(super) fn run(
    shared: &CommitterShared,
    lane: usize,
    requests: &[&Request],
) -> Result<SqlResults, CommitFailure> {
    // Before the memory allows it to commit: those who take that back wait for this deadline.
    let by = tell_memory(shared, requests, shared.database.commit_by()?)?;
    let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
    Witness::of_lane(shared.instance, lane as u8).make_sure(&mut session, by, &wait_for_rules())?;
    let done = match run_in(shared, &mut session, lane, requests, by, true) {
        Ok(None) => run_in(shared, &mut session, lane, requests, by, false),
        done => done,
    };
    let done = done.and_then(|results| {
        let lost = || SqlError::Refused("a transaction without foresight was mistaken".into());
        Ok(results.ok_or_else(lost)?)
    });
    if done.is_err() {
        // Whatever it has open must not be met by the next one.
        session.close();
    }
    done
}

/// Before anything is locked, as it may have to wait.
fn tell_memory(
    shared: &CommitterShared,
    requests: &[&Request],
    by: CommitBy,
) -> Result<CommitBy, SqlError> {
    match &shared.memory {
        Some(memory) => memory.let_commit(requests, by),
        None => Ok(by),
    }
}

/// The lists in Redis that a transaction may change, kept away from everybody until its outcome is
/// known. Where that never is, they come back when no write can be under way any more.
struct Marked<'a> {
    marked: Option<(&'a SharedMemory, WriteMark)>,
}

impl<'a> Marked<'a> {
    fn before(
        shared: &'a CommitterShared,
        plan: &CommitPlan,
        by: CommitBy,
    ) -> Result<(Marked<'a>, CommitBy), SqlError> {
        let Some(memory) = &shared.memory else { return Ok((Marked { marked: None }, by)) };
        let (mark, by) = memory.let_change(&plan.footprint.heads, by)?;
        Ok((Marked { marked: Some((memory, mark)) }, by))
    }

    fn ended(self) {
        if let Some((memory, mark)) = self.marked {
            memory.lists().lift(mark);
        }
    }
}

/// None when what was foreseen turned out to be of no use, and nothing was done. A catalog that has
/// changed meanwhile is learnt, and the transaction begins anew with it.
fn run_in(
    shared: &CommitterShared,
    session: &mut Session<'_>,
    lane: usize,
    requests: &[&Request],
    by: CommitBy,
    foresee: bool,
) -> Result<Option<SqlResults>, CommitFailure> {
    for _ in 0..OUTDATED_MAX {
        match run_once(shared, session, lane, requests, by, foresee)? {
            Ended::Done(results) => return Ok(Some(results)),
            Ended::Mistaken => return Ok(None),
            Ended::Outdated => shared.catalog.refresh_in(session)?,
        }
    }
    Err(SqlError::Busy("the catalog changes all the time".into()).into())
}

/// How a transaction ended that did not fail.
enum Ended {
    Done(SqlResults),
    /// What was foreseen turned out to be of no use, and nothing was done.
    Mistaken,
    /// It was decided by an old catalog, and nothing was done.
    Outdated,
}

fn run_once(
    shared: &CommitterShared,
    session: &mut Session<'_>,
    lane: usize,
    requests: &[&Request],
    by: CommitBy,
    foresee: bool,
) -> Result<Ended, CommitFailure> {
    let now = Millis(shared.clock.now_ms());
    let mut begin = String::from("BEGIN;");
    let (decided_by, locked) = catalog_for(shared, session, requests, &mut begin)?;
    let witness = Witness::of_lane(shared.instance, lane as u8);
    let opening = PlanFacts {
        dialect: shared.database.dialect(),
        now,
        steady: Millis(shared.steady.now_ms()),
        floor: shared.clock_check.floor(),
        mark: fastrand::u64(1..),
        lane: witness.head(),
        region: shared.region,
        revision: decided_by.revision,
        exclusions_marked: decided_by.exclusions_marked,
        foresee,
    };
    let before = decided_by.catalog;
    let erased = erased_nodes(session, requests)?;
    let erased = |tenant, job| erased.get(&(tenant, job)).copied();
    let plan = CommitPlan::of(requests, &before, erased, &opening);
    let mut held = HeldRows::new(before.clone());
    let (lists, by) = Marked::before(shared, &plan, by)?;
    let of_no_use = match plan.fetch(session, &begin, &opening, &mut held)? {
        Fetched::Ready => None,
        Fetched::Mistaken => Some(Ended::Mistaken),
        Fetched::Outdated => Some(Ended::Outdated),
    };
    if let Some(ended) = of_no_use {
        session.run("ROLLBACK")?;
        lists.ended();
        return Ok(ended);
    }
    let mut batch = SqlBatch { now, region: shared.region, held, session };
    let mut results = Vec::with_capacity(requests.len());
    for request in requests {
        results.push(batch.request(request)?);
    }
    let mut held = batch.held;
    if !held.is_changed() {
        // What the refusals and replays rest on is committed already.
        session.run("ROLLBACK")?;
        lists.ended();
        return Ok(Ended::Done(results));
    }
    let (texts, rows) = writing::statements(&mut held, &before, now, shared);
    let own =
        held.heads.get(&opening.lane).ok_or_else(|| unforeseen(Missing::Head(opening.lane)))?;
    commit(shared, session, texts, witness.with(own.head.version), by)?;
    lists.ended();
    shared.batches.fetch_add(1, Ordering::Relaxed);
    shared.outgoing.committed(rows);
    if let Some(Locked { revision, unmarked }) = locked.filter(|_| held.catalog_changed) {
        let unmarked = unmarked || writing::excludes_more(&before, &held.catalog);
        let catalog = Catalog::clone(&held.catalog);
        shared.catalog.take(ReadCatalog { catalog, revision, unmarked });
    }
    Ok(Ended::Done(results))
}

/// The nodes of the erase jobs that are to be finished. A job's node never changes, so it may be
/// read before the transaction.
fn erased_nodes(
    session: &mut Session<'_>,
    requests: &[&Request],
) -> Result<FxHashMap<(TenantId, JobId), NodeKey>, SqlError> {
    let mut nodes = FxHashMap::default();
    for change in requests.iter().flat_map(|request| &request.changes) {
        let Change::FinishErase { tenant, job } = change else {
            continue;
        };
        let (tenant_id, job_id) = (tenant.0, job.0);
        let statement = format!("SELECT job FROM jobs WHERE tenant={tenant_id} AND id={job_id}");
        let rows = session.rows(&statement)?;
        let found = rows.first().map(|row| cell::<Vec<u8>>(row, 0)).transpose()?;
        let work = found.and_then(|bytes| decode_job(&bytes).ok()).map(|job: Job| job.work);
        if let Some(JobWork::Erase { node }) = work {
            nodes.insert((*tenant, *job), node);
        }
    }
    Ok(nodes)
}

/// Sends what is to be written, the last part with COMMIT: only then can the outcome be in doubt.
fn commit(
    shared: &CommitterShared,
    session: &mut Session<'_>,
    mut texts: Vec<String>,
    raised: Raised,
    by: CommitBy,
) -> Result<(), CommitFailure> {
    let last = texts.pop().unwrap_or_default();
    for text in texts {
        session.run(text.trim_end_matches(';'))?;
    }
    commit_in_doubt::commit(session, last, raised, by, || shared.is_closed())
}

/// Requests being decided in an open transaction.
struct SqlBatch<'a, 's> {
    now: Millis,
    region: Region,
    held: HeldRows,
    session: &'a mut Session<'s>,
}

impl SqlBatch<'_, '_> {
    fn request(&mut self, request: &Request) -> Result<Result<SqlWritten, Error>, SqlError> {
        let first = self.held.records.len();
        let answers = decide_request(self, request)?;
        Ok(answers.map(|answers| {
            let changed = self.changed(first);
            let found = found(request, &answers, &changed);
            SqlWritten { answers, changed, found }
        }))
    }

    /// The edges of the records from the first on, each with its last version.
    fn changed(&self, first: usize) -> Vec<SeenEdge> {
        let records = &self.held.records[first..];
        last_of_each(records.iter().map(|record| (record.key, record.new.version)).collect())
    }
}

impl Ledger for SqlBatch<'_, '_> {
    type Rows = HeldRows;
    type Broken = SqlError;

    fn rows(&self) -> &HeldRows {
        &self.held
    }

    fn now(&self) -> Millis {
        self.now
    }

    /// A head that is not held is found out when its version is spent.
    fn version(&self, head: &GroupsKey, drawn: &[GroupsKey]) -> Version {
        let given = self.held.heads.get(head).map_or(HeadVersion::default(), |cell| cell.given);
        let earlier = drawn.iter().filter(|other| *other == head).count() as u64;
        given.plus(earlier + 1).with_region(self.region)
    }

    fn spend(&mut self, drawn: &[GroupsKey]) -> Result<(), SqlError> {
        for key in drawn {
            let cell = self.held.heads.get_mut(key);
            let cell = cell.ok_or_else(|| unforeseen(Missing::Head(*key)))?;
            cell.given = cell.given.plus(1);
            debug_assert!(cell.given <= cell.head.version, "a footprint is too small");
        }
        Ok(())
    }

    fn take(&mut self, record: Record, _: &Origin) -> Result<(), SqlError> {
        absorb(record, &mut self.held).map_err(unforeseen)
    }

    /// Reads are current, so a row that the footprint did not name is as good as if it had been
    /// fetched at first.
    fn fetch(&mut self, missing: Missing, fetched: usize) -> Result<(), SqlError> {
        if fetched >= UNFORESEEN_MAX {
            return Err(SqlError::Refused("a change needs ever more rows".into()));
        }
        let mut script = FetchScript::new("");
        match &missing {
            Missing::Edge(key) => script.edges(&[*key], self.session.dialect()),
            Missing::Node(node) => script.nodes(&[*node], self.session.dialect()),
            Missing::Groups(key) if self.held.heads.contains_key(key) => script.groups(&[*key]),
            Missing::Job(tenant, id) => script.jobs(&[(*tenant, *id)]),
            _ => return Err(unforeseen(missing)),
        }
        script.run(self.session, None, &mut self.held)?;
        Ok(())
    }

    fn refuses(&self, change: &Change) -> Option<Error> {
        kept_elsewhere(change, &self.held.catalog)
    }
}

/// The edges that a request found as it wanted them.
fn found(request: &Request, answers: &Answers, changed: &[SeenEdge]) -> Vec<SeenEdge> {
    let mut versions: Vec<(EdgeKey, Version)> = Vec::new();
    for (change, answer) in request.changes.iter().zip(answers) {
        if let (Some(edge), Ok(Answer::Edge(answer))) = (super::edge_of(change), answer)
            && let Some(version) = answer.version
            // They are sorted, the last first.
            && changed.binary_search_by(|changed| edge.cmp(&changed.edge)).is_err()
        {
            versions.push((*edge, version));
        }
    }
    last_of_each(versions)
}

fn last_of_each(mut versions: Vec<(EdgeKey, Version)>) -> Vec<SeenEdge> {
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.dedup_by_key(|(edge, _)| *edge);
    versions.into_iter().map(|(edge, version)| SeenEdge { edge, version }).collect()
}

/// Only the source's side is written here. The target's is mended where it is kept, by the audit;
/// its indexes are the database's own.
fn kept_elsewhere(change: &Change, catalog: &Catalog) -> Option<Error> {
    let here = match change {
        Change::RepairTally { node, kind, which, .. } => {
            let sides = catalog.kind(node.tenant, *kind);
            matches!(which, Which::Outgoing | Which::PendingOutgoing)
                && sides.is_none_or(|kind| kind.fixed.source_type == node.node_type)
        }
        Change::RepairEntry { entry } => matches!(entry.index, Index::Expiry { .. }),
        _ => true,
    };
    (!here).then(|| Error::invalid("this number or entry is not kept on the source's side"))
}

/// Never met unless a footprint is too small.
fn unforeseen(missing: Missing) -> SqlError {
    SqlError::Refused(format!("a change touched what it does not hold: {missing}"))
}

/// What a caller is told when a transaction left nothing for good.
pub(super) fn failed(error: &SqlError) -> Error {
    match error {
        SqlError::Busy(_) => Error::new(
            Code::Overloaded,
            "other writes of the same sources were in the way again and again; nothing was \
             done, try again shortly",
        ),
        SqlError::Lost(_) | SqlError::Away(_) => Error::new(
            Code::Unavailable,
            "the database could not be reached; nothing was done, try again shortly",
        ),
        SqlError::Late(_) => Error::new(
            Code::Unavailable,
            "the write came too late to be committed; nothing was done, try again shortly",
        ),
        SqlError::Refused(_) => {
            let message = "the database refused the write; nothing was done, and the log says why";
            Error::new(Code::Internal, message)
        }
    }
}

pub(super) fn unknown() -> Error {
    let message = "the database was lost while it committed the write; whether it was done is \
                   not known: look, or send it again with its idempotency key";
    Error::new(Code::Unavailable, message).outcome_unknown()
}
