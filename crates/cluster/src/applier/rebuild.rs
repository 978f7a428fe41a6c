//! Rebuilds the target's side of whole partitions from `outgoing`, when the log no longer has what
//! they have not applied, or is another log. In pieces, each a transaction under the fence, so that
//! a new owner stops it; appliers of other partitions go on meanwhile. A piece may be done twice, so
//! one that fails is repeated alone: what was walked before it is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::signal::Next;
use guanxi_model::{BarrierId, Catalog, EdgeKey, places};

use super::super::acknowledged::{self, Note};
use super::super::barrier::{self, ALL_SHARDS, BarrierMark};
use super::super::kafka::{LogPosition, LookBack};
use super::super::memory::epoch;
use super::super::rows;
use super::super::sql::commit_in_doubt::CommitFailure;
use super::super::sql::{Database, SqlError};
use super::batch::{BatchLog, LogKind, positions};
use super::settle::{Extra, Fence, settle};
use super::shared::{ApplierShared, AskError};
use super::statements;

/// Keys that one statement looks through.
const SCAN_KEYS_MAX: usize = 4096;
/// Edges settled in one transaction; while it runs the partition's position is locked.
const SETTLE_EDGES_MAX: usize = 512;
/// How long a piece may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(10);
/// Barriers marked by one statement, in each of up to 64 partitions.
const BARRIERS_MAX: usize = 64;
/// Pauses before a piece that failed is done again.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

fn backoff() -> Backoff {
    Backoff::new(PAUSE_FIRST, PAUSE_MAX)
}

/// How a rebuild ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuilt {
    /// The positions are the new ones; so many edges differed.
    Done { changed: u64 },
    /// Someone else applies one of the partitions now.
    Foreign,
    /// It was told to stop.
    Stopped,
}

/// Partitions that must be rebuilt: where each stands, and where it goes on afterwards (noted
/// before the rebuild began: what lies below is in `outgoing` already).
#[derive(Debug, Clone, Default)]
pub struct LostPartitions {
    pub from: BTreeMap<u32, LogPosition>,
    pub to: BTreeMap<u32, LogPosition>,
    /// What was acknowledged before the rebuild began and the log does not have. The rebuild makes up
    /// for it. What the log has stays noted: a relay may go on from there.
    pub(super) missing: Vec<Note>,
}

impl LostPartitions {
    pub fn new(from: BTreeMap<u32, LogPosition>, to: BTreeMap<u32, LogPosition>) -> LostPartitions {
        LostPartitions { from, to, missing: Vec::new() }
    }
}

/// The rebuild of these partitions, whatever the database does meanwhile.
pub(super) fn rebuild_until_done(shared: &ApplierShared, mut behind: LostPartitions) {
    shared.signal.repeat("the target's side could not be rebuilt", backoff(), || {
        let partitions = behind.from.keys();
        tracing::info!(?partitions, "rebuilding the target's side from the database");
        behind.missing = missing(shared, &behind)?;
        shared.catalog.refresh(&shared.database)?;
        let catalog = shared.catalog.current();
        let stopped_after = |pause| shared.signal.wait(pause);
        let ApplierShared { database, place, .. } = shared;
        match rebuild(database, &catalog, place, &behind, &stopped_after)? {
            Rebuilt::Done { changed } => {
                tracing::info!(changed, "the rebuild is done");
                shared.counts.add(|counts| &counts.rebuilt, behind.from.len() as u64);
            }
            // Positions are read again when the partitions are taken again.
            Rebuilt::Foreign | Rebuilt::Stopped => {}
        }
        Ok::<_, AskError>(Next::Never)
    });
}

/// What was acknowledged of these partitions and the log does not have.
fn missing(shared: &ApplierShared, behind: &LostPartitions) -> Result<Vec<Note>, AskError> {
    let ApplierShared { place, kafka, .. } = shared;
    if place.source != LogKind::Outbox {
        return Ok(Vec::new());
    }
    let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
    let partitions = behind.to.keys().copied();
    let notes = acknowledged::of_partitions(&mut session, &place.topic, partitions)?;
    drop(session);
    let is_of_log = |note: &Note| {
        let to = behind.to.get(&note.part);
        to.is_some_and(|to| note.topic.may_be(to.topic) && note.position >= to.next)
    };
    let (mut unseen, mut missing): (Vec<_>, Vec<_>) = notes.into_iter().partition(is_of_log);
    if unseen.is_empty() {
        return Ok(missing);
    }
    let log = LookBack::open(kafka, &place.topic)?;
    while !unseen.is_empty() && !shared.signal.is_stopped() {
        // One of each partition at a time.
        let wanted = unseen.iter().map(|note| (note.part, note.position)).collect();
        let marks = log.marks(&wanted)?;
        let is_looked_at = |note: &mut Note| wanted.get(&note.part) == Some(&note.position);
        let looked_at = unseen.extract_if(.., is_looked_at);
        // Where it cannot be told now, the note stays, and costs another rebuild at worst.
        let is_gone = |note: &Note| marks.get(&note.part).is_some_and(|mark| *mark != note.mark);
        missing.extend(looked_at.filter(is_gone));
    }
    Ok(missing)
}

/// `stopped_after` waits so long, and says whether to stop.
pub fn rebuild(
    database: &Database,
    catalog: &Catalog,
    place: &BatchLog,
    behind: &LostPartitions,
    stopped_after: &dyn Fn(Duration) -> bool,
) -> Result<Rebuilt, SqlError> {
    let partitions: BTreeSet<u32> = behind.from.keys().copied().collect();
    let mut rebuild = Rebuild {
        database,
        catalog,
        place,
        fence: Fence::of(&place.topic, partitions.iter().copied()),
        behind,
        stopped_after,
        partitions,
        barriers: Vec::new(),
        waiting: Vec::new(),
        changed: 0,
    };
    let ended = rebuild.note_what_went().and_then(|()| {
        rebuild.walk("outgoing")?;
        rebuild.walk("incoming")?;
        rebuild.patiently(|rebuild| rebuild.go_on())
    });
    match ended {
        Ok(()) => Ok(Rebuilt::Done { changed: rebuild.changed }),
        Err(RebuildHalt::Foreign) => Ok(Rebuilt::Foreign),
        Err(RebuildHalt::Stopped) => Ok(Rebuilt::Stopped),
        Err(RebuildHalt::Failed(error)) => Err(error),
    }
}

/// Why a rebuild ended early.
enum RebuildHalt {
    Foreign,
    Stopped,
    Failed(SqlError),
}

impl From<SqlError> for RebuildHalt {
    fn from(error: SqlError) -> RebuildHalt {
        RebuildHalt::Failed(error)
    }
}

struct Rebuild<'a> {
    database: &'a Database,
    catalog: &'a Catalog,
    place: &'a BatchLog,
    fence: Fence,
    behind: &'a LostPartitions,
    stopped_after: &'a dyn Fn(Duration) -> bool,
    partitions: BTreeSet<u32>,
    /// Barriers that may have gone with the log.
    barriers: Vec<BarrierId>,
    /// Edges that were found and not settled yet.
    waiting: Vec<EdgeKey>,
    changed: u64,
}

impl Rebuild<'_> {
    /// Does a piece, again and again while its error may pass.
    fn patiently<T>(
        &mut self,
        mut piece: impl FnMut(&mut Self) -> Result<T, RebuildHalt>,
    ) -> Result<T, RebuildHalt> {
        let mut backoff = backoff();
        loop {
            match piece(self) {
                Err(RebuildHalt::Failed(error)) if error.may_pass() => {
                    tracing::debug!(%error, "a piece of a rebuild is done again");
                }
                ended => return ended,
            }
            backoff.failed();
            if (self.stopped_after)(backoff.left()) {
                return Err(RebuildHalt::Stopped);
            }
        }
    }

    /// Before the walk: what was committed before these barriers is in `outgoing` now, and so on the
    /// target's side after it. Of a changefeed they come with the outbox, which lost nothing.
    fn note_what_went(&mut self) -> Result<(), RebuildHalt> {
        if self.place.source == LogKind::Outbox {
            self.barriers = self.patiently(|rebuild| {
                let mut session = rebuild.database.session(Instant::now() + SESSION_WAIT)?;
                Ok(barrier::awaited(&mut session, &rebuild.partitions)?)
            })?;
        }
        Ok(())
    }

    /// Settles every edge that the table has. `outgoing` has what may be missing on the target's
    /// side, `incoming` what must go.
    fn walk(&mut self, table: &str) -> Result<(), RebuildHalt> {
        let mut after = None;
        loop {
            if (self.stopped_after)(Duration::ZERO) {
                return Err(RebuildHalt::Stopped);
            }
            let keys = self.patiently(|rebuild| Ok(rebuild.scan(table, after)?))?;
            let full = keys.len() == SCAN_KEYS_MAX;
            after = keys.last().copied();
            self.waiting.extend(
                keys.into_iter().filter(|edge| concerns(self.place, &self.partitions, edge)),
            );
            while self.waiting.len() >= SETTLE_EDGES_MAX || (!full && !self.waiting.is_empty()) {
                let rest = self.waiting.split_off(self.waiting.len().min(SETTLE_EDGES_MAX));
                let edges = std::mem::replace(&mut self.waiting, rest);
                self.patiently(|rebuild| rebuild.settle(&edges))?;
            }
            if !full {
                return Ok(());
            }
        }
    }

    fn settle(&mut self, edges: &[EdgeKey]) -> Result<(), RebuildHalt> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let settled = settle(
            &mut session,
            &self.fence,
            Some(&self.behind.from),
            self.place.partitions,
            edges.iter().copied(),
            self.catalog,
            Extra::default(),
        )
        .map_err(CommitFailure::into_error)?;
        self.changed += settled.changed;
        if settled.fenced { Ok(()) } else { Err(RebuildHalt::Foreign) }
    }

    /// The next keys of a table in the order of its primary key.
    fn scan(&self, table: &str, after: Option<EdgeKey>) -> Result<Vec<EdgeKey>, SqlError> {
        let (third, fourth) =
            if table == "incoming" { ("target", "source") } else { ("source", "target") };
        let mut statement =
            format!("SELECT tenant,kind,source,target FROM {table} FORCE INDEX (PRIMARY)");
        if let Some(EdgeKey { tenant, kind, source, target }) = after {
            let (tenant, kind) = (tenant.0, kind.0);
            let (c, d) =
                if table == "incoming" { (target.0, source.0) } else { (source.0, target.0) };
            // Spelled out: some servers do not use the key for a comparison of whole rows.
            let _ = write!(
                statement,
                " WHERE tenant>{tenant} OR (tenant={tenant} AND kind>{kind}) \
                 OR (tenant={tenant} AND kind={kind} AND {third}>{c}) \
                 OR (tenant={tenant} AND kind={kind} AND {third}={c} AND {fourth}>{d})"
            );
        }
        let _ = write!(statement, " ORDER BY tenant,kind,{third},{fourth} LIMIT {SCAN_KEYS_MAX}");
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        session.rows(&statement)?.iter().map(rows::edge_key).collect()
    }

    /// The last transaction: the positions, if they are still the old ones, and the barriers.
    fn go_on(&self) -> Result<(), RebuildHalt> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let lock = statements::lock_positions(&self.place.topic, &self.fence.partitions);
        let mut sets = session.run(&format!("BEGIN;{lock}"))?;
        let found = positions(sets.pop().unwrap_or_default())?;
        if found != self.behind.from {
            session.run("ROLLBACK")?;
            // As they are after a COMMIT whose answer was lost.
            return if found == self.behind.to { Ok(()) } else { Err(RebuildHalt::Foreign) };
        }
        let to: Vec<(u32, LogPosition, u64)> =
            self.behind.to.iter().map(|(partition, next)| (*partition, *next, 0)).collect();
        let mut last = vec![statements::set_positions(&self.place.topic, &to)];
        for ids in self.barriers.chunks(BARRIERS_MAX) {
            let marks: Vec<BarrierMark> = ids
                .iter()
                .flat_map(|id| self.partitions.iter().map(|partition| (*id, *partition)))
                .map(|(id, partition)| BarrierMark { id, partition, shards: ALL_SHARDS })
                .collect();
            last.push(barrier::mark(&marks, barrier::now_ms()));
        }
        let missing = self.behind.missing.clone();
        last.extend(acknowledged::delete_statements(&self.place.topic, missing));
        // The log does not tell what was changed here.
        last.push(epoch::RAISE.into());
        last.push("COMMIT".into());
        session.run(&last.join(";"))?;
        Ok(())
    }
}

/// Whether an edge's records come by one of these partitions. Of a changefeed nobody knows, so all
/// do.
fn concerns(place: &BatchLog, partitions: &BTreeSet<u32>, edge: &EdgeKey) -> bool {
    match place.source {
        LogKind::Outbox => {
            let partition = places::partition(places::edge_shard(edge), place.partitions);
            partitions.contains(&partition)
        }
        LogKind::Ticdc => true,
    }
}
