//! What the doctor looks at on this machine: the data directory, its disk, the port, the limit
//! of open files.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use guanxi_embedded::disk::{Disk as _, RealDisk, Room};
use guanxi_embedded::disk_room::{is_low, lacks_files, low_bytes};
use rustix::process::{Resource, getrlimit};

use super::CheckFinding;
use crate::server::FILES_RESERVED;

/// Files by which a data directory is known.
const IDENTITY: &str = "GUANXI";
const LOCK: &str = "LOCK";
/// Stands in a directory that a restore or a first copy has not finished.
const LANDING: &str = "LANDING";
/// What others may do with the data directory.
const OTHERS: u32 = 0o077;
/// With less than so many times what the service must have free, it is time to act.
const FREE_TIMES_LOW: u64 = 4;
/// What the service uses at its default bound of connections: those, the store and the log.
const OPEN_FILES_WANTED: u64 = 4_096 + FILES_RESERVED;
const MEBIBYTE: u64 = 1024 * 1024;

/// Whether the directory is one of ours, and whether a server uses it.
pub fn directory(path: &Path) -> CheckFinding {
    let check = "directory";
    let shown = path.display();
    match fs::read_dir(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return CheckFinding::ok(check, format!("{shown} is not there yet; serve makes it"));
        }
        Err(error) => {
            let next = "the user that runs guanxi must own the data directory";
            return CheckFinding::fail(check, format!("cannot read {shown}: {error}"), next);
        }
    }
    if !path.join(IDENTITY).exists() {
        let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        return match empty {
            true => CheckFinding::ok(check, format!("{shown} is empty; serve can take it")),
            false => CheckFinding::fail(
                check,
                format!("{shown} holds other files and is no data directory"),
                "choose an empty directory, or one that guanxi has made",
            ),
        };
    }
    if path.join(LANDING).exists() {
        let next = "run the restore, or the standby, that makes it once more";
        return CheckFinding::fail(
            check,
            format!("{shown} is unfinished: its making was cut"),
            next,
        );
    }
    if fs::metadata(path).is_ok_and(|about| about.permissions().mode() & OTHERS != 0) {
        return CheckFinding::warn(
            check,
            format!("others than its owner may look into {shown}"),
            format!("chmod 700 {shown}; `guanxi serve` does it at its next start"),
        );
    }
    // Opened without making it: the doctor changes nothing. The lock is given back at once.
    let locked = File::open(path.join(LOCK)).map(|file| file.try_lock_shared());
    match locked {
        Ok(Err(TryLockError::WouldBlock)) => {
            CheckFinding::ok(check, format!("{shown} is in use by a running guanxi"))
        }
        Ok(Err(TryLockError::Error(error))) => {
            let next = "use a file system with locks for the data directory";
            CheckFinding::fail(check, format!("cannot lock {shown}: {error}"), next)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let next = "the user that runs guanxi must own the data directory";
            CheckFinding::fail(check, format!("cannot read {shown}: {error}"), next)
        }
        Ok(Ok(())) | Err(_) => {
            CheckFinding::ok(check, format!("{shown} is free: no guanxi uses it"))
        }
    }
}

/// Room on the disk of the directory, or of the nearest one above that exists.
pub fn disk(path: &Path) -> Option<CheckFinding> {
    let absolute = std::path::absolute(path).ok()?;
    let existing = absolute.ancestors().find(|folder| folder.exists())?;
    Some(room(RealDisk.room(existing).ok()?))
}

/// Below its bound, the service takes nothing but removals.
fn room(room: Room) -> CheckFinding {
    let Room { free_bytes, total_bytes, free_files } = room;
    let low_bytes = low_bytes(total_bytes);
    let files = match lacks_files(&room) {
        true => format!(" and {free_files} files"),
        false => String::new(),
    };
    let said = format!("{} MiB{files} free", free_bytes / MEBIBYTE);
    let next = format!(
        "make room, or move the data directory to a larger disk; with less than {} MiB only reads \
         and removals are served, and writes come back by themselves",
        low_bytes / MEBIBYTE
    );
    match free_bytes {
        _ if is_low(&room) => CheckFinding::fail("disk", format!("disk full: {said}"), next),
        _ if free_bytes < low_bytes.saturating_mul(FREE_TIMES_LOW) => {
            CheckFinding::warn("disk", said, next)
        }
        _ => CheckFinding::ok("disk", said),
    }
}

/// Whether a server could listen here; asked when none answers.
pub fn port(address: SocketAddr) -> CheckFinding {
    match TcpListener::bind(address) {
        Ok(_) => CheckFinding::ok("port", format!("{address} is free; `guanxi serve` can take it")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => CheckFinding::fail(
            "port",
            format!("{address} is taken by another program"),
            "`ss -ltnp` shows which; stop it, or give `guanxi serve` another --listen",
        ),
        Err(error) => CheckFinding::fail(
            "port",
            format!("cannot listen on {address}: {error}"),
            "give `guanxi serve` another --listen",
        ),
    }
}

/// The service raises its own limit as far as it may: what counts is how far that is.
pub fn open_files() -> CheckFinding {
    let limit = getrlimit(Resource::Nofile).maximum;
    let said = match limit {
        Some(limit) => format!("{limit} allowed"),
        None => "no limit".to_owned(),
    };
    match limit.is_none_or(|limit| limit >= OPEN_FILES_WANTED) {
        true => CheckFinding::ok("open files", said),
        false => CheckFinding::warn(
            "open files",
            format!("{said}, which means fewer connections"),
            format!("raise the hard limit (ulimit -Hn) to {OPEN_FILES_WANTED} or more"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckVerdict;
    use super::*;

    #[test]
    fn room_is_judged_by_what_the_log_needs_next() {
        for total_bytes in [100 * MEBIBYTE, 1 << 40] {
            let low = low_bytes(total_bytes);
            assert!((10 * MEBIBYTE..=512 * MEBIBYTE).contains(&low), "{low}");
            let left = |free_bytes, free_files| room(Room { free_bytes, total_bytes, free_files });
            let room = |free_bytes| left(free_bytes, u64::MAX);
            assert_eq!(room(low - 1).verdict, CheckVerdict::Fail);
            assert!(room(low - 1).message.contains("disk full"));
            assert_eq!(room(low).verdict, CheckVerdict::Warn);
            assert_eq!(room(FREE_TIMES_LOW * low).verdict, CheckVerdict::Ok);
            let no_files = left(total_bytes, 3);
            assert_eq!(no_files.verdict, CheckVerdict::Fail);
            assert!(no_files.message.contains("3 files"), "{}", no_files.message);
        }
    }
}
