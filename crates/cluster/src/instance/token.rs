//! Tokens of a cluster: what a write leaves in one, and what a read that presents one waits for.

use std::time::{Duration, Instant};

use guanxi_core::clock::{Clock, SystemClock};
use guanxi_model::token::cluster::{TOKEN_EDGES_MAX, TokenBarrier, TokenEdge};
use guanxi_model::{Change, ClusterToken, Code, Error, Millis, TenantId};

use super::waiting_calls::Awaited;
use super::{Cluster, unanswered};
use crate::barrier;
use crate::commit::SqlWritten;
use crate::token_edges::{SeenEdge, still_late};

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
    /// Whether the token stands for kinds that this instance does not know yet.
    pub fn lacks_catalog_of(&self, token: &ClusterToken) -> bool {
        token.catalog() > self.catalog.revision()
    }

    /// Brings the kinds here that the token stands for; refuses one that stands for more than the
    /// database has.
    pub async fn learn_catalog_of(
        &self,
        token: &ClusterToken,
        deadline: Instant,
    ) -> Result<(), Error> {
        match self.lacks_catalog_of(token) {
            true => self.waits.wait(Awaited::Catalog(token.catalog()), deadline).await,
            false => Ok(()),
        }
    }

    /// Looks whether there are kinds or node types that this instance does not know: after it, those
    /// are here that were there when it was called.
    pub async fn look_for_names(&self, deadline: Instant) -> Result<(), Error> {
        self.waits.wait(Awaited::Names, deadline).await
    }

    /// Waits for the barrier and the catalog that a token stands for; a reader sees to its edges.
    pub async fn meet(&self, token: &ClusterToken, deadline: Instant) -> Result<(), Error> {
        self.learn_catalog_of(token, deadline).await?;
        let Some(TokenBarrier { id, at }) = token.barrier() else {
            return Ok(());
        };
        if SystemClock.now_ms().saturating_sub(at.0) > BARRIER_KEPT_MS {
            let message = "the token is older than a day; read without it";
            return Err(Error::new(Code::PositionExpired, message));
        }
        let until = deadline.min(Instant::now() + BARRIER_WAIT);
        self.waits.wait(Awaited::Barrier(id), until).await
    }

    /// The edges of a write that its token should name: what it changed, and what it found as it
    /// wanted it, for that may have been written a moment ago, perhaps by an earlier try. Where these
    /// are more than a token names, those that the target's side has are left out, so that a write
    /// which changes nothing does not make the relay and every applier work for its token.
    pub(super) async fn worth_naming(
        &self,
        written: &SqlWritten,
        deadline: Instant,
    ) -> Vec<SeenEdge> {
        let SqlWritten { changed, found, .. } = written;
        let mut named = changed.clone();
        if changed.len() > TOKEN_EDGES_MAX {
            // A barrier stands for all of them.
            return named;
        }
        let mut late = found.clone();
        if changed.len() + found.len() > TOKEN_EDGES_MAX {
            let (database, asked) = (self.database.clone(), found.clone());
            let look = move || still_late(&database, &asked, deadline);
            match tokio::task::spawn_blocking(look).await {
                Ok(Ok(still)) => late = still,
                Ok(Err(error)) => tracing::warn!(%error, "the target's side could not be asked"),
                Err(panicked) => tracing::error!(%panicked, "looking at the target's side"),
            }
        }
        named.append(&mut late);
        named
    }

    /// Makes a token fit that gathered more than it can name: what the target's side has is left
    /// out, as in `worth_naming`, and a barrier is raised if more than a token names is still on its
    /// way. For threads that may block.
    pub fn cover(&self, token: &mut ClusterToken, deadline: Instant) -> Result<(), Error> {
        if !token.left_edges_out() {
            self.keep_late(token, deadline);
        }
        if !token.needs_barrier() {
            return Ok(());
        }
        let at = Millis(SystemClock.now_ms());
        let id = barrier::raise(&self.database, deadline).map_err(unanswered)?;
        if let Some(relay) = &self.parts.relay {
            relay.wake();
        }
        token.cover(TokenBarrier { id, at });
        Ok(())
    }

    fn keep_late(&self, token: &mut ClusterToken, deadline: Instant) {
        let tenant = token.tenant;
        let seen = |edge: &TokenEdge| SeenEdge { edge: edge.key(tenant), version: edge.version };
        let named: Vec<SeenEdge> = token.edges().iter().map(seen).collect();
        match still_late(&self.database, &named, deadline) {
            Ok(late) => token.keep_edges(|edge| late.contains(&seen(edge))),
            Err(error) => tracing::warn!(%error, "the target's side could not be asked"),
        }
    }
}
