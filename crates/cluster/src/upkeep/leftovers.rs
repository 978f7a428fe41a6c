//! What is of no use after a day: idempotency keys, barriers, and the heads of lanes whose instance
//! is gone.

use std::time::Duration;

use guanxi_model::footprint::NO_KIND;
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{BarrierId, HeadVersion, Millis};

use super::{Chore, ChoreHalt};
use crate::rows::NO_TENANT;

const INTERVAL: Duration = Duration::from_secs(60);
/// Rows of one statement.
const STEP_ROWS: u64 = 500;
const STEP_PAUSE: Duration = Duration::from_millis(20);
/// Clocks of instances differ by less; a key lives a little longer than is promised.
const MARGIN_MS: u64 = 60_000;
/// Nobody waits so long for a barrier.
const BARRIER_TTL_MS: u64 = 24 * 60 * 60 * 1_000;
/// No COMMIT is in doubt for so long.
const LANE_TTL_MS: u64 = 24 * 60 * 60 * 1_000;

pub(super) fn run(chore: &Chore) {
    chore.repeat(INTERVAL, |chore| {
        let now = chore.now_ms()?;
        let used = now.saturating_sub(IDEMPOTENCY_TTL_MS + MARGIN_MS);
        clean(chore, &format!("DELETE FROM idempotency WHERE at<{used} LIMIT {STEP_ROWS}"))?;
        let idle = HeadVersion::at(Millis(now.saturating_sub(LANE_TTL_MS)));
        clean(
            chore,
            &format!(
                "DELETE FROM head WHERE tenant={} AND kind={} AND version<{} LIMIT {STEP_ROWS}",
                NO_TENANT.0, NO_KIND.0, idle.0
            ),
        )?;
        let raised = BarrierId::at(Millis(now.saturating_sub(BARRIER_TTL_MS)));
        clean(chore, &format!("DELETE FROM barriers WHERE id<{} LIMIT {STEP_ROWS}", raised.0))?;
        Ok(false)
    });
}

/// Repeats a bounded statement until it finds less than its bound.
fn clean(chore: &Chore, statement: &str) -> Result<(), ChoreHalt> {
    while chore.transact(statement)? >= STEP_ROWS {
        chore.pause(STEP_PAUSE)?;
    }
    Ok(())
}
