//! Tokens of a cluster: what a write leaves in one, and what a read that presents one waits for.

use std::time::{Duration, Instant};

use guanxi_model::token::cluster::TokenBarrier;
use guanxi_model::{Change, ClusterToken, Code, Error, Millis, TenantId};

use super::{Cluster, unanswered};
use crate::clock::{Clock, SystemClock};
use crate::cluster::barrier;

/// How long a read waits for the barrier of its token: the relay must sweep every shard.
const BARRIER_WAIT: Duration = Duration::from_secs(2);
/// Marks of barriers are kept for at least this long.
const BARRIER_KEPT_MS: u64 = 24 * 60 * 60 * 1_000;

/// What changes leave beside the edges that the commit names.
pub(super) fn of_changes(tenant: TenantId, changes: &[Change]) -> ClusterToken {
    let mut token = ClusterToken::new(tenant);
    for change in changes {
        match change {
            Change::Count(count) => token.add_counter(count.kind, count.id),
            Change::ImportCounter { kind, id, .. } => token.add_counter(*kind, *id),
            // Groups and settings are cached for a moment.
            Change::CreateGroup { .. }
            | Change::RenameGroup { .. }
            | Change::DeleteGroup { .. }
            | Change::ImportGroup { .. }
            | Change::SetNode { .. } => token.skip_caches(),
            _ => {}
        }
    }
    token
}

impl Cluster {
    /// Whether `meet` would have anything to ask the database.
    pub fn must_wait_for(&self, token: &ClusterToken) -> bool {
        token.barrier().is_some() || self.lacks_catalog_of(token)
    }

    /// Whether the token stands for kinds that this instance does not know yet.
    pub fn lacks_catalog_of(&self, token: &ClusterToken) -> bool {
        token.catalog() > self.catalog.revision()
    }

    /// For threads that may block.
    pub fn learn_catalog_of(&self, token: &ClusterToken) -> Result<(), Error> {
        match self.lacks_catalog_of(token) {
            true => self.catalog.refresh(&self.database).map_err(unanswered),
            false => Ok(()),
        }
    }

    /// Waits for the barrier and the catalog that a token stands for; a reader sees to its edges.
    /// For threads that may block.
    pub fn meet(&self, token: &ClusterToken, deadline: Instant) -> Result<(), Error> {
        self.learn_catalog_of(token)?;
        let Some(TokenBarrier { id, at }) = token.barrier() else {
            return Ok(());
        };
        if SystemClock.now_ms().saturating_sub(at.0) > BARRIER_KEPT_MS {
            let message = "the token is older than a day; read without it";
            return Err(Error::new(Code::PositionExpired, message));
        }
        let until = deadline.min(Instant::now() + BARRIER_WAIT);
        match barrier::wait(&self.database, id, self.settings.kafka.partitions, until)
            .map_err(unanswered)?
        {
            true => Ok(()),
            false => Err(Error::new(
                Code::Unavailable,
                "what the token stands for is not here yet; try again shortly",
            )),
        }
    }

    /// Raises a barrier for a token that gathered more than it can name. For threads that may
    /// block.
    pub fn cover(&self, token: &mut ClusterToken, deadline: Instant) -> Result<(), Error> {
        let at = Millis(SystemClock.now_ms());
        let id = barrier::raise(&self.database, deadline).map_err(unanswered)?;
        if let Some(relay) = &self.parts.relay {
            relay.wake();
        }
        token.cover(TokenBarrier { id, at });
        Ok(())
    }
}
