//! What the tables say of a move, and the tables that it fills.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use guanxi_cluster::move_phase::{PHASE, Phase};
use guanxi_cluster::rows::cell;
use guanxi_cluster::sql::text::NOW_MS;
use guanxi_cluster::sql::{Database, SqlError};

use super::MoveError;

const WAIT: Duration = Duration::from_secs(30);

/// What `facts` calls how many rows of the snapshot are loaded; locked first by whoever loads.
pub(super) const ROWS: &str = "move.rows";
const ID: &str = "move.id";
const CREATED: &str = "move.created";
const POSITION: &str = "move.position";

/// The tables that a move fills, or that must be empty for it.
const TABLES: [&str; 16] = [
    "outgoing",
    "incoming",
    "head",
    "tally",
    "counter",
    "`groups`",
    "nodes",
    "node_types",
    "kinds",
    "expiry",
    "idempotency",
    "imports",
    "jobs",
    "outbox",
    "applied",
    "acknowledged",
];

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    /// None where no move has been.
    pub phase: Option<Phase>,
    pub id: u64,
    /// When the snapshot was taken, and where; 0 before it is known.
    pub created_ms: u64,
    pub position: u64,
    pub rows: u64,
}

impl Facts {
    pub fn read(database: &Database) -> Result<Facts, SqlError> {
        let mut session = database.session(Instant::now() + WAIT)?;
        let rows = session.rows("SELECT name,value FROM facts WHERE name LIKE 'move.%'")?;
        let mut named: HashMap<Vec<u8>, u64> = HashMap::new();
        for row in &rows {
            named.insert(cell(row, 0)?, cell(row, 1)?);
        }
        let fact = |name: &str| named.get(name.as_bytes()).copied();
        let phase = fact(PHASE).map(Phase::of).transpose()?;
        let number = |name| fact(name).unwrap_or(0);
        Ok(Facts {
            phase,
            id: number(ID),
            created_ms: number(CREATED),
            position: number(POSITION),
            rows: number(ROWS),
        })
    }

    pub fn write(&self, database: &Database) -> Result<(), MoveError> {
        let mut session = database.session(Instant::now() + WAIT)?;
        session.run(&format!("BEGIN;{};COMMIT", self.statement()))?;
        Ok(())
    }

    pub fn statement(&self) -> String {
        let phase = self.phase.map_or(0, |phase| phase as u64);
        format!(
            "REPLACE INTO facts (name,value) VALUES ('{PHASE}',{phase}),('{ID}',{}),\
             ('{CREATED}',{}),('{POSITION}',{}),('{ROWS}',{})",
            self.id, self.created_ms, self.position, self.rows
        )
    }
}

/// There was no move.
pub(super) fn forget(database: &Database) -> Result<(), MoveError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    session.run("BEGIN;DELETE FROM facts WHERE name LIKE 'move.%';COMMIT")?;
    Ok(())
}

/// Refuses tables that instances work with now, and those that anybody has written into. Instances
/// leave rows from their start on, so they are looked for first: to stop them is the first thing to
/// do.
pub(super) fn refuse_rows(database: &Database) -> Result<(), MoveError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    let live = format!("SELECT 1 FROM leases WHERE until_ms>{NOW_MS} LIMIT 1");
    if !session.rows(&live)?.is_empty() {
        return Err(MoveError::Instances);
    }
    for table in TABLES.into_iter().chain(["dead_letters", "filter_plan"]) {
        if !session.rows(&format!("SELECT 1 FROM {table} LIMIT 1"))?.is_empty() {
            return Err(MoveError::NotEmpty(table));
        }
    }
    Ok(())
}

/// Empties what a move has filled, and forgets where it stood in the service's log.
pub(super) fn clear_tables(database: &Database) -> Result<(), MoveError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    for table in TABLES {
        session.run(&format!("TRUNCATE TABLE {table}"))?;
    }
    session.run(
        "BEGIN;DELETE FROM facts WHERE name LIKE 'store.%' OR name IN \
         ('catalog','unmarked','version_floor');COMMIT",
    )?;
    Ok(())
}

pub(super) fn raise_floor(database: &Database, floor: u64) -> Result<(), MoveError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    session.run(&format!(
        "BEGIN;INSERT INTO facts (name,value) VALUES ('version_floor',{floor}) \
         ON DUPLICATE KEY UPDATE value=GREATEST(value,VALUES(value));COMMIT"
    ))?;
    Ok(())
}
