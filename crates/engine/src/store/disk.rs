//! Keys and values on disk: one fjall keyspace. One, because a flush then makes rows, tallies and
//! position durable together, and the store stays a prefix of the log whatever a crash takes.
//!
//! fjall never fsyncs the folders that it makes, and opens an empty store where its journals are
//! missing; both are guarded here, by a READY file of our own.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use fjall::compaction::Leveled;
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PartitioningPolicy, PinningPolicy,
};
use fjall::{
    CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode, Readable,
    Snapshot, UserValue,
};

use super::keyed::{Backend, Entry, KeyView, Visit};
use super::layout::{self, Key};
use super::{RawRow, StoreError};

const READY: &str = "READY";
/// Left by a clean stop: every row is in a table, so the journal that it names tells nothing new.
const SETTLED: &str = "SETTLED";
const DATABASE: &str = "db";
const KEYSPACE: &str = "rows";
/// One does flushes and compactions. With two, the first hands compactions back and forth while
/// the second compacts, which costs a core.
const WORKER_THREADS: usize = 1;
/// fjall would ask its worker for a new memtable once per batch until it has one. While the only
/// worker compacts, such messages fill its queue, and then it waits for ever to put its own next
/// step there (fjall 3.1.13). So memtables are begun here, and never by fjall.
const FJALL_MEMTABLE_BYTES: u64 = u64::MAX;
/// Full memtables that may wait for the worker; fjall puts writers to sleep at four. Beyond it the
/// present one grows instead, up to so many times its size.
const SEALED_MEMTABLES_MAX: usize = 2;
const MEMTABLE_GROWTH_MAX: u64 = 8;
/// About what an entry takes in a memtable beside its key and value.
const ENTRY_BYTES: u64 = 64;
const BLOOM_BITS_PER_KEY: f32 = 10.0;
const BLOCK_BYTES: u32 = 4 * 1_024;
/// A table is fsynced when it is full, and whoever else waits for the file system's journal then
/// waits for its bytes too: small tables make short stalls.
const TABLE_BYTES: u64 = 16 << 20;
/// Flushed memtables that are merged into the next level at once: more of them cost a read a little
/// and spare the worker much (8 instead of 4: 43,600 instead of 34,400 puts/s).
const FIRST_RUNS_MAX: u8 = 8;
/// How long a stop may wait for the last flush, and how it waits.
const SETTLE_DEADLINE: Duration = Duration::from_secs(5);
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// Blocks kept in memory.
    pub cache_bytes: u64,
    /// Rows gathered in memory before they are flushed; larger ones stall writers longer.
    pub memtable_bytes: u64,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings { cache_bytes: 256 << 20, memtable_bytes: 16 << 20 }
    }
}

pub struct DiskBackend {
    directory: PathBuf,
    database: Database,
    rows: Keyspace,
    memtable_bytes: u64,
    /// Bytes written to the present memtable.
    gathered: AtomicU64,
    /// The picture after the last whole batch, for whoever asks while the next one is written.
    whole: RwLock<Snapshot>,
    /// Held while a batch is written.
    writing: RwLock<()>,
}

impl std::fmt::Debug for DiskBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskBackend").field("path", &self.rows.path()).finish_non_exhaustive()
    }
}

/// What stands where a store should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// Its creation was cut; it never held anything that the log does not.
    Unfinished,
    Ready,
}

pub fn find(directory: &Path) -> io::Result<Found> {
    if !directory.try_exists()? {
        return Ok(Found::Nothing);
    }
    let ready = directory.join(READY).try_exists()?;
    Ok(if ready { Found::Ready } else { Found::Unfinished })
}

impl DiskBackend {
    /// Makes an empty store, whatever an unfinished creation left.
    pub fn create(directory: &Path, settings: &StoreSettings) -> Result<DiskBackend, StoreError> {
        if directory.try_exists().map_err(io_error)? {
            fs::remove_dir_all(directory).map_err(io_error)?;
        }
        fs::create_dir_all(directory).map_err(io_error)?;
        let backend = open(directory, settings)?;
        backend.persist()?;
        let database = directory.join(DATABASE);
        for folder in folders_below(&database).map_err(io_error)? {
            sync_directory(&folder)?;
        }
        sync_directory(&database)?;
        sync_directory(directory)?;
        write_synced(directory, READY, "guanxi store 1\n")?;
        if let Some(parent) = directory.parent() {
            sync_directory(parent)?;
        }
        Ok(backend)
    }

    pub fn open(directory: &Path, settings: &StoreSettings) -> Result<DiskBackend, StoreError> {
        let journals = journals(directory).map_err(io_error)?;
        if journals.is_empty() {
            return Err(StoreError::Damaged(format!(
                "{} has no journal, so it is not a whole copy; restore the directory from a backup",
                directory.display()
            )));
        }
        let settled = drop_settled_journal(directory, &journals).map_err(io_error)?;
        let backend = open(directory, settings)?;
        if settled.is_some_and(|text| backend.settled_text().is_ok_and(|now| now != text)) {
            return Err(StoreError::Damaged(format!(
                "{} is not as its last clean stop left it; restore the directory from a backup",
                directory.display()
            )));
        }
        Ok(backend)
    }

    /// Fills an empty store with rows in the order of keys, straight into tables. `next` gives
    /// some at a time, and none at the end.
    pub fn fill<E: From<StoreError>>(
        &self,
        mut next: impl FnMut() -> Result<Vec<RawRow>, E>,
    ) -> Result<(), E> {
        let mut ingestion = self.rows.start_ingestion().map_err(fjall_error)?;
        let mut last = Key::new();
        loop {
            let rows = next()?;
            if rows.is_empty() {
                break;
            }
            for (key, value) in rows {
                // What fjall would panic at.
                if key <= last {
                    let text = "the copy's rows are not in the order of their keys";
                    return Err(StoreError::Damaged(text.to_owned()).into());
                }
                ingestion.write(key.as_slice(), value).map_err(fjall_error)?;
                last = key;
            }
        }
        ingestion.finish().map_err(fjall_error)?;
        let mut whole = self.whole.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *whole = self.database.snapshot();
        Ok(())
    }

    /// What a clean stop leaves behind: where the store stood.
    fn settled_text(&self) -> Result<String, StoreError> {
        let applied = self.view().get(&layout::applied())?;
        Ok(format!("{:02x?}\n", applied.as_deref().unwrap_or_default()))
    }
}

/// Empties the journal of a store that a clean stop has settled, and returns what the stop has
/// said. The mark goes, for good, before anyone can write to the journal again.
fn drop_settled_journal(directory: &Path, journals: &[PathBuf]) -> io::Result<Option<String>> {
    let mark = directory.join(SETTLED);
    let text = match fs::read_to_string(&mark) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if let [journal] = journals {
        let file = File::options().write(true).open(journal)?;
        file.set_len(0)?;
        file.sync_all()?;
    }
    fs::remove_file(&mark)?;
    File::open(directory)?.sync_all()?;
    Ok(Some(text))
}

fn journals(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory.join(DATABASE))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            found.push(path);
        }
    }
    Ok(found)
}

fn open(directory: &Path, settings: &StoreSettings) -> Result<DiskBackend, StoreError> {
    let database = Database::builder(directory.join(DATABASE))
        .cache_size(settings.cache_bytes)
        // The log is what is durable; the journal is persisted now and then, for a short replay.
        .manual_journal_persist(true)
        .worker_threads(WORKER_THREADS)
        .open()
        .map_err(fjall_error)?;
    let rows = database.keyspace(KEYSPACE, || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(FJALL_MEMTABLE_BYTES)
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
            .data_block_compression_policy(CompressionPolicy::new([
                // The first levels are rewritten within seconds.
                CompressionType::None,
                CompressionType::None,
                CompressionType::Lz4,
            ]))
            .compaction_strategy(Arc::new(
                Leveled::default()
                    .with_table_target_size(TABLE_BYTES)
                    .with_l0_threshold(FIRST_RUNS_MAX),
            ))
            .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
                BloomConstructionPolicy::BitsPerKey(BLOOM_BITS_PER_KEY),
            )))
            .filter_block_pinning_policy(PinningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(true))
            .filter_block_partitioning_policy(PartitioningPolicy::all(false))
            .index_block_partitioning_policy(PartitioningPolicy::all(false))
    });
    Ok(DiskBackend {
        directory: directory.to_path_buf(),
        rows: rows.map_err(fjall_error)?,
        memtable_bytes: settings.memtable_bytes,
        gathered: AtomicU64::new(database.write_buffer_size()),
        whole: RwLock::new(database.snapshot()),
        writing: RwLock::new(()),
        database,
    })
}

impl Backend for DiskBackend {
    type View = DiskView;

    /// A flush or compaction that ends while a batch is being written makes fjall show the half
    /// that is there (it publishes its own, later sequence number), also in new snapshots. So
    /// meanwhile readers get the picture before the batch.
    fn view(&self) -> DiskView {
        let snapshot = match self.writing.try_read() {
            Ok(_idle) => self.database.snapshot(),
            Err(_) => self.whole.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
        };
        DiskView { snapshot, rows: self.rows.clone() }
    }

    fn write(&self, entries: Vec<Entry>) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        let mut bytes = 0;
        for (key, value) in entries {
            bytes += (key.len() + value.as_ref().map_or(0, Vec::len)) as u64 + ENTRY_BYTES;
            match value {
                Some(value) => batch.insert(&self.rows, key, value),
                None => batch.remove(&self.rows, key),
            }
        }
        {
            let _writing = self.writing.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            batch.commit().map_err(fjall_error)?;
            let mut whole = self.whole.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            *whole = self.database.snapshot();
        }
        let gathered = self.gathered.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let crowded = self.rows.sealed_memtable_count() >= SEALED_MEMTABLES_MAX
            && gathered < self.memtable_bytes.saturating_mul(MEMTABLE_GROWTH_MAX);
        if gathered >= self.memtable_bytes && !crowded {
            self.rows.rotate_memtable().map_err(fjall_error)?;
            self.gathered.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.database.persist(PersistMode::SyncAll).map_err(fjall_error)
    }

    /// Flushes every row into tables and says so, so that the next start need not read a journal
    /// of up to 64 MB. Where that takes too long, the next start reads it.
    fn settle(&self) -> Result<(), StoreError> {
        self.rows.rotate_memtable().map_err(fjall_error)?;
        let deadline = Instant::now() + SETTLE_DEADLINE;
        while self.rows.sealed_memtable_count() > 0 || self.database.outstanding_flushes() > 0 {
            if Instant::now() > deadline {
                return Ok(());
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        if journals(&self.directory).map_err(io_error)?.len() == 1 {
            write_synced(&self.directory, SETTLED, &self.settled_text()?)?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }
}

pub struct DiskView {
    snapshot: Snapshot,
    rows: Keyspace,
}

impl std::fmt::Debug for DiskView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskView").finish_non_exhaustive()
    }
}

impl KeyView for DiskView {
    type Bytes = UserValue;

    fn get(&self, key: &[u8]) -> Result<Option<UserValue>, StoreError> {
        self.snapshot.get(&self.rows, key).map_err(fjall_error)
    }

    fn range(
        &self,
        range: (Bound<Key>, Bound<Key>),
        reverse: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let mut iterator = self.snapshot.range::<Key, _>(&self.rows, range);
        let mut next: Box<dyn FnMut() -> Option<Guard>> = match reverse {
            false => Box::new(move || iterator.next()),
            true => Box::new(move || iterator.next_back()),
        };
        while let Some(guard) = next() {
            let (key, value) = guard.into_inner().map_err(fjall_error)?;
            if visit(&key, &value)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Makes every file and folder of a store durable that nobody uses.
pub fn sync_whole(directory: &Path) -> Result<(), StoreError> {
    let below = folders_below(directory).map_err(io_error)?;
    for folder in below.iter().map(PathBuf::as_path).chain([directory]) {
        for entry in fs::read_dir(folder).map_err(io_error)? {
            let path = entry.map_err(io_error)?.path();
            if path.is_file() {
                File::open(&path).and_then(|file| file.sync_all()).map_err(io_error)?;
            }
        }
        sync_directory(folder)?;
    }
    Ok(())
}

fn folders_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// A small file that is there whole or not at all, and for good when this returns.
fn write_synced(directory: &Path, name: &str, text: &str) -> Result<(), StoreError> {
    let unfinished = directory.join(format!("{name}.new"));
    let mut file = File::create(&unfinished).map_err(io_error)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io_error)?;
    fs::rename(&unfinished, directory.join(name)).map_err(io_error)?;
    sync_directory(directory)
}

fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(io_error)
}

fn io_error(error: io::Error) -> StoreError {
    StoreError::Io(error.to_string())
}

fn fjall_error(error: fjall::Error) -> StoreError {
    StoreError::Io(error.to_string())
}

#[cfg(test)]
mod tests;
