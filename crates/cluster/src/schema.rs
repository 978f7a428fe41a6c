//! The tables and their versions: plain `.sql` files, run in order, once each. A database that a
//! newer release has migrated is refused. With the tables comes the cluster's secret.

use std::time::{Duration, Instant};

use super::secret;
use super::sql::{Database, Session, SqlError};

/// One file per version, in order; a file that was released is never changed.
const MIGRATIONS: [(u32, &str); 2] = [
    (1, include_str!("../migrations/0001_tables.sql")),
    (2, include_str!("../migrations/0002_filter.sql")),
];

/// How long `migrate` waits for a connection, and for another migration to end.
const WAIT: Duration = Duration::from_secs(30);
const LOCK: &str = "guanxi.migrate";
const CREATE: &str = "CREATE TABLE ";
const CREATE_MISSING: &str = "CREATE TABLE IF NOT EXISTS ";

#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(
        "the database has tables of version {found}, this release knows {known}: run a newer \
         guanxi, or another database"
    )]
    Newer { found: u32, known: u32 },
    #[error("the database has tables of version {found}, {known} are needed: run guanxi migrate")]
    Older { found: u32, known: u32 },
    #[error("another migration has been running for {} s; try again when it is done", WAIT.as_secs())]
    Locked,
}

/// The version that this release works with.
pub fn known() -> u32 {
    MIGRATIONS.last().map_or(0, |(version, _)| *version)
}

/// Brings the tables up to this release's version; returns the versions that it added.
pub fn migrate(database: &Database) -> Result<Vec<u32>, SchemaError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    // TiDB and MariaDB both know it; it ends with the connection.
    let locked = session.rows(&format!("SELECT GET_LOCK('{LOCK}', {})", WAIT.as_secs()))?;
    if locked.first().and_then(|row| row.get::<i64, _>(0)) != Some(1) {
        return Err(SchemaError::Locked);
    }
    let begun_before = is_begun(&mut session)?;
    session.run(
        "CREATE TABLE IF NOT EXISTS schema_version (version INT UNSIGNED NOT NULL PRIMARY KEY)",
    )?;
    let found = version(&mut session)?;
    if found > known() {
        return Err(SchemaError::Newer { found, known: known() });
    }
    let mut added = Vec::new();
    for (version, statements) in MIGRATIONS.iter().filter(|(version, _)| *version > found) {
        for statement in split(statements) {
            // One that was cut off before its end has left some of its tables.
            match begun_before {
                true => session.run(&statement.replacen(CREATE, CREATE_MISSING, 1))?,
                false => session.run(statement)?,
            };
        }
        session.run(&format!("BEGIN; INSERT INTO schema_version VALUES ({version}); COMMIT"))?;
        added.push(*version);
    }
    secret::make(&mut session)?;
    session.run(&format!("SELECT RELEASE_LOCK('{LOCK}')"))?;
    Ok(added)
}

/// Refuses tables that are not of this release's version.
pub fn check(database: &Database) -> Result<(), SchemaError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    let found = if is_begun(&mut session)? { version(&mut session)? } else { 0 };
    match found.cmp(&known()) {
        std::cmp::Ordering::Less => Err(SchemaError::Older { found, known: known() }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(SchemaError::Newer { found, known: known() }),
    }
}

/// Whether a migration has begun here, now or before.
fn is_begun(session: &mut Session<'_>) -> Result<bool, SqlError> {
    let has = session.rows(
        "SELECT 1 FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = 'schema_version'",
    )?;
    Ok(!has.is_empty())
}

fn version(session: &mut Session<'_>) -> Result<u32, SqlError> {
    let rows = session.rows("SELECT COALESCE(MAX(version), 0) FROM schema_version")?;
    Ok(rows.first().and_then(|row| row.get(0)).unwrap_or(0))
}

/// The statements of a file: each ends with a semicolon at a line's end, and no text has one.
fn split(file: &str) -> impl Iterator<Item = &str> {
    file.split(";\n").map(str::trim).filter(|statement| !statement.is_empty())
}
