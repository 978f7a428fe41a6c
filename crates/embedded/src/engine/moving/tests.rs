//! The end of a move on a disk that does not confirm it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guanxi_core::clock::SystemClock;
use guanxi_model::change::Put;
use guanxi_model::{Change, Code, EdgeKey, Error, Request, SourceId, TargetId, TenantId};

use super::{Confirmed, MoveState};
use crate::disk::{Disk, DiskFile, DiskLock, RealDisk, Room};
use crate::engine::{Engine, Settings};

const SOON: Duration = Duration::from_secs(60);
/// As long as a pause may be.
const PAUSE: Duration = Duration::from_secs(5);
const ALWAYS: u32 = u32::MAX;

/// The machine's disk, on which syncs of one folder fail when they are told to.
struct Unsure {
    folder: PathBuf,
    failing: AtomicU32,
    /// Syncs of the folder wait for it.
    slow: Mutex<()>,
}

impl Unsure {
    fn of(folder: &Path) -> Arc<Unsure> {
        Arc::new(Unsure {
            folder: folder.to_path_buf(),
            failing: AtomicU32::new(0),
            slow: Mutex::default(),
        })
    }

    fn fail(&self, syncs: u32) {
        self.failing.store(syncs, Ordering::SeqCst);
    }
}

impl Disk for Unsure {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }

    fn keep_to_owner(&self, folder: &Path) -> io::Result<()> {
        RealDisk.keep_to_owner(folder)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let left = |left: u32| match left {
            0 => None,
            ALWAYS => Some(ALWAYS),
            left => Some(left - 1),
        };
        let order = Ordering::SeqCst;
        let _slow = (path == self.folder).then(|| self.slow.lock().unwrap());
        if path == self.folder && self.failing.fetch_update(order, order, left).is_ok() {
            return Err(io::Error::other("the folder could not be synced"));
        }
        RealDisk.sync_dir(path)
    }

    fn room(&self, path: &Path) -> io::Result<Room> {
        RealDisk.room(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        RealDisk.lock(path)
    }
}

/// Opening blocks, which a thread that drives async tasks must not do.
fn open(disk: &Arc<Unsure>) -> Arc<Engine> {
    let (disk, settings) = (disk.clone(), Settings::new(&disk.folder));
    std::thread::spawn(|| Engine::open_on(disk, Arc::new(SystemClock), settings))
        .join()
        .unwrap()
        .unwrap()
}

async fn follow(engine: &Engine, source: u64) -> Result<(), Error> {
    let tenant = TenantId::DEFAULT;
    let kind = engine.catalog().named(tenant, "follow").unwrap().id;
    let edge = EdgeKey { tenant, kind, source: SourceId(source), target: TargetId(7) };
    let request = Request::one(tenant, Change::Put(Put::plain(edge)));
    engine.write(request, Instant::now() + SOON).await.map(drop)
}

/// A move that has come to its last step.
async fn paused(engine: &Engine) -> Confirmed {
    let run = engine.begin_move(9, None).unwrap();
    engine.read_for_move(run, true).unwrap();
    let position = engine.pause_for_move(run, PAUSE).await.unwrap().position;
    Confirmed { run, position, now_at: None }
}

fn has_file(disk: &Unsure) -> bool {
    disk.folder.join("MOVED").exists()
}

#[tokio::test]
async fn a_confirmation_that_fails_leaves_no_trace_or_no_writes() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Unsure::of(directory.path());
    let engine = open(&disk);
    follow(&engine, 1).await.unwrap();
    let confirmed = paused(&engine).await;
    disk.fail(1);
    let refused = engine.confirm_move(confirmed).unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(!has_file(&disk), "it is removed again, as writes are taken");
    follow(&engine, 2).await.unwrap();
    assert_ne!(engine.move_state(), MoveState::Here, "the move may try once more");
    engine.close();
    drop(engine);
    let engine = open(&disk);
    assert_eq!(engine.moved(), None);
    follow(&engine, 3).await.unwrap();
    engine.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_while_a_move_is_confirmed_hears_of_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Unsure::of(directory.path());
    let engine = open(&disk);
    let confirmed = paused(&engine).await;
    let run = confirmed.run;
    let slow = disk.slow.lock().unwrap();
    std::thread::scope(|scope| {
        let confirming = scope.spawn(|| engine.confirm_move(confirmed));
        let until = Instant::now() + SOON;
        while !has_file(&disk) {
            assert!(Instant::now() < until, "it is not written");
            std::thread::sleep(Duration::from_millis(1));
        }
        let asked = scope.spawn(|| engine.move_state());
        let begun = scope.spawn(|| engine.begin_move(9, Some(run)));
        // Time enough to ask, and to wait for the answer.
        std::thread::sleep(Duration::from_millis(100));
        drop(slow);
        confirming.join().unwrap().unwrap();
        let state = asked.join().unwrap();
        assert!(matches!(state, MoveState::Moved(_)), "{state:?}");
        assert_eq!(begun.join().unwrap().unwrap_err().code, Code::ReadOnly);
    });
    engine.close();
}

#[tokio::test]
async fn while_nobody_knows_whether_it_has_moved_nothing_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Unsure::of(directory.path());
    let engine = open(&disk);
    follow(&engine, 1).await.unwrap();
    let confirmed = paused(&engine).await;
    let (run, position) = (confirmed.run, confirmed.position);
    disk.fail(ALWAYS);
    let refused = engine.confirm_move(confirmed.clone()).unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.contains("restart"), "{refused:?}");
    let write = follow(&engine, 2).await.unwrap_err();
    assert_eq!(write.code, Code::Unavailable, "{write:?}");
    assert!(write.message.contains("restart"), "{write:?}");
    // A mover must not take it for moved, as a restart may find that it is not; and no move makes
    // it take writes again.
    assert_eq!(engine.moved(), None);
    assert!(!matches!(engine.move_state(), MoveState::Moved(_)));
    assert!(engine.begin_move(9, Some(run)).is_err());
    assert!(engine.begin_move(9, None).is_err());
    assert!(engine.pause_for_move(run, PAUSE).await.is_err());
    assert!(engine.confirm_move(confirmed).is_err());
    assert!(engine.let_go_of_move(9).is_err());
    assert!(follow(&engine, 2).await.is_err());
    assert!(engine.status().refusing.is_some_and(|why| why.contains("restart")));
    engine.close();
    drop(engine);
    // What the directory says counts; nothing was taken since.
    disk.fail(0);
    let engine = open(&disk);
    assert_eq!(engine.status().applied, position);
    match has_file(&disk) {
        true => assert_eq!(follow(&engine, 2).await.unwrap_err().code, Code::ReadOnly),
        false => follow(&engine, 2).await.unwrap(),
    }
    engine.close();
}
