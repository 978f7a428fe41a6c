//! The small files beside the segments: `LINEAGE` (the epochs) and `CLEAN` (the last stop was an
//! orderly one). Text with a checksum, replaced as a whole. `FLOOR` has texts of the same form.

use std::io;
use std::path::Path;

use guanxi_model::Position;

use super::{Epoch, Fork, Lineage, LogError};
use crate::disk::{Disk, with_checksum, without_checksum};

const FORMAT: u8 = 1;

/// Which epochs there were. A log without this file was never finished making.
const LINEAGE: &str = "LINEAGE";
/// Written by an orderly stop, with the last position; the next start takes it away.
const CLEAN: &str = "CLEAN";

pub(super) fn read_lineage(disk: &dyn Disk, folder: &Path) -> Result<Option<Lineage>, LogError> {
    let path = folder.join(LINEAGE);
    let Some(bytes) = read(disk, &path)? else {
        return Ok(None);
    };
    let rows = rows(&bytes, &path, LINEAGE)?;
    let forks = rows.iter().map(|row| fork(row)).collect::<Option<Vec<Fork>>>();
    match forks.and_then(Lineage::from_forks) {
        Some(lineage) => Ok(Some(lineage)),
        None => Err(damaged(&path, "its rows are not a lineage")),
    }
}

pub(super) fn write_lineage(
    disk: &dyn Disk,
    folder: &Path,
    lineage: &Lineage,
) -> Result<(), LogError> {
    let rows: String = lineage
        .forks()
        .iter()
        .map(|fork| format!("{} {} {}\n", fork.epoch.0, fork.parent.0, fork.at.0))
        .collect();
    write(disk, &folder.join(LINEAGE), &text(LINEAGE, &rows))
}

/// The last position at an orderly stop. A marker that cannot be read is as good as none: the
/// start after an unclean stop is the more careful one.
pub(super) fn read_clean(disk: &dyn Disk, folder: &Path) -> Result<Option<Position>, LogError> {
    let path = folder.join(CLEAN);
    let Some(bytes) = read(disk, &path)? else {
        return Ok(None);
    };
    match position_in(&bytes, &path, CLEAN) {
        Err(LogError::Damaged { .. }) => Ok(None),
        other => other.map(Some),
    }
}

pub(super) fn write_clean(disk: &dyn Disk, folder: &Path, last: Position) -> Result<(), LogError> {
    write(disk, &folder.join(CLEAN), &position_text(CLEAN, last))
}

/// Takes the marker away; the caller syncs the folder.
pub(super) fn remove_clean(disk: &dyn Disk, folder: &Path) -> Result<(), LogError> {
    let path = folder.join(CLEAN);
    match disk.remove(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| LogError::Io { action: "remove", path, source }),
    }
}

fn fork(row: &str) -> Option<Fork> {
    let mut numbers = row.split(' ');
    let fork = Fork {
        epoch: Epoch(numbers.next()?.parse().ok()?),
        parent: Epoch(numbers.next()?.parse().ok()?),
        at: Position(numbers.next()?.parse().ok()?),
    };
    numbers.next().is_none().then_some(fork)
}

/// A small text that holds a position.
pub(super) fn position_text(name: &str, position: Position) -> Vec<u8> {
    text(name, &format!("{}\n", position.0))
}

/// The position in such a text, which was read from there.
pub(super) fn position_in(bytes: &[u8], path: &Path, name: &str) -> Result<Position, LogError> {
    let position = match rows(bytes, path, name)?.as_slice() {
        [row] => row.parse().ok(),
        _ => None,
    };
    position.map(Position).ok_or_else(|| damaged(path, "it does not hold a position"))
}

fn text(name: &str, rows: &str) -> Vec<u8> {
    with_checksum(&format!("{name} format {FORMAT}\n{rows}"))
}

/// The rows under the title line.
fn rows<'a>(bytes: &'a [u8], path: &Path, name: &str) -> Result<Vec<&'a str>, LogError> {
    let Some(text) = without_checksum(bytes) else {
        return Err(damaged(path, "its text does not fit its checksum"));
    };
    let mut lines = text.lines();
    let title = lines.next().unwrap_or_default();
    let format = title
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix(" format "))
        .and_then(|number| number.parse::<u8>().ok());
    match format {
        Some(FORMAT) => Ok(lines.collect()),
        Some(found) if found > FORMAT => {
            Err(LogError::NewerFormat { path: path.to_path_buf(), found, known: FORMAT })
        }
        _ => Err(damaged(path, "its first line does not name its format")),
    }
}

/// `None` when there is no such file.
pub(super) fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Vec<u8>>, LogError> {
    match disk.read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LogError::Io { action: "read", path: path.to_path_buf(), source }),
    }
}

pub(super) fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), LogError> {
    disk.write_atomic(path, bytes).map_err(|source| LogError::Io {
        action: "write",
        path: path.to_path_buf(),
        source,
    })
}

fn damaged(path: &Path, what: &str) -> LogError {
    LogError::Damaged { path: path.to_path_buf(), offset: 0, what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn marks_come_back_as_they_went() {
        let disk = SimDisk::new(1);
        let folder = Path::new("/");
        assert_eq!(read_lineage(&disk, folder).unwrap(), None);
        assert_eq!(read_clean(&disk, folder).unwrap(), None);
        let lineage = Lineage::start().with(Epoch(9), Position(44)).unwrap();
        write_lineage(&disk, folder, &lineage).unwrap();
        write_clean(&disk, folder, Position(50)).unwrap();
        assert_eq!(read_lineage(&disk, folder).unwrap(), Some(lineage));
        assert_eq!(read_clean(&disk, folder).unwrap(), Some(Position(50)));
        remove_clean(&disk, folder).unwrap();
        remove_clean(&disk, folder).unwrap();
        assert_eq!(read_clean(&disk, folder).unwrap(), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let disk = SimDisk::new(1);
        let folder = Path::new("/");
        let write = |bytes: &[u8]| disk.write_atomic(Path::new("/LINEAGE"), bytes).unwrap();
        write(b"LINEAGE format 1\n1 0 0\n");
        assert!(matches!(read_lineage(&disk, folder), Err(LogError::Damaged { .. })));
        for body in ["LINEAGE format 1\n", "LINEAGE format 1\n1 0 0 0\n", "1 0 0\n"] {
            write(&with_checksum(body));
            assert!(matches!(read_lineage(&disk, folder), Err(LogError::Damaged { .. })), "{body}");
        }
        write(&with_checksum("LINEAGE format 2\nanything\n"));
        assert!(matches!(
            read_lineage(&disk, folder),
            Err(LogError::NewerFormat { found: 2, known: 1, .. })
        ));
    }
}
