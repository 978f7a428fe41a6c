//! Moves the outbox into the log: takes the rows that this process's committer hands over, reads
//! what else stands in the shards that this instance leases, sends each record to its partition,
//! and deletes a row once the broker has all of it for good.
//!
//! At least once: a row is never deleted unsent, and may be sent twice. Two relays at work on one
//! shard are safe. Order is a courtesy; versions are the guarantee. The database is what the whole
//! cluster shares, so its statements here are few and large.

mod acknowledged;
mod courier;
mod inbox;
mod outbox;
mod shards;
mod work;

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::Signal;
use guanxi_model::places::SHARDS;

use self::inbox::Inbox;
use super::catalog::SharedCatalog;
use super::kafka::KafkaSettings;
use super::leases::Leases;
use super::outbox::OutboxMover;
use super::sql::Database;

/// The group of the leases by which instances share the shards.
pub const LEASE_GROUP: &str = "outbox";

/// What waits in the shards that this instance holds, as it stood some seconds ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayLag {
    /// Counted in up to 10,000 rows.
    pub records: u64,
    pub oldest_ms: u64,
}

#[derive(Debug)]
pub struct Relay {
    shared: Arc<RelayShared>,
    workers: Workers,
}

#[derive(Debug)]
struct RelayShared {
    inbox: Arc<Inbox>,
    signal: Signal,
    lag: Mutex<RelayLag>,
}

impl Relay {
    /// Starts the thread. The broker need not be there yet.
    pub fn start(
        crew: &Crew,
        database: Arc<Database>,
        catalog: Arc<SharedCatalog>,
        settings: KafkaSettings,
        leases: &Leases,
    ) -> io::Result<Relay> {
        let names = (0..SHARDS).map(|shard| shard.to_string()).collect();
        let share = leases.share(LEASE_GROUP, names);
        let workers = crew.workers();
        let shared = Arc::new(RelayShared {
            inbox: Arc::default(),
            signal: workers.signal().clone(),
            lag: Mutex::default(),
        });
        let runs = shared.clone();
        workers.spawn("guanxi-relay", move |_| {
            work::RelayWork::new(database, catalog, settings, share, runs).run();
        })?;
        Ok(Relay { shared, workers })
    }

    /// Says that something was committed by another: it is looked for at once.
    pub fn wake(&self) {
        self.shared.inbox.look();
    }

    /// Where the committer of this process hands its rows over.
    pub fn outgoing(&self) -> Arc<dyn OutboxMover> {
        self.shared.inbox.clone()
    }

    pub fn lag(&self) -> RelayLag {
        *self.shared.lag.lock()
    }

    /// Ends the thread; what is on its way is answered for, or sent again by another.
    pub fn close(&self) {
        self.shared.signal.stop();
        self.shared.inbox.look();
        self.workers.stop();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.close();
    }
}

impl RelayShared {
    fn is_closing(&self) -> bool {
        self.signal.is_stopped()
    }

    fn set_lag(&self, lag: RelayLag) {
        *self.lag.lock() = lag;
    }
}
