//! How far the follower is, as one text in the Redis that it fills. It is written after what it stands
//! for, over the same connection, and only over what the follower knows: in whatever older state a
//! Redis comes back, its positions are no newer than its values.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A topic's partition.
pub(super) type Place = (String, u32);

/// The next offset of each partition.
pub(super) type Positions = BTreeMap<Place, u64>;

/// A line for each: topic, partition, offset.
pub(super) fn write(positions: &Positions) -> String {
    let mut out = String::new();
    for ((topic, partition), next) in positions {
        let _ = writeln!(out, "{topic} {partition} {next}");
    }
    out
}

/// None when it is not such a text.
pub(super) fn read(text: &str) -> Option<Positions> {
    let place = |line: &str| {
        let mut words = line.split(' ');
        let (topic, partition, next) = (words.next()?, words.next()?, words.next()?);
        let place = (topic.to_owned(), partition.parse().ok()?);
        words.next().is_none().then_some((place, next.parse().ok()?))
    };
    text.lines().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_were_written() {
        let positions: Positions =
            [(("guanxi.records".into(), 0), 7), (("a-feed_1".into(), 63), u64::MAX)].into();
        assert_eq!(read(&write(&positions)), Some(positions));
        assert_eq!(read(""), Some(Positions::new()));
        for wrong in ["topic", "topic 1", "topic 1 2 3", "topic x 2", "topic 1 -2"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
