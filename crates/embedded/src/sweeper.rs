//! The sweeper: issues the removals of edges whose expiry has come. An edge is live until its
//! removal commits, so tallies always equal live edges.

use std::time::Duration;

use guanxi_model::limits::JOB_STEP_EDGES_MAX;
use guanxi_model::{Change, Millis, TenantId};

use crate::background::Workbench;

const SWEEP_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn run(bench: &Workbench) {
    while !bench.signal.wait(SWEEP_INTERVAL) {
        while sweep(bench) == JOB_STEP_EDGES_MAX && !bench.signal.is_stopped() {}
    }
}

/// Removes what is due, up to a step's worth; returns how many edges that were.
fn sweep(bench: &Workbench) -> usize {
    let now = Millis(bench.clock.past_ms());
    let due = match bench.store.snapshot().due(now, JOB_STEP_EDGES_MAX) {
        Ok(due) => due,
        Err(error) => {
            tracing::error!(%error, "expired edges could not be looked up");
            return 0;
        }
    };
    let mut tenants: Vec<TenantId> = due.iter().map(|(_, edge)| edge.tenant).collect();
    tenants.dedup();
    for tenant in tenants {
        let of_tenant = due.iter().filter(|(_, edge)| edge.tenant == tenant);
        let changes = of_tenant
            .map(|(expires_at, edge)| Change::Expire { edge: *edge, expires_at: *expires_at });
        if bench.write_all(tenant, changes.collect()).is_none() {
            return 0;
        }
    }
    due.len()
}
