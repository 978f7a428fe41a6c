use std::io;
use std::path::Path;

use guanxi_model::TenantId;
use guanxi_model::decide::built_in_kinds;

use super::*;
use crate::disk::{DiskFile, DiskLock, SimDisk};

const TOTAL_BYTES: u64 = 160 << 20;
const LOW_BYTES: u64 = TOTAL_BYTES / LOW_SHARE;

/// A disk whose room is what the test says.
pub(crate) struct NarrowDisk {
    disk: SimDisk,
    free_bytes: AtomicU64,
}

impl NarrowDisk {
    pub fn new(free_bytes: u64) -> Arc<NarrowDisk> {
        Arc::new(NarrowDisk { disk: SimDisk::new(0), free_bytes: AtomicU64::new(free_bytes) })
    }

    pub fn leave(&self, free_bytes: u64) {
        self.free_bytes.store(free_bytes, Ordering::Relaxed);
    }

    pub fn has_reserve(&self) -> bool {
        self.disk.exists(&PathBuf::from("/").join(RESERVE)).unwrap()
    }
}

impl Disk for NarrowDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }

    fn keep_to_owner(&self, folder: &Path) -> io::Result<()> {
        self.disk.keep_to_owner(folder)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.disk.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn room(&self, _: &Path) -> io::Result<Room> {
        let free_bytes = self.free_bytes.load(Ordering::Relaxed);
        Ok(Room { free_bytes, total_bytes: TOTAL_BYTES, free_files: u64::MAX })
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        self.disk.lock(path)
    }
}

fn room_on(disk: &Arc<NarrowDisk>) -> DiskRoom {
    DiskRoom::open(disk.clone(), PathBuf::from("/"))
}

#[test]
fn the_reserve_is_given_up_for_what_needs_it_and_not_before() {
    let disk = NarrowDisk::new(TOTAL_BYTES / 2);
    let room = room_on(&disk);
    assert!(disk.has_reserve());
    disk.leave(0);
    room.look();
    assert!(room.is_full() && disk.has_reserve(), "whoever fills the disk would have it");
    drop(room);
    let room = room_on(&disk);
    assert!(room.is_full() && disk.has_reserve(), "a start does not give it up either");
    let mut tries = 0;
    let found = room.with_reserve(
        |error: &io::Error| is_full(error),
        || {
            tries += 1;
            match disk.has_reserve() {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        },
    );
    assert!(found.is_ok() && tries == 2, "{found:?} after {tries}");
    assert!(!room.met_full(Stall::Log), "there is no more");
}

#[test]
fn a_full_disk_is_left_with_little_more_than_the_bound() {
    let disk = NarrowDisk::new(TOTAL_BYTES / 2);
    let room = room_on(&disk);
    disk.leave(LOW_BYTES - 1);
    room.look();
    assert!(room.is_full());
    disk.leave(LOW_BYTES + BEYOND_BYTES);
    room.look();
    assert!(!room.is_full());
}

#[test]
fn what_is_said_of_removals_holds() {
    let disk = NarrowDisk::new(0);
    let room = room_on(&disk);
    assert!(room.trouble().unwrap().ends_with("reads and removals go on"));
    room.stall(Stall::Store);
    assert!(room.trouble().unwrap().ends_with("reads go on, and nothing is taken"));
    room.went_on(Stall::Store);
    assert!(room.trouble().unwrap().ends_with("reads and removals go on"));
}

#[test]
fn what_goes_on_in_the_log_says_nothing_of_the_store() {
    let disk = NarrowDisk::new(0);
    let room = room_on(&disk);
    assert!(!room.met_full(Stall::Store) && !room.met_full(Stall::Log), "there is no reserve");
    room.went_on(Stall::Log);
    assert!(room.trouble().unwrap().ends_with("reads go on, and nothing is taken"));
    room.went_on(Stall::Store);
    assert!(room.trouble().unwrap().ends_with("reads and removals go on"));
}

#[test]
fn what_the_reserve_makes_room_for_goes_on_at_once() {
    let disk = NarrowDisk::new(TOTAL_BYTES / 2);
    let room = room_on(&disk);
    disk.leave(0);
    room.stall(Stall::Store);
    assert!(room.met_full(Stall::Store) && !disk.has_reserve());
    assert!(!room.met_full(Stall::Store), "there is no more");
}

#[test]
fn a_disk_without_files_is_low() {
    let room = Room { free_bytes: TOTAL_BYTES, total_bytes: TOTAL_BYTES, free_files: LOW_FILES };
    assert!(!is_low(&room));
    assert!(is_low(&Room { free_files: LOW_FILES - 1, ..room }));
    assert!(is_low(&Room { free_bytes: LOW_BYTES - 1, ..room }));
}

/// A disk with less room than is to be kept is no reason to refuse what a first start makes.
#[test]
fn the_first_kinds_are_made_on_a_low_disk() {
    let disk = NarrowDisk::new(LOW_BYTES - 1);
    let room = room_on(&disk);
    assert!(room.is_full());
    let tenant = TenantId::DEFAULT;
    let kinds = built_in_kinds().unwrap().into_iter();
    let kinds = kinds.map(|spec| Change::CreateKind { tenant, spec: Box::new(spec) });
    assert!(room.refuse(&kinds.collect::<Vec<_>>()).is_ok());
}
