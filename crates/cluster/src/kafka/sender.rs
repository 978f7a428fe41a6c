//! Sends values to given partitions and reports, for each, whether the broker has it for good.
//!
//! Idempotent, acknowledged by all replicas, in order within a partition as long as nothing fails.
//! A report of failure does not mean that the value is not there.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::lineage::{RecordMark, TopicId};
use super::topic_id::topic_id;
use super::{ASK_TIMEOUT, BrokerError, KafkaSettings, log_line, security, whole_wait};

/// Values that wait for the broker's word; more are refused with `Full`.
const QUEUE_VALUES_MAX: u32 = 100_000;
const QUEUE_KIBIBYTES_MAX: u32 = 64 * 1024;
/// How long values gather before they are sent; each batch costs the broker more than a value.
const LINGER_MS: u32 = 50;
/// With more than one request at a broker the driver begins to count anew after some errors without
/// a word, and a broker takes what begins a count whatever it has lost.
const REQUESTS_ON_WAY: u32 = 1;
/// After this a value is reported as failed, and its sender decides.
const DELIVERY_TIMEOUT_MS: u32 = 20_000;

/// The driver's poll takes all of its time, whatever comes, so it gets little of it.
const POLL: Duration = Duration::from_millis(5);

/// The broker's word about one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What the sender gave with the value.
    pub ticket: u64,
    /// Where it is, if the broker tells, or why it may not be there.
    pub outcome: Result<Option<Delivered>, BrokerError>,
}

/// A value that the broker has for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    pub partition: u32,
    pub offset: u64,
    pub mark: RecordMark,
}

/// A client that sends. The broker takes its values of a partition one batch after the other, each
/// only behind the one before it, or where it has none of this client there. So what a broker loses
/// of a client while it keeps some of it ends in an error. After a first error the client counts
/// anew, and nothing of this holds any more.
pub struct LogSender {
    producer: BaseProducer<Reports>,
}

impl LogSender {
    /// Makes the client; the broker need not be there yet.
    pub fn open(settings: &KafkaSettings) -> Result<LogSender, BrokerError> {
        let mut config = settings.client();
        config.set("enable.idempotence", "true");
        config.set("acks", "all");
        config.set("max.in.flight", REQUESTS_ON_WAY.to_string());
        config.set("queue.buffering.max.messages", QUEUE_VALUES_MAX.to_string());
        config.set("queue.buffering.max.kbytes", QUEUE_KIBIBYTES_MAX.to_string());
        config.set("linger.ms", LINGER_MS.to_string());
        config.set("message.timeout.ms", DELIVERY_TIMEOUT_MS.to_string());
        config.set("compression.type", "lz4");
        let producer = config.create_with_context(Reports::default())?;
        Ok(LogSender { producer })
    }

    /// Takes a value to be sent; `Ok(false)` when the queue is full: take reports, then try again.
    pub fn send(
        &self,
        topic: &str,
        partition: u32,
        key: Option<&str>,
        value: &[u8],
        ticket: u64,
    ) -> Result<bool, BrokerError> {
        let partition = i32::try_from(partition)
            .map_err(|_| BrokerError::Permanent(format!("there is no partition {partition}")))?;
        let record = BaseRecord::<str, [u8], usize>::with_opaque_to(topic, ticket as usize)
            .partition(partition)
            .payload(value);
        let record = match key {
            Some(key) => record.key(key),
            None => record,
        };
        match self.producer.send(record) {
            Ok(()) => Ok(true),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => Ok(false),
            Err((error, _)) => Err(error.into()),
        }
    }

    /// Reports since the last call; waits for the first up to `timeout`.
    pub fn reports(&self, timeout: Duration) -> Vec<Report> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.producer.poll(whole_wait(left.min(POLL)));
            let reports = std::mem::take(&mut *self.producer.context().0.lock());
            if !reports.is_empty() || left.is_zero() {
                return reports;
            }
        }
    }

    /// Which topic it is that has this name now.
    pub fn topic_id(&self, topic: &str) -> Result<TopicId, BrokerError> {
        topic_id(self.producer.client(), topic, ASK_TIMEOUT)
    }

    /// Whether this client will never send again and a new one must be made.
    pub fn is_broken(&self) -> bool {
        self.producer.client().fatal_error().is_some()
    }
}

impl std::fmt::Debug for LogSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogSender").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Reports(Mutex<Vec<Report>>);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        security::tell(&error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        let outcome = match result {
            Ok(message) => Ok(delivered(message)),
            Err((error, _)) => Err(BrokerError::from(error.clone())),
        };
        self.0.lock().push(Report { ticket: ticket as u64, outcome });
    }
}

/// None where a value was sent twice and the broker no longer knows where the first is.
fn delivered(message: &BorrowedMessage<'_>) -> Option<Delivered> {
    let partition = u32::try_from(message.partition()).ok()?;
    let offset = u64::try_from(message.offset()).ok()?;
    let value = message.payload().unwrap_or_default();
    let mark = RecordMark::of(value, message.timestamp().to_millis());
    Some(Delivered { partition, offset, mark })
}
