//! What the broker said to have for good, noted in the database when the outbox no longer has it. An
//! applier that finds another record in its place, or a log that ends before it, knows that the log
//! lost what nobody will send again.
//!
//! Nobody but whoever has seen its record in the log, or rebuilt its partition, takes a note away,
//! and a relay replaces only such notes of its own as a later one stands for
//! (`relay/acknowledged.rs`): a log that lost its end grows past it again.

use std::fmt::Write;

use super::kafka::{RecordMark, TopicId};
use super::rows::cell;
use super::sql::text::{self, TUPLES_MAX};
use super::sql::{Session, SqlError};

/// The record that stands, or should stand, at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub part: u32,
    /// What it is noted under; a later note of the same number in the same partition replaces it.
    pub writer: u64,
    pub position: u64,
    pub topic: TopicId,
    pub mark: RecordMark,
}

const COLUMNS: &str = "part,writer,position,topic_id,mark";

/// Writes notes, each over the one of the same number.
pub(crate) fn write_statement(topic: &str, notes: &[Note]) -> String {
    let mut out = format!("INSERT INTO acknowledged (topic,{COLUMNS}) VALUES ");
    text::list(&mut out, notes, |out, note| {
        let Note { part, writer, position, topic: id, mark } = note;
        out.push('(');
        text::bytes(out, topic.as_bytes());
        let _ = write!(out, ",{part},{writer},{position},{},{})", id.0, mark.0);
    });
    out.push_str(
        " ON DUPLICATE KEY UPDATE position=VALUES(position),topic_id=VALUES(topic_id),\
         mark=VALUES(mark)",
    );
    out
}

/// Reads the notes between two positions of each of these partitions, the second excluded.
pub(crate) fn between_statement(
    topic: &str,
    stretches: impl IntoIterator<Item = (u32, u64, u64)>,
) -> String {
    let mut out = format!("SELECT {COLUMNS} FROM acknowledged WHERE topic=");
    text::bytes(&mut out, topic.as_bytes());
    out.push_str(" AND (FALSE");
    for (part, from, to) in stretches {
        let _ = write!(out, " OR (part={part} AND position>={from} AND position<{to})");
    }
    out.push(')');
    out
}

/// All notes of these partitions.
pub(crate) fn of_partitions(
    session: &mut Session<'_>,
    topic: &str,
    partitions: impl IntoIterator<Item = u32>,
) -> Result<Vec<Note>, SqlError> {
    let all = partitions.into_iter().map(|part| (part, 0, u64::MAX));
    let rows = session.rows(&between_statement(topic, all))?;
    rows.iter().map(note).collect()
}

/// Deletes exactly these notes: what their writers have noted since stays. In the order in which
/// relays write, so that neither waits for the other.
pub(crate) fn delete_statements(topic: &str, mut notes: Vec<Note>) -> Vec<String> {
    notes.sort_unstable_by_key(|note| (note.part, note.writer));
    let delete = |notes: &[Note]| {
        let mut out = String::from("DELETE FROM acknowledged WHERE topic=");
        text::bytes(&mut out, topic.as_bytes());
        let _ = write!(out, " AND part={} AND (writer,position) IN (", notes[0].part);
        text::keys(&mut out, notes, |out, note| {
            let _ = write!(out, "({},{})", note.writer, note.position);
        });
        out.push(')');
        out
    };
    let partitions = notes.chunk_by(|one, next| one.part == next.part);
    partitions.flat_map(|notes| notes.chunks(TUPLES_MAX)).map(delete).collect()
}

pub(crate) fn note(row: &mysql::Row) -> Result<Note, SqlError> {
    Ok(Note {
        part: cell(row, 0)?,
        writer: cell(row, 1)?,
        position: cell(row, 2)?,
        topic: TopicId(cell(row, 3)?),
        mark: RecordMark(cell(row, 4)?),
    })
}
