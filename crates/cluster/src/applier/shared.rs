//! What an applier's threads share: what they work with, the stop signal, and the figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use guanxi_core::clock::Clock;
use guanxi_core::crew::Crew;
use guanxi_core::signal::Signal;
use guanxi_model::Millis;
use parking_lot::Mutex;

use super::super::catalog::SharedCatalog;
use super::super::kafka::{BrokerError, KafkaSettings};
use super::super::leases::Share;
use super::super::sql::{Database, SqlError};
use super::batch::BatchLog;
use super::figures::{AGE_BOUNDS_MS, ApplierFigures, PartitionLag};

/// The database or the broker did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Log(#[from] BrokerError),
}

pub(super) struct ApplierShared {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub clock: Arc<dyn Clock>,
    pub kafka: KafkaSettings,
    pub place: BatchLog,
    pub threads: u32,
    /// Partitions of the log that are applied here, by the leases.
    pub share: Share,
    pub signal: Signal,
    /// There may be dead letters to publish.
    pub letters_waiting: AtomicBool,
    pub counts: ApplierCounts,
    progress: Mutex<BTreeMap<u32, PartitionProgress>>,
}

/// Where a partition stands.
#[derive(Debug, Clone, Copy)]
struct PartitionProgress {
    next: u64,
    /// The log's end, when it was last asked.
    end: Option<u64>,
    /// When the last applied record was committed; before one was, when the partition was taken.
    time: Millis,
}

impl ApplierShared {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        crew: Crew,
        database: Arc<Database>,
        catalog: Arc<SharedCatalog>,
        clock: Arc<dyn Clock>,
        kafka: KafkaSettings,
        place: BatchLog,
        threads: u32,
        share: Share,
        signal: Signal,
    ) -> ApplierShared {
        ApplierShared {
            crew,
            database,
            catalog,
            clock,
            kafka,
            place,
            threads,
            share,
            signal,
            letters_waiting: AtomicBool::new(false),
            counts: ApplierCounts::default(),
            progress: Mutex::default(),
        }
    }

    /// The partitions that one of the threads may apply at this moment.
    pub fn leased(&self, thread: u32) -> Vec<u32> {
        let held = self.share.held().into_iter();
        let partitions = held.filter_map(|lease| u32::try_from(lease.index).ok());
        partitions.filter(|partition| partition % self.threads == thread).collect()
    }

    pub fn progress_at(&self, partition: u32, next: u64, time: Option<Millis>) {
        let now = Millis(self.clock.now_ms());
        let mut progress = self.progress.lock();
        let known =
            progress.entry(partition).or_insert(PartitionProgress { next, end: None, time: now });
        known.next = next;
        known.time = time.unwrap_or(known.time);
    }

    pub fn forget_progress(&self, partition: u32) {
        self.progress.lock().remove(&partition);
    }

    pub fn partitions(&self) -> Vec<u32> {
        self.progress.lock().keys().copied().collect()
    }

    pub fn end_is(&self, partition: u32, end: u64) {
        if let Some(progress) = self.progress.lock().get_mut(&partition) {
            progress.end = Some(end);
        }
    }

    pub fn lag(&self) -> Vec<PartitionLag> {
        let now = self.clock.now_ms();
        let lag = |(partition, progress): (&u32, &PartitionProgress)| {
            let records = progress.end.map_or(0, |end| end.saturating_sub(progress.next));
            let age_ms = if records == 0 { 0 } else { now.saturating_sub(progress.time.0) };
            PartitionLag { partition: *partition, next: progress.next, records, age_ms }
        };
        self.progress.lock().iter().map(lag).collect()
    }

    pub fn count_ages(&self, times: &[Millis]) {
        let now = self.clock.now_ms();
        for time in times {
            let age = now.saturating_sub(time.0);
            let bucket = AGE_BOUNDS_MS.iter().position(|bound| age <= *bound);
            let bucket = bucket.unwrap_or(AGE_BOUNDS_MS.len());
            self.counts.ages[bucket].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What has happened since the start.
#[derive(Debug, Default)]
pub(super) struct ApplierCounts {
    pub records: AtomicU64,
    pub batches: AtomicU64,
    pub stale: AtomicU64,
    pub dead: AtomicU64,
    pub published: AtomicU64,
    pub retries: AtomicU64,
    pub abandoned: AtomicU64,
    pub rebuilt: AtomicU64,
    ages: [AtomicU64; AGE_BOUNDS_MS.len() + 1],
}

impl ApplierCounts {
    pub fn add(&self, which: impl Fn(&ApplierCounts) -> &AtomicU64, by: u64) {
        which(self).fetch_add(by, Ordering::Relaxed);
    }

    pub fn figures(&self) -> ApplierFigures {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        ApplierFigures {
            records: read(&self.records),
            batches: read(&self.batches),
            stale: read(&self.stale),
            dead: read(&self.dead),
            published: read(&self.published),
            retries: read(&self.retries),
            abandoned: read(&self.abandoned),
            rebuilt: read(&self.rebuilt),
            ages: std::array::from_fn(|bucket| read(&self.ages[bucket])),
        }
    }
}
