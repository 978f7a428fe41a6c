//! Where partitions begin and end, and of which topic they are.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::lineage::TopicId;
use super::reader::client;
use super::topic_id::topic_id;
use super::{ASK_TIMEOUT, BrokerError, KafkaSettings, Quiet};

/// How long one of many partitions may take to answer where any answer will do.
const ASK_ONE_TIMEOUT: Duration = Duration::from_millis(500);
/// Between two looks whether a new topic's partitions have leaders.
const LEADER_PAUSE: Duration = Duration::from_millis(100);

/// Where a partition begins, and the offset that its next record will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionEnds {
    pub first: u64,
    pub end: u64,
}

/// Asks where partitions begin and end.
pub struct Offsets {
    consumer: BaseConsumer<Quiet>,
}

impl Offsets {
    pub fn open(settings: &KafkaSettings) -> Result<Offsets, BrokerError> {
        Ok(Offsets { consumer: client(settings)? })
    }

    pub fn of(&self, topic: &str, partition: u32) -> Result<PartitionEnds, BrokerError> {
        one(ends(&self.consumer, topic, &[partition], Instant::now() + ASK_TIMEOUT)?)
    }

    /// Of the partitions 0 to `partitions`, in their order.
    pub fn all(&self, topic: &str, partitions: u32) -> Result<Vec<PartitionEnds>, BrokerError> {
        let partitions: Vec<u32> = (0..partitions).collect();
        let ends = ends(&self.consumer, topic, &partitions, Instant::now() + ASK_TIMEOUT)?;
        Ok(ends.into_values().collect())
    }

    /// The same of a topic that may have been made a moment ago: its partitions have no leader yet,
    /// so what may pass is waited for.
    pub fn all_of_new(
        &self,
        topic: &str,
        partitions: u32,
    ) -> Result<Vec<PartitionEnds>, BrokerError> {
        let deadline = Instant::now() + ASK_TIMEOUT;
        loop {
            match self.all(topic, partitions) {
                Err(error) if error.may_pass() && Instant::now() < deadline => {
                    thread::sleep(LEADER_PAUSE);
                }
                found => return found,
            }
        }
    }

    /// Whether any partition's leader answers. One without a leader holds up the question for all
    /// of them, so each is asked by itself.
    pub fn any_answers(&self, topic: &str, partitions: u32) -> bool {
        let deadline = Instant::now() + ASK_TIMEOUT;
        (0..partitions).any(|partition| {
            let until = deadline.min(Instant::now() + ASK_ONE_TIMEOUT);
            offsets(&self.consumer, topic, &[partition], Offset::End, until).is_ok()
        })
    }

    /// Which topic it is that has this name now. To be asked before its offsets, which then are of
    /// this topic or of a later one.
    pub fn topic_id(&self, topic: &str) -> Result<TopicId, BrokerError> {
        topic_id(self.consumer.client(), topic, ASK_TIMEOUT)
    }

    /// The offsets that the next records of these partitions will have: a single question.
    pub fn next(&self, topic: &str, partitions: &[u32]) -> Result<BTreeMap<u32, u64>, BrokerError> {
        let deadline = Instant::now() + ASK_TIMEOUT;
        offsets(&self.consumer, topic, partitions, Offset::End, deadline)
    }
}

impl std::fmt::Debug for Offsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offsets").finish_non_exhaustive()
    }
}

/// Where these partitions begin and end: two questions, however many they are.
pub(super) fn ends(
    consumer: &BaseConsumer<Quiet>,
    topic: &str,
    partitions: &[u32],
    deadline: Instant,
) -> Result<BTreeMap<u32, PartitionEnds>, BrokerError> {
    let firsts = offsets(consumer, topic, partitions, Offset::Beginning, deadline)?;
    let ends = offsets(consumer, topic, partitions, Offset::End, deadline)?;
    let both = firsts.into_iter().zip(ends.into_values());
    Ok(both.map(|((partition, first), end)| (partition, PartitionEnds { first, end })).collect())
}

/// The offsets that one of the ends has in each of these partitions, all of them or an error.
fn offsets(
    consumer: &BaseConsumer<Quiet>,
    topic: &str,
    partitions: &[u32],
    which: Offset,
    deadline: Instant,
) -> Result<BTreeMap<u32, u64>, BrokerError> {
    if partitions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(BrokerError::Passing("the broker took too long to tell its offsets".into()));
    }
    let mut asked = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        asked.add_partition_offset(topic, index(*partition)?, which)?;
    }
    // An end in the place of a time asks for that end.
    let told = consumer.offsets_for_times(asked, left)?;
    let mut found = BTreeMap::new();
    for partition in told.elements() {
        partition.error()?;
        let Offset::Offset(offset) = partition.offset() else { continue };
        if let (Ok(number), Ok(offset)) =
            (u32::try_from(partition.partition()), u64::try_from(offset))
        {
            found.insert(number, offset);
        }
    }
    if found.len() != partitions.len() {
        return Err(BrokerError::Passing("the broker does not tell its offsets".into()));
    }
    Ok(found)
}

pub(super) fn one(ends: BTreeMap<u32, PartitionEnds>) -> Result<PartitionEnds, BrokerError> {
    let missing = || BrokerError::Passing("the broker does not tell its offsets".into());
    ends.into_values().next().ok_or_else(missing)
}

pub(super) fn index(partition: u32) -> Result<i32, BrokerError> {
    i32::try_from(partition)
        .map_err(|_| BrokerError::Permanent(format!("there is no partition {partition}")))
}
