//! When to try again after an error of the database or the broker.

use std::time::{Duration, Instant};

/// Doubling up to the last.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Retry {
    pause: Duration,
    until: Instant,
}

impl Retry {
    pub fn new() -> Retry {
        Retry { pause: Duration::ZERO, until: Instant::now() }
    }

    pub fn is_over(&self) -> bool {
        self.pause.is_zero() || Instant::now() >= self.until
    }

    pub fn is_failing(&self) -> bool {
        !self.pause.is_zero()
    }

    pub fn went_well(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Many failures at once count as one; returns whether this is a new one.
    pub fn failed(&mut self) -> bool {
        let now = Instant::now();
        if self.is_failing() && now < self.until {
            return false;
        }
        self.pause = (self.pause * 2).clamp(FIRST, LAST);
        // Up to a quarter more, so that instances do not come back all at once.
        self.until = now + self.pause + self.pause * fastrand::u32(..256) / 1_024;
        true
    }
}
