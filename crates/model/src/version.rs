//! Versions: a hybrid clock in 64 bits, 44 of milliseconds, 12 of counter, 8 of region.

use crate::time::Millis;

const COUNTER_SHIFT: u32 = 8;
const TIME_SHIFT: u32 = 20;
const STEP: u64 = 1 << COUNTER_SHIFT;
const REGION_MASK: u64 = STEP - 1;

/// Grows strictly along all changes of one source and kind, whatever the clock does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

impl Version {
    pub const ZERO: Version = Version(0);

    /// The version after `last`: the clock's, or one step past `last` when the clock is behind.
    /// A full counter carries into the milliseconds.
    pub fn next(last: Version, now: Millis, region: u8) -> Version {
        let by_clock = now.0 << TIME_SHIFT;
        let by_step = (last.0 & !REGION_MASK) + STEP;
        Version(by_clock.max(by_step) | u64::from(region))
    }

    /// The milliseconds that it was given out at, or later ones under a counter overflow.
    pub fn time(self) -> Millis {
        Millis(self.0 >> TIME_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_past_clock_steps_regions_and_full_counters() {
        let first = Version::next(Version::ZERO, Millis(1_000), 3);
        assert_eq!(first, Version((1_000 << 20) | 3));
        assert_eq!(Version::next(first, Millis(1_000), 3), Version((1_000 << 20) | (1 << 8) | 3));
        let back = Version::next(first, Millis(10), 0);
        assert!(back > first, "a clock that steps back never lowers a version");
        let full = Version((1_000 << 20) | (0xfff << 8) | 0xff);
        assert_eq!(Version::next(full, Millis(1_000), 1), Version((1_001 << 20) | 1));
        assert_eq!(Version::next(full, Millis(5_000), 1).time(), Millis(5_000));
    }
}
