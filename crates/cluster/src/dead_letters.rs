//! Dead letters: records that never could be applied, and what an operator may do with them. A
//! retry applies what `outgoing` says of the edge now, never the stored record, which may be old.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::deployment::{self, Letter, RetriedLetter};
use guanxi_model::{Code, EdgeKey, Error, KindId, Millis, SourceId, TargetId, TenantId, places};
use mysql::Row;

use super::applier::{Extra, Fence, settle};
use super::catalog::SharedCatalog;
use super::kafka::{LogPosition, RecordMark, TopicId};
use super::rows::{cell, edge_tuple};
use super::sql::commit_in_doubt::CommitFailure;
use super::sql::text;
use super::sql::{Database, SqlError};

/// Letters on one page at most.
pub const LETTERS_PER_PAGE_MAX: usize = 200;
/// What the table keeps of a cause.
const CAUSE_BYTES_MAX: usize = 1024;
/// What the table keeps of a value; a longer one is cut, so that it fits a statement and a message
/// of the dead-letter topic.
const VALUE_BYTES_MAX: usize = 512 * 1024;
/// How long an operation may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);
/// A letter's id is the time it was written and, below, a random number.
const ID_RANDOM_BITS: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: u64,
    pub topic: String,
    pub partition: u32,
    pub position: u64,
    /// Which record it was: another topic, or another history of this one, may have had another at
    /// the same position.
    pub topic_id: TopicId,
    pub mark: RecordMark,
    /// The edge that it is about, where that could be read.
    pub edge: Option<EdgeKey>,
    pub at: Millis,
    pub cause: String,
    /// Whether the dead-letter topic has it.
    pub published: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    #[error("there is no dead letter {0}: it may have been retried or dropped")]
    Unknown(u64),
    #[error(
        "dead letter {0} does not say which edge it is about, so there is nothing to read again: \
         look at it, then drop it"
    )]
    Unreadable(u64),
    #[error(
        "dead letter {0} is about a kind that does not exist: create the kind and try again, or \
         drop the letter"
    )]
    UnknownKind(u64),
    #[error(transparent)]
    Sql(#[from] SqlError),
}

/// The operator's view.
#[derive(Debug, Clone)]
pub struct DeadLetterTable {
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    /// The cluster's own topic.
    topic: String,
    partitions: u32,
}

impl DeadLetterTable {
    pub fn new(
        database: Arc<Database>,
        catalog: Arc<SharedCatalog>,
        topic: &str,
        partitions: u32,
    ) -> DeadLetterTable {
        DeadLetterTable { database, catalog, topic: topic.to_owned(), partitions }
    }

    /// Letters in the order of their ids, oldest first, after the one given. A full page may have
    /// a next one.
    pub fn list(
        &self,
        after: Option<u64>,
        items_max: usize,
    ) -> Result<Vec<DeadLetter>, DeadLetterError> {
        let items_max = items_max.clamp(1, LETTERS_PER_PAGE_MAX);
        let after = after.map_or(String::new(), |id| format!("WHERE id>{id}"));
        let statement =
            format!("SELECT {COLUMNS} FROM dead_letters {after} ORDER BY id LIMIT {items_max}");
        let rows = self.database.session(Instant::now() + SESSION_WAIT)?.rows(&statement)?;
        Ok(rows.iter().map(letter).collect::<Result<_, _>>()?)
    }

    /// How many there are.
    pub fn count(&self) -> Result<u64, DeadLetterError> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let rows = session.rows("SELECT COUNT(*) FROM dead_letters")?;
        Ok(rows.first().map_or(Ok(0), |row| cell(row, 0))?)
    }

    /// A letter and the record as it came.
    pub fn show(&self, id: u64) -> Result<(DeadLetter, Vec<u8>), DeadLetterError> {
        let statement = format!("SELECT {COLUMNS},value FROM dead_letters WHERE id={id}");
        let rows = self.database.session(Instant::now() + SESSION_WAIT)?.rows(&statement)?;
        let row = rows.first().ok_or(DeadLetterError::Unknown(id))?;
        Ok((letter(row)?, cell(row, VALUE_COLUMN)?))
    }

    /// Brings the edge's target side to what `outgoing` says now, and removes the letter.
    pub fn retry(&self, id: u64) -> Result<RetriedLetter, DeadLetterError> {
        let (letter, _) = self.show(id)?;
        let edge = letter.edge.ok_or(DeadLetterError::Unreadable(id))?;
        if self.catalog.current().kind(edge.tenant, edge.kind).is_none() {
            self.catalog.refresh(&self.database)?;
        }
        let catalog = self.catalog.current();
        if catalog.kind(edge.tenant, edge.kind).is_none() {
            return Err(DeadLetterError::UnknownKind(id));
        }
        let partition = places::partition(places::edge_shard(&edge), self.partitions);
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let settled = settle(
            &mut session,
            &Fence::of(&self.topic, [partition]),
            None,
            self.partitions,
            std::iter::once(edge),
            &catalog,
            // Both may be done again.
            Extra {
                statements: &[format!("DELETE FROM dead_letters WHERE id={id}")],
                witness: None,
            },
        )
        .map_err(CommitFailure::into_error)?;
        Ok(RetriedLetter { edge, changed: settled.changed > 0 })
    }

    /// Forgets a letter.
    pub fn drop(&self, id: u64) -> Result<(), DeadLetterError> {
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let sets = session.run(&format!("BEGIN;DELETE FROM dead_letters WHERE id={id};COMMIT"))?;
        match sets.get(1).map(|set| set.changed) {
            Some(0) | None => Err(DeadLetterError::Unknown(id)),
            Some(_) => Ok(()),
        }
    }
}

impl deployment::DeadLetterStore for DeadLetterTable {
    fn list(&self, after: Option<u64>, items_max: usize) -> Result<Vec<Letter>, Error> {
        let letters = DeadLetterTable::list(self, after, items_max).map_err(refusal)?;
        Ok(letters.into_iter().map(Letter::from).collect())
    }

    fn show(&self, id: u64) -> Result<(Letter, Vec<u8>), Error> {
        let (letter, value) = DeadLetterTable::show(self, id).map_err(refusal)?;
        Ok((letter.into(), value))
    }

    fn retry(&self, id: u64) -> Result<RetriedLetter, Error> {
        DeadLetterTable::retry(self, id).map_err(refusal)
    }

    fn forget(&self, id: u64) -> Result<(), Error> {
        DeadLetterTable::drop(self, id).map_err(refusal)
    }
}

/// The driver's words go to the log of the service, never to a caller.
fn refusal(error: DeadLetterError) -> Error {
    match &error {
        DeadLetterError::Unknown(_) => Error::new(Code::NotFound, error.to_string()),
        DeadLetterError::Unreadable(_) | DeadLetterError::UnknownKind(_) => {
            Error::new(Code::Conflict, error.to_string())
        }
        DeadLetterError::Sql(sql) => {
            tracing::error!(error = %sql, "dead letters could not be read or changed");
            Error::new(Code::Unavailable, "the database did not answer; try again")
        }
    }
}

impl From<DeadLetter> for Letter {
    fn from(letter: DeadLetter) -> Letter {
        let DeadLetter { id, topic, partition, position, edge, at, cause, .. } = letter;
        Letter { id, topic, partition, position, edge, at, cause }
    }
}

const COLUMNS: &str =
    "id,topic,part,position,topic_id,mark,tenant,kind,source,target,at,cause,published";
const VALUE_COLUMN: usize = 13;

fn letter(row: &Row) -> Result<DeadLetter, SqlError> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (tenant, kind): (Option<u32>, Option<u16>) = (cell(row, 6)?, cell(row, 7)?);
    let (source, target): (Option<u64>, Option<u64>) = (cell(row, 8)?, cell(row, 9)?);
    let edge = match (tenant, kind, source, target) {
        (Some(tenant), Some(kind), Some(source), Some(target)) => Some(EdgeKey {
            tenant: TenantId(tenant),
            kind: KindId(kind),
            source: SourceId(source),
            target: TargetId(target),
        }),
        _ => None,
    };
    Ok(DeadLetter {
        id: cell(row, 0)?,
        topic: text(cell(row, 1)?),
        partition: cell(row, 2)?,
        position: cell(row, 3)?,
        topic_id: TopicId(cell(row, 4)?),
        mark: RecordMark(cell(row, 5)?),
        edge,
        at: Millis(cell(row, 10)?),
        cause: text(cell(row, 11)?),
        published: cell::<u8>(row, 12)? != 0,
    })
}

/// A record that its applier gives up.
#[derive(Debug)]
pub(crate) struct NewLetter<'a> {
    pub topic: &'a str,
    pub partition: u32,
    pub position: u64,
    /// The position after it, which says which record it is.
    pub after: LogPosition,
    pub edge: Option<EdgeKey>,
    pub cause: &'a str,
    pub value: &'a [u8],
}

/// Statements that write letters, in the transaction that passes them by. A record that is passed
/// by again replaces its letter.
pub(crate) fn insert_statements(
    statements: &mut Vec<String>,
    letters: &[NewLetter<'_>],
    now_ms: u64,
) {
    let place = |out: &mut String, letter: &NewLetter<'_>| {
        text::bytes(out, letter.topic.as_bytes());
        let NewLetter { partition, position, after, .. } = letter;
        let _ = write!(out, ",{partition},{position},{},{}", after.topic.0, after.before.0);
    };
    for letters in letters.chunks(text::TUPLES_MAX) {
        let mut delete =
            String::from("DELETE FROM dead_letters WHERE (topic,part,position,topic_id,mark) IN (");
        text::keys(&mut delete, letters, |out, letter| {
            out.push('(');
            place(out, letter);
            out.push(')');
        });
        delete.push(')');
        statements.push(delete);
    }
    // Ids of one transaction follow one another; one that is taken by chance is a clash of keys,
    // and the transaction is tried again with others.
    let random = fastrand::u64(..1 << ID_RANDOM_BITS);
    let mut insert = String::from(
        "INSERT INTO dead_letters \
         (id,topic,part,position,topic_id,mark,at,cause,value,tenant,kind,source,target) VALUES ",
    );
    text::list(&mut insert, letters.iter().enumerate(), |out, (index, letter)| {
        let id = ((now_ms << ID_RANDOM_BITS) | random) + index as u64;
        let _ = write!(out, "({id},");
        place(out, letter);
        let _ = write!(out, ",{now_ms},");
        let cause = letter.cause.as_bytes();
        text::bytes(out, &cause[..cause.len().min(CAUSE_BYTES_MAX)]);
        out.push(',');
        text::bytes(out, &letter.value[..letter.value.len().min(VALUE_BYTES_MAX)]);
        out.push(',');
        match &letter.edge {
            Some(edge) => {
                let mut tuple = String::new();
                edge_tuple(&mut tuple, edge);
                out.push_str(tuple.trim_start_matches('('));
            }
            None => out.push_str("NULL,NULL,NULL,NULL)"),
        }
    });
    statements.push(insert);
}

/// Letters after this id that the dead-letter topic does not have yet, with their values.
pub(crate) fn unpublished(
    database: &Database,
    after: u64,
    letters_max: usize,
) -> Result<Vec<(DeadLetter, Vec<u8>)>, SqlError> {
    let statement = format!(
        "SELECT {COLUMNS},value FROM dead_letters FORCE INDEX (by_published) WHERE published=0 AND id>{after} \
         ORDER BY id LIMIT {letters_max}"
    );
    let mut session = database.session(Instant::now() + SESSION_WAIT)?;
    session
        .rows(&statement)?
        .iter()
        .map(|row| Ok((letter(row)?, cell(row, VALUE_COLUMN)?)))
        .collect()
}

pub(crate) fn mark_published(database: &Database, ids: &[u64]) -> Result<(), SqlError> {
    let mut statement = String::from("BEGIN;UPDATE dead_letters SET published=1 WHERE id IN (");
    text::list(&mut statement, ids, text::number);
    statement.push_str(");COMMIT");
    database.session(Instant::now() + SESSION_WAIT)?.run(&statement)?;
    Ok(())
}
