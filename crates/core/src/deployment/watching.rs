//! Watching: the records of edges as they come, in the order of the log.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use guanxi_model::record::EdgeRecord;
use guanxi_model::{AnyEventId, Error, Millis};

use super::Eventually;

/// Where a watcher begins.
#[derive(Debug, Clone)]
pub enum WatchFrom {
    /// After what readers see now.
    Now,
    /// With the oldest record that the log has.
    Earliest,
    /// After what this event stands for.
    After(AnyEventId),
}

/// One reader's place in the log, which moves on with it.
pub trait Watcher: Debug + Send + Sync {
    /// The wanted ones among the records that come next; waits until there are some that come, and
    /// returns also when none of them was wanted. May be dropped while it waits.
    fn next<'a>(
        &'a mut self,
        wants: &'a (dyn Fn(&EdgeRecord) -> bool + Sync),
    ) -> Eventually<'a, Result<Vec<Watched>, Error>>;

    /// Everything up to here has been given out.
    fn place(&self) -> AnyEventId;
}

/// A record, and the place after it.
#[derive(Debug, Clone)]
pub struct Watched {
    pub id: AnyEventId,
    /// When it was committed.
    pub time: Millis,
    pub record: Arc<dyn SharedRecord>,
}

/// A record that all who read it share.
pub trait SharedRecord: Debug + Send + Sync {
    fn edge(&self) -> &EdgeRecord;

    /// The record as a server sends it, made by the first that does, where it has the same id for
    /// all: with a hundred watchers, writing each record for each of them is most of the work.
    fn sent_as(&self) -> Option<&OnceLock<Box<[u8]>>> {
        None
    }
}
