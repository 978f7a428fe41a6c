//! Group sizes against the edges that are in the groups, one source at a time.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use guanxi_core::audit::{AuditFinding, Drift};
use guanxi_core::snapshot::StoreError;
use guanxi_model::{Change, GroupId, GroupsKey};

use crate::store::EmbeddedSnapshot;

/// Compares the groups of one source; returns how many rows that took.
pub(super) fn compare_groups(
    snapshot: &dyn EmbeddedSnapshot,
    groups: &GroupsKey,
    found: &mut dyn FnMut(AuditFinding),
) -> Result<u64, StoreError> {
    let kept = match snapshot.groups(groups) {
        Ok(kept) => kept,
        // The walk over all rows names what cannot be read.
        Err(StoreError::Damaged(_)) => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut members: BTreeMap<GroupId, i64> = BTreeMap::new();
    let mut rows = 0;
    let (tenant, kind, source) = (groups.tenant, groups.kind, groups.source);
    let walk = snapshot.edges_of_source(tenant, kind, source, None, &mut |_, row| {
        rows += 1;
        if let (true, Some(id)) = (row.is_live(), row.group) {
            *members.entry(id).or_default() += 1;
        }
        ControlFlow::Continue(())
    });
    match walk {
        Ok(()) => {}
        Err(StoreError::Damaged(_)) => return Ok(rows),
        Err(error) => return Err(error),
    }
    for group in kept.groups {
        let size = members.get(&group.id).copied().unwrap_or(0);
        if size != group.size {
            let delta = size.wrapping_sub(group.size);
            found(AuditFinding {
                kind: (tenant, kind),
                drift: Drift::WrongGroupSize,
                mend: Change::RepairGroupSize { groups: *groups, id: group.id, delta },
            });
        }
    }
    Ok(rows)
}
