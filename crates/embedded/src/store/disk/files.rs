//! The files of a store beside what fjall does with them: marks, journals, and what must be durable
//! when nobody uses the store.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use guanxi_core::snapshot::StoreError;

use super::{DATABASE, SETTLED};
use crate::disk::{Disk as _, RealDisk, is_full};
use crate::disk_room;

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

pub(super) fn folders_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
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
pub(super) fn write_synced(directory: &Path, name: &str, text: &str) -> Result<(), StoreError> {
    let unfinished = directory.join(format!("{name}.new"));
    let mut file = File::create(&unfinished).map_err(io_error)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io_error)?;
    fs::rename(&unfinished, directory.join(name)).map_err(io_error)?;
    sync_directory(directory)
}

pub(super) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(io_error)
}

pub(super) fn io_error(error: io::Error) -> StoreError {
    match is_full(&error) {
        true => StoreError::Full,
        false => StoreError::Io(error.to_string()),
    }
}

/// Empties the journal of a store that a clean stop has settled, and returns what the stop has
/// said. The mark goes, for good, before anyone can write to the journal again.
pub(super) fn drop_settled_journal(
    directory: &Path,
    journals: &[PathBuf],
) -> io::Result<Option<String>> {
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

/// Whether the disk counts as full.
pub(super) fn is_low(directory: &Path) -> bool {
    RealDisk.room(directory).is_ok_and(|room| disk_room::is_low(&room))
}

pub(super) fn journals(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory.join(DATABASE))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            found.push(path);
        }
    }
    Ok(found)
}
