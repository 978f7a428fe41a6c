//! Reads single records again, far from where a reader stands, to see whether they are still the ones
//! that they were.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;

use super::lineage::RecordMark;
use super::offsets::{PartitionEnds, ends, one};
use super::reader::{client, list};
use super::{BrokerError, KafkaSettings, Quiet, whole_wait};

/// How long one look may take, of however many partitions: their ends, those of one of them, and the
/// records. Whoever looks has its own partitions to read meanwhile.
const ENDS_TIMEOUT: Duration = Duration::from_secs(2);
const ENDS_OF_ONE_TIMEOUT: Duration = Duration::from_millis(500);
const RECORDS_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct LookBack {
    topic: String,
    consumer: BaseConsumer<Quiet>,
}

impl LookBack {
    pub fn open(settings: &KafkaSettings, topic: &str) -> Result<LookBack, BrokerError> {
        Ok(LookBack { topic: topic.to_owned(), consumer: client(settings)? })
    }

    /// What the records at these offsets look like, one of each partition; none where there is none,
    /// not yet or no longer. A partition whose leader does not answer has no entry, and holds up none
    /// of the others.
    pub fn marks(
        &self,
        wanted: &BTreeMap<u32, u64>,
    ) -> Result<BTreeMap<u32, RecordMark>, BrokerError> {
        let mut marks = BTreeMap::new();
        let mut left = BTreeMap::new();
        for (part, ends) in self.ends(wanted) {
            match wanted.get(&part) {
                Some(offset) if (ends.first..ends.end).contains(offset) => {
                    left.insert(part, *offset);
                }
                _ => drop(marks.insert(part, RecordMark::NONE)),
            }
        }
        let begins = left.iter().map(|(part, offset)| (*part, *offset));
        self.consumer.assign(&list(&self.topic, begins)?)?;
        let deadline = Instant::now() + RECORDS_TIMEOUT;
        while !left.is_empty() {
            let wait = deadline.saturating_duration_since(Instant::now());
            let message = match self.consumer.poll(whole_wait(wait)) {
                Some(Ok(message)) => message,
                // One of the partitions, or the time is over.
                Some(Err(_)) if !wait.is_zero() => continue,
                Some(Err(_)) | None => break,
            };
            let (Ok(part), Ok(offset)) =
                (u32::try_from(message.partition()), u64::try_from(message.offset()))
            else {
                continue;
            };
            let Some(asked) = left.get(&part) else { continue };
            if offset < *asked {
                continue;
            }
            let is_asked = offset == *asked;
            let value = message.payload().unwrap_or_default();
            let mark = RecordMark::of(value, message.timestamp().to_millis());
            marks.insert(part, if is_asked { mark } else { RecordMark::NONE });
            left.remove(&part);
        }
        Ok(marks)
    }

    /// Each partition is asked by itself, and another one first each time, so that none is never come
    /// to.
    fn ends(&self, wanted: &BTreeMap<u32, u64>) -> Vec<(u32, PartitionEnds)> {
        let deadline = Instant::now() + ENDS_TIMEOUT;
        let mut partitions: Vec<u32> = wanted.keys().copied().collect();
        fastrand::shuffle(&mut partitions);
        let told = |part: &u32| {
            let until = deadline.min(Instant::now() + ENDS_OF_ONE_TIMEOUT);
            one(ends(&self.consumer, &self.topic, &[*part], until).ok()?).ok()
        };
        partitions.iter().filter_map(|part| Some((*part, told(part)?))).collect()
    }
}
