//! Rebuilds the target's side of whole partitions from `outgoing`, when the log no longer has what
//! they have not applied. In pieces, each a transaction under the fence, so that a new owner stops
//! it; appliers of other partitions go on meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

use guanxi_model::{Catalog, EdgeKey};

use super::super::memory::epoch;
use super::super::places;
use super::super::rows;
use super::super::sql::{Database, SqlError};
use super::batch::{LogSource, Place, positions};
use super::settle::{Fence, settle};
use super::statements;

/// Keys that one statement looks through.
const SCAN_KEYS_MAX: usize = 4096;
/// Edges settled in one transaction; while it runs the partition's position is locked.
const SETTLE_EDGES_MAX: usize = 512;
/// How long a piece may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(10);

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
pub struct Behind {
    pub from: BTreeMap<u32, u64>,
    pub to: BTreeMap<u32, u64>,
}

pub fn rebuild(
    database: &Database,
    catalog: &Catalog,
    place: &Place,
    behind: &Behind,
    stopped: &dyn Fn() -> bool,
) -> Result<Rebuilt, SqlError> {
    let partitions: BTreeSet<u32> = behind.from.keys().copied().collect();
    let mut rebuild = Rebuild {
        database,
        catalog,
        place,
        fence: Fence::of(&place.topic, partitions.iter().copied()),
        behind,
        partitions,
        waiting: Vec::new(),
        changed: 0,
    };
    for table in ["outgoing", "incoming"] {
        if let Some(ended) = rebuild.walk(table, stopped)? {
            return Ok(ended);
        }
    }
    rebuild.go_on()
}

struct Rebuild<'a> {
    database: &'a Database,
    catalog: &'a Catalog,
    place: &'a Place,
    fence: Fence,
    behind: &'a Behind,
    partitions: BTreeSet<u32>,
    /// Edges that were found and not settled yet.
    waiting: Vec<EdgeKey>,
    changed: u64,
}

impl Rebuild<'_> {
    /// Settles every edge that the table has; what ended it early, if anything did. `outgoing` has
    /// what may be missing on the target's side, `incoming` what must go.
    fn walk(
        &mut self,
        table: &str,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Rebuilt>, SqlError> {
        let mut after = None;
        loop {
            if stopped() {
                return Ok(Some(Rebuilt::Stopped));
            }
            let keys = self.scan(table, after)?;
            let full = keys.len() == SCAN_KEYS_MAX;
            after = keys.last().copied();
            self.waiting.extend(
                keys.into_iter().filter(|edge| concerns(self.place, &self.partitions, edge)),
            );
            while self.waiting.len() >= SETTLE_EDGES_MAX || (!full && !self.waiting.is_empty()) {
                let rest = self.waiting.split_off(self.waiting.len().min(SETTLE_EDGES_MAX));
                let edges = std::mem::replace(&mut self.waiting, rest);
                if !self.settle(edges)? {
                    return Ok(Some(Rebuilt::Foreign));
                }
            }
            if !full {
                return Ok(None);
            }
        }
    }

    fn settle(&mut self, edges: Vec<EdgeKey>) -> Result<bool, SqlError> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let settled = settle(
            &mut session,
            &self.fence,
            Some(&self.behind.from),
            self.place.partitions,
            edges.into_iter(),
            self.catalog,
            &[],
        )?;
        self.changed += settled.changed;
        Ok(settled.fenced)
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

    /// The last transaction: the positions, if they are still the old ones.
    fn go_on(&self) -> Result<Rebuilt, SqlError> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let lock = statements::lock_positions(&self.place.topic, &self.fence.partitions);
        let mut sets = session.run(&format!("BEGIN;{lock}"))?;
        if positions(sets.pop().unwrap_or_default())? != self.behind.from {
            session.run("ROLLBACK")?;
            return Ok(Rebuilt::Foreign);
        }
        let to: Vec<(u32, u64, u64)> =
            self.behind.to.iter().map(|(partition, next)| (*partition, *next, 0)).collect();
        let set = statements::set_positions(&self.place.topic, &to);
        // The log does not tell what was changed here.
        session.run(&format!("{set};{};COMMIT", epoch::RAISE))?;
        Ok(Rebuilt::Done { changed: self.changed })
    }
}

/// Whether an edge's records come by one of these partitions. Of a changefeed nobody knows, so all
/// do.
fn concerns(place: &Place, partitions: &BTreeSet<u32>, edge: &EdgeKey) -> bool {
    match place.source {
        LogSource::Outbox => {
            let partition = places::partition(places::edge_shard(edge), place.partitions);
            partitions.contains(&partition)
        }
        LogSource::Ticdc => true,
    }
}
