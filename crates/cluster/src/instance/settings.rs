//! What an instance is told at its start, why it may not start, and what it checks of database and
//! topics first.

use guanxi_model::Region;
use std::fmt;
use std::sync::Arc;

use guanxi_core::audit::AuditSettings;

use crate::applier::{self, AppliedLog};
use crate::commit::SqlCommitSettings;
use crate::kafka::{self, KafkaSettings, Offsets, TopicError, TopicId};
use crate::memory::{MemorySettings, MemoryStartError};
use crate::move_phase;
use crate::read_budget::ReadBudgetSettings;
use crate::schema::{self, SchemaError};
use crate::sql::tls::Tls;
use crate::sql::{Database, SqlError};

/// What an instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Serves callers.
    pub api: bool,
    /// Moves the outbox into the log.
    pub relay: bool,
    /// Brings the log to the target's side.
    pub applier: bool,
    /// Expiry, jobs and clean-up.
    pub upkeep: bool,
}

impl Roles {
    pub const NONE: Roles = Roles { api: false, relay: false, applier: false, upkeep: false };

    pub fn names(self) -> Vec<&'static str> {
        let roles = [
            ("api", self.api),
            ("relay", self.relay),
            ("applier", self.applier),
            ("upkeep", self.upkeep),
        ];
        roles.into_iter().filter(|(_, plays)| *plays).map(|(name, _)| name).collect()
    }
}

#[derive(Clone)]
pub struct ClusterSettings {
    /// May hold a password: it is for the driver alone.
    pub url: String,
    pub tls: Tls,
    pub connections_max: usize,
    /// What callers' reads may ask of the database at a moment.
    pub reads: ReadBudgetSettings,
    pub kafka: KafkaSettings,
    /// The topic of a TiCDC changefeed, read in place of what our relay sends.
    pub ticdc_topic: Option<String>,
    pub roles: Roles,
    /// Which region gives out the versions.
    pub region: Region,
    pub commit: SqlCommitSettings,
    pub audit: AuditSettings,
    /// What instances share in Redis; without it every read asks the database.
    pub memory: Option<MemorySettings>,
    /// Believe the clock as it is now, although it jumped forward since the machine was started.
    pub clock_may_have_jumped: bool,
}

/// Without the address, as its password is never shown.
impl fmt::Debug for ClusterSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterSettings { tls, kafka, ticdc_topic, roles, region, memory, .. } = self;
        f.debug_struct("ClusterSettings")
            .field("tls", tls)
            .field("kafka", kafka)
            .field("ticdc_topic", ticdc_topic)
            .field("roles", roles)
            .field("region", region)
            .field("memory", memory)
            .finish_non_exhaustive()
    }
}

impl ClusterSettings {
    /// A pool of its own, to the cluster's database.
    pub fn database(&self) -> Result<Arc<Database>, SqlError> {
        Database::open_with(&self.url, &self.tls, self.connections_max)
    }

    pub(super) fn applied_log(&self) -> AppliedLog {
        match &self.ticdc_topic {
            None => AppliedLog::Outbox,
            Some(topic) => {
                AppliedLog::Ticdc { topic: topic.clone(), partitions: self.kafka.partitions }
            }
        }
    }

    pub(super) fn applied_topic(&self) -> &str {
        self.ticdc_topic.as_deref().unwrap_or(&self.kafka.topic)
    }
}

/// What to do about an error that does not say it itself.
fn next_of(error: &SqlError) -> &'static str {
    match error {
        SqlError::Away(_) => "",
        _ => "; check store.url and how the database does",
    }
}

/// Why an instance could not start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("{0}{next}", next = next_of(.0))]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Topics(#[from] TopicError),
    #[error(transparent)]
    Memory(#[from] MemoryStartError),
    #[error(
        "a move into this cluster is not finished, and only it writes: let guanxi move come to its \
         end, or run it again"
    )]
    Moving,
    #[error("the database has no secret for tokens: run guanxi migrate, which makes one")]
    NoSecret,
    #[error("could not start: {0}")]
    Start(#[from] std::io::Error),
}

/// What `migrate` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The versions of the tables that it added.
    pub versions: Vec<u32>,
    /// The version that the tables have now.
    pub version: u32,
    /// The topics that it created.
    pub topics: Vec<String>,
}

/// Makes tables and topics, or brings them up to this release.
pub fn migrate(settings: &ClusterSettings) -> Result<Migrated, ClusterError> {
    let database = settings.database()?;
    let versions = schema::migrate(&database)?;
    let topics = kafka::create_topics(&settings.kafka)?;
    Ok(Migrated { versions, version: schema::known(), topics })
}

pub(super) fn refuse_move(database: &Database) -> Result<(), ClusterError> {
    match move_phase::is_unfinished(database)? {
        true => Err(ClusterError::Moving),
        false => Ok(()),
    }
}

/// Checks the topics, and says of every partition, before a record comes to it, of which topic it is.
pub(super) fn bind_to_topics(
    settings: &ClusterSettings,
    database: &Database,
) -> Result<(), ClusterError> {
    let ClusterSettings { kafka, ticdc_topic, .. } = settings;
    kafka::check_topics(kafka, ticdc_topic.as_deref())?;
    let partitions: Vec<u32> = (0..kafka.partitions).collect();
    let offsets = Offsets::open(kafka).map_err(TopicError::from)?;
    for topic in std::iter::once(&kafka.topic).chain(ticdc_topic) {
        let id = offsets.topic_id(topic).map_err(TopicError::from)?;
        applier::bind_positions(database, topic, &partitions, id)?;
    }
    Ok(())
}

/// Leaves the position of one partition, which belongs to no topic yet, as a sign for a move. The
/// others come with the log, which may have another number of them than the settings say.
pub(super) fn bind_to_none(
    settings: &ClusterSettings,
    database: &Database,
) -> Result<(), ClusterError> {
    applier::bind_positions(database, &settings.kafka.topic, &[0], TopicId::UNKNOWN)?;
    Ok(())
}
