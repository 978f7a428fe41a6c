//! The data directory: that it is ours, that nobody else uses it, the random seed that makes its log
//! its own, and the id by which others know it. What the log and the store keep inside belongs to them.

mod clock;
mod moved;
mod role;
mod secret;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use guanxi_core::clock::Clock;
use guanxi_core::random::random;
use guanxi_model::Secret;

pub(crate) use self::clock::{note_clock, steady_clock};
pub use self::moved::Moved;
pub(crate) use self::moved::{read_moved, remove_moved, write_moved};
pub use self::role::Role;
pub(crate) use self::role::{read_role, remove_role, write_role};
pub(crate) use self::secret::write_secret;
use crate::disk::{Disk, DiskLock, UNFINISHED, folder_of, with_checksum, without_checksum};

/// The first had records without an origin.
const FORMAT: u32 = 2;
/// Says that the directory is ours, its format and its seed.
const IDENTITY: &str = "GUANXI";
/// Locked while a process uses the directory.
const LOCK: &str = "LOCK";
/// There from the first to the last moment of filling the directory from a copy or an import.
/// Without it, a cut restore would look like a small but whole directory.
const LANDING: &str = "LANDING";
/// What the root of a freshly made file system holds.
const LOST_AND_FOUND: &str = "lost+found";
/// How many foreign files a refusal names.
const NAMES_SHOWN_MAX: usize = 5;

/// An open data directory. No other process can open it until this is dropped.
pub struct Directory {
    path: PathBuf,
    identity: Identity,
    secret: Arc<Secret>,
    _lock: DiskLock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    seed: u64,
    /// Apart from the seed, which is nobody's affair: who knew it could make data look like frames.
    id: u64,
    created_ms: u64,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error(
        "another process uses the data directory {}: stop that one, or give this one a directory \
         of its own", path.display()
    )]
    Locked { path: PathBuf },

    #[error("{} is a file: the data directory must be a directory, or not exist yet", path.display())]
    NotADirectory { path: PathBuf },

    #[error(
        "refusing to use {} as a data directory: it holds other files ({names}) and no file \
         {IDENTITY}. Choose an empty directory, or one that guanxi has made", path.display()
    )]
    Foreign { path: PathBuf, names: String },

    #[error(
        "the data directory {} is unfinished: a restore, an import with --data-dir, or the first copy \
         from a primary was cut off before its end, or its disk was full. See that there is room \
         and run that command again, it begins anew; or remove the directory",
        path.display()
    )]
    Unfinished { path: PathBuf },

    #[error(
        "{} is a data directory already: choose an empty or new one, or move this one away first",
        path.display()
    )]
    Occupied { path: PathBuf },

    #[error(
        "no permission to {action} {}: let the user that runs guanxi own the data directory \
         ({source})", path.display()
    )]
    NoPermission { action: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "the data directory is damaged: {}: {what}. Nothing was changed; restore the directory \
         from a backup, or bring back the file as it was", path.display()
    )]
    Damaged { path: PathBuf, what: &'static str },

    #[error(
        "the data directory {} has format {found} of an earlier release, and this one reads \
         {FORMAT}. Nothing was changed; export it with that release (guanxi export), start this one \
         on a new directory, and import there", path.display()
    )]
    OlderFormat { path: PathBuf, found: u32 },

    #[error(
        "the data directory {} has format {found}, but this version reads {FORMAT}: start \
         it with the newer version that wrote it", path.display()
    )]
    NewerFormat { path: PathBuf, found: u32 },

    #[error("could not {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl Directory {
    /// Opens the data directory, or makes it when it is missing or empty. On return it is durable.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: &dyn Clock,
        path: &Path,
    ) -> Result<Self, DirectoryError> {
        Self::enter(disk, clock, path, |disk| match unfinished(disk, path)? {
            true => Err(DirectoryError::Unfinished { path: path.to_path_buf() }),
            false => Ok(()),
        })
    }

    /// Takes a missing or empty directory, or one whose landing was cut off, to fill it. Until
    /// `landed`, nobody can open it.
    pub fn begin_landing(
        disk: Arc<dyn Disk>,
        clock: &dyn Clock,
        path: &Path,
    ) -> Result<Self, DirectoryError> {
        Self::enter(disk, clock, path, |disk| {
            Self::may_land(disk, path)?;
            let mark = path.join(LANDING);
            let text = with_checksum("This data directory is being filled.\n");
            disk.write_atomic(&mark, &text).map_err(failed("write", &mark))
        })
    }

    /// Whether `begin_landing` would take this path. Nothing is touched.
    pub fn may_land(disk: &dyn Disk, path: &Path) -> Result<(), DirectoryError> {
        if !disk.exists(path).map_err(failed("look at", path))? {
            return Ok(());
        }
        refuse_foreign(disk, path)?;
        let identity = path.join(IDENTITY);
        let named = disk.exists(&identity).map_err(failed("look at", &identity))?;
        match named && !unfinished(disk, path)? {
            true => Err(DirectoryError::Occupied { path: path.to_path_buf() }),
            false => Ok(()),
        }
    }

    /// The copy is there, whole and durable: from now on the directory can be opened.
    pub fn landed(self, disk: &dyn Disk) -> Result<(), DirectoryError> {
        let mark = self.path.join(LANDING);
        disk.remove(&mark).map_err(failed("remove", &mark))?;
        disk.sync_dir(&self.path).map_err(failed("sync", &self.path))
    }

    /// Locks the directory, and makes it ours if `admit` has nothing against it.
    fn enter(
        disk: Arc<dyn Disk>,
        clock: &dyn Clock,
        path: &Path,
        admit: impl FnOnce(&dyn Disk) -> Result<(), DirectoryError>,
    ) -> Result<Self, DirectoryError> {
        let disk = &*disk;
        let above = folders_above(disk, path)?;
        disk.create_dir_all(path).map_err(failed("create", path))?;
        // Before the lock, which is itself a file: a directory that is not ours stays untouched.
        refuse_foreign(disk, path)?;
        let lock_path = path.join(LOCK);
        let lock = disk
            .lock(&lock_path)
            .map_err(failed("lock", &lock_path))?
            .ok_or_else(|| DirectoryError::Locked { path: path.to_path_buf() })?;
        admit(disk)?;
        disk.keep_to_owner(path).map_err(failed("close to others", path))?;
        let identity = match read_identity(disk, path)? {
            Some(identity) => identity,
            None => {
                refuse_foreign(disk, path)?;
                let identity =
                    Identity { seed: random(), id: random().max(1), created_ms: clock.now_ms() };
                write_identity(disk, path, identity)?;
                identity
            }
        };
        let secret = Arc::new(secret::read_or_make(disk, path)?);
        // Also when it stood: whoever made it may have been killed before it was durable.
        disk.sync_dir(path).map_err(failed("sync", path))?;
        for folder in above {
            match disk.sync_dir(&folder) {
                // Only its owner may read that folder, so it was not us who made our name in it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                done => done.map_err(failed("sync", &folder))?,
            }
        }
        Ok(Self { path: path.to_path_buf(), identity, secret, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory's random value, which the log's checksums start from.
    pub fn seed(&self) -> u64 {
        self.identity.seed
    }

    /// What its service seals tokens, cursors and event ids with.
    pub fn secret(&self) -> &Arc<Secret> {
        &self.secret
    }

    /// What tells this directory from any other, whoever uses it and however often. A copy of its
    /// files has the same; one that was made from its rows (a standby, a restore) has its own.
    pub fn id(&self) -> u64 {
        self.identity.id
    }

    /// When the directory was made.
    pub fn created_ms(&self) -> u64 {
        self.identity.created_ms
    }
}

/// The folders in which a name on the way to `path` is made: its parent, and further up as long
/// as they do not exist.
fn folders_above(disk: &dyn Disk, path: &Path) -> Result<Vec<PathBuf>, DirectoryError> {
    let mut folders = Vec::new();
    let mut folder = folder_of(path);
    loop {
        folders.push(folder.to_path_buf());
        match disk.exists(folder) {
            Ok(true) => return Ok(folders),
            Ok(false) => folder = folder_of(folder),
            Err(error) => return Err(failed("look at", folder)(error)),
        }
    }
}

fn unfinished(disk: &dyn Disk, path: &Path) -> Result<bool, DirectoryError> {
    let mark = path.join(LANDING);
    // On a full disk not even the mark may get its text; its beginning says as much.
    let begun = mark.with_added_extension(UNFINISHED);
    for file in [&mark, &begun] {
        if disk.exists(file).map_err(failed("look at", file))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn refuse_foreign(disk: &dyn Disk, path: &Path) -> Result<(), DirectoryError> {
    let names = disk.list(path).map_err(failed("list", path))?;
    if names.iter().any(|name| name == IDENTITY) {
        return Ok(());
    }
    let unfinished = [format!("{IDENTITY}.{UNFINISHED}"), format!("{LANDING}.{UNFINISHED}")];
    let foreign: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| ![LOCK, LOST_AND_FOUND, LANDING].contains(name))
        .filter(|name| !unfinished.iter().any(|unfinished| unfinished == name))
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let mut names = foreign[..foreign.len().min(NAMES_SHOWN_MAX)].join(", ");
    if foreign.len() > NAMES_SHOWN_MAX {
        names.push_str(", …");
    }
    Err(DirectoryError::Foreign { path: path.to_path_buf(), names })
}

fn read_identity(disk: &dyn Disk, path: &Path) -> Result<Option<Identity>, DirectoryError> {
    let file = path.join(IDENTITY);
    let bytes = match disk.read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &file)(error)),
    };
    let Some(text) = without_checksum(&bytes) else {
        let what = "its text does not fit its checksum";
        return Err(DirectoryError::Damaged { path: file, what });
    };
    match field(text, "format ").and_then(|format| format.parse().ok()) {
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => {
            return Err(DirectoryError::NewerFormat { path: path.to_path_buf(), found });
        }
        Some(found) => return Err(DirectoryError::OlderFormat { path: path.to_path_buf(), found }),
        None => {
            let what = "it does not name its format";
            return Err(DirectoryError::Damaged { path: file, what });
        }
    }
    let seed = field(text, "seed ").and_then(|seed| u64::from_str_radix(seed, 16).ok());
    let id = field(text, "id ").and_then(|id| u64::from_str_radix(id, 16).ok());
    let created_ms = field(text, "created_ms ").and_then(|created| created.parse().ok());
    match (seed, id, created_ms) {
        (Some(seed), Some(id), Some(created_ms)) => Ok(Some(Identity { seed, id, created_ms })),
        _ => {
            let what = "it names no seed, no id or no time";
            Err(DirectoryError::Damaged { path: file, what })
        }
    }
}

fn write_identity(disk: &dyn Disk, path: &Path, identity: Identity) -> Result<(), DirectoryError> {
    let Identity { seed, id, created_ms } = identity;
    let text = format!(
        "A data directory of guanxi: not to be edited.\nformat {FORMAT}\nseed {seed:016x}\n\
         id {id:016x}\ncreated_ms {created_ms}\n"
    );
    let file = path.join(IDENTITY);
    disk.write_atomic(&file, &with_checksum(&text)).map_err(failed("write", &file))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

fn remove_if_there(disk: &dyn Disk, path: PathBuf) -> Result<(), DirectoryError> {
    match disk.remove(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(DirectoryError::Io { action: "remove", path, source })
        }
        _ => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_path_buf();
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            DirectoryError::NoPermission { action, path, source }
        }
        io::ErrorKind::NotADirectory => DirectoryError::NotADirectory { path },
        // What making a directory says of a file that has its name.
        io::ErrorKind::AlreadyExists if action == "create" => {
            DirectoryError::NotADirectory { path }
        }
        _ => DirectoryError::Io { action, path, source },
    }
}

#[cfg(test)]
mod tests;
