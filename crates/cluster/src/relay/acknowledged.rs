//! What the broker acknowledged and the database does not have noted yet. It does no I/O.
//!
//! Of all that a client sent to a partition the first and the last are noted, and only the last gives
//! way to a later one. The broker takes a batch of the client behind the one before it alone, or where
//! it has nothing of this client (`Sender`): so a log that has the first and goes on has all between,
//! and one that lost the first is told by its note, however far others have let it grow.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::acknowledged::Note;
use crate::kafka::{Delivered, TopicId};

/// A broker forgets a client that sends nothing, by default after a day, and then takes whatever it
/// sends next: after this long what it sends is as if another had sent it.
const SILENT_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct AcknowledgedNotes {
    topic: TopicId,
    stretches: BTreeMap<u32, Stretch>,
    /// To be written, by partition and writer.
    unwritten: BTreeMap<(u32, u64), Note>,
}

/// Records of one partition of which the broker took each batch behind the one before it.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// The number under which its last record is noted. The first has one of its own.
    writer: u64,
    last: u64,
    heard: Instant,
}

impl AcknowledgedNotes {
    pub fn new() -> AcknowledgedNotes {
        AcknowledgedNotes {
            topic: TopicId::UNKNOWN,
            stretches: BTreeMap::new(),
            unwritten: BTreeMap::new(),
        }
    }

    /// Another client sends, to this topic.
    pub fn begin(&mut self, topic: TopicId) {
        self.topic = topic;
        self.stretches.clear();
    }

    /// Whether the log goes on where it was: one client's offsets only grow. Where it does not,
    /// nothing is noted.
    pub fn take(&mut self, delivered: Delivered) -> bool {
        self.take_at(delivered, Instant::now())
    }

    fn take_at(&mut self, delivered: Delivered, now: Instant) -> bool {
        let Delivered { partition, offset, mark } = delivered;
        let topic = self.topic;
        let note = |writer| Note { part: partition, writer, position: offset, topic, mark };
        let stretch = self.stretches.get_mut(&partition);
        if stretch.as_ref().is_some_and(|stretch| offset <= stretch.last) {
            return false;
        }
        let note = match stretch {
            Some(stretch) if now.duration_since(stretch.heard) < SILENT_MAX => {
                (stretch.last, stretch.heard) = (offset, now);
                note(stretch.writer)
            }
            _ => {
                let begun = Stretch { writer: fastrand::u64(..), last: offset, heard: now };
                self.stretches.insert(partition, begun);
                note(fastrand::u64(..))
            }
        };
        self.unwritten.insert((partition, note.writer), note);
        true
    }

    /// In one order, so that two relays do not wait for each other.
    pub fn unwritten(&self) -> Vec<Note> {
        self.unwritten.values().copied().collect()
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

    /// Sorted, as the order of writers is by chance.
    fn places(acknowledged: &AcknowledgedNotes) -> Vec<(u32, u64)> {
        let notes = acknowledged.unwritten();
        let mut places: Vec<_> = notes.iter().map(|note| (note.part, note.position)).collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn the_first_and_the_last_of_each_partition_are_noted() {
        let mut acknowledged = AcknowledgedNotes::new();
        for (partition, offset) in [(1, 7), (0, 3), (1, 8), (1, 9)] {
            assert!(acknowledged.take(delivered(partition, offset)));
        }
        assert_eq!(places(&acknowledged), [(0, 3), (1, 7), (1, 9)]);
        let last = |acknowledged: &AcknowledgedNotes, position| {
            acknowledged.unwritten().into_iter().find(|note| note.position == position).unwrap()
        };
        let ninth = last(&acknowledged, 9);
        acknowledged.written();
        assert_eq!(places(&acknowledged), []);
        acknowledged.take(delivered(1, 10));
        assert_eq!(places(&acknowledged), [(1, 10)]);
        assert_eq!(last(&acknowledged, 10).writer, ninth.writer, "it replaces the last");
    }

    #[test]
    fn a_log_that_goes_back_is_told_and_not_noted() {
        let mut acknowledged = AcknowledgedNotes::new();
        assert!(acknowledged.take(delivered(0, 799)));
        assert!(!acknowledged.take(delivered(0, 400)));
        assert!(!acknowledged.take(delivered(0, 799)));
        assert_eq!(places(&acknowledged), [(0, 799)]);
    }

    #[test]
    fn another_client_and_a_long_silence_replace_no_note() {
        let mut acknowledged = AcknowledgedNotes::new();
        acknowledged.take(delivered(0, 1));
        acknowledged.take(delivered(0, 2));
        let mut notes = acknowledged.unwritten();
        acknowledged.begin(TopicId(7));
        acknowledged.take(delivered(0, 3));
        acknowledged.take(delivered(0, 4));
        let later = Instant::now() + SILENT_MAX;
        acknowledged.take_at(delivered(0, 5), later);
        acknowledged.take_at(delivered(0, 6), later);
        assert_eq!(places(&acknowledged), (1..=6).map(|at| (0, at)).collect::<Vec<_>>());
        let all = acknowledged.unwritten();
        notes.retain(|note| all.contains(note));
        assert_eq!(notes.len(), 2);
    }
}
