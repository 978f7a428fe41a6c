//! The data directory: what it takes, what it refuses and how it says so.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use guanxi_core::clock::VirtualClock;

use super::{Directory, DirectoryError, failed};
use crate::disk::{Disk, Fault, RealDisk, SimDisk, with_checksum};

fn open(path: &Path) -> Result<Directory, DirectoryError> {
    Directory::open(Arc::new(RealDisk), &VirtualClock::new(1234), path)
}

/// What a folder of everybody's allows, such as /tmp.
const OPEN: u32 = 0o777;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn refused(path: &Path) -> (DirectoryError, String) {
    let error = open(path).err().expect("a refusal");
    let text = error.to_string();
    (error, text)
}

#[test]
fn it_is_made_with_its_parents_and_keeps_its_seed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/data");
    let made = open(&path).unwrap();
    let (seed, id) = (made.seed(), made.id());
    assert_eq!(made.created_ms(), 1234);
    assert_eq!(made.path(), path);
    drop(made);
    let again = open(&path).unwrap();
    assert_eq!((again.seed(), again.id()), (seed, id));
    let other = open(&folder.path().join("other")).unwrap();
    assert_ne!(other.seed(), seed, "each directory has its own");
    assert!(other.id() != id && id != seed);
}

#[test]
fn one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let held = open(folder.path()).unwrap();
    let (error, text) = refused(folder.path());
    assert!(matches!(error, DirectoryError::Locked { .. }));
    assert!(text.contains("another process uses") && text.contains("stop that one"), "{text}");
    drop(held);
    open(folder.path()).unwrap();
}

#[test]
fn other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("holiday.jpg"), "x").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(OPEN)).unwrap();
    let (error, text) = refused(folder.path());
    assert!(matches!(error, DirectoryError::Foreign { .. }));
    assert!(text.starts_with("refusing to use") && text.contains("holiday.jpg"), "{text}");
    assert_eq!(RealDisk.list(folder.path()).unwrap(), ["holiday.jpg"], "nothing was added");
    assert_eq!(mode(folder.path()), OPEN, "nor was it closed to others");
    fs::remove_file(folder.path().join("holiday.jpg")).unwrap();
    let held = open(folder.path()).unwrap();
    assert_eq!(mode(folder.path()), 0o700, "one that is ours is");
    fs::set_permissions(folder.path(), Permissions::from_mode(OPEN)).unwrap();
    let (error, _) = refused(folder.path());
    assert!(matches!(error, DirectoryError::Locked { .. }));
    assert_eq!(mode(folder.path()), OPEN, "another process is to close its own");
    drop(held);
}

#[test]
fn leftovers_of_making_and_of_the_file_system_are_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lost+found")).unwrap();
    fs::write(folder.path().join("GUANXI.new"), "half").unwrap();
    fs::write(folder.path().join("LOCK"), "").unwrap();
    open(folder.path()).unwrap();
}

#[test]
fn a_file_is_not_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    for path in [file.clone(), file.join("below")] {
        let (error, text) = refused(&path);
        assert!(matches!(error, DirectoryError::NotADirectory { .. }), "{error:?}");
        assert!(text.contains("is a file"), "{text}");
    }
}

#[test]
fn a_damaged_or_newer_identity_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("GUANXI");
    drop(open(folder.path()).unwrap());
    let good = fs::read_to_string(&file).unwrap();
    let cases = [
        (good.replace("format 1", "format 2").into_bytes(), "checksum"),
        (good.as_bytes()[..good.len() / 2].to_vec(), "checksum"),
        (Vec::new(), "checksum"),
        (with_checksum("seed 1\ncreated_ms 1\n"), "format"),
        (with_checksum("format 1\nseed xyz\ncreated_ms 1\n"), "seed"),
    ];
    for (bytes, word) in cases {
        fs::write(&file, bytes).unwrap();
        let (error, text) = refused(folder.path());
        assert!(matches!(error, DirectoryError::Damaged { .. }), "{text}");
        assert!(text.contains(word), "{text}");
    }
    fs::write(&file, with_checksum("format 1\nseed 1\ncreated_ms 1\n")).unwrap();
    let (error, text) = refused(folder.path());
    assert!(matches!(error, DirectoryError::WithoutId { .. }), "{text}");
    for word in ["has no id", "earlier release", "export", "new directory", "import"] {
        assert!(text.contains(word), "{text}");
    }
    fs::write(&file, with_checksum("format 2\nanything else\n")).unwrap();
    let (error, text) = refused(folder.path());
    assert!(matches!(error, DirectoryError::NewerFormat { found: 2, .. }), "{text}");
}

#[test]
fn a_missing_permission_is_named() {
    let denied = failed("list", Path::new("/data"))(io::ErrorKind::PermissionDenied.into());
    let text = denied.to_string();
    assert!(text.starts_with("no permission to list /data"), "{text}");
}

/// Cut the power at every step of making it, twice: it can always be opened after, and once it
/// was opened it stays the same.
#[test]
fn a_power_cut_at_any_step_leaves_it_usable() {
    let clock = VirtualClock::new(7);
    let path = Path::new("/srv/guanxi/data");
    for seed in 0..2000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut disk = SimDisk::new(seed);
        let mut known = None;
        for _ in 0..3 {
            disk.fail_at(random.u64(0..16), Fault::PowerCut);
            match Directory::open(Arc::new(disk.clone()), &clock, path) {
                Ok(directory) => {
                    let found = *known.get_or_insert(directory.seed());
                    assert_eq!(directory.seed(), found, "seed {seed}");
                }
                Err(error) => assert!(disk.faulted(), "seed {seed}: {error}"),
            }
            disk = disk.crash(&mut random);
        }
        let directory = Directory::open(Arc::new(disk), &clock, path).unwrap();
        assert!(known.is_none_or(|known| known == directory.seed()), "seed {seed}");
    }
}
