//! How a cluster fares as one instance sees it: whether database and log can be reached, and how
//! far the log's parts are behind. Two threads look; whoever asks gets what was seen last. While
//! the log cannot be reached from here, the work on it is left to instances that reach it.

use guanxi_model::Version;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::audit::AuditVerdict;
use guanxi_core::clock::{Clock, SteadyClock, SystemClock};
use guanxi_core::crew::{Crew, Workers};
use guanxi_model::places::SHARDS;
use parking_lot::Mutex;

use super::{ClusterError, ClusterSettings, Roles, bind_to_topics};
use crate::applier::{self, ApplierFigures};
use crate::clock::Notes;
use crate::kafka::{BrokerError, KafkaSettings, Offsets, TopicError, TopicId, longest_retention};
use crate::leases::Leases;
use crate::memory::MemoryFigures;
use crate::read_budget::BudgetFigures;
use crate::relay::{self, RelayLag};
use crate::rows::cell;
use crate::sql::{Database, SqlError};

/// Between two looks at the database.
const DATABASE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks at the log, which asks for the end of every partition.
const LOG_INTERVAL: Duration = Duration::from_secs(3);
/// Without the log for so long, an instance leaves relay and appliers to the others.
const LOG_GIVEN_UP_AFTER: Duration = Duration::from_secs(5);
/// Looks at the database for each note of what is believed of the clock.
const CLOCK_EVERY: u64 = 60;
/// Looks at the log for each look at how long it keeps records.
const RETENTION_EVERY: u64 = 20;
/// A log that keeps everything is said to do so for a hundred years.
const FOR_EVER_MS: u64 = 100 * 365 * 24 * 60 * 60 * 1_000;
/// What a broker keeps unless it is told otherwise.
const LOG_KEEPS_MS_DEFAULT: u64 = 7 * 24 * 60 * 60 * 1_000;
/// How long a look may wait for a connection.
const LOOK_WAIT: Duration = Duration::from_secs(2);

/// The leases of what works on the log.
const LOG_GROUPS: [&str; 3] =
    [relay::LEASE_GROUP, applier::LEASE_GROUP, applier::LEASE_GROUP_TICDC];

/// Whether something can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reach {
    pub reachable: bool,
    /// How long it has been so.
    pub for_ms: u64,
}

/// How an instance and its cluster fare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    pub roles: Roles,
    pub database: Reach,
    pub log: Reach,
    /// The database's clock less ours, as far as it could be measured.
    pub clock_offset_ms: i64,
    /// How far ahead our clock is, while it is not believed.
    pub clock_held_back_ms: Option<u64>,
    /// The age of the oldest record that the log does not have yet, of the whole cluster.
    pub relay_lag_ms: u64,
    /// Records of the log that the target's side does not have yet, of the whole cluster; not known
    /// while the log cannot be reached.
    pub applier_lag_records: Option<u64>,
    pub dead_letters: u64,
    pub queue_len: usize,
    pub queue_max: usize,
    pub batches: u64,
    pub catalog_revision: u64,
    /// What this instance's own relay and appliers say, where it has them.
    pub relay: Option<RelayLag>,
    pub applier: Option<ApplierFigures>,
    /// What is remembered in Redis, where there is one.
    pub memory: Option<MemoryFigures>,
    /// Keys that are hot, and pinned in this process.
    pub hot_pinned: usize,
    /// What reads ask of the database.
    pub reads: Option<BudgetFigures>,
    /// The last word on whether everything agrees.
    pub audited: Option<AuditVerdict>,
}

#[derive(Debug)]
pub(super) struct HealthCheck {
    shared: Arc<HealthCheckShared>,
    workers: Workers,
    /// Nobody waits for its end: a broker that does not answer would delay a stop.
    at_log: Workers,
}

#[derive(Debug)]
struct HealthCheckShared {
    database: Arc<Database>,
    kafka: KafkaSettings,
    changefeed: Option<String>,
    leases: Arc<Leases>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    database: (bool, Instant),
    log: (bool, Instant),
    clock_offset_ms: i64,
    relay_lag_ms: u64,
    applier_lag_records: Option<u64>,
    dead_letters: u64,
    log_keeps_ms: u64,
}

impl HealthCheck {
    /// `unbound` are the settings of an instance that started without the log: its topics are
    /// checked when it can be reached.
    pub fn start(
        crew: &Crew,
        database: Arc<Database>,
        kafka: KafkaSettings,
        changefeed: Option<String>,
        leases: Arc<Leases>,
        clock: Arc<SteadyClock>,
        mut unbound: Option<ClusterSettings>,
    ) -> io::Result<HealthCheck> {
        let now = Instant::now();
        let seen = Seen {
            // The instance has just spoken to it.
            database: (true, now),
            log: (false, now),
            clock_offset_ms: 0,
            relay_lag_ms: 0,
            applier_lag_records: None,
            dead_letters: 0,
            log_keeps_ms: LOG_KEEPS_MS_DEFAULT,
        };
        let shared = Arc::new(HealthCheckShared {
            database,
            kafka,
            changefeed,
            leases,
            seen: Mutex::new(seen),
        });
        let own = shared.clone();
        let workers = crew.spawn("guanxi-health", move |signal| {
            let mut notes = Notes::default();
            for round in 0.. {
                look_at_database(&own);
                if round % CLOCK_EVERY == 0
                    && let Err(error) = notes.note(&own.database, &clock)
                {
                    tracing::debug!(%error, "the clock could not be noted");
                }
                if signal.wait(DATABASE_INTERVAL) {
                    return;
                }
            }
        })?;
        let own = shared.clone();
        let at_log = crew.spawn("guanxi-health-log", move |signal| {
            let mut offsets = None;
            let mut refused = false;
            for round in 0.. {
                look_at_log(&own, &mut offsets);
                match unbound.as_ref().map(|settings| bind_to_topics(settings, &own.database)) {
                    None => {}
                    Some(Ok(())) => unbound = None,
                    Some(Err(error)) if may_pass(&error) => {
                        tracing::debug!(%error, "the topics could not be checked");
                    }
                    // No start would have gone on, so the instance does not either: it ends with
                    // this thread.
                    Some(Err(error)) if refused => {
                        tracing::error!(%error, "the log is not as the settings say");
                        return;
                    }
                    // A broker that has just started may not know of all its topics yet.
                    Some(Err(_)) => refused = true,
                }
                if round % RETENTION_EVERY == 0 {
                    look_at_retention(&own);
                }
                if signal.wait(LOG_INTERVAL) {
                    return;
                }
            }
        })?;
        Ok(HealthCheck { shared, workers, at_log })
    }

    pub fn status(&self) -> ClusterStatus {
        let seen = self.shared.seen.lock();
        let reach = |(reachable, since): (bool, Instant)| Reach {
            reachable,
            for_ms: since.elapsed().as_millis() as u64,
        };
        ClusterStatus {
            roles: Roles::NONE,
            database: reach(seen.database),
            log: reach(seen.log),
            clock_offset_ms: seen.clock_offset_ms,
            clock_held_back_ms: None,
            relay_lag_ms: seen.relay_lag_ms,
            applier_lag_records: seen.applier_lag_records,
            dead_letters: seen.dead_letters,
            queue_len: 0,
            queue_max: 0,
            batches: 0,
            catalog_revision: 0,
            relay: None,
            applier: None,
            memory: None,
            hot_pinned: 0,
            reads: None,
            audited: None,
        }
    }

    /// How long the topic keeps a record; Kafka's own default until it has been asked.
    pub fn log_keeps_ms(&self) -> u64 {
        self.shared.seen.lock().log_keeps_ms
    }

    pub fn close(&self) {
        self.at_log.let_go();
        self.workers.stop();
    }
}

fn note(reach: &mut (bool, Instant), reachable: bool, what: &str) {
    if reach.0 != reachable {
        *reach = (reachable, Instant::now());
        match reachable {
            true => tracing::info!("{what} can be reached"),
            false => tracing::warn!("{what} cannot be reached; it is tried again and again"),
        }
    }
}

fn look_at_database(shared: &HealthCheckShared) {
    let looked = database_facts(&shared.database);
    let mut seen = shared.seen.lock();
    note(&mut seen.database, looked.is_ok(), "the database");
    match looked {
        Ok((clock_offset_ms, relay_lag_ms, dead_letters)) => {
            seen.clock_offset_ms = clock_offset_ms;
            seen.relay_lag_ms = relay_lag_ms;
            seen.dead_letters = dead_letters;
        }
        Err(error) => tracing::debug!(%error, "the database was looked at in vain"),
    }
}

/// The clock's offset, the age of the outbox's oldest row, and the number of dead letters.
fn database_facts(database: &Database) -> Result<(i64, u64, u64), SqlError> {
    let before = Instant::now();
    let mut session = database.session(before + LOOK_WAIT)?;
    let oldest: Vec<String> = (0..SHARDS)
        .map(|shard| {
            format!("(SELECT version FROM outbox WHERE shard={shard} ORDER BY version LIMIT 1)")
        })
        .collect();
    let clock = session.rows("SELECT CAST(UNIX_TIMESTAMP(NOW(3))*1000 AS SIGNED)")?;
    let half = before.elapsed().as_millis() as i64 / 2;
    let now = SystemClock.now_ms();
    let theirs: i64 = clock.first().map_or(Ok(0), |row| cell(row, 0))?;
    let sets = session.run(&format!(
        "SELECT MIN(version) FROM ({}) AS oldest; SELECT COUNT(*) FROM dead_letters",
        oldest.join(" UNION ALL ")
    ))?;
    let number = |at: usize| -> Result<Option<u64>, SqlError> {
        let row = sets.get(at).and_then(|set| set.rows.first());
        row.map_or(Ok(None), |row| cell(row, 0))
    };
    let oldest_ms = number(0)?.map_or(now, |version| Version(version).time().0);
    Ok((theirs + half - now as i64, now.saturating_sub(oldest_ms), number(1)?.unwrap_or(0)))
}

fn look_at_log(shared: &HealthCheckShared, offsets: &mut Option<Offsets>) {
    let looked = log_ends(shared, offsets);
    let reachable = match (&looked, offsets) {
        (Ok(_), _) => true,
        (Err(error), offsets) => {
            tracing::debug!(%error, "the log was looked at in vain");
            let KafkaSettings { topic, partitions, .. } = &shared.kafka;
            offsets.as_ref().is_some_and(|offsets| offsets.any_answers(topic, *partitions))
        }
    };
    let lag = looked.ok().and_then(|ends| applier_lag(shared, &ends).ok());
    let given_up = {
        let mut seen = shared.seen.lock();
        note(&mut seen.log, reachable, "the log");
        seen.applier_lag_records = lag;
        !reachable && seen.log.1.elapsed() >= LOG_GIVEN_UP_AFTER
    };
    if reachable || given_up {
        shared.leases.step_aside(&LOG_GROUPS, given_up);
    }
}

fn may_pass(error: &ClusterError) -> bool {
    match error {
        ClusterError::Topics(TopicError::Log(error)) => error.may_pass(),
        ClusterError::Sql(error) => error.may_pass(),
        _ => false,
    }
}

fn look_at_retention(shared: &HealthCheckShared) {
    match longest_retention(&shared.kafka, shared.changefeed.as_deref()) {
        Ok(kept) => {
            let kept_ms = kept.map_or(FOR_EVER_MS, |kept| kept.as_millis() as u64);
            shared.seen.lock().log_keeps_ms = kept_ms.min(FOR_EVER_MS);
        }
        Err(error) => tracing::debug!(%error, "the log's retention was asked for in vain"),
    }
}

/// The name of a topic, which one that is, and where each of its partitions ends.
type TopicEnds = (String, TopicId, Vec<u64>);

/// Our own topic's, and a changefeed's where it is the log: then both are applied.
fn log_ends(
    shared: &HealthCheckShared,
    offsets: &mut Option<Offsets>,
) -> Result<Vec<TopicEnds>, BrokerError> {
    let offsets = match offsets {
        Some(offsets) => offsets,
        none => none.insert(Offsets::open(&shared.kafka)?),
    };
    let topics = std::iter::once(&shared.kafka.topic).chain(&shared.changefeed);
    let ends = topics.map(|topic| {
        let id = offsets.topic_id(topic)?;
        let ends = offsets.all(topic, shared.kafka.partitions)?;
        Ok((topic.clone(), id, ends.iter().map(|ends| ends.end).collect()))
    });
    ends.collect()
}

fn applier_lag(shared: &HealthCheckShared, ends: &[TopicEnds]) -> Result<u64, SqlError> {
    let mut session = shared.database.session(Instant::now() + LOOK_WAIT)?;
    let mut lag: u64 = 0;
    for (topic, id, ends) in ends {
        let mut statement =
            format!("SELECT part,{} FROM applied WHERE topic=", applier::POSITION_COLUMNS);
        crate::sql::text::bytes(&mut statement, topic.as_bytes());
        lag += ends.iter().sum::<u64>();
        for row in session.rows(&statement)? {
            let (part, position): (u32, _) = (cell(&row, 0)?, applier::position(&row, 1)?);
            // What was applied of another topic of that name is nothing of this one.
            if position.topic.may_be(*id) {
                let end = ends.get(part as usize).copied().unwrap_or(0);
                lag = lag.saturating_sub(position.next.min(end));
            }
        }
    }
    Ok(lag)
}
