//! Transfer: a copy of a whole store at a position, and a new data directory made from one.
//!
//! The rows go as they are kept; nothing here looks inside. The new directory's log begins right
//! after the copy's position, with the same lineage, so positions and tokens stay good. How a copy
//! travels, as a file or over a wire, is not decided here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use guanxi_core::clock::SystemClock;
use guanxi_core::read::unreadable;
use guanxi_core::snapshot::StoreError;
use guanxi_model::{Error, Position, Secret};

use crate::directory::{Directory, DirectoryError, remove_role, write_secret};
use crate::disk::{Disk, RealDisk};
use crate::engine::{Settings, apply_frame};
use crate::log::{Beginning, FileLog, Frame, Lineage, Log, LogError, LogOptions};
use crate::log_holds::{Hold, Holds};
use crate::resident::file;
use crate::resident::keeper::FILTER;
use crate::store::disk::{DiskBackend, PutRow, sync_whole};
use crate::store::{Applied, EmbeddedSnapshot, EmbeddedStore, KeyedStore, RawRow, Store};

/// The folders of a data directory.
pub(crate) const LOG: &str = "log";
pub(crate) const STORE: &str = "store";
/// Only while the directory is being filled.
const SPILL: &str = "spill";

/// A copy in the making: every row of one consistent picture, and the log held from there on.
pub struct Copy {
    applied: Applied,
    lineage: Lineage,
    snapshot: Box<dyn EmbeddedSnapshot>,
    last: Option<Vec<u8>>,
    hold: Hold,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copy").field("applied", &self.applied).finish_non_exhaustive()
    }
}

impl Copy {
    pub(crate) fn begin(
        log: &dyn Log,
        store: &dyn EmbeddedStore,
        holds: &Arc<Holds>,
    ) -> Result<Copy, Error> {
        // In this order: the picture has at least what is held, and the lineage all of its epochs.
        let from = Position(store.applied().position.0 + 1);
        let hold = holds.take(log, from)?;
        let snapshot = store.picture();
        let applied = snapshot.applied().map_err(unreadable)?;
        Ok(Copy { applied, lineage: log.lineage(), snapshot, last: None, hold })
    }

    /// The place in the log that the rows are true at.
    pub fn applied(&self) -> Applied {
        self.applied
    }

    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The next rows in the order of keys, about so many bytes of them; none at the end.
    pub fn next_rows(&mut self, bytes_max: usize) -> Result<Vec<RawRow>, Error> {
        self.hold.check()?;
        let rows = self.snapshot.raw_rows(self.last.as_deref(), bytes_max).map_err(unreadable)?;
        if let Some((key, _)) = rows.last() {
            self.last = Some(key.clone());
        }
        Ok(rows)
    }

    /// Ends the copying; the log stays held from right after the copy on.
    pub(crate) fn into_hold(self) -> Hold {
        self.hold
    }
}

/// Why a copy did not become a data directory.
#[derive(Debug, thiserror::Error)]
pub enum LandingError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("could not clear {path} of an earlier, unfinished attempt: {source}")]
    Leftovers { path: String, source: io::Error },
    #[error(
        "the copy does not hold what it should: {0}. Nothing can be opened from it; take another"
    )]
    Unfit(String),
}

/// A directory that was taken to be filled. Until `Landing::finish` nobody can open it; whoever
/// takes it again clears it and begins anew.
pub struct LandingSite {
    settings: Settings,
    directory: Directory,
}

impl std::fmt::Debug for LandingSite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("LandingSite");
        shown.field("data_dir", &self.settings.data_dir).finish_non_exhaustive()
    }
}

impl LandingSite {
    /// Takes a missing or empty directory, or one whose filling was cut off.
    pub fn take(settings: &Settings) -> Result<LandingSite, LandingError> {
        let directory =
            Directory::begin_landing(Arc::new(RealDisk), &SystemClock, &settings.data_dir)?;
        let settings = settings.clone().fitted(&RealDisk);
        for folder in [LOG, STORE, SPILL] {
            clear(&settings.data_dir.join(folder))?;
        }
        remove_role(&RealDisk, &settings.data_dir)?;
        let filter = settings.data_dir.join(FILTER);
        file::remove(&RealDisk, &filter).map_err(|source| LandingError::Leftovers {
            path: filter.display().to_string(),
            source,
        })?;
        Ok(LandingSite { settings, directory })
    }

    /// What its service will seal with, where nobody brings a secret along.
    pub fn secret(&self) -> Arc<Secret> {
        self.directory.secret().clone()
    }

    /// Where what does not fit into memory is kept until the end.
    pub fn spill(&self) -> PathBuf {
        self.settings.data_dir.join(SPILL)
    }

    /// Fills the store with rows in the order of keys.
    pub fn fill<E: From<LandingError>>(
        self,
        give: impl FnOnce(&mut PutRow<'_>) -> Result<(), FillError<E>>,
    ) -> Result<Landing, E> {
        let LandingSite { settings, directory } = self;
        let folder = settings.data_dir.join(STORE);
        let backend = DiskBackend::create(&folder, &settings.store).map_err(LandingError::from)?;
        if let Err(error) = backend.fill(give) {
            drop(backend);
            give_back(&settings.data_dir);
            return Err(match error {
                FillError::Source(error) => error,
                FillError::Store(error) => LandingError::from(error).into(),
            });
        }
        let store = KeyedStore::open(backend).map_err(LandingError::from)?;
        Ok(Landing { settings, directory, store })
    }
}

/// A data directory in the making whose rows are there.
pub struct Landing {
    settings: Settings,
    directory: Directory,
    store: KeyedStore<DiskBackend>,
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landing").field("data_dir", &self.settings.data_dir).finish_non_exhaustive()
    }
}

impl Landing {
    /// Takes the directory and fills its store with rows in the order of keys. `next` gives some
    /// at a time, and none at the end.
    pub fn begin<E: From<LandingError>>(
        settings: &Settings,
        mut next: impl FnMut() -> Result<Vec<RawRow>, E>,
    ) -> Result<Landing, E> {
        LandingSite::take(settings)?.fill(|put| {
            loop {
                let rows = next().map_err(FillError::Source)?;
                if rows.is_empty() {
                    return Ok(());
                }
                rows.iter().try_for_each(|(key, value)| put(key, value))?;
            }
        })
    }

    /// Gives up: the space is free again. The directory stays marked as unfinished, so that nobody
    /// takes it for a new one and serves it empty.
    pub fn abandon(self) {
        drop(self.store);
        give_back(&self.settings.data_dir);
    }

    /// Where the store stands now.
    pub fn applied(&self) -> Applied {
        self.store.applied()
    }

    /// Brings the store past a frame of the log that the copy was taken from.
    pub fn apply(&self, frame: &Frame) -> Result<(), LandingError> {
        let position = self.applied().position;
        if frame.first.0 > position.0 + 1 {
            return Err(LandingError::Unfit(format!(
                "a frame at position {} follows position {}",
                frame.first.0, position.0
            )));
        }
        Ok(apply_frame(frame, &self.store)?)
    }

    /// Makes everything durable and the directory one that can be opened: its log goes on right
    /// after what the store has. The lineage must reach there. With the secret of the service that
    /// the copy is of, it takes that one's tokens.
    pub fn finish(self, lineage: &Lineage, secret: &Secret) -> Result<Applied, LandingError> {
        let Landing { settings, directory, store } = self;
        let applied = store.applied();
        if lineage.forks().last().is_some_and(|fork| fork.at > applied.position) {
            return Err(LandingError::Unfit(format!(
                "its last epoch begins after its end at position {}",
                applied.position.0
            )));
        }
        store.persist()?;
        store.settle()?;
        drop(store);
        sync_whole(&settings.data_dir.join(STORE))?;
        let beginning = Beginning {
            lineage: lineage.clone(),
            last: applied.position,
            commit_ms: applied.commit.0,
        };
        let options = LogOptions { segment_bytes: settings.log.segment_bytes };
        let folder = settings.data_dir.join(LOG);
        let disk: &dyn Disk = &RealDisk;
        FileLog::create(disk, &folder, directory.seed(), options, &beginning)?;
        write_secret(disk, &settings.data_dir, secret)?;
        clear(&settings.data_dir.join(SPILL))?;
        directory.landed(disk)?;
        Ok(applied)
    }
}

/// What can go wrong while rows come in: their source, or the store that they go to.
#[derive(Debug)]
pub enum FillError<E> {
    Source(E),
    Store(StoreError),
}

impl<E> From<StoreError> for FillError<E> {
    fn from(error: StoreError) -> FillError<E> {
        FillError::Store(error)
    }
}

/// Removes what a landing has made so far. What cannot be removed, the next landing will.
pub(crate) fn give_back(data_dir: &Path) {
    for folder in [LOG, STORE, SPILL] {
        if let Err(error) = clear(&data_dir.join(folder)) {
            tracing::warn!(%error, "an unfinished directory keeps its files");
        }
    }
}

fn clear(folder: &Path) -> Result<(), LandingError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(LandingError::Leftovers { path: folder.display().to_string(), source: error })
        }
        _ => Ok(()),
    }
}
