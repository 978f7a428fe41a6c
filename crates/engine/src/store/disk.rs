//! Keys and values on disk: one fjall keyspace. One, because a flush then makes rows, tallies and
//! position durable together, and the store stays a prefix of the log whatever a crash takes.
//!
//! fjall never fsyncs the folders that it makes, and opens an empty store where its journals are
//! missing; both are guarded here, by a READY file of our own.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PartitioningPolicy, PinningPolicy,
};
use fjall::{
    CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode, Readable,
    Snapshot, UserValue,
};

use super::StoreError;
use super::keyed::{Backend, Entry, KeyView, Visit};
use super::layout::Key;

const READY: &str = "READY";
const DATABASE: &str = "db";
const KEYSPACE: &str = "rows";
/// Flushes and compactions; a second one keeps flushes from waiting for a long compaction.
const WORKER_THREADS: usize = 1;
const BLOOM_BITS_PER_KEY: f32 = 10.0;
const BLOCK_BYTES: u32 = 4 * 1_024;

#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// Blocks kept in memory.
    pub cache_bytes: u64,
    /// Rows gathered in memory before they are flushed; larger ones stall writers longer.
    pub memtable_bytes: u64,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings {
            cache_bytes: 256 << 20,
            memtable_bytes: 16 << 20,
        }
    }
}

pub struct DiskBackend {
    database: Database,
    rows: Keyspace,
}

impl std::fmt::Debug for DiskBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskBackend")
            .field("path", &self.rows.path())
            .finish_non_exhaustive()
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
    Ok(if ready {
        Found::Ready
    } else {
        Found::Unfinished
    })
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
        let mut ready = File::create(directory.join(READY)).map_err(io_error)?;
        ready
            .write_all(b"guanxi store 1\n")
            .and_then(|()| ready.sync_all())
            .map_err(io_error)?;
        sync_directory(directory)?;
        if let Some(parent) = directory.parent() {
            sync_directory(parent)?;
        }
        Ok(backend)
    }

    pub fn open(directory: &Path, settings: &StoreSettings) -> Result<DiskBackend, StoreError> {
        let journals = fs::read_dir(directory.join(DATABASE)).map_err(io_error)?;
        let is_journal = |entry: &fs::DirEntry| {
            Path::new(&entry.file_name())
                .extension()
                .is_some_and(|extension| extension == "jnl")
        };
        if !journals
            .filter_map(Result::ok)
            .any(|entry| is_journal(&entry))
        {
            return Err(StoreError::Damaged(format!(
                "{} has no journal, so it is not a whole copy; restore the directory from a backup",
                directory.display()
            )));
        }
        open(directory, settings)
    }
}

fn open(directory: &Path, settings: &StoreSettings) -> Result<DiskBackend, StoreError> {
    let database = Database::builder(directory.join(DATABASE))
        .cache_size(settings.cache_bytes)
        // The log is what is durable; the journal is persisted now and then, for a short replay.
        .manual_journal_persist(true)
        .worker_threads(WORKER_THREADS)
        .open()
        .map_err(fjall_error)?;
    let memtable_bytes = settings.memtable_bytes;
    let rows = database.keyspace(KEYSPACE, || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(memtable_bytes)
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
                BloomConstructionPolicy::BitsPerKey(BLOOM_BITS_PER_KEY),
            )))
            .filter_block_pinning_policy(PinningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(true))
            .filter_block_partitioning_policy(PartitioningPolicy::all(false))
            .index_block_partitioning_policy(PartitioningPolicy::all(false))
    });
    Ok(DiskBackend {
        rows: rows.map_err(fjall_error)?,
        database,
    })
}

impl Backend for DiskBackend {
    type View = DiskView;

    fn view(&self) -> DiskView {
        DiskView {
            snapshot: self.database.snapshot(),
            rows: self.rows.clone(),
        }
    }

    fn write(&self, entries: Vec<Entry>) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        for (key, value) in entries {
            match value {
                Some(value) => batch.insert(&self.rows, key, value),
                None => batch.remove(&self.rows, key),
            }
        }
        batch.commit().map_err(fjall_error)
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.database
            .persist(PersistMode::SyncAll)
            .map_err(fjall_error)
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

fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    File::open(directory)
        .and_then(|file| file.sync_all())
        .map_err(io_error)
}

fn io_error(error: io::Error) -> StoreError {
    StoreError::Io(error.to_string())
}

fn fjall_error(error: fjall::Error) -> StoreError {
    StoreError::Io(error.to_string())
}
