//! The sweeper: issues the removals of edges whose expiry has come. An edge is live until its
//! removal commits, so tallies always equal live edges.

use std::time::Duration;

use guanxi_core::signal::Next;
use guanxi_core::snapshot::StoreError;
use guanxi_model::limits::JOB_STEP_EDGES_MAX;
use guanxi_model::{Change, Millis, TenantId};

use crate::background::Workbench;

const SWEEP_INTERVAL: Duration = Duration::from_millis(200);

/// Removes what is due, up to a step's worth.
pub(crate) fn turn(bench: &Workbench) -> Result<Next, StoreError> {
    let now = Millis(bench.clock.past_ms());
    let due = bench.store.snapshot().due(now, JOB_STEP_EDGES_MAX)?;
    let mut tenants: Vec<TenantId> = due.iter().map(|(_, edge)| edge.tenant).collect();
    tenants.dedup();
    for tenant in tenants {
        let of_tenant = due.iter().filter(|(_, edge)| edge.tenant == tenant);
        let changes = of_tenant
            .map(|(expires_at, edge)| Change::Expire { edge: *edge, expires_at: *expires_at });
        if bench.write_all(tenant, changes.collect()).is_none() {
            return Ok(Next::After(SWEEP_INTERVAL));
        }
    }
    match due.len() == JOB_STEP_EDGES_MAX {
        true => Ok(Next::Now),
        false => Ok(Next::After(SWEEP_INTERVAL)),
    }
}
