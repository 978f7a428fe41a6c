//! Pauses after failures, and how often they are told of.

use std::time::{Duration, Instant};

/// A first pause is about as long as a short trouble lasts; the longest is one that a server which
/// is back may be waited for.
const FLOOR: Duration = Duration::from_millis(100);
const CEILING: Duration = Duration::from_secs(2);
/// What goes on failing is told of again after this.
const TELL_AGAIN: Duration = Duration::from_secs(15);

/// How something that fails is tried again. Each pause is twice as long as the one before, up to a
/// ceiling, and drawn between half of it and all, so that many who failed together do not come back
/// together.
#[derive(Debug, Clone)]
pub struct Backoff {
    floor: Duration,
    ceiling: Duration,
    /// What the last pause was drawn from; zero when the last try went well.
    bound: Duration,
    until: Instant,
    told: Option<Instant>,
    untold: u64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new(FLOOR, CEILING)
    }
}

impl Backoff {
    pub fn new(floor: Duration, ceiling: Duration) -> Backoff {
        let bound = Duration::ZERO;
        Backoff { floor, ceiling, bound, until: Instant::now(), told: None, untold: 0 }
    }

    /// Begins a pause. Failures within one count as one. Returns how many there were since they
    /// were told of last, where it is time to tell.
    pub fn failed(&mut self) -> Option<u64> {
        let now = Instant::now();
        if now >= self.until || !self.is_failing() {
            self.bound = (self.bound * 2).clamp(self.floor, self.ceiling);
            self.until = now + self.bound.mul_f64(0.5 + fastrand::f64() / 2.0);
        }
        self.untold += 1;
        if self.told.is_some_and(|told| told.elapsed() < TELL_AGAIN) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }

    pub fn went_well(&mut self) {
        self.bound = Duration::ZERO;
    }

    pub fn is_failing(&self) -> bool {
        !self.bound.is_zero()
    }

    /// Whether it may be tried.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// How long it is not to be tried yet.
    pub fn left(&self) -> Duration {
        match self.is_failing() {
            true => self.until.saturating_duration_since(Instant::now()),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Fails once the pause is over; returns what the next is drawn from.
    fn fail(backoff: &mut Backoff) -> Duration {
        backoff.until = Instant::now();
        backoff.failed();
        assert!(backoff.left() <= backoff.bound);
        backoff.bound
    }

    #[test]
    fn pauses_double_up_to_the_ceiling_and_begin_anew_after_success() {
        let mut backoff = Backoff::new(8 * MS, 20 * MS);
        for bound in [8, 16, 20, 20] {
            assert_eq!(fail(&mut backoff), bound * MS);
        }
        assert!(backoff.is_failing());
        backoff.went_well();
        assert!(!backoff.is_failing() && backoff.is_over());
        assert_eq!(fail(&mut backoff), 8 * MS);
    }

    #[test]
    fn a_pause_lasts_half_of_its_bound_at_least() {
        let mut backoff = Backoff::new(600_000 * MS, 600_000 * MS);
        backoff.failed();
        // A moment has passed since.
        assert!(backoff.left() > 299_000 * MS && !backoff.is_over());
    }

    #[test]
    fn failures_within_a_pause_count_as_one() {
        let mut backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(600));
        for _ in 0..9 {
            backoff.failed();
        }
        assert!(!backoff.is_over() && backoff.left() <= Duration::from_secs(60));
    }

    #[test]
    fn what_goes_on_failing_is_told_of_once_and_then_now_and_again() {
        let mut backoff = Backoff::new(MS, MS);
        assert_eq!(backoff.failed(), Some(1));
        backoff.went_well();
        assert_eq!([backoff.failed(), backoff.failed()], [None, None]);
        backoff.told = Instant::now().checked_sub(TELL_AGAIN);
        assert_eq!(backoff.failed(), Some(3), "with those that were not told");
        assert_eq!(backoff.failed(), None);
    }
}
