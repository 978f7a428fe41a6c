//! Keys and values on disk: one fjall keyspace. One, because a flush then makes rows, tallies and
//! position durable together, and the store stays a prefix of the log whatever a crash takes.
//!
//! fjall never fsyncs the folders that it makes, and opens an empty store where its journals are
//! missing; both are guarded here, by a READY file of our own.

mod files;
mod journal;
mod opened;
mod packing;
mod view;

pub use self::files::sync_whole;
pub use self::view::DiskView;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fjall::{LsmError, PersistMode};
use guanxi_core::snapshot::StoreError;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use self::files::{
    drop_settled_journal, folders_below, io_error, journals, sync_directory, write_synced,
};
use self::opened::{OpenStore, Wants};
use self::packing::Packing;
use self::view::Looks;
use super::keyed::{Backend, KeyView, KeyWrite};
use super::layout::{self, Key};
use crate::disk::is_full;
use crate::disk_room::JOURNAL_BYTES_MAX;

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
/// and spare the worker much (8 instead of 4: 43,600 instead of 34,400 puts/s). A small disk gets
/// half, and packs all of them.
const FIRST_RUNS_MAX: u8 = 8;
/// What the worker may merge at once, and so write a second time before the first copy goes.
const MERGE_BYTES_MAX: u64 = 256 << 20;
/// Tables that are kept open, where the system has descriptors for them; others are opened anew
/// for each look into them.
pub const OPEN_TABLES_MAX: usize = 900;
/// How long a stop may wait for the last flush, and how it waits.
const SETTLE_DEADLINE: Duration = Duration::from_secs(5);
const SETTLE_PAUSE: Duration = Duration::from_millis(5);
/// How often it is looked whether a full disk has room again, or could get some.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long readers wait so that those before them finish, and the store can be opened anew.
const LAST_LOOKS_DEADLINE: Duration = Duration::from_millis(300);
/// How long readers wait for the store while it is opened anew.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// Takes the next row of a store that is being filled, in the order of keys.
pub type PutRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StoreError> + 'a;

#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// Blocks kept in memory.
    pub cache_bytes: u64,
    /// Rows gathered in memory before they are flushed; larger ones stall writers longer.
    pub memtable_bytes: u64,
    /// Tables that are kept open, each with a descriptor.
    pub open_tables_max: usize,
    /// Beyond it the journal is given back, for which the store is opened anew. fjall does it by
    /// itself, without that, but only at 64 MB, which is too much for a small disk.
    pub journal_bytes_max: u64,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings {
            cache_bytes: 256 << 20,
            memtable_bytes: 16 << 20,
            open_tables_max: OPEN_TABLES_MAX,
            journal_bytes_max: u64::MAX,
        }
    }
}

pub struct DiskBackend {
    directory: PathBuf,
    settings: StoreSettings,
    /// None where it could not be opened anew.
    opened: RwLock<Option<OpenStore>>,
    /// It was opened anew after a write that failed, perhaps a sync of the journal: what is read
    /// of that need not be on the disk. It ends when all of it is in tables and the journal, where
    /// a power cut could leave a hole, is gone.
    in_doubt: AtomicBool,
    looks: Mutex<Looks>,
    packing: Mutex<Packing>,
}

impl std::fmt::Debug for DiskBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskBackend").field("path", &self.directory).finish_non_exhaustive()
    }
}

/// What stands where a store should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRemains {
    Nothing,
    /// Its creation was cut; it never held anything that the log does not.
    Unfinished,
    Ready,
}

pub fn find(directory: &Path) -> io::Result<StoreRemains> {
    if !directory.try_exists()? {
        return Ok(StoreRemains::Nothing);
    }
    let ready = directory.join(READY).try_exists()?;
    Ok(if ready { StoreRemains::Ready } else { StoreRemains::Unfinished })
}

impl DiskBackend {
    /// Makes an empty store, whatever an unfinished creation left.
    pub fn create(directory: &Path, settings: &StoreSettings) -> Result<DiskBackend, StoreError> {
        if directory.try_exists().map_err(io_error)? {
            fs::remove_dir_all(directory).map_err(io_error)?;
        }
        fs::create_dir_all(directory).map_err(io_error)?;
        let backend = DiskBackend::around(directory, settings)?;
        backend.with(|opened| opened.journal().begin_anew().map_err(io_error))?;
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
        let backend = DiskBackend::around(directory, settings)?;
        if settled.is_some_and(|text| backend.settled_text().is_ok_and(|now| now != text)) {
            return Err(StoreError::Damaged(format!(
                "{} is not as its last clean stop left it; restore the directory from a backup",
                directory.display()
            )));
        }
        Ok(backend)
    }

    /// Fills an empty store with rows in the order of keys, straight into tables.
    pub fn fill<E: From<StoreError>>(
        &self,
        give: impl FnOnce(&mut PutRow<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let opened = self.opened.read();
        let Some(opened) = opened.as_ref() else {
            return Err(StoreError::Stopped.into());
        };
        let mut ingestion = opened.rows.start_ingestion().map_err(fjall_error)?;
        let mut last = Key::new();
        give(&mut |key, value| {
            // What fjall would panic at.
            if key <= last.as_slice() {
                let text = "the rows are not in the order of their keys";
                return Err(StoreError::Damaged(text.to_owned()));
            }
            last.clear();
            last.extend_from_slice(key);
            ingestion.write(key, value).map_err(fjall_error)
        })?;
        ingestion.finish().map_err(fjall_error)?;
        opened.show_whole();
        Ok(())
    }

    fn around(directory: &Path, settings: &StoreSettings) -> Result<DiskBackend, StoreError> {
        Ok(DiskBackend {
            directory: directory.to_path_buf(),
            settings: *settings,
            opened: RwLock::new(Some(OpenStore::open(directory, settings)?)),
            in_doubt: AtomicBool::new(false),
            looks: Mutex::default(),
            packing: Mutex::default(),
        })
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&OpenStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.opened.read().as_ref().ok_or(StoreError::Stopped).and_then(work)
    }

    /// The database, when nobody looks at it any more; none while somebody does, who is sent away
    /// after a while where the database must be had. Whoever wants to look waits.
    fn alone(&self, must: bool) -> Option<RwLockWriteGuard<'_, Option<OpenStore>>> {
        let opened = self.opened.write();
        let deadline = Instant::now() + LAST_LOOKS_DEADLINE;
        // fjall keeps its lock for as long as somebody looks.
        while !self.looks.lock().are_over() {
            if Instant::now() > deadline {
                if must {
                    self.looks.lock().end_late();
                }
                return None;
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        self.looks.lock().in_the_way = None;
        Some(opened)
    }

    /// Gives back the room of the journal, as a clean stop and a start would. Where that cannot be
    /// done now, the journal grows on.
    fn shed_journal(&self, look_away: &mut dyn FnMut()) -> Result<(), StoreError> {
        if !self.with(OpenStore::flush_all)? {
            return Ok(());
        }
        let text = self.settled_text()?;
        look_away();
        let Some(opened) = self.alone(false) else { return Ok(()) };
        // Nobody writes before the mark is gone again. Without it the journal is read once more.
        let marked = self.mark_settled(&text);
        if let Err(error) = &marked {
            tracing::warn!(%error, "the store's journal could not be given back");
        }
        self.open_anew(opened, Ok).map_err(not_open)?;
        if matches!(marked, Ok(true)) {
            self.end_doubt();
        }
        Ok(())
    }

    /// All that is read is in tables, and the journal is gone.
    fn end_doubt(&self) {
        self.in_doubt.store(false, Ordering::Release);
    }

    /// What the disk must have, so that the store may flush and merge what it holds.
    fn wanted_bytes(&self, opened: &OpenStore) -> u64 {
        // Twice, as what was merged goes only some time after; and with the next journal, so that
        // this one can be given back on a disk that is full.
        let journal_bytes = self.settings.journal_bytes_max.min(JOURNAL_BYTES_MAX);
        2 * opened.flush_bytes(opened.gathered_bytes()) + journal_bytes
    }

    /// Opens the database anew that nobody looks at.
    fn open_anew(
        &self,
        mut opened: RwLockWriteGuard<'_, Option<OpenStore>>,
        replay: impl FnOnce(DiskBackend) -> Result<DiskBackend, StoreError>,
    ) -> Result<(), StoreError> {
        #[cfg(test)]
        tests::OPENED_ANEW.set(tests::OPENED_ANEW.get() + 1);
        drop(opened.take());
        let fresh = replay(DiskBackend::open(&self.directory, &self.settings)?)?;
        *opened = fresh.opened.into_inner();
        Ok(())
    }

    /// Says that every row is in a table, where only one journal is left that could tell otherwise;
    /// false where there are more.
    fn mark_settled(&self, text: &str) -> Result<bool, StoreError> {
        let is_alone = journals(&self.directory).map_err(io_error)?.len() == 1;
        if is_alone {
            write_synced(&self.directory, SETTLED, text)?;
        }
        Ok(is_alone)
    }

    /// What a clean stop leaves behind: where the store stood.
    fn settled_text(&self) -> Result<String, StoreError> {
        let applied = self.view().get(&layout::applied())?;
        Ok(format!("{:02x?}\n", applied.as_deref().unwrap_or_default()))
    }
}

impl Backend for DiskBackend {
    type View = DiskView;

    fn view(&self) -> DiskView {
        let deadline = Instant::now() + LOOK_DEADLINE;
        loop {
            if let Some(opened) = self.opened.try_read() {
                let shown = opened.as_ref().map(|opened| (opened.snapshot(), opened.rows.clone()));
                return DiskView { shown, must_end: self.looks.lock().begin() };
            }
            // It is being opened anew.
            if Instant::now() > deadline {
                return DiskView { shown: None, must_end: Arc::default() };
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    fn write(&self, entries: &[KeyWrite]) -> Result<(), StoreError> {
        let memtable_bytes = self.settings.memtable_bytes;
        self.with(|opened| opened.write(entries, memtable_bytes))
    }

    fn check(&self) -> Result<(), StoreError> {
        self.with(OpenStore::check)
    }

    fn tidy(&self, at_rest: bool, look_away: &mut dyn FnMut()) -> Result<(), StoreError> {
        if at_rest {
            self.check()?;
        }
        let in_doubt = self.is_in_doubt();
        let wants = |opened: &OpenStore| {
            let gain = || self.packing.lock().gain(opened, self.wanted_bytes(opened));
            Ok(opened.wants(at_rest, in_doubt, gain))
        };
        match self.with(wants)? {
            Wants::Nothing => Ok(()),
            Wants::ByHand(gain) => self.pack(gain, look_away),
            Wants::ItsWorker => {
                look_away();
                match self.alone(false) {
                    Some(opened) => self.open_anew(opened, Ok).map_err(not_open),
                    None => Ok(()),
                }
            }
            Wants::LessJournal => self.shed_journal(look_away),
        }
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.with(|opened| opened.database.persist(PersistMode::SyncAll).map_err(fjall_error))
    }

    fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Acquire)
    }

    fn is_open(&self) -> bool {
        self.opened.read().is_some()
    }

    fn reopen(
        &self,
        replay: &mut dyn FnMut(DiskBackend) -> Result<DiskBackend, StoreError>,
    ) -> Result<bool, StoreError> {
        match self.alone(true) {
            Some(opened) => {
                self.in_doubt.store(true, Ordering::Release);
                self.open_anew(opened, replay).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// Flushes every row into tables and says so, so that the next start need not read a journal
    /// of up to 64 MB. Where that takes too long, or finds no room, the next start reads it.
    fn settle(&self) -> Result<(), StoreError> {
        match self.with(OpenStore::flush_all)? {
            true => self.mark_settled(&self.settled_text()?).map(drop),
            false => Ok(()),
        }
    }

    fn bytes(&self) -> u64 {
        self.with(|opened| opened.database.disk_space().map_err(fjall_error)).unwrap_or(0)
    }

    fn room_needed(&self) -> u64 {
        // Nothing is known while it is opened anew.
        let Some(opened) = self.opened.try_read() else { return 0 };
        opened.as_ref().map_or(0, |opened| self.wanted_bytes(opened))
    }
}

/// A store that could not be opened anew is as one that has stopped: whoever writes mends it.
fn not_open(error: StoreError) -> StoreError {
    tracing::error!(%error, "the store could not be opened anew");
    StoreError::Stopped
}

fn fjall_error(error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Poisoned => StoreError::Stopped,
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) if is_full(&error) => {
            StoreError::Stopped
        }
        error => StoreError::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
