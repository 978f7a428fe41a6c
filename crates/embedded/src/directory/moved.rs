//! Whether what a directory holds has moved to a cluster: the file MOVED. A directory with it takes
//! no more writes, whoever starts it.

use std::io;
use std::path::Path;

use guanxi_model::Position;

use super::{DirectoryError, remove_if_there};
use crate::disk::{Disk, with_checksum, without_checksum};

const MOVED: &str = "MOVED";
const FIRST_LINE: &str = "MOVED format 1";

/// Where a directory's history goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The move's own number.
    pub id: u64,
    /// The last position that was moved, which is the log's last.
    pub position: Position,
    /// The address of the cluster, for callers; none where nobody gave one.
    pub now_at: Option<String>,
}

impl Moved {
    /// Where callers are to go, for a message.
    pub fn place(&self) -> &str {
        self.now_at.as_deref().unwrap_or("the cluster")
    }
}

pub(crate) fn read_moved(
    disk: &dyn Disk,
    directory: &Path,
) -> Result<Option<Moved>, DirectoryError> {
    let path = directory.join(MOVED);
    let bytes = match disk.read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DirectoryError::Io { action: "read", path, source }),
    };
    let parsed = without_checksum(&bytes).and_then(parse);
    parsed.map(Some).ok_or(DirectoryError::Damaged { path, what: "it does not describe a move" })
}

/// Durable when it returns.
pub(crate) fn write_moved(
    disk: &dyn Disk,
    directory: &Path,
    moved: &Moved,
) -> Result<(), DirectoryError> {
    let path = directory.join(MOVED);
    let now_at = moved.now_at.as_deref().unwrap_or_default();
    let text = format!("{FIRST_LINE}\n{}\n{}\n{now_at}\n", moved.id, moved.position.0);
    let written = disk.write_atomic(&path, &with_checksum(&text));
    written.map_err(|source| DirectoryError::Io { action: "write", path, source })
}

/// The history goes on here after all: the file is gone for good when this returns.
pub(crate) fn remove_moved(disk: &dyn Disk, directory: &Path) -> Result<(), DirectoryError> {
    remove_if_there(disk, directory.join(MOVED))?;
    let path = directory.to_path_buf();
    disk.sync_dir(directory).map_err(|source| DirectoryError::Io { action: "sync", path, source })
}

fn parse(text: &str) -> Option<Moved> {
    let mut lines = text.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let (id, position) = (lines.next()?.parse().ok()?, lines.next()?.parse().ok()?);
    let now_at = Some(lines.next()?.to_owned()).filter(|address| !address.is_empty());
    Some(Moved { id, position: Position(position), now_at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Fault, SimDisk};

    #[test]
    fn a_move_comes_back_and_damage_is_said() {
        let disk = SimDisk::new(1);
        let directory = Path::new("/");
        assert_eq!(read_moved(&disk, directory).unwrap(), None);
        for now_at in [None, Some("http://10.0.0.1:7420".to_owned())] {
            let moved = Moved { id: u64::MAX, position: Position(7), now_at };
            write_moved(&disk, directory, &moved).unwrap();
            assert_eq!(read_moved(&disk, directory).unwrap(), Some(moved));
        }
        remove_moved(&disk, directory).unwrap();
        remove_moved(&disk, directory).unwrap();
        assert_eq!(read_moved(&disk, directory).unwrap(), None);
        disk.write_atomic(Path::new("/MOVED"), b"anything").unwrap();
        assert!(matches!(read_moved(&disk, directory), Err(DirectoryError::Damaged { .. })));
    }

    #[test]
    fn what_was_removed_stays_gone_and_what_failed_may_be_there() {
        let directory = Path::new("/");
        let moved = Moved { id: 7, position: Position(7), now_at: None };
        let mut left = 0;
        for seed in 0..40 {
            let disk = SimDisk::new(seed);
            let mut random = fastrand::Rng::with_seed(seed);
            // The file's own sync is the first, its folder's the second.
            disk.fail_at(4, Fault::SyncError);
            assert!(write_moved(&disk, directory, &moved).is_err());
            left += u64::from(read_moved(&disk.crash(&mut random), directory).unwrap().is_some());
            remove_moved(&disk, directory).unwrap();
            assert_eq!(read_moved(&disk.crash(&mut random), directory).unwrap(), None);
        }
        assert!(left > 0, "without the removal it is there after some power cuts");
    }
}
