//! Copies of a store and the data directories made from them: the same rows, the same positions,
//! and never a directory that is whole only in part.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_embedded::directory::DirectoryError;
use guanxi_embedded::engine::apply_frame;
use guanxi_embedded::log::{FileLog, Frame, Lineage, Log, LogOptions, MemoryLog};
use guanxi_embedded::store::disk::DiskBackend;
use guanxi_embedded::store::{Applied, EmbeddedStore, KeyedStore, RawRow, Store};
use guanxi_embedded::transfer::{Copy, Landing, LandingError};
use guanxi_embedded::{Engine, LogSettings, OpenError, Settings};
use guanxi_model::change::Put;
use guanxi_model::{
    Change, Code, EdgeKey, Epoch, Position, Request, Secret, SourceId, TargetId, TenantId, Token,
};

const TENANT: TenantId = TenantId::DEFAULT;
/// Small, so that a copy is read in many steps.
const STEP_BYTES: usize = 1_000;

fn settings(directory: &Path) -> Settings {
    let log = LogSettings { segment_bytes: 1 << 20, ..LogSettings::default() };
    Settings { log, ..Settings::new(directory) }
}

fn open(directory: &Path) -> Result<Arc<Engine>, OpenError> {
    let settings = settings(directory);
    std::thread::spawn(|| Engine::open(settings)).join().unwrap()
}

async fn write(engine: &Engine, change: Change) -> Token {
    let deadline = Instant::now() + Duration::from_secs(10);
    engine.write(Request::one(TENANT, change), deadline).await.unwrap().token
}

/// Puts and deletes of a few hundred edges, in the order that the seed gives.
async fn write_some(engine: &Engine, random: &mut fastrand::Rng, changes: usize) {
    let kinds = ["follow", "like", "block"];
    for _ in 0..changes {
        let kind = engine.catalog().named(TENANT, random.choice(kinds).unwrap()).unwrap().id;
        let (source, target) = (random.u64(1..20), random.u64(20..60));
        let (source, target) = (SourceId(source), TargetId(target));
        let key = EdgeKey { tenant: TENANT, kind, source, target };
        let change = match random.u8(0..4) {
            0 => Change::Delete { edge: key, strict: false },
            _ => Change::Put(Put::plain(key)),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        engine.write(Request::one(TENANT, change), deadline).await.unwrap();
    }
}

fn rows_of(copy: &mut Copy) -> Vec<RawRow> {
    let mut all = Vec::new();
    loop {
        let rows = copy.next_rows(STEP_BYTES).unwrap();
        if rows.is_empty() {
            return all;
        }
        all.extend(rows);
    }
}

fn land(
    settings: &Settings,
    lineage: &Lineage,
    next: impl FnMut() -> Result<Vec<RawRow>, LandingError>,
) -> Result<Applied, LandingError> {
    Landing::begin(settings, next)?.finish(lineage, &Secret::new([5; 32]))
}

/// Gives rows a few at a time, as a copy does.
fn steps(rows: Vec<RawRow>) -> impl FnMut() -> Result<Vec<RawRow>, LandingError> {
    let mut rest = rows.into_iter();
    move || Ok(rest.by_ref().take(7).collect())
}

#[tokio::test]
async fn a_landed_copy_has_the_same_rows_and_goes_on_at_the_same_position() {
    let folder = tempfile::tempdir().unwrap();
    let (origin, landed) = (folder.path().join("origin"), folder.path().join("landed"));
    let mut random = fastrand::Rng::with_seed(5);
    let engine = open(&origin).unwrap();
    write_some(&engine, &mut random, 400).await;
    let token = engine.token(TENANT);
    let mut copy = engine.copy().unwrap();
    // What comes after the copy was begun is not in it.
    write_some(&engine, &mut random, 50).await;
    let rows = rows_of(&mut copy);
    assert_eq!(copy.applied().position, token.position);
    assert!(rows.is_sorted_by(|one, other| one.0 < other.0) && rows.len() > 100);

    let applied = land(&settings(&landed), copy.lineage(), steps(rows.clone())).unwrap();
    assert_eq!(applied, copy.applied());
    // Twice: the second start finds what the first one left.
    for round in 0..2 {
        let copied = open(&landed).unwrap();
        assert_eq!(copied.status().log_first, Position(token.position.0 + 1));
        let mut again = copied.copy().unwrap();
        if round == 0 {
            assert_eq!(again.applied(), applied);
            assert_eq!(rows_of(&mut again), rows);
        }
        copied.at_least(&token).await.unwrap();
        let key = EdgeKey {
            tenant: TENANT,
            kind: copied.catalog().named(TENANT, "follow").unwrap().id,
            source: SourceId(900),
            target: TargetId(901 + round),
        };
        let written = write(&copied, Change::Put(Put::plain(key))).await;
        assert_eq!(written.position, Position(token.position.0 + 1 + round));
        assert_eq!(written.epoch, token.epoch);
        drop(again);
        copied.close();
    }
    engine.close();
}

/// A copy that follows the origin's frames ends with exactly the origin's rows, whenever it was
/// taken: the ingested rows do not hide those written later, not even after a reopening.
#[test]
fn copies_taken_under_load_reach_the_same_rows_by_following() {
    let folder = tempfile::tempdir().unwrap();
    let origin = folder.path().join("origin");
    let engine = open(&origin).unwrap();
    let writing = Arc::new(AtomicBool::new(true));
    let writer = std::thread::spawn({
        let (engine, writing) = (engine.clone(), writing.clone());
        move || {
            let mut random = fastrand::Rng::with_seed(6);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            while writing.load(Ordering::Relaxed) {
                runtime.block_on(write_some(&engine, &mut random, 20));
            }
        }
    });
    let mut copies = Vec::new();
    for number in 0..4 {
        std::thread::sleep(Duration::from_millis(100));
        let mut copy = engine.copy().unwrap();
        let path = folder.path().join(number.to_string());
        let rows = rows_of(&mut copy);
        land(&settings(&path), copy.lineage(), steps(rows)).unwrap();
        copies.push((path, copy.applied().position));
    }
    writing.store(false, Ordering::Relaxed);
    writer.join().unwrap();
    let mut last = engine.copy().unwrap();
    let (expected, end) = (rows_of(&mut last), last.applied().position);
    engine.close();
    drop((engine, last));

    let frames = |from: Position| -> Vec<Frame> {
        let (log, _) = opened(&origin);
        log.read(Position(from.0 + 1), usize::MAX).unwrap()
    };
    for (path, position) in copies {
        let frames = frames(position);
        let (first, second) = frames.split_at(frames.len() / 2);
        for part in [first, second] {
            let (log, store) = opened(&path);
            for frame in part {
                log.append(frame).unwrap();
                apply_frame(frame, &store).unwrap();
            }
            store.persist().unwrap();
        }
        let (log, store) = opened(&path);
        assert_eq!(log.last(), end);
        let found = store.picture().raw_rows(None, usize::MAX).unwrap();
        assert_eq!(found, expected, "the copy at position {}", position.0);
    }
}

fn opened(path: &Path) -> (FileLog, KeyedStore<DiskBackend>) {
    use guanxi_core::clock::SystemClock;
    use guanxi_embedded::directory::Directory;
    use guanxi_embedded::disk::RealDisk;
    let directory = Directory::open(Arc::new(RealDisk), &SystemClock, path).unwrap();
    let options = LogOptions { segment_bytes: 1 << 20 };
    let log =
        FileLog::open(Arc::new(RealDisk), &path.join("log"), directory.seed(), options).unwrap();
    let backend = DiskBackend::open(&path.join("store"), &settings(path).store).unwrap();
    (log, KeyedStore::open(backend).unwrap())
}

#[tokio::test]
async fn a_landing_that_was_cut_is_refused_and_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder.path().join("origin")).unwrap();
    write_some(&engine, &mut fastrand::Rng::with_seed(7), 100).await;
    let mut copy = engine.copy().unwrap();
    let rows = rows_of(&mut copy);
    let path = folder.path().join("landed");

    let refused = || match open(&path) {
        Err(OpenError::Directory(error @ DirectoryError::Unfinished { .. })) => error.to_string(),
        other => panic!("it was not refused: {other:?}"),
    };
    // The source fails in the middle.
    let mut given = 0;
    let half: Result<Landing, LandingError> = Landing::begin(&settings(&path), || {
        given += 1;
        match given {
            1..5 => Ok(rows[(given - 1) * 7..given * 7].to_vec()),
            _ => Err(LandingError::Unfit("cut".into())),
        }
    });
    assert!(matches!(half, Err(LandingError::Unfit(_))));
    assert!(refused().contains("run that command again"));
    // The rows are all there, but nobody said that this is the end.
    let landing = Landing::begin(&settings(&path), steps(rows.clone())).unwrap();
    let held = Landing::begin(&settings(&path), steps(rows.clone()));
    assert!(matches!(held, Err(LandingError::Directory(DirectoryError::Locked { .. }))));
    drop(landing);
    refused();
    // The mark alone, before anything else was made.
    for name in ["GUANXI", "SECRET", "log", "store"] {
        let path = path.join(name);
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
    }
    refused();
    land(&settings(&path), copy.lineage(), steps(rows.clone())).unwrap();
    let landed = open(&path).unwrap();
    assert_eq!(rows_of(&mut landed.copy().unwrap()), rows);
    landed.close();
    drop(landed);
    // Now it is a data directory like any other.
    let again: Result<_, LandingError> = land(&settings(&path), copy.lineage(), steps(rows));
    assert!(matches!(again, Err(LandingError::Directory(DirectoryError::Occupied { .. }))));
    assert!(open(&path).is_ok(), "and it was not touched");
}

#[test]
fn rows_that_are_not_a_copy_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let lineage = MemoryLog::default().lineage();
    let row = |key: u8| (vec![key], vec![1]);
    for (name, rows) in [("order", vec![row(9), row(3)]), ("twice", vec![row(3), row(3)])] {
        let path = folder.path().join(name);
        let landed = land(&settings(&path), &lineage, steps(rows));
        assert!(matches!(landed, Err(LandingError::Store(_))), "{name}: {landed:?}");
        assert!(matches!(
            open(&path),
            Err(OpenError::Directory(DirectoryError::Unfinished { .. }))
        ));
    }
    let late = lineage.with(Epoch(9), Position(7)).unwrap();
    let landed = land(&settings(&folder.path().join("late")), &late, steps(Vec::new()));
    assert!(matches!(landed, Err(LandingError::Unfit(_))), "{landed:?}");
}

/// A directory that begins a new epoch at the copy's position takes tokens up to there only.
#[tokio::test]
async fn a_new_epoch_forks_at_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder.path().join("origin")).unwrap();
    write_some(&engine, &mut fastrand::Rng::with_seed(8), 30).await;
    let good = engine.token(TENANT);
    let mut copy = engine.copy().unwrap();
    let rows = rows_of(&mut copy);
    write_some(&engine, &mut fastrand::Rng::with_seed(9), 5).await;
    let beyond = engine.token(TENANT);
    engine.close();
    let lineage: Lineage = copy.lineage().clone();
    let epoch = lineage.next_epoch(7);
    assert_eq!(epoch, Epoch(good.epoch.0 + 8), "the step is one more than what is random");
    let lineage = lineage.with(epoch, copy.applied().position).unwrap();
    let path = folder.path().join("landed");
    land(&settings(&path), &lineage, steps(rows)).unwrap();
    let landed = open(&path).unwrap();
    landed.at_least(&good).await.unwrap();
    assert_eq!(landed.at_least(&beyond).await.unwrap_err().code, Code::PositionExpired);
    let key = EdgeKey {
        tenant: TENANT,
        kind: landed.catalog().named(TENANT, "follow").unwrap().id,
        source: SourceId(77),
        target: TargetId(78),
    };
    let written = write(&landed, Change::Put(Put::plain(key))).await;
    assert_eq!((written.epoch, written.position.0), (epoch, good.position.0 + 1));
    landed.close();
}
