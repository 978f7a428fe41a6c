//! How far the follower is, as one text in the Redis that it fills. It is written after what it stands
//! for, over the same connection, and only over what the follower knows: in whatever older state a
//! Redis comes back, its positions are no newer than its values.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::kafka::{LogPosition, RecordMark, TopicId};

/// A topic's partition.
pub(super) type TopicPartition = (String, u32);

/// Where each partition is read next.
pub(super) type Positions = BTreeMap<TopicPartition, LogPosition>;

/// A line for each: topic, partition, offset, and what that belongs to.
pub(super) fn write(positions: &Positions) -> String {
    let mut out = String::new();
    for ((topic, partition), position) in positions {
        let LogPosition { next, topic: TopicId(id), before: RecordMark(mark) } = position;
        let _ = writeln!(out, "{topic} {partition} {next} {id:x} {mark:x}");
    }
    out
}

/// None when it is not such a text.
pub(super) fn read(text: &str) -> Option<Positions> {
    let place = |line: &str| {
        let mut words = line.split(' ');
        let place = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let next = words.next()?.parse().ok()?;
        let topic = TopicId(u64::from_str_radix(words.next()?, 16).ok()?);
        let before = RecordMark(u32::from_str_radix(words.next()?, 16).ok()?);
        words.next().is_none().then_some((place, LogPosition { next, topic, before }))
    };
    text.lines().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_were_written() {
        let (topic, before) = (TopicId(u64::MAX), RecordMark(u32::MAX));
        let last = LogPosition { next: u64::MAX, topic, before };
        let positions: Positions =
            [(("guanxi.records".into(), 0), 7.into()), (("a-feed_1".into(), 63), last)].into();
        assert_eq!(read(&write(&positions)), Some(positions));
        assert_eq!(read(""), Some(Positions::new()));
        for wrong in ["topic", "topic 1 2", "topic 1 2 3", "topic 1 2 3 4 5", "topic x 2 3 4"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
