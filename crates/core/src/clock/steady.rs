//! A clock that does not follow a jump forward.
//!
//! What is removed because its time has come never returns, and times of the log never decrease; so
//! one wrong step of the machine's clock could cost edges, records and idempotency keys, and leave
//! times that lie ahead for years. The time since the machine was started cannot be set: nobody's
//! clock gains on it but by a step. One that gained more than a time daemon corrects by itself is
//! not believed. Time goes on as if it had not happened, until the clocks agree again, or somebody
//! says that the new time is right.
//!
//! Two steps are believed. A machine that has just been started may not know the time yet, so its
//! clock is followed wherever it goes for a while; but meanwhile nothing is removed by a time that
//! is further ahead of the last known one than the time since the start explains. And a clock that
//! was set back and stays so was wrong before: from then on jumps are told by the new time.
//!
//! A step while the machine is off cannot be told from the time that it was off.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Clock;

/// Time daemons take care of what is less, and give up beyond about a quarter of an hour: then a
/// person has to look.
pub const JUMP_MS_MAX: u64 = 15 * 60 * 1_000;
/// After the start of the machine: by then a time daemon that can be reached has set the clock.
const SETTLED_AFTER_MS: u64 = 10 * 60 * 1_000;
/// A clock that has been set back for so long is meant to be.
const SET_BACK_AFTER_MS: u64 = 15 * 60 * 1_000;

pub struct SteadyClock {
    under: Arc<dyn Clock>,
    believed: Mutex<Believed>,
    /// When the machine was started at the earliest, by a time that was known before; none where
    /// nothing was, or where somebody says that the clock is right.
    known_began_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
struct Believed {
    /// The time of day when the machine was started.
    began_ms: i64,
    /// Since when the machine's clock is behind, by the time since its start.
    behind_since_ms: Option<u64>,
    is_held: bool,
}

impl std::fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SteadyClock").field("believed", &self.believed).finish_non_exhaustive()
    }
}

/// One look at the machine's clocks.
#[derive(Debug, Clone, Copy)]
struct ClockLook {
    wall_ms: u64,
    since_boot_ms: u64,
}

impl ClockLook {
    fn at(clock: &dyn Clock) -> ClockLook {
        // In this order a process that stands still in between does not see a jump.
        let wall_ms = clock.now_ms();
        ClockLook { wall_ms, since_boot_ms: clock.since_boot_ms() }
    }

    /// When the machine was started, if its clock is right.
    fn began_ms(self) -> i64 {
        self.wall_ms as i64 - self.since_boot_ms as i64
    }

    /// What its clock would say, had it been right at the start and never stepped.
    fn steady_ms(self, began_ms: i64) -> u64 {
        u64::try_from(began_ms.saturating_add_unsigned(self.since_boot_ms)).unwrap_or(0)
    }
}

impl SteadyClock {
    /// Believes the time that it is now.
    pub fn new(under: Arc<dyn Clock>) -> SteadyClock {
        let began_ms = ClockLook::at(under.as_ref()).began_ms();
        SteadyClock::since(under, began_ms)
    }

    /// Believes what was believed before, since the same start of the machine; but not a time that
    /// the clock has been set back from.
    pub fn since(under: Arc<dyn Clock>, began_ms: i64) -> SteadyClock {
        let look = ClockLook::at(under.as_ref());
        let is_back = look.wall_ms.saturating_add(JUMP_MS_MAX) < look.steady_ms(began_ms);
        let began_ms = if is_back { look.began_ms() } else { began_ms };
        let believed = Believed { began_ms, behind_since_ms: None, is_held: false };
        SteadyClock { under, believed: Mutex::new(believed), known_began_ms: None }
    }

    /// The same clock, where the machine had not been started later than that.
    pub fn knowing(self, known_began_ms: i64) -> SteadyClock {
        SteadyClock { known_began_ms: Some(known_began_ms), ..self }
    }

    /// What `knowing` takes, while the machine may not know the time yet.
    pub fn known_began_ms(&self) -> Option<i64> {
        self.known_began_ms.filter(|_| !self.is_settled())
    }

    fn is_settled(&self) -> bool {
        self.under.since_boot_ms() >= SETTLED_AFTER_MS
    }

    /// What `since` takes; none while the machine may not know the time yet.
    pub fn began_ms(&self) -> Option<i64> {
        let (_, began_ms) = self.both();
        self.is_settled().then_some(began_ms)
    }

    /// How far ahead the machine's clock is, while it is not believed.
    pub fn held_back_ms(&self) -> Option<u64> {
        let (look, began_ms) = self.both();
        let ahead = look.wall_ms.saturating_sub(look.steady_ms(began_ms));
        (ahead > JUMP_MS_MAX).then_some(ahead)
    }

    /// The machine's clocks, and when it was started as far as they are believed.
    fn both(&self) -> (ClockLook, i64) {
        let mut believed = self.believed.lock();
        let look = ClockLook::at(self.under.as_ref());
        let is_behind =
            look.wall_ms.saturating_add(JUMP_MS_MAX) < look.steady_ms(believed.began_ms);
        let since_ms = is_behind.then(|| believed.behind_since_ms.unwrap_or(look.since_boot_ms));
        believed.behind_since_ms = since_ms;
        let is_meant =
            since_ms.is_some_and(|since| look.since_boot_ms >= since + SET_BACK_AFTER_MS);
        if is_meant {
            tracing::warn!("the clock was set back, and is believed from here on");
            believed.behind_since_ms = None;
        }
        if is_meant || look.since_boot_ms < SETTLED_AFTER_MS {
            believed.began_ms = look.began_ms();
        }
        (look, believed.began_ms)
    }
}

impl Clock for SteadyClock {
    fn now_ms(&self) -> u64 {
        let (look, began_ms) = self.both();
        let steady_ms = look.steady_ms(began_ms);
        let ahead_ms = look.wall_ms.saturating_sub(steady_ms);
        let is_held = ahead_ms > JUMP_MS_MAX;
        if is_held != std::mem::replace(&mut self.believed.lock().is_held, is_held) {
            match is_held {
                true => tracing::error!(
                    ahead_ms,
                    "the clock jumped forward and is not believed: times go on as before. Set it \
                     right; if the new time is right, restart with clock_may_have_jumped"
                ),
                false => tracing::warn!("the clock is right again"),
            }
        }
        if is_held { steady_ms } else { look.wall_ms }
    }

    fn past_ms(&self) -> u64 {
        // In this order it is not taken for settled before it is followed no more.
        let known_began_ms = self.known_began_ms();
        let now_ms = self.now_ms();
        known_began_ms.map_or(now_ms, |began_ms| {
            let known_ms = ClockLook::at(self.under.as_ref()).steady_ms(began_ms);
            now_ms.min(known_ms.saturating_add(JUMP_MS_MAX))
        })
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
    fn what_the_clock_was_set_back_from_is_not_believed_again_after_a_while() {
        let (under, steady) = clocks();
        under.set(NOON - 10 * HOUR);
        assert_eq!(steady.now_ms(), NOON - 10 * HOUR);
        under.set(NOON);
        assert_eq!(steady.now_ms(), NOON, "it was back for a moment only");
        under.set(NOON - 10 * HOUR);
        assert_eq!(steady.now_ms(), NOON - 10 * HOUR);
        under.advance(SET_BACK_AFTER_MS);
        assert_eq!(steady.now_ms(), NOON - 10 * HOUR + SET_BACK_AFTER_MS);
        under.set(NOON);
        assert_eq!(steady.now_ms(), NOON - 10 * HOUR + SET_BACK_AFTER_MS, "it was set right");
        assert!(steady.held_back_ms().is_some());
    }

    #[test]
    fn a_machine_that_was_just_started_may_learn_the_time() {
        let under = Arc::new(VirtualClock::new(NOON));
        under.reboot(NOON - 8 * HOUR);
        let steady = SteadyClock::new(under.clone());
        assert_eq!(steady.began_ms(), None, "nobody is to rely on it");
        under.set(NOON);
        assert_eq!(steady.now_ms(), NOON);
        under.advance(SETTLED_AFTER_MS);
        assert_eq!(steady.now_ms(), NOON + SETTLED_AFTER_MS);
        assert_eq!(steady.began_ms(), Some(NOON as i64));
        under.set(NOON + 48 * HOUR);
        assert_eq!(steady.now_ms(), NOON + SETTLED_AFTER_MS);
    }

    #[test]
    fn until_then_nothing_is_removed_by_a_time_that_nobody_knew() {
        let under = Arc::new(VirtualClock::new(NOON));
        under.reboot(NOON + 9 * HOUR);
        let steady = SteadyClock::new(under.clone()).knowing(NOON as i64);
        assert_eq!(steady.now_ms(), NOON + 9 * HOUR);
        assert_eq!(steady.past_ms(), NOON + JUMP_MS_MAX);
        under.advance(1_000);
        assert_eq!(steady.past_ms(), NOON + 1_000 + JUMP_MS_MAX, "time goes on");
        under.set(NOON + 2_000);
        assert_eq!(steady.past_ms(), NOON + 2_000, "it is right");
        under.set(NOON + 9 * HOUR);
        assert_eq!(steady.now_ms(), NOON + 9 * HOUR);
        under.advance(SETTLED_AFTER_MS);
        assert_eq!(steady.past_ms(), NOON + 9 * HOUR + SETTLED_AFTER_MS, "nobody has set it");
    }

    #[test]
    fn what_was_believed_is_believed_again() {
        let (under, steady) = clocks();
        under.set(NOON + 48 * HOUR);
        let again = SteadyClock::since(under.clone(), steady.began_ms().unwrap());
        assert_eq!(again.now_ms(), NOON);
        assert_eq!(SteadyClock::new(under).now_ms(), NOON + 48 * HOUR, "unless it is not asked");
    }
}
