//! The simulated disk keeps what was synced and is honest about the rest.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::{Fault, SimDisk};
use crate::disk::Disk;

fn crashed(disk: &SimDisk, seed: u64) -> SimDisk {
    disk.crash(&mut fastrand::Rng::with_seed(seed))
}

/// What `/d/f` may hold after a cut, over many seeds; `None` when the name is gone.
fn outcomes(disk: &SimDisk) -> BTreeSet<Option<Vec<u8>>> {
    (0..500).map(|seed| crashed(disk, seed).read(Path::new("/d/f")).ok()).collect()
}

#[test]
fn synced_content_and_names_stay() {
    let disk = SimDisk::new(1);
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk.write_atomic(Path::new("/d/f"), b"one").unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(b"one".to_vec())]));
}

#[test]
fn a_name_that_was_not_synced_may_go() {
    let disk = SimDisk::new(1);
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let file = disk.create(Path::new("/d/f")).unwrap();
    file.write_at(0, b"one").unwrap();
    file.sync_all().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([None, Some(b"one".to_vec())]));
}

#[test]
fn content_that_was_not_synced_may_be_lost_kept_or_torn() {
    let disk = SimDisk::new(1);
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk.write_atomic(Path::new("/d/f"), &[0; 2048]).unwrap();
    disk.open(Path::new("/d/f")).unwrap().write_at(0, &[1; 2048]).unwrap();
    let outcomes = outcomes(&disk);
    assert!(outcomes.contains(&Some(vec![0; 2048])));
    assert!(outcomes.contains(&Some(vec![1; 2048])));
    let hole = |bytes: &Vec<u8>| bytes[0] == 1 && bytes[512] == 0 && bytes[1024] == 1;
    assert!(outcomes.iter().flatten().any(hole), "some sectors in the middle are lost");
    let inside = |bytes: &Vec<u8>| bytes.iter().filter(|byte| **byte == 1).count() % 512 != 0;
    assert!(outcomes.iter().flatten().any(inside), "a prefix ends inside a sector");
}

#[test]
fn a_failed_sync_is_not_mended_by_the_next() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let file = disk.create(Path::new("/f")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        file.write_at(0, b"one").unwrap();
        disk.fail_at(0, Fault::SyncError);
        assert!(file.sync_data().is_err());
        assert!(disk.faulted());
        file.sync_data().unwrap();
        assert_eq!(disk.read(Path::new("/f")).unwrap(), b"one", "it reads as written");
        lost += usize::from(crashed(&disk, seed).read(Path::new("/f")).unwrap() != b"one");
    }
    assert!((10..100).contains(&lost), "{lost} of 100 were lost");
}

#[test]
fn faults_come_when_planned_and_a_cut_stays() {
    let disk = SimDisk::new(1);
    let file = disk.create(Path::new("/f")).unwrap();
    assert_eq!(disk.operations(), 1);
    disk.fail_at(1, Fault::NoSpace);
    file.write_at(0, b"one").unwrap();
    file.sync_data().unwrap();
    let full = file.write_at(3, b"two").unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    disk.fail_at(0, Fault::PowerCut);
    assert!(disk.rename(Path::new("/f"), Path::new("/g")).is_err());
    assert!(file.sync_data().is_err());
    assert!(disk.list(Path::new("/")).is_err());
    let names: BTreeSet<Vec<String>> =
        (0..100).map(|seed| crashed(&disk, seed).list(Path::new("/")).unwrap()).collect();
    assert!(names.contains(&vec!["f".to_owned()]) && names.contains(&vec!["g".to_owned()]));
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let disk = SimDisk::new(1);
    let file = disk.create(Path::new("/f")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    file.write_at(0, &[7; 4000]).unwrap();
    for seed in 0..50 {
        let read = || crashed(&disk, seed).read(Path::new("/f")).unwrap();
        assert_eq!(read(), read());
    }
}

#[test]
fn a_lock_has_one_holder() {
    let disk = SimDisk::new(1);
    let held = disk.lock(Path::new("/LOCK")).unwrap();
    assert!(held.is_some());
    assert!(disk.lock(Path::new("/LOCK")).unwrap().is_none());
    drop(held);
    assert!(disk.lock(Path::new("/LOCK")).unwrap().is_some());
}

#[test]
fn a_full_disk_takes_what_has_its_place() {
    let disk = SimDisk::new(1);
    let path = Path::new("/f");
    disk.write_atomic(path, b"one").unwrap();
    disk.set_full(true);
    let file = disk.open(path).unwrap();
    file.write_at(1, b"wn").unwrap();
    file.sync_data().unwrap();
    let full =
        |done: io::Result<()>| assert_eq!(done.unwrap_err().kind(), io::ErrorKind::StorageFull);
    full(file.write_at(1, b"wner"));
    full(file.allocate(4));
    full(disk.create(Path::new("/g")).map(drop));
    assert_eq!(disk.read(path).unwrap(), b"own");
    disk.rename(path, Path::new("/h")).unwrap();
    disk.set_full(false);
    disk.create(path).unwrap();
}
