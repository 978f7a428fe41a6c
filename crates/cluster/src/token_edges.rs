//! Edges that a token stands for: what a read that presents it must show at least. Their source's
//! side is current in any case; the target's side is waited for shortly, and laid over what is
//! there when it does not come (`snapshot`).

use std::time::{Duration, Instant};

use guanxi_model::{EdgeKey, Version};
use rustc_hash::FxHashMap;

use super::rows::{self, INCOMING_COLUMNS};
use super::sql::text::{self, TUPLES_MAX};
use super::sql::{Database, SqlError};

/// How long a read waits for the appliers before it lays the edges over what they have.
pub const SEEN_WAIT: Duration = Duration::from_millis(200);
/// Between two looks, from the first to the last.
const PAUSES_MS: [u64; 5] = [2, 5, 10, 20, 40];

/// An edge as some write left it, or newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenEdge {
    pub edge: EdgeKey,
    pub version: Version,
}

/// Waits until the target's side has all of these, at most `SEEN_WAIT` and not past the deadline.
/// Says whether it has; a read goes on in either case.
pub fn wait_for_seen(
    database: &Database,
    seen: &[SeenEdge],
    deadline: Instant,
) -> Result<bool, SqlError> {
    let until = deadline.min(Instant::now() + SEEN_WAIT);
    let mut late: Vec<SeenEdge> = seen.to_vec();
    let mut pauses = PAUSES_MS.into_iter();
    let mut pause = Duration::ZERO;
    loop {
        late = still_late(database, &late, deadline)?;
        if late.is_empty() {
            return Ok(true);
        }
        pause = pauses.next().map_or(pause, Duration::from_millis);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        std::thread::sleep(pause.min(left));
    }
}

/// Those of which the target's side has an older state, or none.
pub(super) fn still_late(
    database: &Database,
    seen: &[SeenEdge],
    deadline: Instant,
) -> Result<Vec<SeenEdge>, SqlError> {
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let edges: Vec<EdgeKey> = seen.iter().map(|seen| seen.edge).collect();
    let statements: Vec<String> = edges.chunks(TUPLES_MAX).map(select_incoming).collect();
    let mut session = database.session(deadline)?;
    let mut versions = FxHashMap::default();
    for set in session.run(&statements.join(";"))? {
        for row in &set.rows {
            let (key, row) = rows::incoming(row)?;
            versions.insert(key, row.version);
        }
    }
    let is_late = |seen: &&SeenEdge| versions.get(&seen.edge).is_none_or(|at| *at < seen.version);
    Ok(seen.iter().filter(is_late).copied().collect())
}

/// The incoming rows of these edges, in no order; at most `TUPLES_MAX`.
pub(super) fn select_incoming(edges: &[EdgeKey]) -> String {
    debug_assert!(!edges.is_empty() && edges.len() <= TUPLES_MAX);
    let mut out = format!(
        "SELECT {INCOMING_COLUMNS} FROM incoming FORCE INDEX (PRIMARY) \
         WHERE (tenant,kind,target,source) IN ("
    );
    text::list(&mut out, edges, |out, key| {
        let turned = [key.target.0, key.source.0];
        let EdgeKey { tenant, kind, .. } = key;
        text::number(out, format_args!("({},{},{},{})", tenant.0, kind.0, turned[0], turned[1]));
    });
    out.push(')');
    out
}
