//! Barriers: to know that everything committed before a moment has reached the target's side.
//!
//! `raise` leaves a row in every shard of the outbox, in one transaction. The relay sends a
//! shard's barrier only when all that stood in the shard before it is in the log; the applier
//! marks the shard as passed when it meets the barrier there. A barrier has passed when every
//! shard has.

use std::collections::hash_map::RandomState;
use std::fmt::Write;
use std::hash::BuildHasher;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::places::SHARDS;
use super::rows::cell;
use super::sql::{Database, SqlError, text};
use super::value;

/// The kind of a barrier's rows in the outbox, which no kind of edges has.
pub const BARRIER_KIND: u16 = 0;

/// How often `wait` looks: at first, and later.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LATER: Duration = Duration::from_millis(100);
/// Like a version's: milliseconds, then what tells barriers of one millisecond apart.
const TIME_SHIFT: u32 = 20;

/// Raises a barrier and returns its id. What was committed before this call comes before it. When
/// the answer is an error, raise another: one that nobody waits for does no harm.
pub fn raise(database: &Database, deadline: Instant) -> Result<u64, SqlError> {
    let id = new_id();
    let mut statement = String::from(
        "BEGIN; INSERT INTO outbox (shard,version,tenant,kind,source,target,value) VALUES ",
    );
    text::list(&mut statement, 0..SHARDS, |out, shard| {
        let _ = write!(out, "({shard},{id},0,{BARRIER_KIND},{id},0,");
        text::bytes(out, &value::encode_barrier(id, shard));
        out.push(')');
    });
    statement.push_str("; COMMIT");
    database.session(deadline)?.run(&statement)?;
    Ok(id)
}

/// Whether it has passed every shard.
pub fn passed(database: &Database, id: u64, deadline: Instant) -> Result<bool, SqlError> {
    let mut session = database.session(deadline)?;
    let rows = session.rows(&format!("SELECT COUNT(*) FROM barriers WHERE id = {id}"))?;
    let shards: u64 = rows.first().map_or(Ok(0), |row| cell(row, 0))?;
    Ok(shards == u64::from(SHARDS))
}

/// Waits until it has passed; false when the deadline came first.
pub fn wait(database: &Database, id: u64, deadline: Instant) -> Result<bool, SqlError> {
    let mut pause = LOOK_FIRST;
    loop {
        if passed(database, id, deadline)? {
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

/// The statement by which an applier marks shards as passed, within the transaction that applies
/// what came before. Marking twice is harmless.
pub fn mark(barriers: &[(u64, u8)], now_ms: u64) -> String {
    let mut sorted = barriers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut statement = String::from("INSERT INTO barriers (id,shard,passed_at) VALUES ");
    text::list(&mut statement, sorted, |out, (id, shard)| {
        let _ = write!(out, "({id},{shard},{now_ms})");
    });
    statement.push_str(" ON DUPLICATE KEY UPDATE passed_at = passed_at");
    statement
}

/// Unique across instances: a millisecond has a million of them.
fn new_id() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(since.as_millis()).unwrap_or_default();
    let random = RandomState::new().hash_one(now_ms);
    (now_ms << TIME_SHIFT) | (random & ((1 << TIME_SHIFT) - 1))
}
