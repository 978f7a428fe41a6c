//! The engine's own threads: what they share is a stop signal and a way to write.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use guanxi_core::clock::Clock;
use guanxi_core::signal::Signal;
use guanxi_model::{Change, Code, Error, Request, TenantId};

use crate::commit::{Committer, Written};
use crate::log::Log;
use crate::store::EmbeddedStore;

/// How long a chore's write may wait: it has no caller who grows impatient, but must not hold up
/// a stop for ever.
const CHORE_DEADLINE: Duration = Duration::from_secs(30);
/// The pause before a write that found the queue full is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The same where writes pause for a move, which ends within seconds or never.
const MOVING_PAUSE: Duration = Duration::from_secs(1);

/// The same where the disk is full.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// What background threads work with.
#[derive(Clone)]
pub(crate) struct Workbench {
    pub store: Arc<dyn EmbeddedStore>,
    pub log: Arc<dyn Log>,
    pub clock: Arc<dyn Clock>,
    /// Empty on a standby, until it is promoted.
    pub committer: Arc<OnceLock<Arc<Committer>>>,
    pub signal: Arc<Signal>,
}

impl Workbench {
    /// Whether there is a commit path to write through.
    pub fn takes_writes(&self) -> bool {
        self.committer.get().is_some()
    }

    /// The same as `write` for changes that nothing should refuse; None also when one is refused, to
    /// be tried again later and not at once.
    pub fn write_all(&self, tenant: TenantId, changes: Vec<Change>) -> Option<()> {
        let answers = self.write(tenant, changes)?.answers;
        match answers.into_iter().find_map(Result::err) {
            Some(error) => {
                tracing::warn!(%error, "a background change was refused");
                None
            }
            None => Some(()),
        }
    }

    /// Writes through the normal path, patiently. None when the engine is stopping, refuses, or is
    /// a standby.
    pub fn write(&self, tenant: TenantId, changes: Vec<Change>) -> Option<Written> {
        let committer = self.committer.get()?;
        let request = Request::new(tenant, changes);
        while !self.signal.is_stopped() {
            let deadline = Instant::now() + CHORE_DEADLINE;
            match committer.write_blocking(request.clone(), deadline) {
                Ok(written) => return Some(written),
                Err(Error { code: Code::Overloaded | Code::DeadlineExceeded, .. }) => {
                    self.signal.wait(RETRY_PAUSE);
                }
                Err(Error { code: Code::Unavailable, .. }) if committer.meets_full_disk() => {
                    self.signal.wait(FULL_PAUSE);
                }
                Err(Error { code: Code::ReadOnly, .. }) => {
                    self.signal.wait(MOVING_PAUSE);
                }
                Err(error) => {
                    tracing::warn!(%error, "a background change was not written");
                    return None;
                }
            }
        }
        None
    }
}
