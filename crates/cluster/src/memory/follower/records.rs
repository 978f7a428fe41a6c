//! The records that the follower has read and not looked at yet: of every log that is applied, in the
//! order of each partition, no further than the appliers have come.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use guanxi_model::EdgeKey;

use super::positions::{Positions, TopicPartition};
use crate::applier::{LogKind, read_value};
use crate::kafka::{BrokerError, KafkaSettings, LogPosition, LogReader, ReadError};

/// Records that wait at most, of all partitions.
const WAITING_MAX: usize = 65_536;
/// Records of one reading.
const BATCH_RECORDS_MAX: usize = 2_048;
/// How long a turn may gather.
const GATHER_MAX: Duration = Duration::from_secs(2);
/// How long it waits for the next record at a time.
const POLL_WAIT: Duration = Duration::from_millis(50);

/// A topic whose records are applied, and how to read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedLog {
    pub topic: String,
    pub source: LogKind,
    pub partitions: u32,
}

impl FollowedLog {
    pub(super) fn places(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        (0..self.partitions).map(|partition| (self.topic.clone(), partition))
    }
}

#[derive(Debug)]
pub(super) struct Records {
    readers: Vec<(FollowedLog, LogReader)>,
    /// Each with the position before it.
    waiting: BTreeMap<TopicPartition, VecDeque<(LogPosition, EdgeKey)>>,
    count: usize,
}

impl Records {
    pub fn open(
        kafka: &KafkaSettings,
        logs: &[FollowedLog],
        from: &Positions,
    ) -> Result<Records, BrokerError> {
        let mut readers = Vec::new();
        for log in logs {
            let next =
                |place: TopicPartition| (place.1, from.get(&place).copied().unwrap_or_default());
            let reader = LogReader::open(kafka, &log.topic, log.places().map(next))?;
            readers.push((log.clone(), reader));
        }
        Ok(Records { readers, waiting: BTreeMap::new(), count: 0 })
    }

    /// Reads on until everything that was applied is here, or enough is.
    pub fn gather(&mut self, applied: &Positions) -> Result<(), ReadError> {
        let until = Instant::now() + GATHER_MAX;
        for (log, reader) in &mut self.readers {
            // At least once, so that the client is heard when it has something to say.
            while self.count < WAITING_MAX {
                for taken in reader.next(BATCH_RECORDS_MAX, POLL_WAIT)? {
                    let (item, _) = read_value(log.source, &taken.value);
                    if let Some(edge) = item.edge() {
                        let place = (log.topic.clone(), taken.partition);
                        self.waiting.entry(place).or_default().push_back((taken.from, edge));
                        self.count += 1;
                    }
                }
                if !is_behind(log, reader, applied) || Instant::now() >= until {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Where the log does not have what follows, or is another.
    pub fn lost(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        let of = |(log, reader): &'_ (FollowedLog, LogReader)| -> Vec<TopicPartition> {
            reader.lost().map(|(partition, _)| (log.topic.clone(), partition)).collect()
        };
        self.readers.iter().flat_map(of)
    }

    /// Whether something was applied that was not read.
    pub fn is_behind(&self, applied: &Positions) -> bool {
        self.readers.iter().any(|(log, reader)| is_behind(log, reader, applied))
    }

    /// Hands over the edges of what was applied, and how far that goes. `take` says whether it has
    /// room for more.
    pub fn take_applied(
        &mut self,
        applied: &Positions,
        mut take: impl FnMut(EdgeKey) -> bool,
    ) -> Positions {
        let mut reached = Positions::new();
        for (log, reader) in &self.readers {
            for place in log.places() {
                let limit = applied.get(&place).copied().unwrap_or_default();
                let read = reader.place(place.1).unwrap_or_default();
                let mut next = if read.next <= limit.next { read } else { limit };
                if let Some(waiting) = self.waiting.get_mut(&place) {
                    while let Some((from, edge)) = waiting.front().copied() {
                        if from.next >= limit.next {
                            break;
                        }
                        if !take(edge) {
                            next = from;
                            break;
                        }
                        waiting.pop_front();
                        self.count -= 1;
                    }
                }
                reached.insert(place, next);
            }
        }
        reached
    }
}

fn is_behind(log: &FollowedLog, reader: &LogReader, applied: &Positions) -> bool {
    let next = |position: LogPosition| position.next;
    log.places()
        .any(|place| reader.place(place.1).map(next) < applied.get(&place).copied().map(next))
}
