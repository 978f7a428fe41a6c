//! `apply`: what a record does to the row that stands. The only place where an edge's fate and
//! its tallies are computed, in every deployment.

use crate::edge::EdgeRow;
use crate::kind::Kind;
use crate::record::EdgeRecord;
use crate::tally::{Counted, contribution};

/// What an edge record changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeEffect {
    /// The row that stands is as new or newer: the record came late or twice.
    Nothing,
    /// The row becomes the record's; each number changes by what the rows' contributions differ.
    Replace { tallies: Vec<(Counted, i64)> },
}

/// Applies one edge record to the row as it stands, tombstone or none.
pub fn apply_edge(kind: &Kind, record: &EdgeRecord, standing: Option<&EdgeRow>) -> EdgeEffect {
    if standing.is_some_and(|row| row.version >= record.new.version) {
        return EdgeEffect::Nothing;
    }
    let mut tallies: Vec<(Counted, i64)> = Vec::with_capacity(4);
    for counted in contribution(kind, &record.key, Some(&record.new)) {
        tallies.push((counted, 1));
    }
    for counted in contribution(kind, &record.key, standing) {
        match tallies.iter().position(|(other, _)| *other == counted) {
            Some(at) => {
                tallies.swap_remove(at);
            }
            None => tallies.push((counted, -1)),
        }
    }
    EdgeEffect::Replace { tallies }
}
