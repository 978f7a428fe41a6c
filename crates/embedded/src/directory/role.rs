//! Whether a directory follows a primary: the file ROLE. A directory without it never followed.

use std::io;
use std::path::Path;

use super::{DirectoryError, remove_if_there};
use crate::disk::{Disk, with_checksum, without_checksum};

const ROLE: &str = "ROLE";
const STANDBY: &str = "ROLE format 1\nstandby\n";
const PROMOTED: &str = "ROLE format 1\npromoted\n";

/// What a directory has been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It takes writes and never followed.
    Primary,
    /// It is a copy, and only its primary decides what comes next.
    Standby,
    /// It followed once and takes writes now.
    Promoted,
}

pub(crate) fn read_role(disk: &dyn Disk, directory: &Path) -> Result<Role, DirectoryError> {
    let path = directory.join(ROLE);
    let bytes = match disk.read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Role::Primary),
        Err(source) => return Err(DirectoryError::Io { action: "read", path, source }),
    };
    match without_checksum(&bytes) {
        Some(STANDBY) => Ok(Role::Standby),
        Some(PROMOTED) => Ok(Role::Promoted),
        _ => Err(DirectoryError::Damaged { path, what: "it does not name a role" }),
    }
}

/// Durable when it returns.
pub(crate) fn write_role(
    disk: &dyn Disk,
    directory: &Path,
    promoted: bool,
) -> Result<(), DirectoryError> {
    let path = directory.join(ROLE);
    let text = if promoted { PROMOTED } else { STANDBY };
    let written = disk.write_atomic(&path, &with_checksum(text));
    written.map_err(|source| DirectoryError::Io { action: "write", path, source })
}

/// Takes away what an unfinished copy may have left.
pub(crate) fn remove_role(disk: &dyn Disk, directory: &Path) -> Result<(), DirectoryError> {
    remove_if_there(disk, directory.join(ROLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn a_role_comes_back_and_damage_is_said() {
        let disk = SimDisk::new(1);
        let directory = Path::new("/");
        assert_eq!(read_role(&disk, directory).unwrap(), Role::Primary);
        write_role(&disk, directory, false).unwrap();
        assert_eq!(read_role(&disk, directory).unwrap(), Role::Standby);
        write_role(&disk, directory, true).unwrap();
        assert_eq!(read_role(&disk, directory).unwrap(), Role::Promoted);
        remove_role(&disk, directory).unwrap();
        remove_role(&disk, directory).unwrap();
        assert_eq!(read_role(&disk, directory).unwrap(), Role::Primary);
        disk.write_atomic(Path::new("/ROLE"), b"anything").unwrap();
        assert!(matches!(read_role(&disk, directory), Err(DirectoryError::Damaged { .. })));
    }
}
