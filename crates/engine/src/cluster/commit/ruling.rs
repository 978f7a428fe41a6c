//! Which catalog a transaction decides by: the instance's copy, or, for whoever changes it, the one
//! that stands, locked.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guanxi_model::footprint::NO_KIND;
use guanxi_model::{Change, Millis};

use super::Shared;
use crate::cluster::catalog::{self, DecidedBy, REVISION, ReadCatalog, SELECT_CATALOG};
use crate::cluster::rows::NO_TENANT;
use crate::cluster::sql::{Session, SqlError};
use crate::commit::Request;

/// What a locked catalog has beside its kinds: the revision that it gets, and whether it was
/// unmarked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Locked {
    pub revision: u64,
    pub unmarked: bool,
}

/// The catalog to decide by. Whoever changes it locks it first and reads it as it stands; then
/// what else it is changed by is returned, and the transaction has begun.
pub(super) fn catalog_for(
    shared: &Shared,
    session: &mut Session<'_>,
    requests: &[&Request],
    begin: &mut String,
) -> Result<(DecidedBy, Option<Locked>), SqlError> {
    let mut changes = requests.iter().flat_map(|request| &request.changes);
    if changes.clone().any(super::changes_catalog) {
        // Before the lanes are held: a lane that has no head yet to be held waits for this row.
        let _ = write!(
            begin,
            "INSERT INTO facts (name,value) VALUES ('{REVISION}',1) \
             ON DUPLICATE KEY UPDATE value=value+1;"
        );
        if changes.any(may_exclude_more) {
            hold_lanes(begin);
        }
        let before = begin.matches(';').count();
        begin.push_str(SELECT_CATALOG);
        let sets = session.run(begin)?;
        begin.clear();
        let mut sets = sets.into_iter().skip(before).map(|set| set.rows);
        let ReadCatalog { catalog, revision, unmarked } = catalog::parse(&mut sets)?;
        let (catalog, exclusions_marked) = (Arc::new(catalog), !unmarked);
        let by = DecidedBy { catalog, revision, exclusions_marked };
        return Ok((by, Some(Locked { revision, unmarked })));
    }
    let by = shared.catalog.to_decide_by();
    let known = |change: &Change| {
        super::kind_of(change).is_none_or(|(tenant, kind)| by.catalog.kind(tenant, kind).is_some())
    };
    if changes.all(known) {
        return Ok((by, None));
    }
    if let Err(error) = shared.catalog.refresh_for_unknown(&shared.database) {
        tracing::warn!(%error, "the catalog could not be looked at for a new kind");
    }
    Ok((shared.catalog.to_decide_by(), None))
}

/// How long a lane's head is surely there after a commit: the clean-up leaves those of the last day.
const LANE_HELD_MS: u64 = 12 * 60 * 60 * 1_000;

/// When each lane last committed in this process; 0 before it did.
#[derive(Debug)]
pub(super) struct LaneHeads {
    committed_ms: Vec<AtomicU64>,
}

impl LaneHeads {
    pub fn new(lanes: usize) -> LaneHeads {
        LaneHeads { committed_ms: (0..lanes).map(|_| AtomicU64::new(0)).collect() }
    }

    pub fn committed(&self, lane: usize, now: Millis) {
        if let Some(at) = self.committed_ms.get(lane) {
            at.store(now.0, Ordering::Relaxed);
        }
    }

    /// A lane without a head cannot be held (`hold_lanes`), so its transaction begins with the row
    /// that a change of the catalog has from its beginning: each waits for the other. Everybody
    /// else reads that row without a lock.
    pub fn wait_for_rules(&self, lane: usize, now: Millis, begin: &mut String) {
        let at = self.committed_ms.get(lane).map_or(0, |at| at.load(Ordering::Relaxed));
        if at == 0 || now.0.saturating_sub(at) >= LANE_HELD_MS {
            let _ = write!(begin, "SELECT value FROM facts WHERE name='{REVISION}' FOR UPDATE;");
        }
    }
}

/// Whether a kind that may have edges may come to exclude another.
fn may_exclude_more(change: &Change) -> bool {
    matches!(change, Change::SetKind { patch, .. } if patch.excludes.is_some())
}

/// Takes the head of every lane, of all instances: waits for the transactions under way, which may
/// put an edge of the kind without knowing that it excludes, and lets others begin only when the new
/// rule is there to be seen (those of lanes without a head wait for the revision, `LaneHeads`).
/// Otherwise an edge that is excluded by one that is not committed yet could be put. (A kind that is new needs none of this: nobody puts an edge of it without knowing
/// its rules.)
fn hold_lanes(begin: &mut String) {
    let (tenant, kind) = (NO_TENANT.0, NO_KIND.0);
    let _ =
        write!(begin, "SELECT version FROM head WHERE tenant={tenant} AND kind={kind} FOR UPDATE;");
}
