//! Whether the log still has what the broker acknowledged. A note whose record is yet to be applied is
//! compared by the transaction that applies it, and held here against the log's end, as nobody may
//! ever send more. One that came after is held against what was applied.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::super::super::acknowledged::{self, Note};
use super::super::super::kafka::{
    BEYOND_AFTER, BrokerError, LogPosition, LogReader, LookBack, RecordMark,
};
use super::super::super::sql::SqlError;
use super::super::batch::LogKind;
use super::super::shared::ApplierShared;

/// How often the notes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(4);
/// How long a look may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);
/// Records of a partition whose looks are remembered, each four bytes: of those before them the log
/// is asked.
const MARKS_MAX: usize = 32_768;

pub(super) struct AcknowledgedCheck {
    looked_at: Instant,
    /// Since when partitions end before what was acknowledged.
    short: BTreeMap<u32, Instant>,
    /// What was applied last.
    applied: BTreeMap<u32, Marks>,
}

impl AcknowledgedCheck {
    pub fn new() -> AcknowledgedCheck {
        let looked_at = Instant::now();
        AcknowledgedCheck { looked_at, short: BTreeMap::new(), applied: BTreeMap::new() }
    }

    pub fn is_due(&self) -> bool {
        self.looked_at.elapsed() >= LOOK_EVERY
    }

    pub fn applied(&mut self, partition: u32, records: Vec<(u64, RecordMark)>) {
        let marks = self.applied.entry(partition).or_default();
        for (offset, mark) in records {
            marks.push(offset, mark);
        }
    }

    pub fn forget(&mut self, partition: u32) {
        self.short.remove(&partition);
        self.applied.remove(&partition);
    }

    /// Finds the partitions that have another record where one was acknowledged, or end before it and
    /// stay so, and where. Notes of what was applied have done their work.
    pub fn look(
        &mut self,
        shared: &ApplierShared,
        own: &BTreeMap<u32, LogPosition>,
        reader: &LogReader,
    ) -> Result<BTreeMap<u32, u64>, SqlError> {
        let lost = self.find_lost(shared, own, reader);
        // A look that takes long is not followed by the next one at once.
        self.looked_at = Instant::now();
        lost
    }

    fn find_lost(
        &mut self,
        shared: &ApplierShared,
        own: &BTreeMap<u32, LogPosition>,
        reader: &LogReader,
    ) -> Result<BTreeMap<u32, u64>, SqlError> {
        if shared.place.source != LogKind::Outbox {
            return Ok(BTreeMap::new());
        }
        let topic = &shared.place.topic;
        let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
        let notes = acknowledged::of_partitions(&mut session, topic, own.keys().copied())?;
        drop(session);
        let mut sorted = Sorted::default();
        for note in notes {
            let Some(at) = own.get(&note.part) else { continue };
            sorted.take(note, at, self.applied.get(&note.part));
        }
        let Sorted { mut kept, mut lost, unseen, ahead } = sorted;
        if !unseen.is_empty() {
            match look_back(shared, &unseen) {
                Ok((found, missing)) => {
                    kept.extend(found);
                    lost.extend(missing.iter().map(|note| (note.part, note.position)));
                }
                Err(error) => tracing::debug!(%error, topic, "what was applied cannot be had"),
            }
        }
        if !kept.is_empty() {
            let deletes = acknowledged::delete_statements(topic, kept).join(";");
            let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
            session.run(&format!("BEGIN;{deletes};COMMIT"))?;
        }
        lost.extend(self.cut_short(ahead, reader, topic));
        Ok(lost)
    }

    /// Those of the partitions that have ended before these offsets for a while.
    fn cut_short(
        &mut self,
        ahead: BTreeMap<u32, u64>,
        reader: &LogReader,
        topic: &str,
    ) -> BTreeMap<u32, u64> {
        let asked: Vec<u32> = ahead.keys().copied().collect();
        let ends = match reader.ends(&asked) {
            Ok(ends) => ends,
            Err(error) => {
                tracing::debug!(%error, topic, "where the log ends cannot be had");
                return BTreeMap::new();
            }
        };
        let is_short = |part: &u32| {
            let (end, wanted) = (ends.get(part), ahead.get(part));
            end.zip(wanted).is_some_and(|(ends, wanted)| ends.end <= *wanted)
        };
        self.short.retain(|part, _| is_short(part));
        let since = |part: u32, short: &mut BTreeMap<u32, Instant>| {
            short.entry(part).or_insert_with(Instant::now).elapsed()
        };
        let short = asked.into_iter().filter(is_short);
        let stays = short.filter(|part| since(*part, &mut self.short) >= BEYOND_AFTER);
        stays.map(|part| (part, ahead[&part])).collect()
    }
}

/// Notes, by what is to be done with them.
#[derive(Default)]
struct Sorted {
    /// Their records were applied.
    kept: Vec<Note>,
    lost: BTreeMap<u32, u64>,
    /// What was applied in their place is not remembered: the log is asked, one of each partition at
    /// a time.
    unseen: BTreeMap<u32, Note>,
    /// The highest that are yet to be applied.
    ahead: BTreeMap<u32, u64>,
}

impl Sorted {
    fn take(&mut self, note: Note, at: &LogPosition, applied: Option<&Marks>) {
        let Note { part, position, mark, .. } = note;
        let is_of_log = note.topic.may_be(at.topic);
        if position >= at.next {
            if is_of_log {
                let highest = self.ahead.entry(part).or_default();
                *highest = position.max(*highest);
            }
            return;
        }
        let is_last = position + 1 == at.next && at.before.is_known();
        let found = match is_last {
            true => Some(at.before),
            false => applied.and_then(|marks| marks.at(position)),
        };
        match found {
            _ if !is_of_log => self.kept.push(note),
            Some(found) if found == mark => self.kept.push(note),
            Some(_) => {
                self.lost.insert(part, position);
            }
            None => {
                self.unseen.insert(part, note);
            }
        }
    }
}

/// Which of the notes' records the log has, and which it does not have; of the others it cannot be
/// told now.
fn look_back(
    shared: &ApplierShared,
    notes: &BTreeMap<u32, Note>,
) -> Result<(Vec<Note>, Vec<Note>), BrokerError> {
    let log = LookBack::open(&shared.kafka, &shared.place.topic)?;
    let wanted = notes.iter().map(|(part, note)| (*part, note.position)).collect();
    let marks = log.marks(&wanted)?;
    let told = notes.values().copied().filter(|note| marks.contains_key(&note.part));
    Ok(told.partition(|note| marks.get(&note.part) == Some(&note.mark)))
}

/// What records that follow one another look like; none where an offset has no record.
#[derive(Debug, Default)]
struct Marks {
    first: u64,
    marks: VecDeque<RecordMark>,
}

impl Marks {
    fn push(&mut self, offset: u64, mark: RecordMark) {
        let end = self.first + self.marks.len() as u64;
        let passed_over = offset.checked_sub(end).unwrap_or(u64::MAX);
        if self.marks.is_empty() || passed_over > MARKS_MAX as u64 {
            self.marks.clear();
            self.first = offset;
        } else {
            self.marks.extend((0..passed_over).map(|_| RecordMark::NONE));
        }
        self.marks.push_back(mark);
        while self.marks.len() > MARKS_MAX {
            self.marks.pop_front();
            self.first += 1;
        }
    }

    fn at(&self, offset: u64) -> Option<RecordMark> {
        let index = offset.checked_sub(self.first)?;
        self.marks.get(usize::try_from(index).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::TopicId;

    #[test]
    fn the_newest_marks_are_remembered_and_gaps_have_none() {
        let mut marks = Marks::default();
        for offset in [7, 8, 10] {
            marks.push(offset, RecordMark(offset as u32));
        }
        let found: Vec<_> = (6..12).map(|offset| marks.at(offset).map(|mark| mark.0)).collect();
        assert_eq!(found, [None, Some(7), Some(8), Some(0), Some(10), None]);
        for offset in 11..11 + MARKS_MAX as u64 {
            marks.push(offset, RecordMark(1));
        }
        assert_eq!((marks.first, marks.marks.len()), (11, MARKS_MAX));
        assert_eq!(marks.at(10), None);
        // It stands elsewhere.
        marks.push(3, RecordMark(3));
        assert_eq!((marks.at(3), marks.at(11)), (Some(RecordMark(3)), None));
    }

    #[test]
    fn notes_that_come_late_are_compared_all_the_same() {
        let topic = TopicId(1);
        let mut applied = Marks::default();
        applied.push(4, RecordMark(4));
        applied.push(5, RecordMark(5));
        let at = LogPosition { next: 7, topic, before: RecordMark(6) };
        let sorted = |position, mark, topic| {
            let mut sorted = Sorted::default();
            let mark = RecordMark(mark);
            sorted.take(Note { part: 0, writer: 1, position, topic, mark }, &at, Some(&applied));
            let Sorted { kept, lost, unseen, ahead } = sorted;
            (kept.len(), lost.len(), unseen.len(), ahead.len())
        };
        assert_eq!(sorted(4, 4, topic), (1, 0, 0, 0));
        assert_eq!(sorted(4, 9, topic), (0, 1, 0, 0), "another record stands there");
        assert_eq!(sorted(6, 6, topic), (1, 0, 0, 0), "the position tells of its record");
        assert_eq!(sorted(6, 9, topic), (0, 1, 0, 0));
        assert_eq!(sorted(3, 3, topic), (0, 0, 1, 0), "applied by another");
        assert_eq!(sorted(7, 7, topic), (0, 0, 0, 1));
        assert_eq!(sorted(4, 9, TopicId(2)), (1, 0, 0, 0), "it tells nothing of this topic");
        assert_eq!(sorted(7, 7, TopicId(2)), (0, 0, 0, 0));
    }
}
