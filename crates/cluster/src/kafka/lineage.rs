//! What a position in the log belongs to. A bare offset means nothing in a topic that was deleted
//! and made anew, or in a log that lost its end and grew again; so a position also says of which
//! topic it is and what the record before it looked like.

use guanxi_model::hash::hash64;

/// A hash of a topic's id, which is another one after it was deleted and made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TopicId(pub u64);

impl TopicId {
    /// Not told by the broker, or not asked for yet.
    pub const UNKNOWN: TopicId = TopicId(0);

    pub(super) fn of(id: u128) -> TopicId {
        if id == 0 { TopicId::UNKNOWN } else { TopicId(hash64(&id.to_be_bytes()).max(1)) }
    }

    pub fn is_known(self) -> bool {
        self != TopicId::UNKNOWN
    }

    /// Whether both may be of one topic.
    pub fn may_be(self, other: TopicId) -> bool {
        self == other || !self.is_known() || !other.is_known()
    }
}

/// What a record looks like: a hash of its value and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RecordMark(pub u32);

impl RecordMark {
    /// There is no such record, or nobody saw it.
    pub const NONE: RecordMark = RecordMark(0);

    pub(super) fn of(value: &[u8], time_ms: Option<i64>) -> RecordMark {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&hash64(value).to_be_bytes());
        both[8..].copy_from_slice(&time_ms.unwrap_or_default().to_be_bytes());
        RecordMark((hash64(&both) as u32).max(1))
    }

    pub fn is_known(self) -> bool {
        self != RecordMark::NONE
    }
}

/// A place between two records of a partition, and what it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition {
    /// The offset of the record after it.
    pub next: u64,
    pub topic: TopicId,
    /// The record before it, which has the offset before `next` where it is known.
    pub before: RecordMark,
}

impl LogPosition {
    /// Where no record before it was seen.
    pub fn at(next: u64, topic: TopicId) -> LogPosition {
        LogPosition { next, topic, before: RecordMark::NONE }
    }

    /// Whether a reader that stands at `other` goes on from here. A topic that was not known is
    /// learned by reading.
    pub fn is_continued_by(&self, other: &LogPosition) -> bool {
        let learned = LogPosition { topic: other.topic, ..*self };
        learned == *other && self.topic.may_be(other.topic)
    }
}

/// An offset of which nothing is known.
impl From<u64> for LogPosition {
    fn from(next: u64) -> LogPosition {
        LogPosition::at(next, TopicId::UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_values_and_times_apart() {
        let mark = RecordMark::of(b"a value", Some(7));
        assert_eq!(mark, RecordMark::of(b"a value", Some(7)));
        assert_ne!(mark, RecordMark::of(b"a value", Some(8)));
        assert_ne!(mark, RecordMark::of(b"another", Some(7)));
        assert!(mark.is_known() && RecordMark::of(b"", None).is_known());
    }

    #[test]
    fn a_position_is_continued_only_by_itself() {
        let stored = LogPosition { next: 7, topic: TopicId(1), before: RecordMark(3) };
        assert!(stored.is_continued_by(&stored));
        assert!(!stored.is_continued_by(&LogPosition { next: 8, ..stored }));
        assert!(!stored.is_continued_by(&LogPosition { topic: TopicId(2), ..stored }));
        assert!(!stored.is_continued_by(&LogPosition { before: RecordMark(4), ..stored }));
        let new = LogPosition::from(0);
        assert!(new.is_continued_by(&LogPosition::at(0, TopicId(2))), "its topic is learned");
    }
}
