//! The relay's statements: one to look into many shards, few to fetch and delete many rows.

use std::fmt::Write;

use guanxi_model::{BarrierId, Version};
use mysql::Row;
use rustc_hash::FxHashMap;

use crate::acknowledged::{self, Note};
use crate::outbox::OutboxKey;
use crate::rows::cell;
use crate::sql::text::{self, NOW_MS, TUPLES_MAX};
use crate::sql::{Session, SqlError};

/// Rows that one scan sees.
pub const SCAN_ROWS_MAX: usize = 4_096;
/// Rows whose records are counted as waiting; beyond it there are "at least" so many.
const COUNTED_ROWS_MAX: u64 = 10_000;

/// A row as a scan sees it. Its value is fetched when it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedRow {
    pub key: OutboxKey,
    /// The barrier that it is, if it is one.
    pub barrier: Option<BarrierId>,
    pub records: u32,
}

#[derive(Debug)]
pub struct Scanned {
    /// The database's time at the scan.
    pub now_ms: u64,
    /// In the key's order.
    pub rows: Vec<ScannedRow>,
}

/// Looks into these shards, each from its version on, in one round trip.
pub fn scan(session: &mut Session<'_>, from: &[(u8, Version)]) -> Result<Scanned, SqlError> {
    let mut statement = format!(
        "SELECT {NOW_MS}; SELECT shard,version,id,barrier,records \
         FROM outbox FORCE INDEX (PRIMARY) WHERE "
    );
    for (index, (shard, version)) in from.iter().enumerate() {
        let or = if index > 0 { " OR " } else { "" };
        let _ = write!(statement, "{or}(shard={shard} AND version>={})", version.0);
    }
    let _ = write!(statement, " ORDER BY shard,version,id LIMIT {SCAN_ROWS_MAX}");
    let mut sets = session.run(&statement)?.into_iter();
    let now_ms = sets.next().and_then(|set| set.rows.first().map(|row| cell(row, 0)));
    let now_ms = now_ms.unwrap_or(Ok(0))?;
    let rows = sets.next().unwrap_or_default().rows;
    let rows = rows.iter().map(|row| {
        let barrier = cell::<Option<u64>>(row, 3)?.map(BarrierId);
        Ok(ScannedRow { key: key(row)?, barrier, records: cell(row, 4)? })
    });
    Ok(Scanned { now_ms, rows: rows.collect::<Result<_, SqlError>>()? })
}

fn key(row: &Row) -> Result<OutboxKey, SqlError> {
    Ok(OutboxKey { shard: cell(row, 0)?, version: Version(cell(row, 1)?), id: cell(row, 2)? })
}

/// The values of these rows, as far as they are still there.
pub fn fetch(
    session: &mut Session<'_>,
    keys: impl ExactSizeIterator<Item = OutboxKey>,
) -> Result<FxHashMap<OutboxKey, Vec<u8>>, SqlError> {
    let keys: Vec<OutboxKey> = keys.collect();
    let mut values = FxHashMap::default();
    for keys in keys.chunks(TUPLES_MAX) {
        let mut statement = String::from(
            "SELECT shard,version,id,value FROM outbox FORCE INDEX (PRIMARY) \
             WHERE (shard,version,id) IN (",
        );
        text::keys(&mut statement, keys, tuple);
        statement.push(')');
        for mut row in session.rows(&statement)? {
            let value = row.take_opt::<Vec<u8>, usize>(3).and_then(Result::ok);
            values.insert(key(&row)?, value.unwrap_or_default());
        }
    }
    Ok(values)
}

fn tuple(out: &mut String, key: &OutboxKey) {
    let OutboxKey { shard, version, id } = key;
    let _ = write!(out, "({shard},{},{id})", version.0);
}

/// Deletes exactly these rows and notes what the broker has instead, in one transaction. Never a
/// range: a lower version may come later.
pub fn delete(
    session: &mut Session<'_>,
    keys: &[OutboxKey],
    topic: &str,
    notes: &[Note],
) -> Result<(), SqlError> {
    let mut statement = String::from("BEGIN; ");
    for keys in keys.chunks(TUPLES_MAX) {
        statement.push_str("DELETE FROM outbox WHERE (shard,version,id) IN (");
        text::keys(&mut statement, keys, tuple);
        statement.push_str("); ");
    }
    // Last, as other relays wait for these rows.
    if !notes.is_empty() {
        statement.push_str(&acknowledged::write_statement(topic, notes));
        statement.push_str("; ");
    }
    statement.push_str("COMMIT");
    session.run(&statement)?;
    Ok(())
}

/// How many records of these shards wait (in up to `COUNTED_ROWS_MAX` rows), and how old the oldest
/// is.
pub fn lag(session: &mut Session<'_>, shards: &[u8]) -> Result<(u64, u64), SqlError> {
    let mut list = String::new();
    text::list(&mut list, shards, text::number);
    let waiting = format!("FROM outbox FORCE INDEX (PRIMARY) WHERE shard IN ({list})");
    let sets = session.run(&format!(
        "SELECT {NOW_MS}; SELECT CAST(COALESCE(SUM(records),0) AS UNSIGNED) FROM \
         (SELECT records {waiting} LIMIT {COUNTED_ROWS_MAX}) AS counted; \
         SELECT MIN(version) {waiting} GROUP BY shard"
    ))?;
    let first = |index: usize| -> Result<u64, SqlError> {
        let row = sets.get(index).and_then(|set| set.rows.first());
        row.map_or(Ok(0), |row| cell(row, 0))
    };
    let (now_ms, records) = (first(0)?, first(1)?);
    let mut oldest_ms = 0;
    for row in sets.get(2).map_or(&[][..], |set| &set.rows) {
        let version = Version(cell(row, 0)?);
        oldest_ms = oldest_ms.max(now_ms.saturating_sub(version.time().0));
    }
    Ok((records, oldest_ms))
}
