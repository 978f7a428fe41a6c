//! Which catalog a transaction decides by: the instance's copy, or, for whoever changes it, the one
//! that stands, locked.

use std::fmt::Write;
use std::sync::Arc;

use guanxi_model::footprint::NO_KIND;
use guanxi_model::{Change, Request};

use super::CommitterShared;
use crate::catalog::{self, DecidedBy, REVISION, ReadCatalog, SELECT_CATALOG};
use crate::rows::NO_TENANT;
use crate::sql::{Session, SqlError, commit_in_doubt};

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
    shared: &CommitterShared,
    session: &mut Session<'_>,
    requests: &[&Request],
    begin: &mut String,
) -> Result<(DecidedBy, Option<Locked>), SqlError> {
    let mut changes = requests.iter().flat_map(|request| &request.changes);
    if changes.clone().any(super::changes_catalog) {
        let excludes_more = changes.any(may_exclude_more);
        if excludes_more {
            // A lane that is stuck is waited for here, where nobody waits for us.
            commit_in_doubt::await_all(session)?;
        }
        // Before the lanes are held: a lane that has no head yet to be held waits for this row.
        let _ = write!(
            begin,
            "INSERT INTO facts (name,value) VALUES ('{REVISION}',1) \
             ON DUPLICATE KEY UPDATE value=value+1;"
        );
        if excludes_more {
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
    shared.catalog.refresh_if_old(session)?;
    Ok((shared.catalog.to_decide_by(), None))
}

/// Where a lane's head is made: a lane without one cannot be held (`hold_lanes`), so this locks the
/// row that a change of the catalog has from its beginning. Never in a transaction that lasts: a
/// process that was paused in it would keep every first write and every rule waiting.
pub(super) fn wait_for_rules() -> String {
    format!("SELECT value FROM facts WHERE name='{REVISION}' FOR UPDATE;")
}

/// Whether a kind that may have edges may come to exclude another.
fn may_exclude_more(change: &Change) -> bool {
    matches!(change, Change::SetKind { patch, .. } if patch.excludes.is_some())
}

/// Takes the head of every lane, of all instances: waits for the transactions under way, which may
/// put an edge of the kind without knowing that it excludes, and lets others begin only when the new
/// rule is there to be seen (those of lanes without a head wait for the revision, `wait_for_rules`).
/// Otherwise an edge that is excluded by one that is not committed yet could be put. (A kind that is
/// new needs none of this: nobody puts an edge of it without knowing its rules.)
fn hold_lanes(begin: &mut String) {
    let (tenant, kind) = (NO_TENANT.0, NO_KIND.0);
    let _ =
        write!(begin, "SELECT version FROM head WHERE tenant={tenant} AND kind={kind} FOR UPDATE;");
}
