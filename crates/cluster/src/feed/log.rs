//! What the log's values mean to watchers, whichever log it is.
//!
//! A changefeed tells of rows, not of changes: each state that an edge was committed in, and the
//! groups by their numbers. What a message lacks, and the groups' names, are read from the
//! database, so they are what stands there now. So is a record whose version lies ahead of the clock,
//! as far as the database has it: anyone who can write to a topic can write any version.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::clock::{Clock, SystemClock};
use guanxi_model::record::EdgeRecord;
use guanxi_model::{
    EdgeKey, EdgeRow, GroupId, GroupName, GroupsKey, Millis, Origin, State, Version,
};

use super::FeedEvent;
use crate::applier::is_ahead;
use crate::canal_json::{self, CanalChange, EdgeChange};
use crate::kafka::{KafkaSettings, LogPosition, TakenRecord};
use crate::rows::{self, GROUP_COLUMNS, OUTGOING_COLUMNS, cell};
use crate::sql::text::{self, TUPLES_MAX};
use crate::sql::{Database, Session, SqlError};
use crate::value::{self, Message};

/// How long a reading may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);
/// Less than every version.
const ANY: Version = Version(0);
/// Why a record of the future is passed over.
const AHEAD: &str = "its version lies ahead of the clock, and its source's side does not have it";
/// The column after `OUTGOING_COLUMNS`.
const CAUSE_INDEX: usize = 11;

/// Which log is watched.
#[derive(Debug, Clone)]
pub enum FeedLog {
    /// The cluster's own topic, as the settings name it.
    Outbox { database: Arc<Database> },
    /// A changefeed's topic, with as many partitions.
    Ticdc { topic: String, database: Arc<Database> },
}

/// A record that was read: none where it is not for watchers.
#[derive(Debug)]
pub(super) struct LoggedEvent {
    pub partition: u32,
    /// The position after it.
    pub after: LogPosition,
    pub bytes: usize,
    pub event: Option<Arc<FeedEvent>>,
}

impl FeedLog {
    pub fn topic<'a>(&'a self, settings: &'a KafkaSettings) -> &'a str {
        match self {
            FeedLog::Outbox { .. } => &settings.topic,
            FeedLog::Ticdc { topic, .. } => topic,
        }
    }

    /// What these records are for watchers, in the same order. An error passes nothing over.
    pub(super) fn read(&self, taken: &[TakenRecord]) -> Result<Vec<LoggedEvent>, SqlError> {
        let now_ms = SystemClock.now_ms();
        let (database, hear): (_, Hear) = match self {
            FeedLog::Outbox { database } => (database, hear_own),
            FeedLog::Ticdc { database, .. } => (database, hear_changefeed),
        };
        let heard = taken.iter().map(|taken| {
            hear(&taken.value, now_ms).unwrap_or_else(|cause| {
                pass_over(taken, &cause);
                Heard::Nothing
            })
        });
        let events = events(database, taken, heard.collect())?;
        let told = taken.iter().zip(events).map(|(taken, event)| LoggedEvent {
            partition: taken.partition,
            after: taken.after,
            bytes: taken.value.len(),
            event: event.map(Arc::new),
        });
        Ok(told.collect())
    }
}

/// Barriers are nothing, and what cannot be read is left to the dead letters.
fn hear_own(value: &[u8], now_ms: u64) -> Result<Heard, String> {
    Ok(match value::decode(value)? {
        Message::Edge { record, time } if is_ahead(record.new.version, now_ms) => {
            Heard::Key { key: record.key, time, least: record.new.version }
        }
        Message::Edge { record, time } => Heard::Event(FeedEvent { record, time }),
        Message::Barrier { .. } => Heard::Nothing,
    })
}

fn pass_over(taken: &TakenRecord, cause: &str) {
    let TakenRecord { partition, offset, .. } = taken;
    tracing::warn!(partition, offset, cause, "watchers pass over a record of the log");
}

/// Reads a value at this time.
type Hear = fn(&[u8], u64) -> Result<Heard, String>;

/// What a message says so far.
enum Heard {
    Nothing,
    /// All of it.
    Event(FeedEvent),
    /// All but the groups' names.
    Record(Box<EdgeRecord>, Millis),
    /// Which edge it is about: it lacks columns, or is not believed. What stands there now must
    /// have this version at least.
    Key {
        key: EdgeKey,
        time: Millis,
        least: Version,
    },
}

fn events(
    database: &Database,
    taken: &[TakenRecord],
    mut heard: Vec<Heard>,
) -> Result<Vec<Option<FeedEvent>>, SqlError> {
    let lacking: BTreeSet<EdgeKey> = heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Key { key, .. } => Some(*key),
            _ => None,
        })
        .collect();
    let named = |heard: &[Heard]| heard.iter().any(|heard| !groups(heard).is_empty());
    if lacking.is_empty() && !named(&heard) {
        return Ok(heard.into_iter().map(|heard| event(heard, &BTreeMap::new())).collect());
    }
    let mut session = database.session(Instant::now() + SESSION_WAIT)?;
    let present = read_again(&mut session, lacking)?;
    for (heard, taken) in heard.iter_mut().zip(taken) {
        if let Heard::Key { key, time, least } = heard {
            *heard = match present.get(key) {
                Some(record) if record.new.version >= *least => {
                    Heard::Record(Box::new(record.clone()), *time)
                }
                // A row that is gone had a tombstone older than anything that watchers may still
                // see.
                _ if *least == ANY => Heard::Nothing,
                _ => {
                    pass_over(taken, AHEAD);
                    Heard::Nothing
                }
            };
        }
    }
    let names = group_names(&mut session, heard.iter().flat_map(groups).collect())?;
    Ok(heard.into_iter().map(|heard| event(heard, &names)).collect())
}

fn hear_changefeed(value: &[u8], now_ms: u64) -> Result<Heard, String> {
    let EdgeChange { key, time, old, new, .. } = match canal_json::decode(value)? {
        CanalChange::Edge(change) => *change,
        CanalChange::Watermark { .. } | CanalChange::PassedOver => return Ok(Heard::Nothing),
    };
    let canal_json::ToldRow::Row(row) = new else {
        return Ok(Heard::Key { key, time, least: ANY });
    };
    let old = match old {
        canal_json::ToldRow::Row(row) => Some(row.whole()?),
        canal_json::ToldRow::Lacking | canal_json::ToldRow::None => None,
    };
    let record = EdgeRecord {
        cause: row.cause(),
        // A removed edge reads as none.
        old: old.filter(|old| old.state != State::Removed),
        ..EdgeRecord::of(key, row.whole()?)
    };
    if is_ahead(record.new.version, now_ms) {
        return Ok(Heard::Key { key, time, least: record.new.version });
    }
    Ok(Heard::Record(Box::new(record), time))
}

type GroupPlace = (GroupsKey, GroupId);

/// The groups that the record's rows are in.
fn groups(heard: &Heard) -> Vec<GroupPlace> {
    let Heard::Record(record, _) = heard else {
        return Vec::new();
    };
    let rows = record.old.iter().chain([&record.new]);
    rows.filter_map(|row| named(&record.key, row)).collect()
}

fn named(key: &EdgeKey, row: &EdgeRow) -> Option<GroupPlace> {
    let EdgeKey { tenant, kind, source, .. } = *key;
    Some((GroupsKey { tenant, kind, source }, row.group?))
}

fn event(heard: Heard, names: &BTreeMap<GroupPlace, GroupName>) -> Option<FeedEvent> {
    let (mut record, time) = match heard {
        Heard::Record(record, time) => (record, time),
        Heard::Event(event) => return Some(event),
        Heard::Nothing | Heard::Key { .. } => return None,
    };
    let name = |row: &EdgeRow| names.get(&named(&record.key, row)?).cloned();
    let (old_group, new_group) = (record.old.as_ref().and_then(name), name(&record.new));
    (record.old_group, record.new_group) = (old_group, new_group);
    Some(FeedEvent { record, time })
}

fn read_again(
    session: &mut Session<'_>,
    keys: BTreeSet<EdgeKey>,
) -> Result<BTreeMap<EdgeKey, EdgeRecord>, SqlError> {
    let keys: Vec<EdgeKey> = keys.into_iter().collect();
    let mut records = BTreeMap::new();
    for keys in keys.chunks(TUPLES_MAX) {
        let mut statement = format!(
            "SELECT {OUTGOING_COLUMNS},cause FROM outgoing FORCE INDEX (PRIMARY) \
             WHERE (tenant,kind,source,target) IN ("
        );
        text::list(&mut statement, keys, rows::edge_tuple);
        statement.push(')');
        for row in session.rows(&statement)? {
            let read = rows::outgoing(&row).and_then(|(key, new)| {
                let cause: Option<String> = cell(&row, CAUSE_INDEX)?;
                let cause = canal_json::cause_named(cause.as_deref(), new.state == State::Removed);
                let (old_group, new_group) = (None, None);
                let (fresh, origin) = (false, Origin::default());
                Ok(EdgeRecord { key, cause, old: None, new, old_group, new_group, fresh, origin })
            });
            match read {
                Ok(record) => drop(records.insert(record.key, record)),
                // To try again would hold up all watchers, and help nobody.
                Err(error) => tracing::error!(%error, "watchers pass over a row"),
            }
        }
    }
    Ok(records)
}

fn group_names(
    session: &mut Session<'_>,
    groups: BTreeSet<GroupPlace>,
) -> Result<BTreeMap<GroupPlace, GroupName>, SqlError> {
    let groups: Vec<GroupPlace> = groups.into_iter().collect();
    let mut names = BTreeMap::new();
    for groups in groups.chunks(TUPLES_MAX) {
        let mut statement = format!(
            "SELECT {GROUP_COLUMNS} FROM `groups` FORCE INDEX (PRIMARY) \
             WHERE (tenant,kind,source,id) IN ("
        );
        text::list(&mut statement, groups, |out, (key, id)| {
            let GroupsKey { tenant, kind, source } = key;
            let _ = write!(out, "({},{},{},{})", tenant.0, kind.0, source.0, id.0);
        });
        statement.push(')');
        for row in session.rows(&statement)? {
            match rows::group(&row) {
                Ok((key, group)) => drop(names.insert((key, group.id), group.name)),
                Err(error) => tracing::error!(%error, "watchers pass over a group's name"),
            }
        }
    }
    Ok(names)
}
