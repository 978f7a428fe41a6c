//! Barriers: to know that everything committed before a moment has reached the target's side.
//!
//! `raise` leaves a row in every shard of the outbox, in one transaction. A shard's rows hold
//! records of every partition, so the relay sends a shard's barrier to all of them, when all that
//! stood in the shard before it is in the log; several shards' go together. The applier notes in
//! which partition it met the barrier, and for which shards. A barrier has passed when it has come
//! for every shard in every partition.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt::Write;
use std::hash::BuildHasher;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::places::SHARDS;
use super::rows::cell;
use super::sql::{Database, SqlError, text};

/// How often `wait` looks: at first, and later.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LATER: Duration = Duration::from_millis(100);
/// Like a version's: milliseconds, then what tells barriers of one millisecond apart.
const TIME_SHIFT: u32 = 20;
/// A bit for each of the shards.
pub const ALL_SHARDS: u64 = u64::MAX >> (64 - SHARDS as u32);

/// A barrier has come in this partition for these shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub id: u64,
    pub partition: u32,
    /// A bit for each.
    pub shards: u64,
}

/// Raises a barrier and returns its id. What was committed before this call comes before it. When
/// the answer is an error, raise another: one that nobody waits for does no harm.
pub fn raise(database: &Database, deadline: Instant) -> Result<u64, SqlError> {
    let id = new_id();
    let mut statement =
        String::from("BEGIN; INSERT INTO outbox (shard,version,id,barrier,records,value) VALUES ");
    text::list(&mut statement, 0..SHARDS, |out, shard| {
        let _ = write!(out, "({shard},{id},{id},{id},0,'')");
    });
    statement.push_str("; COMMIT");
    database.session(deadline)?.run(&statement)?;
    Ok(id)
}

/// Whether it has come for every shard in each of the partitions.
pub fn passed(
    database: &Database,
    id: u64,
    partitions: u32,
    deadline: Instant,
) -> Result<bool, SqlError> {
    let mut session = database.session(deadline)?;
    let rows = session.rows(&format!(
        "SELECT COUNT(*) FROM barriers WHERE id={id} AND part<{partitions} AND shards={ALL_SHARDS}"
    ))?;
    let passed: u64 = rows.first().map_or(Ok(0), |row| cell(row, 0))?;
    Ok(passed == u64::from(partitions))
}

/// Waits until it has passed; false when the deadline came first.
pub fn wait(
    database: &Database,
    id: u64,
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
pub fn mark(marks: &[Mark], now_ms: u64) -> String {
    let mut joined: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    for Mark { id, partition, shards } in marks {
        *joined.entry((*id, *partition)).or_default() |= shards;
    }
    let mut statement = String::from("INSERT INTO barriers (id,part,shards,passed_at) VALUES ");
    text::list(&mut statement, joined, |out, ((id, partition), shards)| {
        let _ = write!(out, "({id},{partition},{shards},{now_ms})");
    });
    statement.push_str(" ON DUPLICATE KEY UPDATE shards=shards|VALUES(shards)");
    statement
}

/// Unique across instances: a millisecond has a million of them.
fn new_id() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(since.as_millis()).unwrap_or_default();
    let random = RandomState::new().hash_one(now_ms);
    (now_ms << TIME_SHIFT) | (random & ((1 << TIME_SHIFT) - 1))
}
