//! The commit path of the embedded deployment: a bounded queue, one decider, one log, one store.
//!
//! A batch goes decide → append and fsync → write to the store → answer, each stage a thread of
//! its own. While batch n is being fsynced, n + 1 may be decided on n's rows; it is written only
//! when n's fsync has returned. Nobody, reader or caller, sees anything of a batch before that.

mod decider;
pub(crate) mod pipeline;

pub use decider::{DecidedBatch, Decider};
pub use pipeline::{Committer, CommitterParts};

use std::time::Duration;

use guanxi_model::Token;
use guanxi_model::idempotency::Answers;

/// A request that is durable and visible: one answer per change.
#[derive(Debug, Clone)]
pub struct Written {
    pub answers: Answers,
    pub token: Token,
}

#[derive(Debug, Clone, Copy)]
pub struct CommitSettings {
    /// Changes that may wait; beyond, writes are refused as overloaded.
    pub queue_max: usize,
    /// Changes that are decided together; more amortise the fsync, fewer shorten the wait.
    pub batch_changes_max: usize,
}

impl Default for CommitSettings {
    fn default() -> CommitSettings {
        CommitSettings { queue_max: 16_384, batch_changes_max: 1_024 }
    }
}

/// Where the committer tells how it fares.
pub trait Meter: Send + Sync {
    fn batch(&self, changes: usize, records: usize);
    fn decide(&self, took: Duration);
    fn fsync(&self, took: Duration);
    fn apply(&self, took: Duration);
}

/// For whoever does not want to know.
#[derive(Debug)]
pub struct Unmetered;

impl Meter for Unmetered {
    fn batch(&self, _: usize, _: usize) {}
    fn decide(&self, _: Duration) {}
    fn fsync(&self, _: Duration) {}
    fn apply(&self, _: Duration) {}
}
