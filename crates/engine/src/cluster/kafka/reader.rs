//! Reads given partitions from given offsets, and tells where a partition begins and ends.
//!
//! A place that the log does not have is an error, never silently another place. A client that
//! has fallen silent (a broker's restart can do that) while the log has more is made anew.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use super::{ASK_TIMEOUT, KafkaSettings, LogError, Quiet, whole_wait};

/// A partition that gave nothing for this long is looked at: does the log have more?
const SILENT_AFTER: Duration = Duration::from_secs(4);
/// How long such a look may take in all.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one of many partitions may take to answer where any answer will do.
const ASK_ONE_TIMEOUT: Duration = Duration::from_millis(500);
/// So many looks in a row without an answer mean that the client itself may be at fault.
const LOOKS_FAILED_MAX: u32 = 3;
/// A place past the end must stay so for this long: after a restart a broker may, for a moment,
/// tell of an end that lies before what it has.
const BEYOND_AFTER: Duration = Duration::from_secs(5);
/// What a client fetches ahead; bounds its memory.
const AHEAD_KIBIBYTES_MAX: u32 = 16 * 1024;
/// What it fetches ahead of one partition. All partitions share one queue, first come first
/// served: more would let a storm in one of them hold up the others.
const AHEAD_RECORDS_MAX: u32 = 1_024;
/// How long it fetches no more of a partition that has them; the driver's own is a second, which a
/// short burst would then take longer.
const AHEAD_PAUSE_MS: u32 = 10;
/// What a fetch waits for at the broker, and how long: each costs the broker as much as dozens of
/// records, so a few large ones are better. How long is what a lone record waits at most.
const FETCH_BYTES_MIN: u32 = 64 * 1024;
const FETCH_WAIT_MS: u32 = 100;
/// What one answer brings of one partition, for the same reason.
const FETCH_BYTES_MAX: u32 = 256 * 1024;

/// Where a partition begins, and the offset that its next record will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    pub first: u64,
    pub end: u64,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub partition: u32,
    pub offset: u64,
    /// Empty when there is none.
    pub value: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// What was to be read next is no longer there.
    #[error("partition {partition} begins at {first}, {wanted} has been trimmed")]
    Trimmed { partition: u32, wanted: u64, first: u64 },
    /// What was to be read next never was: the log lost its end, or is another log.
    #[error("partition {partition} ends at {end}, before {wanted}")]
    Beyond { partition: u32, wanted: u64, end: u64 },
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Asks where partitions begin and end.
pub struct Offsets {
    consumer: BaseConsumer<Quiet>,
}

impl Offsets {
    pub fn open(settings: &KafkaSettings) -> Result<Offsets, LogError> {
        Ok(Offsets { consumer: client(settings)? })
    }

    pub fn of(&self, topic: &str, partition: u32) -> Result<Ends, LogError> {
        one(ends(&self.consumer, topic, &[partition], Instant::now() + ASK_TIMEOUT)?)
    }

    /// Of the partitions 0 to `partitions`, in their order.
    pub fn all(&self, topic: &str, partitions: u32) -> Result<Vec<Ends>, LogError> {
        let partitions: Vec<u32> = (0..partitions).collect();
        let ends = ends(&self.consumer, topic, &partitions, Instant::now() + ASK_TIMEOUT)?;
        Ok(ends.into_values().collect())
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

    /// The offsets that the next records of these partitions will have: a single question.
    pub fn next(&self, topic: &str, partitions: &[u32]) -> Result<BTreeMap<u32, u64>, LogError> {
        let deadline = Instant::now() + ASK_TIMEOUT;
        offsets(&self.consumer, topic, partitions, Offset::End, deadline)
    }
}

pub struct Reader {
    settings: KafkaSettings,
    topic: String,
    consumer: BaseConsumer<Quiet>,
    places: BTreeMap<u32, Place>,
    looked_at: Instant,
    looks_failed: u32,
    /// How often the client was made anew.
    renewals: u64,
}

struct Place {
    next: u64,
    /// When it last gave something.
    heard: Instant,
    /// Since when it stands past the end.
    beyond: Option<Instant>,
}

impl Reader {
    /// Begins to read these partitions, each from its offset.
    pub fn open(
        settings: &KafkaSettings,
        topic: &str,
        from: impl IntoIterator<Item = (u32, u64)>,
    ) -> Result<Reader, LogError> {
        let mut reader = Reader {
            settings: settings.clone(),
            topic: topic.to_owned(),
            consumer: client(settings)?,
            places: BTreeMap::new(),
            looked_at: Instant::now(),
            looks_failed: 0,
            renewals: 0,
        };
        reader.assign(from)?;
        Ok(reader)
    }

    /// Reads these partitions from now on, and no others. One that was read before and keeps its
    /// offset is not disturbed.
    pub fn assign(&mut self, from: impl IntoIterator<Item = (u32, u64)>) -> Result<(), LogError> {
        let wanted: BTreeMap<u32, u64> = from.into_iter().collect();
        let now = Instant::now();
        let kept = |part: &u32, place: &Place| wanted.get(part) == Some(&place.next);
        let gone: Vec<u32> = self
            .places
            .iter()
            .filter(|(part, place)| !kept(part, place))
            .map(|(part, _)| *part)
            .collect();
        if !gone.is_empty() {
            let mut list = TopicPartitionList::new();
            for part in &gone {
                self.places.remove(part);
                list.add_partition(&self.topic, index(*part)?);
            }
            self.consumer.incremental_unassign(&list)?;
        }
        let new: Vec<(u32, u64)> =
            wanted.into_iter().filter(|(part, _)| !self.places.contains_key(part)).collect();
        if !new.is_empty() {
            self.consumer.incremental_assign(&list(&self.topic, &new)?)?;
        }
        for (part, next) in new {
            self.places.insert(part, Place { next, heard: now, beyond: None });
        }
        Ok(())
    }

    /// Records as they come: waits up to `wait` for the first, then takes what is there, up to
    /// `records_max`. None is not the end.
    pub fn next(&mut self, records_max: usize, wait: Duration) -> Result<Vec<Taken>, ReadError> {
        let deadline = Instant::now() + wait;
        let mut taken = Vec::new();
        while taken.len() < records_max {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = if taken.is_empty() { left } else { Duration::ZERO };
            match self.consumer.poll(whole_wait(left)) {
                Some(Ok(message)) => {
                    let (part, offset) = (message.partition(), message.offset());
                    let (Ok(part), Ok(offset)) = (u32::try_from(part), u64::try_from(offset))
                    else {
                        continue;
                    };
                    // What was fetched before a change of places is of no use after it.
                    let Some(place) = self.places.get_mut(&part) else { continue };
                    if offset < place.next {
                        continue;
                    }
                    place.next = offset + 1;
                    place.heard = Instant::now();
                    place.beyond = None;
                    let value = message.payload().unwrap_or_default().to_vec();
                    taken.push(Taken { partition: part, offset, value });
                }
                Some(Err(error)) => {
                    if !taken.is_empty() {
                        tracing::debug!(%error, topic = self.topic, "reading the log");
                        self.looked_at = Instant::now() - SILENT_AFTER;
                        break;
                    }
                    self.failed(error, deadline)?;
                }
                // It may also have had something to do for itself.
                None if left.is_zero() => break,
                None => {}
            }
        }
        self.look()?;
        Ok(taken)
    }

    /// The next offset of each partition, by partition.
    pub fn places(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.places.iter().map(|(part, place)| (*part, place.next))
    }

    pub fn place(&self, partition: u32) -> Option<u64> {
        self.places.get(&partition).map(|place| place.next)
    }

    pub fn renewals(&self) -> u64 {
        self.renewals
    }

    pub fn ends(&self, partition: u32) -> Result<Ends, LogError> {
        one(ends(&self.consumer, &self.topic, &[partition], Instant::now() + ASK_TIMEOUT)?)
    }

    fn failed(&mut self, error: KafkaError, deadline: Instant) -> Result<(), ReadError> {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                let stalled = self.compare(true)?;
                if !stalled.is_empty() {
                    // This partition no longer fetches, whatever turns out to be the matter.
                    self.renew()?;
                }
                // Between two looks at a place past the end, and never in a tight loop.
                let pause = deadline.saturating_duration_since(Instant::now());
                std::thread::sleep(pause.min(Duration::from_millis(200)));
                Ok(())
            }
            _ => Err(LogError::from(error).into()),
        }
    }

    /// Looks, now and then, whether the log has more where nothing came.
    fn look(&mut self) -> Result<(), ReadError> {
        let now = Instant::now();
        if now.duration_since(self.looked_at) < SILENT_AFTER {
            return Ok(());
        }
        self.looked_at = now;
        match self.compare(false) {
            Ok(stalled) => {
                self.looks_failed = 0;
                if !stalled.is_empty() {
                    tracing::info!(
                        topic = self.topic,
                        partitions = ?stalled,
                        "the log has more but gives nothing; its client is made anew"
                    );
                    self.renew()?;
                }
                Ok(())
            }
            Err(ReadError::Log(error)) => {
                self.looks_failed += 1;
                tracing::debug!(%error, topic = self.topic, "where the log ends cannot be had");
                if self.looks_failed >= LOOKS_FAILED_MAX {
                    self.looks_failed = 0;
                    self.renew()?;
                }
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    /// Compares places with the log; returns the partitions that have more than they gave, or,
    /// when `all`, those that may no longer be fetched.
    fn compare(&mut self, all: bool) -> Result<Vec<u32>, ReadError> {
        let now = Instant::now();
        let is_asked = |place: &Place| all || now.duration_since(place.heard) >= SILENT_AFTER;
        let asked: Vec<u32> = self
            .places
            .iter()
            .filter(|(_, place)| is_asked(place))
            .map(|(partition, _)| *partition)
            .collect();
        let mut stalled = Vec::new();
        for (partition, ends) in ends(&self.consumer, &self.topic, &asked, now + LOOK_TIMEOUT)? {
            let Some(place) = self.places.get_mut(&partition) else { continue };
            let (Ends { first, end }, wanted) = (ends, place.next);
            if wanted < first {
                return Err(ReadError::Trimmed { partition, wanted, first });
            }
            if wanted > end {
                // It stays unheard, and is looked at again.
                if place.beyond.get_or_insert(now).elapsed() >= BEYOND_AFTER {
                    return Err(ReadError::Beyond { partition, wanted, end });
                }
                stalled.push(partition);
                continue;
            }
            place.beyond = None;
            if all || wanted < end {
                stalled.push(partition);
            } else {
                place.heard = now;
            }
        }
        Ok(stalled)
    }

    fn renew(&mut self) -> Result<(), LogError> {
        let places: Vec<(u32, u64)> = self.places().collect();
        let consumer = client(&self.settings)?;
        consumer.incremental_assign(&list(&self.topic, &places)?)?;
        self.consumer = consumer;
        self.renewals += 1;
        let now = Instant::now();
        self.looked_at = now;
        for place in self.places.values_mut() {
            place.heard = now;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Offsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offsets").finish_non_exhaustive()
    }
}

impl ConsumerContext for Quiet {}

fn client(settings: &KafkaSettings) -> Result<BaseConsumer<Quiet>, LogError> {
    let mut config = settings.client();
    // Asked for by the driver; nothing is ever joined or committed.
    config.set("group.id", "guanxi-reader");
    config.set("enable.auto.commit", "false");
    config.set("enable.auto.offset.store", "false");
    config.set("auto.offset.reset", "error");
    config.set("enable.partition.eof", "false");
    // A fetch that finds little waits at the broker; asking again and again would keep it busy.
    config.set("fetch.wait.max.ms", FETCH_WAIT_MS.to_string());
    config.set("fetch.min.bytes", FETCH_BYTES_MIN.to_string());
    config.set("fetch.error.backoff.ms", "100");
    config.set("fetch.queue.backoff.ms", AHEAD_PAUSE_MS.to_string());
    config.set("queued.min.messages", AHEAD_RECORDS_MAX.to_string());
    config.set("fetch.message.max.bytes", FETCH_BYTES_MAX.to_string());
    config.set("queued.max.messages.kbytes", AHEAD_KIBIBYTES_MAX.to_string());
    Ok(config.create_with_context(Quiet)?)
}

/// Where these partitions begin and end: two questions, however many they are.
fn ends(
    consumer: &BaseConsumer<Quiet>,
    topic: &str,
    partitions: &[u32],
    deadline: Instant,
) -> Result<BTreeMap<u32, Ends>, LogError> {
    let firsts = offsets(consumer, topic, partitions, Offset::Beginning, deadline)?;
    let ends = offsets(consumer, topic, partitions, Offset::End, deadline)?;
    let both = firsts.into_iter().zip(ends.into_values());
    Ok(both.map(|((partition, first), end)| (partition, Ends { first, end })).collect())
}

/// The offsets that one of the ends has in each of these partitions, all of them or an error.
fn offsets(
    consumer: &BaseConsumer<Quiet>,
    topic: &str,
    partitions: &[u32],
    which: Offset,
    deadline: Instant,
) -> Result<BTreeMap<u32, u64>, LogError> {
    if partitions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(LogError::Passing("the broker took too long to tell its offsets".into()));
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
        return Err(LogError::Passing("the broker does not tell its offsets".into()));
    }
    Ok(found)
}

fn one(ends: BTreeMap<u32, Ends>) -> Result<Ends, LogError> {
    let missing = || LogError::Passing("the broker does not tell its offsets".into());
    ends.into_values().next().ok_or_else(missing)
}

fn list(topic: &str, from: &[(u32, u64)]) -> Result<TopicPartitionList, LogError> {
    let mut list = TopicPartitionList::with_capacity(from.len());
    for (partition, next) in from {
        let next = i64::try_from(*next)
            .map_err(|_| LogError::Permanent(format!("there is no offset {next}")))?;
        list.add_partition_offset(topic, index(*partition)?, Offset::Offset(next))?;
    }
    Ok(list)
}

fn index(partition: u32) -> Result<i32, LogError> {
    i32::try_from(partition)
        .map_err(|_| LogError::Permanent(format!("there is no partition {partition}")))
}
