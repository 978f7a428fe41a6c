//! The applier: brings the log's records to the target's side, `incoming` and `tally`.
//!
//! Its threads own partitions by lease; what makes them safe is the position in `applied`, locked
//! first and compared in each transaction. Records may come late, twice or in any order: versions
//! decide. A record that can never be applied becomes a dead letter in the transaction that passes
//! it by; an error of the database passes nothing by.

mod batch;
mod binding;
mod chores;
mod draining_outbox;
mod figures;
mod fold;
mod foreseen;
mod isolating;
mod rebuild;
mod settle;
mod shared;
mod source;
mod statements;
mod worker;

use std::io;
use std::sync::Arc;

use super::catalog::SharedCatalog;
use super::kafka::KafkaSettings;
use super::leases::Leases;
use super::sql::Database;

pub(crate) use batch::position;
pub use batch::{ApplyItem, BatchLog, BatchOutcome, LogKind, Placed, Slice, apply_batch};
pub(crate) use binding::bind_positions;
pub use figures::{AGE_BOUNDS_MS, ApplierFigures, PartitionLag};
pub use foreseen::Way;
use guanxi_core::clock::Clock;
use guanxi_core::crew::{Crew, Workers};
pub use rebuild::{LostPartitions, Rebuilt, rebuild};
pub use settle::{Extra, Fence, Settled, settle};
pub(crate) use source::{is_ahead, read as read_value};
pub(crate) use statements::POSITION_COLUMNS;

use shared::ApplierShared;
use worker::Worker;

/// The groups of the leases by which instances share the partitions of our own topic, and of a
/// changefeed's.
pub const LEASE_GROUP: &str = "applier";
pub const LEASE_GROUP_TICDC: &str = "applier.ticdc";

/// What an applier works with.
pub struct ApplierParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub clock: Arc<dyn Clock>,
    pub leases: Arc<Leases>,
    pub kafka: KafkaSettings,
    pub log: AppliedLog,
    /// Transactions under way at once; each thread has its own partitions.
    pub threads: u32,
}

/// The log that is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppliedLog {
    /// The cluster's own topic, as the settings name it.
    Outbox,
    /// A changefeed's topic and how many partitions it has.
    Ticdc { topic: String, partitions: u32 },
}

/// A running applier; it stops when dropped.
pub struct Applier {
    shared: Arc<ApplierShared>,
    workers: Workers,
}

impl Applier {
    pub fn start(parts: ApplierParts) -> io::Result<Applier> {
        let ApplierParts { crew, database, catalog, clock, leases, kafka, log, threads } = parts;
        let (source, topic, leased, group) = match log {
            AppliedLog::Outbox => {
                (LogKind::Outbox, kafka.topic.clone(), kafka.partitions, LEASE_GROUP)
            }
            AppliedLog::Ticdc { topic, partitions } => {
                (LogKind::Ticdc, topic, partitions, LEASE_GROUP_TICDC)
            }
        };
        let names = (0..leased).map(|partition| partition.to_string()).collect();
        let share = leases.share(group, names);
        let place = BatchLog { source, topic, partitions: kafka.partitions };
        let count = threads.max(1);
        let workers = crew.workers();
        let signal = workers.signal().clone();
        let shared =
            ApplierShared::new(crew, database, catalog, clock, kafka, place, count, share, signal);
        let applier = Applier { shared: Arc::new(shared), workers };
        for index in 0..count {
            let worker = Worker::new(applier.shared.clone(), index);
            applier.workers.spawn(format!("guanxi-applier-{index}"), move |_| worker.run())?;
        }
        let shared = applier.shared.clone();
        applier.workers.spawn("guanxi-applier-chores", move |_| chores::run(&shared))?;
        Ok(applier)
    }

    /// How far the partitions that are applied here are behind.
    pub fn lag(&self) -> Vec<PartitionLag> {
        self.shared.lag()
    }

    pub fn figures(&self) -> ApplierFigures {
        self.shared.counts.figures()
    }

    /// Stops its threads; a transaction under way is finished or undone. One that waits for a
    /// server that does not answer is left to end by itself: it takes nothing new.
    pub fn close(&self) {
        self.workers.stop();
    }
}
