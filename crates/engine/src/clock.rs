//! The seam for time: the system's clock, or one that a test or a simulation sets.
//!
//! It only tells milliseconds; versions and their growth belong to the model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the start of 1970, UTC. It may step back: callers guard against it.
    fn now_ms(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        // A clock before 1970 reads as 0, which the check against the last frame then reports.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands still until it is set or advanced. Shared by `Arc`.
#[derive(Debug)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    pub fn new(now_ms: u64) -> Self {
        Self(AtomicU64::new(now_ms))
    }

    /// Sets the time, also to an earlier one.
    pub fn set(&self, now_ms: u64) {
        self.0.store(now_ms, Ordering::SeqCst);
    }

    /// Moves the time forward and returns the new one.
    pub fn advance(&self, by_ms: u64) -> u64 {
        self.0.fetch_add(by_ms, Ordering::SeqCst) + by_ms
    }
}

impl Clock for VirtualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_moves_only_when_told() {
        let clock = VirtualClock::new(5);
        assert_eq!(clock.now_ms(), 5);
        assert_eq!(clock.advance(10), 15);
        clock.set(3);
        assert_eq!(clock.now_ms(), 3);
    }

    #[test]
    fn the_system_clock_is_past_2020() {
        assert!(SystemClock.now_ms() > 1_577_836_800_000);
    }
}
