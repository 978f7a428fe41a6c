//! The text of the applier's statements: few and large, because the database's processor is what
//! bounds it. Every list is sorted, so that locks are always taken in one order.

use std::collections::BTreeMap;
use std::fmt::Write;

use guanxi_model::EdgeRow;

use super::super::kafka::{LogPosition, TopicId};
use super::super::rows::{INCOMING_COLUMNS, edge_tuple};
use super::super::sql::text::{self, TUPLES_MAX};
use super::fold::{Fold, IncomingKey, TallyDifference, TallyKey};

/// The columns of a position.
pub(crate) const POSITION_COLUMNS: &str = "next,topic_id,mark";

/// Locks the positions of these partitions, in order.
pub(crate) fn lock_positions(topic: &str, partitions: &[u32]) -> String {
    let mut out = format!(
        "SELECT part,{POSITION_COLUMNS} FROM applied FORCE INDEX (PRIMARY) WHERE (topic,part) IN ("
    );
    text::list(&mut out, partitions, |out, partition| place(out, topic, *partition));
    out.push_str(") ORDER BY topic,part FOR UPDATE");
    out
}

/// Gives partitions that never had a position the first there can be, and binds those that belong
/// to no topic yet to this one.
pub(crate) fn bind_positions(topic: &str, partitions: &[u32], id: TopicId) -> String {
    let mut out = String::from("INSERT INTO applied (topic,part,next,topic_id) VALUES ");
    text::list(&mut out, partitions, |out, partition| {
        out.push('(');
        text::bytes(out, topic.as_bytes());
        let _ = write!(out, ",{partition},0,{})", id.0);
    });
    out.push_str(" ON DUPLICATE KEY UPDATE topic_id=IF(topic_id=0,VALUES(topic_id),topic_id)");
    out
}

/// Partition, position and watermark (0: none came); a watermark never falls.
pub(crate) fn set_positions(topic: &str, positions: &[(u32, LogPosition, u64)]) -> String {
    let mut out = format!("INSERT INTO applied (topic,part,{POSITION_COLUMNS},watermark) VALUES ");
    text::list(&mut out, positions, |out, (partition, position, watermark)| {
        out.push('(');
        text::bytes(out, topic.as_bytes());
        let LogPosition { next, topic, before } = position;
        let _ = write!(out, ",{partition},{next},{},{},{watermark})", topic.0, before.0);
    });
    out.push_str(
        " ON DUPLICATE KEY UPDATE next=VALUES(next),topic_id=VALUES(topic_id),mark=VALUES(mark),\
         watermark=GREATEST(watermark,VALUES(watermark))",
    );
    out
}

/// `(topic,part)`
fn place(out: &mut String, topic: &str, partition: u32) {
    out.push('(');
    text::bytes(out, topic.as_bytes());
    let _ = write!(out, ",{partition})");
}

/// The rows that stand, locked: one statement for each piece of a sorted list. A row that is not
/// there cannot be locked; it is later inserted, never upserted, so that whoever else did so is
/// met by an error.
pub(crate) fn select_incoming(keys: &[IncomingKey]) -> impl Iterator<Item = String> {
    peek_incoming(keys).map(|statement| statement + " FOR UPDATE")
}

/// The same without a lock.
pub(crate) fn peek_incoming(keys: &[IncomingKey]) -> impl Iterator<Item = String> {
    keys.chunks(TUPLES_MAX).map(|keys| {
        let mut out = format!(
            "SELECT {INCOMING_COLUMNS} FROM incoming FORCE INDEX (PRIMARY) \
             WHERE (tenant,kind,target,source) IN ("
        );
        text::list(&mut out, keys, incoming_tuple);
        out.push(')');
        out
    })
}

/// How many statements these keys make.
pub(crate) fn pieces(keys: &[IncomingKey]) -> usize {
    keys.len().div_ceil(TUPLES_MAX)
}

/// The same columns from the source's side.
pub(crate) fn select_outgoing(keys: &[IncomingKey]) -> impl Iterator<Item = String> {
    keys.chunks(TUPLES_MAX).map(|keys| {
        let mut out = format!(
            "SELECT {INCOMING_COLUMNS} FROM outgoing FORCE INDEX (PRIMARY) \
             WHERE (tenant,kind,source,target) IN ("
        );
        text::list(&mut out, keys, |out, key| edge_tuple(out, &key.edge()));
        out.push(')');
        out
    })
}

/// What a fold changes, as statements; `written` has rows that the transaction inserted before.
pub(crate) fn write_fold<'a>(
    statements: &mut Vec<String>,
    fold: &Fold,
    written: impl Fn(&IncomingKey) -> Option<&'a EdgeRow>,
) {
    let (mut fresh, mut changed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for (key, write) in fold.rows() {
        let before = written(key);
        let stood = write.stood || before.is_some();
        match &write.row {
            Some(row) if before == Some(row) => {}
            Some(row) if stood => changed.push((key, row)),
            Some(row) => fresh.push((key, row)),
            None if stood => gone.push(key),
            None => {}
        }
    }
    if !fresh.is_empty() {
        statements.push(insert_incoming("INSERT", &fresh, has_owner(&fresh)));
    }
    if !changed.is_empty() {
        let mut out = insert_incoming("INSERT", &changed, true);
        out.push_str(
            " ON DUPLICATE KEY UPDATE version=VALUES(version),state=VALUES(state),\
             since=VALUES(since),owner=VALUES(owner)",
        );
        statements.push(out);
    }
    for keys in gone.chunks(TUPLES_MAX) {
        let mut out = String::from("DELETE FROM incoming WHERE (tenant,kind,target,source) IN (");
        text::keys(&mut out, keys.iter().copied(), incoming_tuple);
        out.push(')');
        statements.push(out);
    }
    if let Some(tallies) = add_tallies(fold) {
        statements.push(tallies);
    }
}

/// Inserts those of the rows where none stands, and answers with the keys of these. The rows of a
/// map are sorted.
pub(crate) fn insert_unless_there(rows: &BTreeMap<IncomingKey, &EdgeRow>) -> String {
    let rows: Vec<_> = rows.iter().map(|(key, row)| (key, *row)).collect();
    let mut out = insert_incoming("INSERT IGNORE", &rows, has_owner(&rows));
    out.push_str(" RETURNING tenant,kind,target,source");
    out
}

/// A column that is NULL in all new rows need not be named.
fn has_owner(rows: &[(&IncomingKey, &EdgeRow)]) -> bool {
    rows.iter().any(|(_, row)| row.owner.is_some())
}

fn insert_incoming(verb: &str, rows: &[(&IncomingKey, &EdgeRow)], with_owner: bool) -> String {
    let mut out = format!("{verb} INTO incoming (tenant,kind,target,source,version,state,since");
    out.push_str(if with_owner { ",owner) VALUES " } else { ") VALUES " });
    text::list(&mut out, rows, |out, (key, row)| {
        let IncomingKey { tenant, kind, target, source } = key;
        let (version, state, since) = (row.version.0, row.state as u8, row.since.0);
        let _ = write!(out, "({},{},{},{},", tenant.0, kind.0, target.0, source.0);
        let _ = write!(out, "{version},{state},{since}");
        if with_owner {
            out.push(',');
            text::optional(out, row.owner, text::number);
        }
        out.push(')');
    });
    out
}

type NumberOf = fn(&TallyDifference) -> i64;

/// The numbers of a tally row, by their columns.
const NUMBERS: [(&str, NumberOf); 3] = [
    ("incoming", |by| by.incoming),
    ("pending_incoming", |by| by.pending_incoming),
    ("owned", |by| by.owned),
];

/// Only columns that change in some row are named: each costs the database something in all rows.
fn add_tallies(fold: &Fold) -> Option<String> {
    let tallies = fold.tallies();
    if tallies.is_empty() {
        return None;
    }
    let changes = |number: NumberOf| tallies.iter().any(|(_, by)| number(by) != 0);
    let numbers: Vec<_> = NUMBERS.into_iter().filter(|(_, number)| changes(*number)).collect();
    let mut out = String::from("INSERT INTO tally (tenant,node_type,node,kind,slot");
    for (column, _) in &numbers {
        let _ = write!(out, ",{column}");
    }
    out.push_str(") VALUES ");
    text::list(&mut out, &tallies, |out, (key, by)| {
        let TallyKey { tenant, node_type, node, kind, slot } = key;
        let _ = write!(out, "({},{},{node},{},{slot}", tenant.0, node_type.0, kind.0);
        for (_, number) in &numbers {
            let _ = write!(out, ",{}", number(by));
        }
        out.push(')');
    });
    out.push_str(" ON DUPLICATE KEY UPDATE ");
    for (column, _) in &numbers {
        let _ = write!(out, "{column}={column}+VALUES({column}),");
    }
    out.push_str("revision=revision+1");
    Some(out)
}

/// `(tenant,kind,target,source)`
fn incoming_tuple(out: &mut String, key: &IncomingKey) {
    let IncomingKey { tenant, kind, target, source } = key;
    let _ = write!(out, "({},{},{},{})", tenant.0, kind.0, target.0, source.0);
}
