//! The epoch of the values in Redis: a number in the database that is part of every key. Whoever
//! raises it makes all instances forget all values, within the age at which a copy of it is no longer
//! believed; the old keys go by themselves.
//!
//! It is raised where the log does not tell what became of the values: the follower has lost its
//! place, or the target's side was changed by hand (a rebuild, a repair, a dead letter tried again).
//! Those do it in the transaction of their change.

use std::time::{Duration, Instant};

use crate::rows::cell;
use crate::sql::{Database, Row, SqlError};

/// What `facts` calls it; without a row it is 0.
const SELECT: &str = "SELECT value FROM facts WHERE name='memory.values'";
/// Raises it, for the end of a transaction. It is a time at least, so that a database that was made
/// anew meets no values of the one before it in the same Redis.
pub const RAISE: &str = "INSERT INTO facts (name,value) VALUES \
                         ('memory.values',CAST(UNIX_TIMESTAMP(NOW(3))*1000 AS UNSIGNED)) \
                         ON DUPLICATE KEY UPDATE value=GREATEST(value+1,VALUES(value))";
/// How long it may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);

pub fn select() -> &'static str {
    SELECT
}

/// The answer to `select`.
pub fn read(rows: &[Row]) -> Result<u64, SqlError> {
    rows.first().map_or(Ok(0), |row| cell(row, 0))
}

/// Raises it, and says what it is then, or is by another's doing.
pub fn raise(database: &Database) -> Result<u64, SqlError> {
    let mut session = database.session(Instant::now() + SESSION_WAIT)?;
    session.run(&format!("BEGIN;{RAISE};COMMIT"))?;
    read(&session.rows(SELECT)?)
}
