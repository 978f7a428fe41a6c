//! Barriers: to know that everything committed before a moment has reached the target's side.
//!
//! `raise` leaves a row in every shard of the outbox, in one transaction. A shard's rows hold
//! records of every partition, so the relay sends a shard's barrier to all of them, when all that
//! stood in the shard before it is in the log; several shards' go together. The applier notes in
//! which partition it met the barrier, and for which shards. A barrier has passed when it has come
//! for every shard in every partition.

use guanxi_model::{BarrierId, Millis};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::hash::BuildHasher;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use guanxi_model::places::SHARDS;

use super::rows::cell;
use super::sql::{Database, Session, SqlError, text};

/// How often `wait` looks: at first, and later.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LATER: Duration = Duration::from_millis(100);
/// Stands for no partition: the row that says that a barrier was raised.
const RAISED: u32 = u32::MAX;
/// A bit for each of the shards.
pub const ALL_SHARDS: u64 = u64::MAX >> (64 - SHARDS as u32);

/// A barrier has come in this partition for these shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BarrierMark {
    pub id: BarrierId,
    pub partition: u32,
    /// A bit for each.
    pub shards: u64,
}

/// Raises a barrier and returns its id. What was committed before this call comes before it. When
/// the answer is an error, raise another: one that nobody waits for does no harm.
pub fn raise(database: &Database, deadline: Instant) -> Result<BarrierId, SqlError> {
    let id = new_id();
    let BarrierId(number) = id;
    let mut statement =
        String::from("BEGIN; INSERT INTO outbox (shard,version,id,barrier,records,value) VALUES ");
    text::list(&mut statement, 0..SHARDS, |out, shard| {
        let _ = write!(out, "({shard},{number},{number},{number},0,'')");
    });
    let _ = write!(
        statement,
        "; INSERT INTO barriers (id,part,shards,passed_at) VALUES ({number},{RAISED},0,0); COMMIT"
    );
    database.session(deadline)?.run(&statement)?;
    Ok(id)
}

/// Whether it has come for every shard in each of the partitions.
pub fn passed(
    database: &Database,
    id: BarrierId,
    partitions: u32,
    deadline: Instant,
) -> Result<bool, SqlError> {
    let mut session = database.session(deadline)?;
    let rows = session.rows(&format!(
        "SELECT COUNT(*) FROM barriers WHERE id={} AND part<{partitions} AND shards={ALL_SHARDS}",
        id.0
    ))?;
    let passed: u64 = rows.first().map_or(Ok(0), |row| cell(row, 0))?;
    Ok(passed == u64::from(partitions))
}

/// How a barrier fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BarrierStanding {
    Passed,
    /// It was raised, and what came before it is still on its way.
    Raised,
    /// These tables never had it, or have forgotten it: it will never pass.
    Unknown,
}

/// How each of these fares, in one statement.
pub(super) fn standings(
    session: &mut Session<'_>,
    ids: &BTreeSet<BarrierId>,
    partitions: u32,
) -> Result<BTreeMap<BarrierId, BarrierStanding>, SqlError> {
    let mut found: BTreeMap<BarrierId, BarrierStanding> =
        ids.iter().map(|id| (*id, BarrierStanding::Unknown)).collect();
    if ids.is_empty() {
        return Ok(found);
    }
    let mut statement = format!(
        "SELECT id,COUNT(CASE WHEN part<{partitions} AND shards={ALL_SHARDS} THEN 1 END),\
         COUNT(CASE WHEN part={RAISED} THEN 1 END) FROM barriers WHERE id IN ("
    );
    text::list(&mut statement, ids, |out, id| text::number(out, id.0));
    statement.push_str(") GROUP BY id");
    for row in session.rows(&statement)? {
        let (id, passed, raised): (u64, u64, u64) =
            (cell(&row, 0)?, cell(&row, 1)?, cell(&row, 2)?);
        let standing = match passed == u64::from(partitions) {
            true => BarrierStanding::Passed,
            false if raised > 0 => BarrierStanding::Raised,
            false => BarrierStanding::Unknown,
        };
        found.insert(BarrierId(id), standing);
    }
    Ok(found)
}

/// Barriers that were raised and have not come for every shard in all of these partitions.
pub(super) fn awaited(
    session: &mut Session<'_>,
    partitions: &BTreeSet<u32>,
) -> Result<Vec<BarrierId>, SqlError> {
    let mut statement = format!(
        "SELECT id,COUNT(CASE WHEN part={RAISED} THEN 1 END),\
         COUNT(CASE WHEN shards={ALL_SHARDS} AND part IN ("
    );
    text::list(&mut statement, partitions, text::number);
    statement.push_str(") THEN 1 END) FROM barriers GROUP BY id");
    let mut found = Vec::new();
    for row in session.rows(&statement)? {
        let (id, raised, come): (u64, u64, u64) = (cell(&row, 0)?, cell(&row, 1)?, cell(&row, 2)?);
        if raised > 0 && come < partitions.len() as u64 {
            found.push(BarrierId(id));
        }
    }
    Ok(found)
}

/// Waits until it has passed; false when the deadline came first.
pub fn wait(
    database: &Database,
    id: BarrierId,
    partitions: u32,
    deadline: Instant,
) -> Result<bool, SqlError> {
    let mut pause = LOOK_FIRST;
    loop {
        if passed(database, id, partitions, deadline)? {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LOOK_LATER);
    }
}

/// The statement by which an applier notes barriers, within the transaction that applies what came
/// before. Noting twice is harmless.
pub fn mark(marks: &[BarrierMark], now_ms: u64) -> String {
    let mut joined: BTreeMap<(BarrierId, u32), u64> = BTreeMap::new();
    for BarrierMark { id, partition, shards } in marks {
        *joined.entry((*id, *partition)).or_default() |= shards;
    }
    let mut statement = String::from("INSERT INTO barriers (id,part,shards,passed_at) VALUES ");
    text::list(&mut statement, joined, |out, ((id, partition), shards)| {
        let _ = write!(out, "({},{partition},{shards},{now_ms})", id.0);
    });
    statement.push_str(" ON DUPLICATE KEY UPDATE shards=shards|VALUES(shards)");
    statement
}

/// Unique across instances: a millisecond has a million of them.
fn new_id() -> BarrierId {
    let now_ms = now_ms();
    BarrierId::drawn(Millis(now_ms), RandomState::new().hash_one(now_ms))
}

/// The time of what is raised and marked.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}
