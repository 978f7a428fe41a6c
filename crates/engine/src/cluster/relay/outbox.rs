//! The outbox's statements: one to read many shards, few to delete many rows.

use std::fmt::Write;

use mysql::Row;

use crate::cluster::barrier::BARRIER_KIND;
use crate::cluster::rows::cell;
use crate::cluster::sql::text::{self, NOW_MS, TUPLES_MAX};
use crate::cluster::sql::{Session, SqlError};

/// Rows that one scan reads.
pub const SCAN_ROWS_MAX: usize = 4_096;
/// Rows counted as waiting; beyond it there are "at least" so many.
pub const COUNTED_MAX: u64 = 100_000;

/// The whole primary key of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub shard: u8,
    pub version: u64,
    pub tenant: u32,
    pub kind: u16,
    pub source: u64,
    pub target: u64,
}

impl Key {
    pub fn is_barrier(&self) -> bool {
        self.kind == BARRIER_KIND
    }
}

#[derive(Debug)]
pub struct Waiting {
    pub key: Key,
    pub value: Vec<u8>,
}

#[derive(Debug)]
pub struct Scanned {
    /// The database's time at the scan.
    pub now_ms: u64,
    /// In the key's order.
    pub rows: Vec<Waiting>,
}

/// Reads these shards, each from its version on, in one round trip.
pub fn scan(session: &mut Session<'_>, from: &[(u8, u64)]) -> Result<Scanned, SqlError> {
    let mut statement = format!(
        "SELECT {NOW_MS}; SELECT shard,version,tenant,kind,source,target,value \
         FROM outbox FORCE INDEX (PRIMARY) WHERE "
    );
    for (index, (shard, version)) in from.iter().enumerate() {
        let or = if index > 0 { " OR " } else { "" };
        let _ = write!(statement, "{or}(shard={shard} AND version>={version})");
    }
    let _ = write!(
        statement,
        " ORDER BY shard,version,tenant,kind,source,target LIMIT {SCAN_ROWS_MAX}"
    );
    let mut sets = session.run(&statement)?.into_iter();
    let now_ms = sets.next().and_then(|set| set.rows.first().map(|row| cell(row, 0)));
    let now_ms = now_ms.unwrap_or(Ok(0))?;
    let rows = sets.next().unwrap_or_default().rows.into_iter().map(waiting);
    Ok(Scanned { now_ms, rows: rows.collect::<Result<_, SqlError>>()? })
}

fn waiting(mut row: Row) -> Result<Waiting, SqlError> {
    let key = Key {
        shard: cell(&row, 0)?,
        version: cell(&row, 1)?,
        tenant: cell(&row, 2)?,
        kind: cell(&row, 3)?,
        source: cell(&row, 4)?,
        target: cell(&row, 5)?,
    };
    let value = row.take_opt::<Vec<u8>, usize>(6).and_then(Result::ok);
    let value =
        value.ok_or_else(|| SqlError::Refused("a row of the outbox has no value".into()))?;
    Ok(Waiting { key, value })
}

/// Deletes exactly these rows, in one transaction. Never a range: a lower version may come later.
pub fn delete(session: &mut Session<'_>, keys: &[Key]) -> Result<(), SqlError> {
    let mut statement = String::from("BEGIN; ");
    for keys in keys.chunks(TUPLES_MAX) {
        statement
            .push_str("DELETE FROM outbox WHERE (shard,version,tenant,kind,source,target) IN (");
        text::keys(&mut statement, keys, |out, key| {
            let Key { shard, version, tenant, kind, source, target } = key;
            let _ = write!(out, "({shard},{version},{tenant},{kind},{source},{target})");
        });
        statement.push_str("); ");
    }
    statement.push_str("COMMIT");
    session.run(&statement)?;
    Ok(())
}

/// How many rows of these shards wait (up to `COUNTED_MAX`), and how old the oldest is.
pub fn lag(session: &mut Session<'_>, shards: &[u8]) -> Result<(u64, u64), SqlError> {
    let mut list = String::new();
    text::list(&mut list, shards, text::number);
    let waiting = format!("FROM outbox FORCE INDEX (PRIMARY) WHERE shard IN ({list})");
    let sets = session.run(&format!(
        "SELECT {NOW_MS}; \
         SELECT COUNT(*) FROM (SELECT shard {waiting} LIMIT {COUNTED_MAX}) AS counted; \
         SELECT MIN(version) {waiting} GROUP BY shard"
    ))?;
    let first = |index: usize| -> Result<u64, SqlError> {
        let row = sets.get(index).and_then(|set| set.rows.first());
        row.map_or(Ok(0), |row| cell(row, 0))
    };
    let (now_ms, rows) = (first(0)?, first(1)?);
    let mut oldest_ms = 0;
    for row in sets.get(2).map_or(&[][..], |set| &set.rows) {
        let version = guanxi_model::Version(cell(row, 0)?);
        oldest_ms = oldest_ms.max(now_ms.saturating_sub(version.time().0));
    }
    Ok((rows, oldest_ms))
}
