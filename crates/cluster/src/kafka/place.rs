//! Where a reader stands in one partition: which records it takes from there, and how it finds out
//! that the log is not the one that its position is of.

use std::time::Instant;

use rdkafka::message::{BorrowedMessage, Message as _};

use super::lineage::{LogPosition, RecordMark, TopicId};
use super::offsets::PartitionEnds;
use super::reader::{BEYOND_AFTER, ReadError, TakenRecord};

pub(super) struct ReaderPlace {
    pub position: LogPosition,
    before: Before,
    /// When it last gave something.
    pub heard: Instant,
    /// Since when it stands past the end.
    beyond: Option<Instant>,
    /// Why nothing comes any more, and whether that was told.
    pub lost: Option<(ReadError, bool)>,
    /// Whether the client fetches it.
    pub fetched: bool,
}

/// What is known of the record before the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It is fetched first, and must be the one that the position says.
    ToBeCompared,
    Compared,
    /// The log no longer has it, or never had one. Where the position knows it, the next record is
    /// taken only from a log that still begins there: one that begins before may be another.
    Gone,
}

/// What a look at the log's ends says of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// All that there is has come.
    AtEnd,
    /// The log has more than it gave.
    Stalled,
    Lost,
}

impl ReaderPlace {
    pub fn at(position: LogPosition) -> ReaderPlace {
        let before = if position.before.is_known() { Before::ToBeCompared } else { Before::Gone };
        let heard = Instant::now();
        ReaderPlace { position, before, heard, beyond: None, lost: None, fetched: true }
    }

    /// The offset to fetch from.
    pub fn begin(&self) -> u64 {
        match self.before {
            Before::ToBeCompared => self.position.next.saturating_sub(1),
            Before::Compared | Before::Gone => self.position.next,
        }
    }

    /// The same once it is doubted.
    pub fn begin_doubted(&self) -> u64 {
        match self.before {
            Before::ToBeCompared | Before::Compared => self.position.next.saturating_sub(1),
            Before::Gone => self.position.next,
        }
    }

    /// Another client fetches: what was known of the log may no longer be so.
    pub fn doubt(&mut self) {
        if self.before == Before::Compared {
            self.before = Before::ToBeCompared;
        }
        self.heard = Instant::now();
    }

    /// Whether the log's ends must be seen before the next record is taken.
    pub fn is_unproven(&self) -> bool {
        self.lost.is_none() && self.before == Before::Gone && self.position.before.is_known()
    }

    /// Whether a record that was fetched before these ends were seen is of the log that the position
    /// is of. One that is not is fetched again, with the one before it if there is one now.
    pub fn is_proven(&mut self, partition: u32, offset: u64, ends: PartitionEnds) -> bool {
        self.compare(partition, ends, Instant::now());
        self.is_unproven() && offset < ends.end
    }

    pub fn lose(&mut self, error: ReadError) {
        if self.lost.is_none() {
            self.lost = Some((error, false));
        }
    }

    /// The record, if it is the next one.
    pub fn meet(
        &mut self,
        partition: u32,
        offset: u64,
        message: &BorrowedMessage<'_>,
    ) -> Option<TakenRecord> {
        let begin = self.begin();
        // What was fetched before a change of places is of no use after it.
        if self.lost.is_some() || offset < begin {
            return None;
        }
        self.heard = Instant::now();
        self.beyond = None;
        let value = message.payload().unwrap_or_default();
        let mark = RecordMark::of(value, message.timestamp().to_millis());
        let from = self.position;
        if self.before == Before::ToBeCompared {
            match offset == begin && mark == from.before {
                true => self.before = Before::Compared,
                false => {
                    let cause = "the record before it is another: the log lost its end";
                    self.lose(ReadError::Broken { partition, wanted: from.next, cause });
                }
            }
            return None;
        }
        self.position = LogPosition { next: offset + 1, before: mark, ..from };
        self.before = Before::Compared;
        Some(TakenRecord { partition, offset, from, after: self.position, value: value.to_vec() })
    }

    /// The topic must be the one that the position says; learned if it says none.
    pub fn meet_topic(&mut self, partition: u32, found: TopicId) {
        if !self.position.topic.may_be(found) {
            let cause = "its topic was deleted and made anew";
            self.lose(ReadError::Broken { partition, wanted: self.position.next, cause });
        } else if found.is_known() {
            self.position.topic = found;
        }
    }

    pub fn compare(&mut self, partition: u32, ends: PartitionEnds, now: Instant) -> Compared {
        let (PartitionEnds { first, end }, wanted) = (ends, self.position.next);
        if wanted < first {
            self.lose(ReadError::Trimmed { partition, wanted, first });
            return Compared::Lost;
        }
        if wanted > end {
            // It stays unheard, and is looked at again.
            if self.beyond.get_or_insert(now).elapsed() < BEYOND_AFTER {
                return Compared::Stalled;
            }
            self.lose(ReadError::Beyond { partition, wanted, end });
            return Compared::Lost;
        }
        self.beyond = None;
        if wanted == first {
            self.before = Before::Gone;
        } else if self.is_unproven() {
            self.before = Before::ToBeCompared;
        }
        if wanted < end || self.before == Before::ToBeCompared {
            return Compared::Stalled;
        }
        self.heard = now;
        Compared::AtEnd
    }
}
