//! The seam for time: the system's clock, or one that a test or a simulation sets.
//!
//! It only tells milliseconds; versions and their growth belong to the model.

mod steady;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub use self::steady::{JUMP_MS_MAX, SteadyClock};

/// Where the system says which start of the machine this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the start of 1970, UTC. It may step back: callers guard against it.
    fn now_ms(&self) -> u64;

    /// The time by which something may be removed for good: the present one, or less while that is
    /// in doubt.
    fn past_ms(&self) -> u64 {
        self.now_ms()
    }

    /// Milliseconds since the machine was started, its sleep included. Nobody can set it.
    fn since_boot_ms(&self) -> u64;

    /// Tells this start of the machine from others; empty where nobody knows.
    fn boot_id(&self) -> String;
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

    fn since_boot_ms(&self) -> u64 {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
    }

    fn boot_id(&self) -> String {
        std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
    }
}

/// How long a virtual machine has been up at first.
const VIRTUAL_UP_MS: u64 = 86_400_000;

/// A clock that stands still until it is set or advanced. Shared by `Arc`.
#[derive(Debug)]
pub struct VirtualClock {
    now_ms: AtomicU64,
    since_boot_ms: AtomicU64,
    boots: AtomicU64,
}

impl VirtualClock {
    pub fn new(now_ms: u64) -> Self {
        Self {
            now_ms: AtomicU64::new(now_ms),
            since_boot_ms: AtomicU64::new(VIRTUAL_UP_MS),
            boots: AtomicU64::new(0),
        }
    }

    /// Sets the time, also to an earlier one. The time since the start stays as it is.
    pub fn set(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }

    /// Starts the machine again, at this time.
    pub fn reboot(&self, now_ms: u64) {
        self.boots.fetch_add(1, Ordering::SeqCst);
        self.since_boot_ms.store(0, Ordering::SeqCst);
        self.set(now_ms);
    }

    /// Moves the time forward and returns the new one.
    pub fn advance(&self, by_ms: u64) -> u64 {
        self.since_boot_ms.fetch_add(by_ms, Ordering::SeqCst);
        self.now_ms.fetch_add(by_ms, Ordering::SeqCst) + by_ms
    }
}

impl Clock for VirtualClock {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    fn since_boot_ms(&self) -> u64 {
        self.since_boot_ms.load(Ordering::SeqCst)
    }

    fn boot_id(&self) -> String {
        format!("virtual-{}", self.boots.load(Ordering::SeqCst))
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
