//! Reads newest incoming edges from the database, to be kept in Redis.

use std::time::{Duration, Instant};

use guanxi_core::snapshot::{Direction, IncomingList, TimeRange, Timeline};
use guanxi_model::State;

use super::packed::{ENTRIES_MAX, Newest};
use super::{IncomingParts, Want};
use crate::snapshot::{list_statements, place};
use crate::sql::{Database, SqlError};

/// How long a statement may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(2);

impl IncomingParts {
    /// For threads that may block.
    pub(super) fn see_to(&self, want: &Want) {
        let claim = match want {
            Want::Missed(list) => self.tier.wait(self.claim(*list)),
            Want::Old(claim) => Some(*claim),
        };
        let Some(claim) = claim else { return };
        match newest(&self.database, &claim.list) {
            Ok(newest) => {
                self.tier.wait(self.fill(&claim, &newest));
            }
            Err(error) => tracing::debug!(%error, "a list could not be read to be kept"),
        }
    }
}

/// One statement along the index by time.
fn newest(database: &Database, list: &IncomingList) -> Result<Newest, SqlError> {
    let IncomingList { tenant, kind, target } = *list;
    let (direction, state) = (Direction::Incoming, State::Live);
    let timeline = Timeline { tenant, kind, direction, id: target.0, state };
    let statements = list_statements(&timeline, &TimeRange::default(), ENTRIES_MAX + 1);
    let mut session = database.session(Instant::now() + SESSION_WAIT)?;
    let mut entries = Vec::new();
    for statement in statements {
        for row in &session.rows(&statement)? {
            entries.push(place(row)?);
        }
    }
    // The one beyond the bound is kept, too: a page so long knows by it that the list goes on.
    Ok(Newest { complete: entries.len() <= ENTRIES_MAX, entries })
}
