//! Reads given partitions from given positions.
//!
//! A place that the log does not have, or that is of another log, is an error, never silently
//! another place; and what was taken is never forgotten for an error. A client that has fallen
//! silent (a broker's restart can do that) while the log has more is made anew.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use super::lineage::LogPosition;
use super::offsets::{PartitionEnds, ends, index, one};
use super::place::{Compared, ReaderPlace};
use super::topic_id::topic_id;
use super::{ASK_TIMEOUT, BrokerError, KafkaSettings, Quiet, whole_wait};

/// A partition that gave nothing for this long is looked at: does the log have more? As often it is
/// asked whether the topic is still the same.
const SILENT_AFTER: Duration = Duration::from_secs(4);
/// How long such a look may take in all.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// So many looks in a row without an answer mean that the client itself may be at fault.
const LOOKS_FAILED_MAX: u32 = 3;
/// A place past the end must stay so for this long: after a restart a broker may, for a moment,
/// tell of an end that lies before what it has.
pub(crate) const BEYOND_AFTER: Duration = Duration::from_secs(5);
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

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenRecord {
    pub partition: u32,
    pub offset: u64,
    /// Where its reader stood before it. Offsets may be missing between the two, records never.
    pub from: LogPosition,
    pub after: LogPosition,
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
    /// The log is not the one that the position is of, however far it goes.
    #[error("partition {partition} has another history before {wanted}: {cause}")]
    Broken { partition: u32, wanted: u64, cause: &'static str },
    #[error(transparent)]
    Log(#[from] BrokerError),
}

pub struct LogReader {
    settings: KafkaSettings,
    topic: String,
    consumer: BaseConsumer<Quiet>,
    places: BTreeMap<u32, ReaderPlace>,
    /// Whether all places were held against the topic's id.
    topic_seen: bool,
    /// What the client said when something had been taken already.
    stumbled: Option<KafkaError>,
    /// What went wrong and was not told yet.
    failed: Option<BrokerError>,
    looked_at: Instant,
    looks_failed: u32,
    /// How often the client was made anew.
    renewals: u64,
    /// What came was not taken, or is doubted: the client is made anew before more is taken.
    is_due_anew: bool,
}

impl LogReader {
    /// Begins to read these partitions, each from its position.
    pub fn open(
        settings: &KafkaSettings,
        topic: &str,
        from: impl IntoIterator<Item = (u32, impl Into<LogPosition>)>,
    ) -> Result<LogReader, BrokerError> {
        let mut reader = LogReader {
            settings: settings.clone(),
            topic: topic.to_owned(),
            consumer: client(settings)?,
            places: BTreeMap::new(),
            topic_seen: false,
            stumbled: None,
            failed: None,
            looked_at: Instant::now(),
            looks_failed: 0,
            renewals: 0,
            is_due_anew: false,
        };
        reader.assign(from)?;
        Ok(reader)
    }

    /// Reads these partitions from now on, and no others. One that was read before and keeps its
    /// position is not disturbed.
    pub fn assign(
        &mut self,
        from: impl IntoIterator<Item = (u32, impl Into<LogPosition>)>,
    ) -> Result<(), BrokerError> {
        let wanted: BTreeMap<u32, LogPosition> =
            from.into_iter().map(|(part, from)| (part, from.into())).collect();
        let kept = |part: &u32, place: &ReaderPlace| {
            let continued = |from: &LogPosition| from.is_continued_by(&place.position);
            place.lost.is_none() && wanted.get(part).is_some_and(continued)
        };
        let gone: Vec<u32> = self
            .places
            .iter()
            .filter(|(part, place)| !kept(part, place))
            .map(|(part, _)| *part)
            .collect();
        let fetched: Vec<u32> =
            gone.iter().copied().filter(|part| self.is_fetched(*part)).collect();
        for part in &gone {
            self.places.remove(part);
        }
        self.fetch_no_more(&fetched)?;
        let new: BTreeMap<u32, ReaderPlace> = wanted
            .into_iter()
            .filter(|(part, _)| !self.places.contains_key(part))
            .map(|(part, from)| (part, ReaderPlace::at(from)))
            .collect();
        if !new.is_empty() {
            let begins = new.iter().map(|(part, place)| (*part, place.begin()));
            self.consumer.incremental_assign(&list(&self.topic, begins)?)?;
            self.topic_seen = false;
        }
        self.places.extend(new);
        Ok(())
    }

    /// Records as they come: waits up to `wait` for the first, then takes what is there, up to
    /// `records_max`. None is not the end. Whatever goes wrong, what was taken is returned, and the
    /// error by the next call. A partition that is lost gives nothing more, and is told of again
    /// and again until it is assigned anew; the others go on.
    pub fn next(
        &mut self,
        records_max: usize,
        wait: Duration,
    ) -> Result<Vec<TakenRecord>, ReadError> {
        let deadline = Instant::now() + wait;
        self.leave_lost()?;
        if let Some(error) = self.stumbled.take() {
            self.stumble(error, deadline);
        }
        if !self.topic_seen && self.failed.is_none() {
            self.look_at_topic()?;
        }
        if let Some(error) = self.untold() {
            return Err(error);
        }
        let taken = self.take(records_max, deadline);
        self.look();
        match taken.is_empty().then(|| self.untold()).flatten() {
            Some(error) => Err(error),
            None => Ok(taken),
        }
    }

    /// Where it stands in a partition.
    pub fn place(&self, partition: u32) -> Option<LogPosition> {
        self.places.get(&partition).map(|place| place.position)
    }

    /// The partitions that give nothing more, and why.
    pub fn lost(&self) -> impl Iterator<Item = (u32, &ReadError)> {
        self.places.iter().filter_map(|(part, place)| Some((*part, &place.lost.as_ref()?.0)))
    }

    pub fn renewals(&self) -> u64 {
        self.renewals
    }

    /// The position at which a partition begins.
    pub fn beginning(&self, partition: u32) -> Result<LogPosition, BrokerError> {
        // First, so that the offset is of this topic, or the position is found to be broken.
        let topic = topic_id(self.consumer.client(), &self.topic, ASK_TIMEOUT)?;
        let deadline = Instant::now() + ASK_TIMEOUT;
        let ends = one(ends(&self.consumer, &self.topic, &[partition], deadline)?)?;
        Ok(LogPosition::at(ends.first, topic))
    }

    /// Where these partitions begin and end now.
    pub fn ends(&self, partitions: &[u32]) -> Result<BTreeMap<u32, PartitionEnds>, BrokerError> {
        ends(&self.consumer, &self.topic, partitions, Instant::now() + LOOK_TIMEOUT)
    }

    fn take(&mut self, records_max: usize, deadline: Instant) -> Vec<TakenRecord> {
        let mut taken = Vec::new();
        if self.is_due_anew
            && let Err(error) = self.renew()
        {
            self.failed = Some(error);
        }
        while taken.len() < records_max && !self.has_untold() {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = if taken.is_empty() { left } else { Duration::ZERO };
            match self.consumer.poll(whole_wait(left)) {
                Some(Ok(message)) => {
                    let (part, offset) = (message.partition(), message.offset());
                    let (Ok(part), Ok(offset)) = (u32::try_from(part), u64::try_from(offset))
                    else {
                        continue;
                    };
                    let Some(place) = self.places.get_mut(&part) else { continue };
                    if place.is_unproven() && offset >= place.begin() {
                        let until = Instant::now() + LOOK_TIMEOUT;
                        let proven = ends(&self.consumer, &self.topic, &[part], until)
                            .and_then(one)
                            .map(|ends| place.is_proven(part, offset, ends));
                        if !matches!(proven, Ok(true)) {
                            self.failed = proven.err();
                            self.is_due_anew = true;
                            break;
                        }
                    }
                    taken.extend(place.meet(part, offset, &message));
                }
                Some(Err(error)) if taken.is_empty() => self.stumble(error, deadline),
                Some(Err(error)) => {
                    self.stumbled = Some(error);
                    break;
                }
                // It may also have had something to do for itself.
                None if left.is_zero() => break,
                None => {}
            }
        }
        taken
    }

    fn has_untold(&self) -> bool {
        let is_untold = |place: &ReaderPlace| matches!(place.lost, Some((_, false)));
        self.failed.is_some() || self.places.values().any(is_untold)
    }

    /// What went wrong and was not told yet.
    fn untold(&mut self) -> Option<ReadError> {
        if let Some(error) = self.failed.take() {
            return Some(error.into());
        }
        self.places.values_mut().find_map(|place| {
            let (error, told) = place.lost.as_mut()?;
            (!std::mem::replace(told, true)).then(|| error.clone())
        })
    }

    fn is_fetched(&self, partition: u32) -> bool {
        self.places.get(&partition).is_some_and(|place| place.fetched)
    }

    fn leave_lost(&mut self) -> Result<(), BrokerError> {
        let lost: Vec<u32> =
            self.lost().map(|(part, _)| part).filter(|part| self.is_fetched(*part)).collect();
        for part in &lost {
            if let Some(place) = self.places.get_mut(part) {
                place.fetched = false;
            }
        }
        self.fetch_no_more(&lost)
    }

    fn fetch_no_more(&mut self, partitions: &[u32]) -> Result<(), BrokerError> {
        if partitions.is_empty() {
            return Ok(());
        }
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for part in partitions {
            list.add_partition(&self.topic, index(*part)?);
        }
        Ok(self.consumer.incremental_unassign(&list)?)
    }

    /// Notes an error of the client, which does not say whose it is.
    fn stumble(&mut self, error: KafkaError, deadline: Instant) {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                let lost = self.lost().count();
                let compared = self.compare(true).and_then(|_| match self.lost().count() == lost {
                    // Some partition no longer fetches, whatever turns out to be the matter.
                    true => self.renew(),
                    false => Ok(()),
                });
                self.failed = compared.err();
                // Between two looks at a place past the end, and never in a tight loop.
                let pause = deadline.saturating_duration_since(Instant::now());
                std::thread::sleep(pause.min(Duration::from_millis(200)));
            }
            _ => self.failed = Some(error.into()),
        }
    }

    /// Looks, now and then, whether it is the same topic, and whether the log has more where
    /// nothing came.
    fn look(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked_at) < SILENT_AFTER {
            return;
        }
        self.looked_at = now;
        for (_, told) in self.places.values_mut().filter_map(|place| place.lost.as_mut()) {
            *told = false;
        }
        let renewed = match self.look_at_topic().and_then(|()| self.compare(false)) {
            Ok(stalled) => {
                self.looks_failed = 0;
                if stalled.is_empty() {
                    return;
                }
                tracing::info!(
                    topic = self.topic,
                    partitions = ?stalled,
                    "the log has more but gives nothing; its client is made anew"
                );
                self.renew()
            }
            Err(error) => {
                self.looks_failed += 1;
                tracing::debug!(%error, topic = self.topic, "where the log ends cannot be had");
                if self.looks_failed < LOOKS_FAILED_MAX {
                    return;
                }
                self.looks_failed = 0;
                self.renew()
            }
        };
        if let Err(error) = renewed {
            self.failed = Some(error);
        }
    }

    /// Asks which topic it is now; places of another are lost.
    pub fn look_at_topic(&mut self) -> Result<(), BrokerError> {
        let found = topic_id(self.consumer.client(), &self.topic, LOOK_TIMEOUT)?;
        self.topic_seen = true;
        for (part, place) in &mut self.places {
            place.meet_topic(*part, found);
        }
        Ok(())
    }

    /// Compares places with the log, all or those that fell silent; returns the partitions that
    /// have more than they gave.
    fn compare(&mut self, all: bool) -> Result<Vec<u32>, BrokerError> {
        let now = Instant::now();
        let is_asked = |place: &ReaderPlace| {
            let silent = now.duration_since(place.heard) >= SILENT_AFTER;
            place.lost.is_none() && (all || silent)
        };
        let asked: Vec<u32> = self
            .places
            .iter()
            .filter(|(_, place)| is_asked(place))
            .map(|(partition, _)| *partition)
            .collect();
        let mut stalled = Vec::new();
        for (partition, ends) in ends(&self.consumer, &self.topic, &asked, now + LOOK_TIMEOUT)? {
            let Some(place) = self.places.get_mut(&partition) else { continue };
            if place.compare(partition, ends, now) == Compared::Stalled {
                stalled.push(partition);
            }
        }
        Ok(stalled)
    }

    fn renew(&mut self) -> Result<(), BrokerError> {
        // Tried again if it fails: a place may already be one that another client must begin.
        self.is_due_anew = true;
        let consumer = client(&self.settings)?;
        let fetched = self.places.iter().filter(|(_, place)| place.lost.is_none());
        let begins = fetched.map(|(part, place)| (*part, place.begin_doubted()));
        consumer.incremental_assign(&list(&self.topic, begins)?)?;
        for place in self.places.values_mut() {
            place.doubt();
            place.fetched = place.lost.is_none();
        }
        self.consumer = consumer;
        self.topic_seen = false;
        self.renewals += 1;
        self.is_due_anew = false;
        self.looked_at = Instant::now();
        Ok(())
    }
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl ConsumerContext for Quiet {}

pub(super) fn client(settings: &KafkaSettings) -> Result<BaseConsumer<Quiet>, BrokerError> {
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

/// Partitions, each from the offset where it begins.
pub(super) fn list(
    topic: &str,
    begins: impl Iterator<Item = (u32, u64)>,
) -> Result<TopicPartitionList, BrokerError> {
    let mut list = TopicPartitionList::new();
    for (partition, begin) in begins {
        let begin = i64::try_from(begin)
            .map_err(|_| BrokerError::Permanent(format!("there is no offset {begin}")))?;
        list.add_partition_offset(topic, index(partition)?, Offset::Offset(begin))?;
    }
    Ok(list)
}
