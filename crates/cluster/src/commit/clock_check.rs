//! What an instance must know of the database before it may write: how far their clocks are apart,
//! and the floor of all versions. Looked at when the committer starts and every few seconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_core::clock::Clock;
use guanxi_model::{Code, Error, HeadVersion};

use crate::rows::cell;
use crate::sql::text::NOW_MS;
use crate::sql::{Database, SqlError};

/// Versions and expiry compare times of several instances; they agree within this.
const SKEW_MS_MAX: u64 = 1_000;
/// How often the clocks are compared.
pub(super) const INTERVAL: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(3);

/// The floor, where one is set.
const FLOOR: &str = "(SELECT value FROM facts WHERE name='version_floor')";

#[derive(Debug, Default)]
pub struct ClockCheck {
    skew_ms: AtomicU64,
    floor: AtomicU64,
}

impl ClockCheck {
    pub fn look(&self, database: &Database, clock: &dyn Clock) -> Result<(), SqlError> {
        let mut session = database.session(Instant::now() + WAIT)?;
        let before = clock.now_ms();
        let rows = session.rows(&format!("SELECT {NOW_MS},{FLOOR}"))?;
        let after = clock.now_ms();
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let there: u64 = cell(row, 0)?;
        database.note_clock(there);
        // Between asking and hearing lies the moment of the answer.
        let skew = before.saturating_sub(there).max(there.saturating_sub(after));
        if skew > SKEW_MS_MAX && self.skew_ms.swap(skew, Ordering::AcqRel) <= SKEW_MS_MAX {
            tracing::error!(skew_ms = skew, "the clock is off the database's: writes are refused");
        }
        self.skew_ms.store(skew, Ordering::Release);
        self.floor.fetch_max(cell::<Option<u64>>(row, 1)?.unwrap_or(0), Ordering::AcqRel);
        Ok(())
    }

    /// Refuses to write by a clock that is off.
    pub fn check(&self) -> Result<(), Error> {
        let skew = self.skew_ms.load(Ordering::Acquire);
        if skew <= SKEW_MS_MAX {
            return Ok(());
        }
        Err(Error::new(
            Code::Unavailable,
            format!(
                "the clock of this instance is {skew} ms off the database's, {SKEW_MS_MAX} are \
                 allowed; writes are refused until it is set right, use another instance"
            ),
        ))
    }

    /// The least version that may be given out.
    pub fn floor(&self) -> HeadVersion {
        HeadVersion(self.floor.load(Ordering::Acquire))
    }
}
