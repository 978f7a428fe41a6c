//! Versions: a hybrid clock in 64 bits. From the top 44 of milliseconds, 12 of counter, 7 of region,
//! and one for a removal that follows from a row alone; no version has it yet. Nothing else
//! knows where these bits lie.

use crate::time::Millis;

const COUNTER_BITS: u32 = 12;
const REGION_SHIFT: u32 = 1;
const REGION_BITS: u32 = 7;
const HEAD_SHIFT: u32 = REGION_SHIFT + REGION_BITS;
const TIME_SHIFT: u32 = HEAD_SHIFT + COUNTER_BITS;
/// A group's id: its region above a number that counts from 1.
const GROUP_REGION_SHIFT: u32 = 24;

/// Which of several deployments that hold the same data: versions and groups of two never collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Region(u8);

impl Region {
    pub const MAX: Region = Region(126);

    /// None above the highest.
    pub fn new(number: u8) -> Option<Region> {
        (number <= Region::MAX.0).then_some(Region(number))
    }

    pub fn number(self) -> u8 {
        self.0
    }

    /// The id of the first group that it gives a source.
    pub(crate) fn first_group(self) -> u32 {
        (u32::from(self.0) << GROUP_REGION_SHIFT) + 1
    }
}

/// Grows strictly along all changes of one source and kind, whatever the clock does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

impl Version {
    pub const ZERO: Version = Version(0);

    /// The least of a millisecond.
    pub const fn at(time: Millis) -> Version {
        Version(time.0 << TIME_SHIFT)
    }

    /// The version after `last`: the clock's, or one step past `last` when the clock is behind.
    /// A full counter carries into the milliseconds.
    pub fn next(last: Version, now: Millis, region: Region) -> Version {
        HeadVersion::at(now).max(last.head().plus(1)).with_region(region)
    }

    /// The milliseconds that it was given out at, or later ones under a counter overflow.
    pub fn time(self) -> Millis {
        Millis(self.0 >> TIME_SHIFT)
    }

    /// So many steps later, of the same region.
    pub const fn plus(self, steps: u64) -> Version {
        Version(self.0 + (steps << HEAD_SHIFT))
    }

    /// What a head that gave it out says.
    pub fn head(self) -> HeadVersion {
        HeadVersion(self.0 >> HEAD_SHIFT)
    }
}

/// The version of a source's row in a cluster: the last one that was given out under it, without
/// the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HeadVersion(pub u64);

impl HeadVersion {
    /// How many there are of a millisecond, for whoever counts them in a statement.
    pub const OF_A_MILLISECOND: u64 = 1 << COUNTER_BITS;

    /// The least of a millisecond.
    pub fn at(time: Millis) -> HeadVersion {
        HeadVersion(time.0 << COUNTER_BITS)
    }

    pub fn time(self) -> Millis {
        Millis(self.0 >> COUNTER_BITS)
    }

    pub fn plus(self, steps: u64) -> HeadVersion {
        HeadVersion(self.0 + steps)
    }

    pub fn minus(self, steps: u64) -> HeadVersion {
        HeadVersion(self.0.saturating_sub(steps))
    }

    pub fn with_region(self, region: Region) -> Version {
        Version((self.0 << HEAD_SHIFT) | (u64::from(region.0) << REGION_SHIFT))
    }
}

/// Names a barrier. Like a version it begins with its time; then comes what was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BarrierId(pub u64);

impl BarrierId {
    /// The least of a millisecond.
    pub fn at(time: Millis) -> BarrierId {
        BarrierId(Version::at(time).0)
    }

    /// One of a million of its millisecond.
    pub fn drawn(time: Millis, random: u64) -> BarrierId {
        BarrierId(BarrierId::at(time).0 | (random & ((1 << TIME_SHIFT) - 1)))
    }

    pub fn time(self) -> Millis {
        Version(self.0).time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Millis = Millis(1_000);

    fn region(number: u8) -> Region {
        Region::new(number).unwrap()
    }

    #[test]
    fn grows_past_clock_steps_regions_and_full_counters() {
        let first = Version::next(Version::ZERO, TIME, region(3));
        assert_eq!(first, Version((1_000 << 20) | 6));
        assert_eq!(Version::next(first, TIME, region(3)), first.plus(1));
        assert_eq!(first.plus(1), Version((1_000 << 20) | (1 << 8) | 6));
        let back = Version::next(first, Millis(10), region(0));
        assert!(back > first, "a clock that steps back never lowers a version");
        let full = Version((1_000 << 20) | (0xfff << 8) | 0xff);
        assert_eq!(Version::next(full, TIME, region(1)), Version((1_001 << 20) | 2));
        assert_eq!(Version::next(full, Millis(5_000), region(1)).time(), Millis(5_000));
    }

    #[test]
    fn a_head_has_no_region_and_the_lowest_bit_stays_free() {
        let given = HeadVersion::at(TIME).plus(7);
        assert_eq!((given.0, given.time()), ((1_000 << 12) + 7, TIME));
        let version = given.with_region(Region::MAX);
        assert_eq!(version, Version((1_000 << 20) | (7 << 8) | 0b1111_1100));
        assert_eq!((version.head(), version.time()), (given, TIME));
        assert_eq!(given.minus(8), HeadVersion((1_000 << 12) - 1));
        assert_eq!(HeadVersion(3).minus(4), HeadVersion(0));
        assert!(Region::new(127).is_none());
        assert_eq!((region(0).first_group(), region(2).first_group()), (1, 0x0200_0001));
    }

    #[test]
    fn barriers_of_a_millisecond_keep_within_it() {
        for random in [0, 5, u64::MAX] {
            let id = BarrierId::drawn(TIME, random);
            assert_eq!(id.time(), TIME);
            assert!(id >= BarrierId::at(TIME) && id < BarrierId::at(Millis(1_001)));
        }
    }
}
