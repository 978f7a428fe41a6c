//! With a changefeed as the log nobody relays the outbox: its rows go once the changefeed has
//! brought what they tell, and its barriers have passed then. A timestamp taken after the rows were
//! read is later than their commits; when the changefeed's watermark has reached it in every
//! partition, all of them have been applied.
//!
//! Some of what came before a barrier may have left the outbox already, by a relay: from before the
//! changefeed began, or while instances change from one log to the other. So a barrier waits for
//! our own topic too, up to where it ended when the rows were read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

use guanxi_model::places::{self, SHARDS};
use guanxi_model::{BarrierId, EdgeKey, Version};

use super::super::acknowledged::{self, Note};
use super::super::barrier::{self, BarrierMark};
use super::super::kafka::{BEYOND_AFTER, BrokerError, LogPosition, Offsets, TopicId};
use super::super::outbox::{OutboxKey, tell_unreadable, unpack};
use super::super::rows::cell;
use super::super::sql::commit_in_doubt::CommitFailure;
use super::super::sql::text::{self, TUPLES_MAX};
use super::super::sql::{Dialect, Session, SqlError};
use super::batch::{position, sorted, take};
use super::chores::ChoreError;
use super::fold::IncomingKey;
use super::settle::{Extra, Fence, settle};
use super::shared::ApplierShared;
use super::statements::{self, POSITION_COLUMNS};

/// Rows of each shard that are looked at together.
const SHARD_ROWS_MAX: u32 = 256;
/// Records that are looked at together; a row may have more.
const RECORDS_MAX: u64 = 16_384;
/// How long a step may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);

/// Rows of the outbox that wait for the watermark.
#[derive(Debug, Default)]
pub(super) struct Drain {
    rows: Vec<DrainRow>,
    /// A timestamp after their commits.
    after_commits: u64,
    /// Rows that could not be read; they stay where they are, and so do barriers of their shards.
    unreadable: BTreeSet<OutboxKey>,
    /// Where our own topic's partitions ended after they were read, and which topic that was.
    own_ends: Vec<u64>,
    own_topic: TopicId,
    /// Since when it ends before that.
    own_short: Option<Instant>,
}

#[derive(Debug, Clone)]
struct DrainRow {
    key: OutboxKey,
    barrier: Option<BarrierId>,
    /// The edges that its records tell of, with their versions.
    edges: Vec<(EdgeKey, Version)>,
}

impl Drain {
    /// One step: reads rows when none wait, or removes those that wait if their time has come.
    pub fn step(&mut self, shared: &ApplierShared, offsets: &Offsets) -> Result<(), ChoreError> {
        // Only TiDB has changefeeds, and one instance is enough: the first partition's.
        if shared.database.dialect() != Dialect::TiDb || shared.share.lease(0).is_none() {
            *self = Drain::default();
            return Ok(());
        }
        if self.rows.is_empty() {
            return self.read(shared, offsets);
        }
        if watermark(shared)? < self.after_commits {
            return Ok(());
        }
        if !self.own_applied(shared)? {
            return Ok(self.look_at_own_ends(shared, offsets)?);
        }
        self.settle_unapplied(shared)?;
        remove(shared, &self.rows)?;
        self.rows.clear();
        self.read(shared, offsets)
    }

    fn read(&mut self, shared: &ApplierShared, offsets: &Offsets) -> Result<(), ChoreError> {
        let mut statement = String::new();
        for shard in 0..SHARDS {
            if shard > 0 {
                statement.push_str(" UNION ALL ");
            }
            let _ = write!(
                statement,
                "(SELECT shard,version,id,barrier,records FROM outbox \
                 WHERE shard={shard} ORDER BY version,id LIMIT {SHARD_ROWS_MAX})"
            );
        }
        let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
        let found = session.rows(&statement)?;
        let mut seen = found.iter().map(seen).collect::<Result<Vec<_>, _>>()?;
        seen.retain(|(key, ..)| !self.unreadable.contains(key));
        // A barrier must not come before the rows of its shard that it follows.
        seen.sort_unstable_by_key(|(key, ..)| (key.version, key.shard, key.id));
        let mut together = 0;
        let mut wanted = Vec::new();
        for (key, barrier, records) in seen {
            if together >= RECORDS_MAX {
                break;
            }
            together += u64::from(records);
            wanted.push((key, barrier, records));
        }
        let rows = self.unpack(&mut session, wanted)?;
        if rows.is_empty() {
            return Ok(());
        }
        let sets = session.run("BEGIN;SELECT @@tidb_current_ts;COMMIT")?;
        let now = sets.get(1).and_then(|set| set.rows.first());
        let now = now.ok_or_else(|| SqlError::Refused("TiDB did not tell its time".into()))?;
        // A system variable is text.
        let after_commits = cell::<String>(now, 0)?.parse().ok().filter(|now| *now > 0);
        self.after_commits =
            after_commits.ok_or_else(|| SqlError::Refused("TiDB did not tell its time".into()))?;
        self.own_topic = offsets.topic_id(&shared.kafka.topic)?;
        let ends = offsets.all(&shared.kafka.topic, shared.kafka.partitions)?;
        self.own_ends = ends.iter().map(|ends| ends.end).collect();
        self.own_short = None;
        self.rows = rows;
        Ok(())
    }

    /// Reads the values of the rows; those that cannot be read are left out for good.
    fn unpack(
        &mut self,
        session: &mut Session<'_>,
        wanted: Vec<(OutboxKey, Option<BarrierId>, u32)>,
    ) -> Result<Vec<DrainRow>, SqlError> {
        let mut values: BTreeMap<OutboxKey, Vec<u8>> = BTreeMap::new();
        for wanted in wanted.chunks(TUPLES_MAX) {
            let mut statement = String::from(
                "SELECT shard,version,id,value FROM outbox WHERE (shard,version,id) IN (",
            );
            text::keys(&mut statement, wanted, |out, (key, ..)| tuple(out, key));
            statement.push(')');
            for row in session.rows(&statement)? {
                values.insert(key(&row)?, cell(&row, 3)?);
            }
        }
        let mut rows = Vec::new();
        for (key, barrier, count) in wanted {
            let value = match (values.remove(&key), barrier) {
                (_, Some(_)) => {
                    rows.push(DrainRow { key, barrier, edges: Vec::new() });
                    continue;
                }
                (Some(value), None) => value,
                (None, None) => continue,
            };
            match unpack(&value) {
                Ok((_, records)) if records.len() == count as usize => {
                    let edges = records.iter().map(|record| (record.key, record.new.version));
                    rows.push(DrainRow { key, barrier, edges: edges.collect() });
                }
                read => {
                    let cause = read.err().unwrap_or_else(|| format!("it has not {count} records"));
                    self.unreadable.insert(key);
                    tell_unreadable(&key, &cause, self.unreadable.len());
                }
            }
        }
        let stopped = |row: &DrainRow| {
            row.barrier.is_some() && self.unreadable.iter().any(|key| key.shard == row.key.shard)
        };
        rows.retain(|row| !stopped(row));
        Ok(rows)
    }

    /// Our own topic may have lost its end since: what nobody can read is not waited for. What it
    /// had and was not applied is brought by the rebuild, which `own_applied` waits for.
    fn look_at_own_ends(
        &mut self,
        shared: &ApplierShared,
        offsets: &Offsets,
    ) -> Result<(), BrokerError> {
        let topic = &shared.kafka.topic;
        let ends = offsets.all(topic, shared.kafka.partitions)?;
        if !ends.iter().zip(&self.own_ends).any(|(ends, seen)| ends.end < *seen) {
            self.own_short = None;
        } else if self.own_short.get_or_insert_with(Instant::now).elapsed() >= BEYOND_AFTER {
            tracing::error!(topic, "the log lost its end; what waits for it is looked at again");
            self.rows.clear();
        }
        Ok(())
    }

    /// Whether our own topic has been applied up to where it ended, and has all that the broker
    /// acknowledged.
    fn own_applied(&mut self, shared: &ApplierShared) -> Result<bool, SqlError> {
        let mut statement = format!("SELECT part,{POSITION_COLUMNS} FROM applied WHERE topic=");
        text::bytes(&mut statement, shared.kafka.topic.as_bytes());
        let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
        let mut nexts: BTreeMap<u32, LogPosition> = BTreeMap::new();
        for row in session.rows(&statement)? {
            let position = position(&row, 1)?;
            if !position.topic.may_be(self.own_topic) {
                // It was made anew, before or after it was looked at: the rows are read again, and
                // where it ends with them.
                self.rows.clear();
                return Ok(false);
            }
            nexts.insert(cell(&row, 0)?, position);
        }
        let partitions = 0..shared.kafka.partitions;
        let notes = acknowledged::of_partitions(&mut session, &shared.kafka.topic, partitions)?;
        let at = |part: u32| nexts.get(&part).copied().unwrap_or_default();
        let is_ahead = |note: &Note| {
            note.topic.may_be(at(note.part).topic) && note.position >= at(note.part).next
        };
        let all_applied = (0..).zip(&self.own_ends).all(|(part, end)| at(part).next >= *end);
        Ok(all_applied && !notes.iter().any(is_ahead))
    }

    /// A row that was committed before the changefeed began is in no message: such an edge is
    /// settled here.
    fn settle_unapplied(&self, shared: &ApplierShared) -> Result<(), SqlError> {
        let mut wanted: BTreeMap<IncomingKey, Version> = BTreeMap::new();
        for (edge, version) in self.rows.iter().flat_map(|row| &row.edges) {
            let wanted = wanted.entry(IncomingKey::of(edge)).or_default();
            *wanted = (*wanted).max(*version);
        }
        let keys = sorted(wanted.keys().map(IncomingKey::edge));
        let Some(statements) = joined(statements::peek_incoming(&keys)) else {
            return Ok(());
        };
        let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
        let found = take(&mut session.run(&statements)?.into_iter(), &keys)?;
        for (edge, row) in found {
            let key = IncomingKey::of(&edge);
            if wanted.get(&key).is_some_and(|version| row.version >= *version) {
                wanted.remove(&key);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let edges: Vec<EdgeKey> = wanted.keys().map(IncomingKey::edge).collect();
        tracing::info!(edges = edges.len(), "what no changefeed brought is read from the database");
        let partitions = shared.place.partitions;
        let of = |edge: &EdgeKey| places::partition(places::edge_shard(edge), partitions);
        for edges in edges.chunks(TUPLES_MAX) {
            let fence = Fence::of(&shared.kafka.topic, edges.iter().map(of));
            let catalog = shared.catalog.current();
            let edges = edges.iter().copied();
            settle(&mut session, &fence, None, partitions, edges, &catalog, Extra::default())
                .map_err(CommitFailure::into_error)?;
        }
        Ok(())
    }
}

/// How far every partition of the changefeed has come; 0 before each has a watermark.
fn watermark(shared: &ApplierShared) -> Result<u64, SqlError> {
    let mut statement = String::from(
        "SELECT CAST(COALESCE(MIN(watermark),0) AS UNSIGNED) FROM applied WHERE topic=",
    );
    text::bytes(&mut statement, shared.place.topic.as_bytes());
    let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
    session.rows(&statement)?.first().map_or(Ok(0), |row| cell(row, 0))
}

/// Marks the barriers among the rows, in every partition, and removes all of the rows by their
/// exact keys.
fn remove(shared: &ApplierShared, rows: &[DrainRow]) -> Result<(), SqlError> {
    let mut statements = vec!["BEGIN".to_owned()];
    let mut marks = Vec::new();
    for row in rows {
        let Some(id) = row.barrier else { continue };
        let shards = 1 << row.key.shard;
        let partitions = 0..shared.kafka.partitions;
        marks.extend(partitions.map(|partition| BarrierMark { id, partition, shards }));
    }
    if !marks.is_empty() {
        statements.push(barrier::mark(&marks, shared.clock.now_ms()));
    }
    for rows in rows.chunks(TUPLES_MAX) {
        let mut delete = String::from("DELETE FROM outbox WHERE (shard,version,id) IN (");
        text::keys(&mut delete, rows, |out, row| tuple(out, &row.key));
        delete.push(')');
        statements.push(delete);
    }
    statements.push("COMMIT".to_owned());
    let mut session = shared.database.session(Instant::now() + SESSION_WAIT)?;
    session.run(&statements.join(";"))?;
    Ok(())
}

/// A row without its value: its key, the barrier that it is, and how many records it has.
fn seen(row: &mysql::Row) -> Result<(OutboxKey, Option<BarrierId>, u32), SqlError> {
    Ok((key(row)?, cell::<Option<u64>>(row, 3)?.map(BarrierId), cell(row, 4)?))
}

fn key(row: &mysql::Row) -> Result<OutboxKey, SqlError> {
    Ok(OutboxKey { shard: cell(row, 0)?, version: Version(cell(row, 1)?), id: cell(row, 2)? })
}

fn tuple(out: &mut String, key: &OutboxKey) {
    let OutboxKey { shard, version, id } = key;
    let _ = write!(out, "({shard},{},{id})", version.0);
}

fn joined(statements: impl Iterator<Item = String>) -> Option<String> {
    let statements: Vec<String> = statements.collect();
    (!statements.is_empty()).then(|| statements.join(";"))
}
