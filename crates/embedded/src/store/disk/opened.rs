//! The database while it is open: batches, flushes, and what it wants that only opening it anew
//! gives.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fjall::compaction::Leveled;
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PartitioningPolicy, PinningPolicy,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Snapshot};
use guanxi_core::snapshot::StoreError;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::files::{io_error, is_low};
use super::journal::JournalRoom;
use super::packing::Gain;
use super::{
    BLOCK_BYTES, BLOOM_BITS_PER_KEY, DATABASE, ENTRY_BYTES, FIRST_RUNS_MAX, FJALL_MEMTABLE_BYTES,
    KEYSPACE, LOOK_INTERVAL, MEMTABLE_GROWTH_MAX, MERGE_BYTES_MAX, SEALED_MEMTABLES_MAX,
    SETTLE_DEADLINE, SETTLE_PAUSE, StoreSettings, TABLE_BYTES, WORKER_THREADS, fjall_error,
};
use crate::disk::{Disk as _, RealDisk, Room, folder_of};
use crate::disk_room::{JOURNAL_BYTES_MAX, RESERVE, lacks_files};
use crate::store::keyed::KeyWrite;

/// The database while it is open.
pub(super) struct OpenStore {
    pub(super) database: Database,
    pub(super) rows: Keyspace,
    /// Bytes written to the present memtable.
    gathered: AtomicU64,
    journal: Mutex<JournalRoom>,
    /// The picture after the last whole batch, for whoever asks while the next one is written.
    whole: RwLock<Snapshot>,
    /// Held while a batch is written.
    writing: RwLock<()>,
    /// Not on a full disk: it would merge what had found no room, find none again, and stop.
    pub(super) has_worker: bool,
    /// When it was last looked whether a full disk has room for that, or could get some.
    looked_at: Mutex<Instant>,
}

/// What a database wants that only opening it anew gives.
#[derive(Debug)]
pub(super) enum Wants {
    Nothing,
    ItsWorker,
    LessJournal,
    /// The same, or less of something else, where there is no room for its worker to do it.
    ByHand(Gain),
}

impl OpenStore {
    pub fn open(directory: &Path, settings: &StoreSettings) -> Result<OpenStore, StoreError> {
        let has_worker = !is_low(directory);
        let database = Database::builder(directory.join(DATABASE))
            .cache_size(settings.cache_bytes)
            .max_cached_files(Some(settings.open_tables_max))
            // The log is what is durable; the journal is persisted now and then, for a short replay.
            .manual_journal_persist(true)
            .worker_threads_unchecked(if has_worker { WORKER_THREADS } else { 0 })
            .open()
            .map_err(fjall_error)?;
        let (compression, first_runs_max) = match settings.journal_bytes_max < JOURNAL_BYTES_MAX {
            true => (CompressionPolicy::all(CompressionType::Lz4), FIRST_RUNS_MAX / 2),
            // The first levels are rewritten within seconds.
            false => {
                let levels = [CompressionType::None, CompressionType::None, CompressionType::Lz4];
                (CompressionPolicy::new(levels), FIRST_RUNS_MAX)
            }
        };
        let rows = database.keyspace(KEYSPACE, || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(FJALL_MEMTABLE_BYTES)
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
                .data_block_compression_policy(compression)
                .compaction_strategy(Arc::new(
                    Leveled::default()
                        .with_table_target_size(TABLE_BYTES)
                        .with_l0_threshold(first_runs_max),
                ))
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
                    BloomConstructionPolicy::BitsPerKey(BLOOM_BITS_PER_KEY),
                )))
                .filter_block_pinning_policy(PinningPolicy::all(true))
                .index_block_pinning_policy(PinningPolicy::all(true))
                .filter_block_partitioning_policy(PartitioningPolicy::all(false))
                .index_block_partitioning_policy(PartitioningPolicy::all(false))
        });
        let spare = folder_of(directory).join(RESERVE);
        let bytes_max = settings.journal_bytes_max;
        let journal = JournalRoom::find(&directory.join(DATABASE), spare, bytes_max);
        let mut journal = journal.map_err(io_error)?;
        // At its opening fjall cuts off what is reserved ahead. On a full disk somebody else would have
        // it before the first batch; where there is none, that batch says so.
        let _later = journal.reserve_ahead();
        Ok(OpenStore {
            rows: rows.map_err(fjall_error)?,
            journal: Mutex::new(journal),
            gathered: AtomicU64::new(database.write_buffer_size()),
            whole: RwLock::new(database.snapshot()),
            writing: RwLock::new(()),
            has_worker,
            looked_at: Mutex::new(Instant::now()),
            database,
        })
    }

    pub fn journal(&self) -> MutexGuard<'_, JournalRoom> {
        self.journal.lock()
    }

    /// Whether the disk has room for the present memtable as a table, and for merging it with
    /// others. fjall takes a flush or merge that fails for the end of the store, so without room
    /// the memtable grows instead.
    pub fn may_flush(&self, memtable_bytes: u64) -> bool {
        // What it takes is added up table by table, and is not asked for where it is no question.
        let has_room = |room: Room| {
            let has = |bytes: u64| room.free_bytes >= bytes;
            let may =
                has(memtable_bytes + MERGE_BYTES_MAX) || has(self.flush_bytes(memtable_bytes));
            may && !lacks_files(&room)
        };
        self.has_worker && RealDisk.room(self.rows.path()).map_or(true, has_room)
    }

    /// What a flush of the memtable, and the merge after it, take for a while.
    pub fn flush_bytes(&self, memtable_bytes: u64) -> u64 {
        memtable_bytes + (self.rows.disk_space() + memtable_bytes).min(MERGE_BYTES_MAX)
    }

    pub fn write(&self, entries: &[KeyWrite], memtable_bytes: u64) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        let (mut bytes, count) = (0, entries.len());
        for (key, value) in entries {
            bytes += (key.len() + value.as_ref().map_or(0, Vec::len)) as u64;
            match value {
                Some(value) => batch.insert(&self.rows, key.as_slice(), value.as_slice()),
                None => batch.remove(&self.rows, key.as_slice()),
            }
        }
        self.journal().reserve(count, bytes).map_err(io_error)?;
        {
            let _writing = self.writing.write();
            batch.commit().map_err(fjall_error)?;
            self.show_whole();
        }
        let bytes = bytes + ENTRY_BYTES * count as u64;
        let gathered = self.gathered.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // fjall keeps the end of the journal to itself for a while. Of a batch that a kill has cut, the
        // next start cuts off the rest, and with it what is reserved ahead, which somebody else would
        // have on a full disk.
        self.check()?;
        let may_flush = self.may_flush(gathered);
        let crowded = self.rows.sealed_memtable_count() >= SEALED_MEMTABLES_MAX
            && gathered < memtable_bytes.saturating_mul(MEMTABLE_GROWTH_MAX);
        if gathered >= memtable_bytes && !crowded && may_flush {
            self.rows.rotate_memtable().map_err(fjall_error)?;
            self.gathered.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Stopped where fjall takes nothing more, which it says only to whoever writes.
    pub fn check(&self) -> Result<(), StoreError> {
        self.database.persist(PersistMode::Buffer).map_err(fjall_error)
    }

    pub fn gathered_bytes(&self) -> u64 {
        self.gathered.load(Ordering::Relaxed)
    }

    /// Why it should be opened anew; at rest, after the disk was full, or in doubt, for less.
    /// `gain` says what could be had by hand.
    pub fn wants(&self, at_rest: bool, in_doubt: bool, gain: impl Fn() -> Option<Gain>) -> Wants {
        let by_hand = || gain().map_or(Wants::Nothing, Wants::ByHand);
        let less_journal = || match self.may_flush(self.gathered_bytes()) {
            true => Wants::LessJournal,
            false => by_hand(),
        };
        if self.has_worker && !at_rest && !in_doubt {
            let too_large = self.journal().is_too_large();
            return if too_large { less_journal() } else { Wants::Nothing };
        }
        let mut looked_at = self.looked_at.lock();
        if looked_at.elapsed() < LOOK_INTERVAL {
            return Wants::Nothing;
        }
        *looked_at = Instant::now();
        match self.has_worker {
            true if in_doubt || self.journal().is_worth_giving_back() => less_journal(),
            false if !is_low(self.rows.path()) => Wants::ItsWorker,
            _ => by_hand(),
        }
    }

    /// Flushes every row into tables; false where that takes too long, or finds no room.
    pub fn flush_all(&self) -> Result<bool, StoreError> {
        if !self.may_flush(self.gathered_bytes()) {
            return Ok(false);
        }
        self.rows.rotate_memtable().map_err(fjall_error)?;
        self.gathered.store(0, Ordering::Relaxed);
        let deadline = Instant::now() + SETTLE_DEADLINE;
        while self.rows.sealed_memtable_count() > 0 || self.database.outstanding_flushes() > 0 {
            // A worker that has met an error flushes no more.
            self.check()?;
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        Ok(true)
    }

    /// Shows readers what is there now.
    pub fn show_whole(&self) {
        let mut whole = self.whole.write();
        *whole = self.database.snapshot();
    }

    /// A flush or compaction that ends while a batch is being written makes fjall show the half
    /// that is there (it publishes its own, later sequence number), also in new snapshots. So
    /// meanwhile readers get the picture before the batch.
    pub fn snapshot(&self) -> Snapshot {
        match self.writing.try_read() {
            Some(_idle) => self.database.snapshot(),
            None => self.whole.read().clone(),
        }
    }
}
