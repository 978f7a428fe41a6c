//! Says of partitions to which topic they belong before anything of them is applied. A partition of
//! no topic would be read from the beginning of whichever topic has the name later, and what the one
//! before it had would be missing unnoticed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::kafka::{LogPosition, Offsets, TopicId};
use super::super::sql::{Database, SqlError};
use super::batch::positions;
use super::shared::{ApplierShared, AskError};
use super::statements;

/// How long it may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);

/// Binds those of the partitions that belong to no topic yet to the one that has the name now. One
/// that never had a position begins at 0; if the log begins later, that is found out by reading.
pub(crate) fn bind_positions(
    database: &Database,
    topic: &str,
    partitions: &[u32],
    id: TopicId,
) -> Result<(), SqlError> {
    let bind = statements::bind_positions(topic, partitions, id);
    database.session(Instant::now() + SESSION_WAIT)?.run(&format!("BEGIN;{bind};COMMIT"))?;
    Ok(())
}

/// Positions as they stand when no transaction is under way, each of a topic.
pub(super) fn stored_positions(
    shared: &ApplierShared,
    partitions: &[u32],
) -> Result<BTreeMap<u32, LogPosition>, AskError> {
    let ApplierShared { database, kafka, place, .. } = shared;
    let lock = statements::lock_positions(&place.topic, partitions);
    let read = || {
        let mut session = database.session(Instant::now() + SESSION_WAIT)?;
        let mut sets = session.run(&format!("BEGIN;{lock};COMMIT"))?;
        positions(if sets.len() > 1 { sets.swap_remove(1) } else { Default::default() })
    };
    let found = read()?;
    let is_bound = |part: &u32| found.get(part).is_some_and(|at| at.topic.is_known());
    if partitions.iter().all(is_bound) {
        return Ok(found);
    }
    let id = Offsets::open(kafka)?.topic_id(&place.topic)?;
    bind_positions(database, &place.topic, partitions, id)?;
    Ok(read()?)
}
