//! Edges that look new are inserted at once instead of being looked for first: what the database
//! really inserted had nothing standing, and only what it passed over is looked at. Most records
//! are of new edges, and a look costs the database as much as the insertion.
//!
//! A row inserted so is the last that the batch has of its edge, which is what a fold from nothing
//! ends with. IGNORE bends no value: every column holds all that its type can say. A row that the
//! table refuses is passed over too, and met again by the plain insertion, which says why.

use std::collections::BTreeMap;

use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{EdgeRow, KindId, SourceId, TargetId, TenantId};
use rustc_hash::FxHashSet;

use super::super::rows;
use super::super::sql::{RowSet, SqlError};
use super::batch::{ApplyItem, Slice};
use super::fold::IncomingKey;
use super::statements;

/// How a batch learns what stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Edges that look new are inserted first, where the server tells which of them were.
    Foreseeing,
    /// Everything is looked at first. A row that is passed over leaves locks around it that others
    /// may run into; this way leaves none.
    Looking,
}

/// The edges that look new, with the row that each has after the batch if nothing stands.
#[derive(Debug, Default)]
pub(super) struct Foreseen<'a>(BTreeMap<IncomingKey, &'a EdgeRow>);

impl<'a> Foreseen<'a> {
    pub fn of(slices: &'a [Slice]) -> Foreseen<'a> {
        let mut rows: BTreeMap<IncomingKey, &'a EdgeRow> = BTreeMap::new();
        // Edges with a record that tells of something before it, or of nothing.
        let mut known: FxHashSet<IncomingKey> = FxHashSet::default();
        for placed in slices.iter().flat_map(|slice| &slice.items) {
            match &placed.item {
                ApplyItem::Edge(record) => {
                    let key = IncomingKey::of(&record.key);
                    let row = rows.entry(key).or_insert(&record.new);
                    if record.new.version > row.version {
                        *row = &record.new;
                    }
                    if !looks_new(record) {
                        known.insert(key);
                    }
                }
                item => known.extend(item.reread().map(|edge| IncomingKey::of(&edge))),
            }
        }
        if !known.is_empty() {
            rows.retain(|key, _| !known.contains(key));
        }
        Foreseen(rows)
    }

    pub fn contains(&self, key: &IncomingKey) -> bool {
        self.0.contains_key(key)
    }

    /// Inserts them, and tells which were.
    pub fn statement(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| statements::insert_unless_there(&self.0))
    }

    /// Leaves those that were inserted; returns the others.
    pub fn inserted(&mut self, answer: &RowSet) -> Result<Vec<IncomingKey>, SqlError> {
        if answer.rows.len() == self.0.len() {
            return Ok(Vec::new());
        }
        let inserted: FxHashSet<IncomingKey> =
            answer.rows.iter().map(key).collect::<Result<_, _>>()?;
        let others = self.0.keys().filter(|key| !inserted.contains(key)).copied().collect();
        self.0.retain(|key, _| inserted.contains(key));
        Ok(others)
    }

    pub fn row(&self, key: &IncomingKey) -> Option<&EdgeRow> {
        self.0.get(key).copied()
    }
}

/// Whether its source knew nothing before it. A tombstone may stand even so.
fn looks_new(record: &EdgeRecord) -> bool {
    record.old.is_none() && matches!(record.cause, Cause::Put | Cause::Import)
}

fn key(row: &mysql::Row) -> Result<IncomingKey, SqlError> {
    Ok(IncomingKey {
        tenant: TenantId(rows::cell(row, 0)?),
        kind: KindId(rows::cell(row, 1)?),
        target: TargetId(rows::cell(row, 2)?),
        source: SourceId(rows::cell(row, 3)?),
    })
}
