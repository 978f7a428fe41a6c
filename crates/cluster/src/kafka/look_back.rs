//! Reads single records again, far from where a reader stands, to see whether they are still the ones
//! that they were.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;

use super::lineage::RecordMark;
use super::offsets::ends;
use super::reader::{client, list};
use super::{ASK_TIMEOUT, BrokerError, KafkaSettings, Quiet, whole_wait};

/// How long one look may take, of whatever many partitions.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct LookBack {
    topic: String,
    consumer: BaseConsumer<Quiet>,
}

impl LookBack {
    pub fn open(settings: &KafkaSettings, topic: &str) -> Result<LookBack, BrokerError> {
        Ok(LookBack { topic: topic.to_owned(), consumer: client(settings)? })
    }

    /// What the records at these offsets look like, one of each partition; none where there is none,
    /// not yet or no longer.
    pub fn marks(
        &self,
        wanted: &BTreeMap<u32, u64>,
    ) -> Result<BTreeMap<u32, RecordMark>, BrokerError> {
        let partitions: Vec<u32> = wanted.keys().copied().collect();
        let ends = ends(&self.consumer, &self.topic, &partitions, Instant::now() + ASK_TIMEOUT)?;
        let is_there = |part: u32, offset: u64| {
            ends.get(&part).is_some_and(|ends| (ends.first..ends.end).contains(&offset))
        };
        let mut marks: BTreeMap<u32, RecordMark> =
            partitions.iter().map(|part| (*part, RecordMark::NONE)).collect();
        let mut left = wanted.clone();
        left.retain(|part, offset| is_there(*part, *offset));
        let begins = left.iter().map(|(part, offset)| (*part, *offset));
        self.consumer.assign(&list(&self.topic, begins)?)?;
        let deadline = Instant::now() + LOOK_TIMEOUT;
        while !left.is_empty() {
            let wait = deadline.saturating_duration_since(Instant::now());
            let Some(message) = self.consumer.poll(whole_wait(wait)).transpose()? else {
                let cause = "the broker took too long to give a record again";
                return Err(BrokerError::Passing(cause.into()));
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
            if offset == *asked {
                let value = message.payload().unwrap_or_default();
                marks.insert(part, RecordMark::of(value, message.timestamp().to_millis()));
            }
            left.remove(&part);
        }
        Ok(marks)
    }
}
