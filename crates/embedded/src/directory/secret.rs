//! The secret by which a directory's service knows the texts that it gave out: the file SECRET. A
//! copy of the directory, as standbys and backups are, has the same, so that it takes the same
//! tokens.

use std::io;
use std::path::Path;

use data_encoding::HEXLOWER;
use guanxi_core::random::random_secret;
use guanxi_model::Secret;

use super::{DirectoryError, failed};
use crate::disk::{Disk, with_checksum, without_checksum};

const SECRET: &str = "SECRET";
const START: &str = "SECRET format 1\n";

/// The directory's secret; a new one where there is none yet. It is durable on return.
pub(super) fn read_or_make(disk: &dyn Disk, directory: &Path) -> Result<Secret, DirectoryError> {
    let path = directory.join(SECRET);
    let bytes = match disk.read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let secret = random_secret().map_err(failed("make a secret for", directory))?;
            write_secret(disk, directory, &secret)?;
            return Ok(secret);
        }
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let text = without_checksum(&bytes).and_then(|text| text.strip_prefix(START));
    let secret = text.and_then(|text| HEXLOWER.decode(text.trim_end().as_bytes()).ok());
    match secret.and_then(|secret| secret.try_into().ok()) {
        Some(secret) => Ok(Secret::new(secret)),
        None => Err(DirectoryError::Damaged { path, what: "it holds no secret" }),
    }
}

/// Durable when it returns.
pub(crate) fn write_secret(
    disk: &dyn Disk,
    directory: &Path,
    secret: &Secret,
) -> Result<(), DirectoryError> {
    let path = directory.join(SECRET);
    let text = format!("{START}{}\n", HEXLOWER.encode(secret.bytes()));
    disk.write_atomic(&path, &with_checksum(&text)).map_err(failed("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn a_secret_is_made_once_and_can_be_another_directorys() {
        let disk = SimDisk::new(1);
        let (one, other) = (Path::new("one"), Path::new("other"));
        for directory in [one, other] {
            disk.create_dir_all(directory).unwrap();
        }
        let secret = read_or_make(&disk, one).unwrap();
        assert_eq!(read_or_make(&disk, one).unwrap(), secret);
        assert_ne!(read_or_make(&disk, other).unwrap(), secret);
        write_secret(&disk, other, &secret).unwrap();
        assert_eq!(read_or_make(&disk, other).unwrap(), secret);
        disk.write_atomic(&one.join(SECRET), &with_checksum("SECRET format 1\n00ff\n")).unwrap();
        assert!(matches!(read_or_make(&disk, one), Err(DirectoryError::Damaged { .. })));
    }
}
