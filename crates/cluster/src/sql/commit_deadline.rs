//! How long a write may be under way. Whoever takes an old truth from its readers (a filter or lists
//! that are built anew, an erasure) must know that no write which went by it is committed later. A
//! process, a machine or a network may pause a write anywhere, so no clock of its own can promise
//! that. The database does: the text that has the COMMIT first asks the database's clock whether
//! the write's deadline is over, and ends there if it is. A COMMIT that has begun may last, on TiDB
//! for most of a minute when a region has lost its leader; so whoever has waited for the deadlines
//! waits for those that are committing, too (`commit_in_doubt::await_all`).

use std::time::{Duration, Instant};

use guanxi_core::clock::{Clock, SystemClock};
use parking_lot::Mutex;

use super::text::NOW_MS;
use super::{Database, SqlError};
use crate::rows::cell;

/// From before a write asks whether it may commit until its COMMIT begins. A write takes milliseconds;
/// one that waits for locks, and for the memory to be taken back, some seconds.
pub const COMMIT_WITHIN: Duration = Duration::from_secs(10);
/// What the clocks of several database servers differ, and what one of them may take between the
/// question and the COMMIT behind it.
const MARGIN: Duration = Duration::from_secs(5);
/// When so much time has passed, every write that was allowed before is committed or committing, or
/// never will be. Everything that waits for the end of writes waits this long, and then for
/// those that are committing.
pub const ENDED_AFTER: Duration = COMMIT_WITHIN.saturating_add(MARGIN);
/// Where those cannot be waited for, this counts as their end: TiDB gives a COMMIT up sooner.
pub const SURELY_ENDED_AFTER: Duration = Duration::from_secs(120);

/// The database's clock is read again when it was read so long ago.
const READING_AGE_MAX_MS: u64 = 10_000;
const READING_WAIT: Duration = Duration::from_secs(3);

/// The largest number there is: adding one more is an error on every server, in whatever mode.
const LARGEST: &str = "18446744073709551615";
const OUT_OF_RANGE: u16 = 1690;

/// Until when a write may be committed, by the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitBy {
    at_ms: u64,
}

impl CommitBy {
    /// The deadline of a write that is allowed to commit at this time of the database's clock.
    pub fn of_allowed(there_ms: u64) -> CommitBy {
        CommitBy { at_ms: there_ms + COMMIT_WITHIN.as_millis() as u64 }
    }

    pub fn at_ms(self) -> u64 {
        self.at_ms
    }

    /// The end of a text: it commits, or fails when it is too late.
    pub fn commit(self) -> String {
        format!("SELECT {LARGEST}+({NOW_MS}>{});COMMIT", self.at_ms)
    }
}

/// Whether an error says that it was too late.
pub fn is_late(error: &SqlError) -> bool {
    error.code() == Some(OUT_OF_RANGE) && error.to_string().contains(LARGEST)
}

/// The database's clock as it was read last: what it said, and when that was known here.
#[derive(Debug, Default)]
pub struct ClockReading(Mutex<Option<(u64, u64)>>);

impl ClockReading {
    /// Just after the answer has come.
    pub fn note(&self, there_ms: u64) {
        *self.0.lock() = Some((there_ms, boot_ms()));
    }

    /// What the clock says now, or a little less: the time that the answer took is not counted.
    fn now_ms(&self) -> Option<u64> {
        let (there_ms, known_ms) = (*self.0.lock())?;
        let age = boot_ms().saturating_sub(known_ms);
        (age <= READING_AGE_MAX_MS).then_some(there_ms + age)
    }
}

impl Database {
    /// A deadline for a write that has not yet asked whether it may commit.
    pub fn commit_by(&self) -> Result<CommitBy, SqlError> {
        let now_ms = match self.reading.now_ms() {
            Some(now_ms) => now_ms,
            None => self.read_clock()?,
        };
        Ok(CommitBy::of_allowed(now_ms))
    }

    fn read_clock(&self) -> Result<u64, SqlError> {
        let mut session = self.session(Instant::now() + READING_WAIT)?;
        let rows = session.rows(&format!("SELECT {NOW_MS}"))?;
        let row = rows.first().ok_or_else(|| SqlError::Refused("no time was told".into()))?;
        let there_ms = cell(row, 0)?;
        self.reading.note(there_ms);
        Ok(there_ms)
    }
}

/// Milliseconds of a clock that never steps, and goes on while the machine sleeps.
pub fn boot_ms() -> u64 {
    SystemClock.since_boot_ms()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_question_says_that_it_is_late() {
        let said = |text: &str| is_late(&SqlError::Refused(text.into()));
        assert!(said("ERROR 1690 (22003): out of range in '(18446744073709551615 + 1)'"));
        assert!(!said("ERROR 1690 (22003): out of range in 'outgoing - 1'"));
        assert!(!said("ERROR 1062 (23000): Duplicate entry '18446744073709551615'"));
        assert!(!said("18446744073709551615"));
    }

    #[test]
    fn an_old_reading_counts_for_nothing() {
        let reading = ClockReading::default();
        assert_eq!(reading.now_ms(), None);
        reading.note(5_000);
        assert!(reading.now_ms().is_some_and(|now| now >= 5_000));
        *reading.0.lock() = Some((5_000, boot_ms() - READING_AGE_MAX_MS - 1));
        assert_eq!(reading.now_ms(), None);
    }
}
