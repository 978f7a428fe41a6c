//! Jobs: work that takes more than one batch, with its progress and its receipt.

use crate::edge::Ends;
use crate::kind::KindId;
use crate::node::NodeKey;
use crate::time::Millis;

/// The version that its beginning was given, so it is unique and grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub work: JobWork,
    /// Edges removed, or entered into the index, so far.
    pub edges_done: u64,
    pub started: Millis,
    pub finished: Option<Millis>,
    pub receipt: Option<Receipt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobWork {
    /// Remove everything about a node.
    Erase { node: NodeKey },
    /// Enter what stood before into a kind's outgoing index by time; `after` is the last edge done.
    BuildIndex { kind: KindId, after: Option<Ends> },
}

/// Where what was erased may still be found, which differs between the deployments.
#[derive(Debug, Clone, Copy)]
pub struct Remains {
    /// How long the log may still hold a record that was erased.
    pub log_keeps_ms: u64,
    /// What operators have to do about the rest, which the service can only tell them.
    pub backups: &'static str,
}

/// What an erasure did, for whoever has to show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    pub groups_removed: u64,
    pub counters_removed: u64,
}
