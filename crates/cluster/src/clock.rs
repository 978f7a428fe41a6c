//! What machines believed of their clocks, in the database: a row for each start of a machine. An
//! instance that is started anew must not take a wrong clock for a right one that the one before it
//! did not believe.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::clock::{Clock, SteadyClock};

use super::rows::cell;
use super::sql::text::{self, NOW_MS};
use super::sql::{Database, SqlError};

/// How long to wait for a connection.
const WAIT: Duration = Duration::from_secs(5);
/// Rows of machines that nobody has spoken of for so long are of no use: these machines were
/// started again since, or are gone.
const KEPT_MS: u64 = 90 * 24 * 60 * 60 * 1_000;

/// The clock as it was believed last, if that was since the same start of the machine; else, or
/// where somebody says that it jumped rightly, as it is now.
pub fn steady_clock(
    database: &Database,
    under: Arc<dyn Clock>,
    may_have_jumped: bool,
) -> Result<SteadyClock, SqlError> {
    let boot = under.boot_id();
    if may_have_jumped || boot.is_empty() {
        return Ok(SteadyClock::new(under));
    }
    let mut statement = String::from("SELECT began_ms FROM clocks WHERE boot_id=");
    text::bytes(&mut statement, boot.as_bytes());
    let rows = database.session(Instant::now() + WAIT)?.rows(&statement)?;
    let known = rows.first().map(|row| cell::<i64>(row, 0)).transpose()?;
    Ok(match known {
        Some(began_ms) => SteadyClock::since(under, began_ms),
        None => SteadyClock::new(under),
    })
}

/// Notes what this instance believes, for those that are started on its machine later.
#[derive(Debug, Default)]
pub struct Notes {
    /// What was noted last. Only what has changed since is written: another instance may have been
    /// told better meanwhile.
    noted: Option<i64>,
}

impl Notes {
    pub fn note(&mut self, database: &Database, clock: &SteadyClock) -> Result<(), SqlError> {
        let (Some(began_ms), boot) = (clock.began_ms(), clock.boot_id()) else { return Ok(()) };
        if boot.is_empty() {
            return Ok(());
        }
        let mut statement =
            String::from("BEGIN;INSERT INTO clocks (boot_id,began_ms,seen_ms) VALUES (");
        text::bytes(&mut statement, boot.as_bytes());
        statement.push_str(&format!(
            ",{began_ms},{NOW_MS}) ON DUPLICATE KEY UPDATE seen_ms=VALUES(seen_ms)"
        ));
        if self.noted != Some(began_ms) {
            statement.push_str(",began_ms=VALUES(began_ms)");
        }
        statement.push_str(&format!(";DELETE FROM clocks WHERE seen_ms+{KEPT_MS}<{NOW_MS};COMMIT"));
        database.session(Instant::now() + WAIT)?.run(&statement)?;
        self.noted = Some(began_ms);
        Ok(())
    }
}
