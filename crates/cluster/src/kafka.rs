//! The broker, as far as the cluster needs it: settings, what an error means, and the clients that
//! send (`sender`), read (`reader`), read single records again (`look_back`), ask where the log ends (`offsets`) and create topics
//! (`topics`). Nothing here knows what a value says.
//!
//! Everything blocks and is called from threads that may. The text of an error is the driver's:
//! for our log, never for a caller.

mod end;
mod lineage;
mod look_back;
mod offsets;
mod place;
mod reader;
mod retention;
mod security;
mod sender;
mod topic_id;
mod topics;

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

pub use end::end_positions;
pub use lineage::{LogPosition, RecordMark, TopicId};
pub(crate) use look_back::LookBack;
pub use offsets::{Offsets, PartitionEnds};
pub(crate) use reader::BEYOND_AFTER;
pub use reader::{LogReader, ReadError, TakenRecord};
pub(crate) use retention::longest_retention;
pub use security::{BUILT_WITH_TLS, KafkaLogin, KafkaSecurity, KafkaTls, SaslMechanism};
pub use sender::{Delivered, LogSender, Report};
pub use topics::{TopicError, check_topics, create_topics};

/// How long a question to the broker may take, unless its caller says otherwise.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Beyond whole milliseconds a wait of the driver may take this long.
const WAIT_SLACK: Duration = Duration::from_micros(20);

/// What to tell the driver to wait for: it waits whole milliseconds only, rounded down, and spins
/// through the rest. With a little more than whole ones there is no rest when it wakes.
fn whole_wait(wait: Duration) -> Duration {
    if wait.is_zero() {
        return wait;
    }
    let whole = wait.as_micros().div_ceil(1_000);
    Duration::from_millis(u64::try_from(whole).unwrap_or(u64::MAX)) + WAIT_SLACK
}

/// Where the log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSettings {
    pub brokers: String,
    pub topic: String,
    pub dead_letter_topic: String,
    /// Divides the shards of the outbox.
    pub partitions: u32,
    pub security: KafkaSecurity,
}

impl KafkaSettings {
    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config.set("client.id", "guanxi");
        // A hung broker is left after this, not after a minute.
        config.set("socket.timeout.ms", "10000");
        config.set("socket.nagle.disable", "true");
        config.set("reconnect.backoff.max.ms", "1000");
        config.set("log.connection.close", "false");
        // A producer's own default is to let the broker make a topic that it misses, with whatever
        // shape; ours are made by `migrate` alone.
        config.set("allow.auto.create.topics", "false");
        self.security.set(&mut config);
        config
    }
}

/// What went wrong, by what may be done about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// It may go well later, without anyone's doing.
    #[error("the log's broker is not to be had now: {0}")]
    Passing(String),
    /// It will go wrong again until someone changes something: a missing topic, a refused login,
    /// a value too large.
    #[error("the log's broker refuses: {0}")]
    Permanent(String),
}

impl BrokerError {
    pub fn may_pass(&self) -> bool {
        matches!(self, BrokerError::Passing(_))
    }
}

/// Codes that no waiting changes. Everything else is worth another try: most of librdkafka's codes
/// are about brokers that come and go.
const PERMANENT: [RDKafkaErrorCode; 15] = [
    RDKafkaErrorCode::UnknownTopic,
    RDKafkaErrorCode::UnknownPartition,
    RDKafkaErrorCode::UnknownTopicOrPartition,
    RDKafkaErrorCode::InvalidTopic,
    RDKafkaErrorCode::MessageSizeTooLarge,
    RDKafkaErrorCode::TopicAuthorizationFailed,
    RDKafkaErrorCode::ClusterAuthorizationFailed,
    RDKafkaErrorCode::Authentication,
    RDKafkaErrorCode::SaslAuthenticationFailed,
    RDKafkaErrorCode::UnsupportedSASLMechanism,
    RDKafkaErrorCode::UnsupportedVersion,
    RDKafkaErrorCode::InvalidArgument,
    RDKafkaErrorCode::PolicyViolation,
    RDKafkaErrorCode::InvalidRequiredAcks,
    RDKafkaErrorCode::UnsupportedFeature,
];

impl From<KafkaError> for BrokerError {
    fn from(error: KafkaError) -> BrokerError {
        let text = error.to_string();
        match (&error, error.rdkafka_error_code()) {
            (KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_), _) => {
                BrokerError::Permanent(text)
            }
            (_, Some(code)) if PERMANENT.contains(&code) => BrokerError::Permanent(text),
            _ => BrokerError::Passing(text),
        }
    }
}

/// What librdkafka says for itself goes to our log, quietly: whoever uses a client says loudly
/// what could not be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        security::tell(&error, reason);
    }
}

pub(crate) fn log_line(level: RDKafkaLogLevel, facility: &str, message: &str) {
    tracing::debug!(?level, facility, message, "the log's client");
}
