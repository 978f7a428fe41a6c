//! `apply`: what a record does to the row that stands. The only place where an edge's fate and
//! its tallies are computed, in every deployment.

use crate::edge::EdgeRow;
use crate::kind::Kind;
use crate::record::EdgeRecord;
use crate::tally::{CountedTally, contribution};

/// Applies one edge record to the row as it stands, tombstone or none: each number changes by what
/// the rows' contributions differ. None when the row that stands is as new or newer: the record came
/// late or twice, and changes nothing.
pub fn apply_edge(
    kind: &Kind,
    record: &EdgeRecord,
    standing: Option<&EdgeRow>,
) -> Option<impl Iterator<Item = (CountedTally, i64)> + use<>> {
    if standing.is_some_and(|row| row.version >= record.new.version) {
        return None;
    }
    let after = contribution(kind, &record.key, Some(&record.new));
    let before = contribution(kind, &record.key, standing);
    let (stays, stayed) = (after.clone(), before.clone());
    let more = after.filter(move |counted| !stayed.clone().any(|other| other == *counted));
    let less = before.filter(move |counted| !stays.clone().any(|other| other == *counted));
    Some(more.map(|counted| (counted, 1)).chain(less.map(|counted| (counted, -1))))
}
