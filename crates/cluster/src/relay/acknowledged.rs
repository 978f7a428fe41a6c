//! What the broker acknowledged and the database does not have noted yet. It does no I/O.
//!
//! Notes are written under a number, and a later note of the same number replaces the one before.
//! After anything that a lost end of the log may be behind, and now and then anyway, the number is
//! drawn anew, so that what was noted before stays for the appliers to compare.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::acknowledged::Note;
use crate::kafka::{Delivered, TopicId};

/// How long a number is used. While appliers are behind there is a note of each partition for each
/// such time: some hundred thousand after a day. A relay does not see that the log lost its end when
/// another one has appended past that first, so what it noted for less than this may give way then.
const WRITER_KEPT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Acknowledged {
    topic: TopicId,
    writer: u64,
    drawn: Instant,
    /// The last offset of each partition.
    last: BTreeMap<u32, u64>,
    /// To be written, by writer and partition.
    unwritten: BTreeMap<(u64, u32), Note>,
}

impl Acknowledged {
    pub fn new() -> Acknowledged {
        Acknowledged {
            topic: TopicId::UNKNOWN,
            writer: fastrand::u64(..),
            drawn: Instant::now(),
            last: BTreeMap::new(),
            unwritten: BTreeMap::new(),
        }
    }

    /// Another client sends, to this topic.
    pub fn begin(&mut self, topic: TopicId) {
        self.topic = topic;
        self.last.clear();
        self.keep();
    }

    /// From here on, what was noted is not replaced.
    pub fn keep(&mut self) {
        self.writer = fastrand::u64(..);
        self.drawn = Instant::now();
    }

    /// Whether the log goes on where it was: one client's offsets only grow.
    pub fn take(&mut self, delivered: Delivered) -> bool {
        let Delivered { partition, offset, mark } = delivered;
        let goes_on = self.last.insert(partition, offset).is_none_or(|last| last < offset);
        if !goes_on || self.drawn.elapsed() >= WRITER_KEPT {
            self.keep();
        }
        let (writer, topic) = (self.writer, self.topic);
        let note = Note { part: partition, writer, position: offset, topic, mark };
        self.unwritten.insert((writer, partition), note);
        goes_on
    }

    /// In one order, so that two relays do not wait for each other.
    pub fn unwritten(&self) -> Vec<Note> {
        let mut notes: Vec<Note> = self.unwritten.values().copied().collect();
        notes.sort_unstable_by_key(|note| (note.part, note.writer));
        notes
    }

    pub fn written(&mut self) {
        self.unwritten.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::RecordMark;

    fn delivered(partition: u32, offset: u64) -> Delivered {
        Delivered { partition, offset, mark: RecordMark(offset as u32 + 1) }
    }

    fn places(acknowledged: &Acknowledged) -> Vec<(u32, u64)> {
        acknowledged.unwritten().iter().map(|note| (note.part, note.position)).collect()
    }

    #[test]
    fn the_last_of_each_partition_is_noted() {
        let mut acknowledged = Acknowledged::new();
        for (partition, offset) in [(1, 7), (0, 3), (1, 8), (1, 9)] {
            assert!(acknowledged.take(delivered(partition, offset)));
        }
        assert_eq!(places(&acknowledged), [(0, 3), (1, 9)]);
        acknowledged.written();
        assert_eq!(places(&acknowledged), []);
    }

    #[test]
    fn a_log_that_goes_back_replaces_no_note() {
        let mut acknowledged = Acknowledged::new();
        acknowledged.take(delivered(0, 799));
        let first = acknowledged.unwritten()[0];
        assert!(!acknowledged.take(delivered(0, 400)));
        assert!(acknowledged.take(delivered(0, 900)));
        let notes = acknowledged.unwritten();
        assert_eq!(notes.len(), 2);
        assert!(notes.contains(&first), "{notes:?}");
        acknowledged.written();
        acknowledged.begin(TopicId(7));
        acknowledged.take(delivered(0, 901));
        assert!(notes.iter().all(|note| note.writer != acknowledged.unwritten()[0].writer));
    }
}
