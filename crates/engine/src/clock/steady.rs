//! A clock that does not follow a jump forward.
//!
//! What is removed because its time has come never returns, and times of the log never decrease; so
//! one wrong step of the machine's clock could cost edges, records and idempotency keys, and leave
//! times that lie ahead for years. The time since the machine was started cannot be set: nobody's
//! clock gains on it but by a step. One that gained more than a time daemon corrects by itself is
//! not believed. Time goes on as if it had not happened, until the clocks agree again, or somebody
//! says that the new time is right.
//!
//! A step while the machine is off cannot be told from the time that it was off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Clock;

/// Time daemons take care of what is less, and give up beyond about a quarter of an hour: then a
/// person has to look.
pub const JUMP_MS_MAX: u64 = 15 * 60 * 1_000;

pub struct SteadyClock {
    under: Arc<dyn Clock>,
    /// The time of day when the machine was started, as it was last believed.
    began_ms: i64,
    is_held: AtomicBool,
}

impl std::fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SteadyClock").field("began_ms", &self.began_ms).finish_non_exhaustive()
    }
}

impl SteadyClock {
    /// Believes the time that it is now.
    pub fn new(under: Arc<dyn Clock>) -> SteadyClock {
        let began_ms = under.now_ms() as i64 - under.since_boot_ms() as i64;
        SteadyClock::since(under, began_ms)
    }

    /// Believes what was believed before, since the same start of the machine.
    pub fn since(under: Arc<dyn Clock>, began_ms: i64) -> SteadyClock {
        SteadyClock { under, began_ms, is_held: AtomicBool::new(false) }
    }

    /// What `since` takes.
    pub fn began_ms(&self) -> i64 {
        self.began_ms
    }

    /// How far ahead the machine's clock is, while it is not believed.
    pub fn held_back_ms(&self) -> Option<u64> {
        let (wall, steady) = self.both();
        let ahead = wall.saturating_sub(steady);
        (ahead > JUMP_MS_MAX).then_some(ahead)
    }

    /// The machine's clock, and what it would be without a step.
    fn both(&self) -> (u64, u64) {
        // In this order a process that stands still in between does not see a jump.
        let wall = self.under.now_ms();
        let steady = self.began_ms.saturating_add_unsigned(self.under.since_boot_ms());
        (wall, u64::try_from(steady).unwrap_or(0))
    }
}

impl Clock for SteadyClock {
    fn now_ms(&self) -> u64 {
        let (wall, steady) = self.both();
        let ahead_ms = wall.saturating_sub(steady);
        let is_held = ahead_ms > JUMP_MS_MAX;
        if is_held != self.is_held.load(Ordering::Relaxed)
            && is_held != self.is_held.swap(is_held, Ordering::Relaxed)
        {
            match is_held {
                true => tracing::error!(
                    ahead_ms,
                    "the clock jumped forward and is not believed: times go on as before. Set it \
                     right; if the new time is right, restart with clock_may_have_jumped"
                ),
                false => tracing::warn!("the clock is right again"),
            }
        }
        if is_held { steady } else { wall }
    }

    fn since_boot_ms(&self) -> u64 {
        self.under.since_boot_ms()
    }

    fn boot_id(&self) -> String {
        self.under.boot_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::VirtualClock;

    const NOON: u64 = 1_700_000_000_000;
    const HOUR: u64 = 3_600_000;

    fn clocks() -> (Arc<VirtualClock>, SteadyClock) {
        let under = Arc::new(VirtualClock::new(NOON));
        (under.clone(), SteadyClock::new(under))
    }

    #[test]
    fn time_that_passes_is_believed_however_long() {
        let (under, steady) = clocks();
        under.advance(1_000 * 24 * HOUR);
        assert_eq!(steady.now_ms(), NOON + 1_000 * 24 * HOUR);
        assert_eq!(steady.held_back_ms(), None);
    }

    #[test]
    fn a_jump_forward_is_not_followed_until_it_is_taken_back() {
        let (under, steady) = clocks();
        under.advance(HOUR);
        under.set(NOON + 48 * HOUR);
        assert_eq!(steady.now_ms(), NOON + HOUR);
        assert_eq!(steady.held_back_ms(), Some(47 * HOUR));
        under.advance(1_000);
        assert_eq!(steady.now_ms(), NOON + HOUR + 1_000, "time goes on");
        under.set(NOON + HOUR + 2_000);
        assert_eq!(steady.now_ms(), NOON + HOUR + 2_000);
        assert_eq!(steady.held_back_ms(), None);
    }

    #[test]
    fn small_steps_are_followed_until_they_add_up() {
        let (under, steady) = clocks();
        under.set(NOON + JUMP_MS_MAX);
        assert_eq!(steady.now_ms(), NOON + JUMP_MS_MAX);
        under.set(NOON + JUMP_MS_MAX + 1);
        assert_eq!(steady.now_ms(), NOON);
    }

    #[test]
    fn a_step_back_is_followed() {
        let (under, steady) = clocks();
        under.set(NOON - HOUR);
        assert_eq!(steady.now_ms(), NOON - HOUR);
        assert_eq!(steady.held_back_ms(), None);
    }

    #[test]
    fn what_was_believed_is_believed_again() {
        let (under, steady) = clocks();
        under.set(NOON + 48 * HOUR);
        let again = SteadyClock::since(under.clone(), steady.began_ms());
        assert_eq!(again.now_ms(), NOON);
        assert_eq!(SteadyClock::new(under).now_ms(), NOON + 48 * HOUR, "unless it is not asked");
    }
}
