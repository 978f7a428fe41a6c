//! Which data directories an engine opens, mends or refuses: what is ours to keep because the
//! store below does not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::clock::SystemClock;
use guanxi_embedded::directory::{Directory, DirectoryError};
use guanxi_embedded::disk::{RealDisk, with_checksum, without_checksum};
use guanxi_embedded::log::{FileLog, Log as _, LogOptions};
use guanxi_embedded::{Engine, OpenError, Settings};
use guanxi_model::change::Put;
use guanxi_model::{
    Change, EdgeKey, NodeKey, Position, Request, SourceId, TargetId, TenantId, Which,
};

const TENANT: TenantId = TenantId::DEFAULT;
const CELEBRITY: u64 = 7;
const SEGMENT_BYTES: u64 = 64 << 10;

/// With a log of segments small enough that trimming shows.
fn settings(directory: &Path) -> Settings {
    let mut settings = Settings::new(directory);
    settings.log.segment_bytes = SEGMENT_BYTES;
    settings
}

/// Trims the log of a stopped engine as far as it goes; returns where it begins then.
fn trim(path: &Path) -> Position {
    let disk = Arc::new(RealDisk);
    let directory = Directory::open(disk.clone(), &SystemClock, path).unwrap();
    let options = LogOptions { segment_bytes: SEGMENT_BYTES };
    let log = FileLog::open(disk, &path.join("log"), directory.seed(), options).unwrap();
    log.trim(Position(u64::MAX)).unwrap();
    log.close().unwrap();
    log.first()
}

/// Opening blocks, which a thread that drives async tasks must not do; here no thread does.
fn open(settings: Settings) -> Result<Arc<Engine>, OpenError> {
    Engine::open(settings)
}

/// Why the directory is refused, twice: a refusal must not mend or break anything.
fn refusal(directory: &Path) -> String {
    let once = open(settings(directory)).unwrap_err().to_string();
    let again = open(settings(directory)).unwrap_err().to_string();
    assert_eq!(once, again);
    once
}

fn stop(engine: Arc<Engine>) {
    engine.close();
    assert_eq!(Arc::strong_count(&engine), 1, "somebody still uses it");
}

fn follow(engine: &Engine, source: u64) -> EdgeKey {
    let kind = engine.catalog().named(TENANT, "follow").unwrap().id;
    EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(CELEBRITY) }
}

/// Lets these sources follow the celebrity, a hundred in a batch.
fn write(engine: &Engine, sources: std::ops::Range<u64>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let sources: Vec<u64> = sources.collect();
    for some in sources.chunks(100) {
        let puts = some.iter().map(|source| Change::Put(Put::plain(follow(engine, *source))));
        let request = Request::new(TENANT, puts.collect());
        let deadline = Instant::now() + Duration::from_secs(30);
        runtime.block_on(engine.write(request, deadline)).unwrap();
    }
}

/// All of these sources follow the celebrity, and nobody else does.
fn assert_followers(engine: &Engine, sources: std::ops::Range<u64>) {
    let reader = engine.reader().unwrap();
    for source in sources.clone() {
        let edge = reader.edge(&follow(engine, source)).unwrap();
        assert!(edge.is_some(), "{source} is lost");
    }
    let user = engine.catalog().type_named(TENANT, "user").unwrap();
    let node = NodeKey { tenant: TENANT, node_type: user, id: CELEBRITY };
    let kind = follow(engine, 1).kind;
    let tally = reader.tallies(&node).unwrap().get(kind, Which::Incoming);
    assert_eq!(tally as u64, sources.end - sources.start);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => copy_file(&entry.path(), &target),
        }
    }
}

/// Leaves holes where the file has zeros: most of a journal was never written.
fn copy_file(from: &Path, to: &Path) {
    const PAGE: [u8; 4_096] = [0; 4_096];
    let bytes = fs::read(from).unwrap();
    let file = fs::File::create(to).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, page) in (0..).zip(bytes.chunks(PAGE.len())) {
        if *page != PAGE[..page.len()] {
            file.write_all_at(page, number * PAGE.len() as u64).unwrap();
        }
    }
}

fn replace(from: &Path, to: &Path) {
    fs::remove_dir_all(to).unwrap();
    copy(from, to);
}

#[test]
fn a_store_without_ready_is_rebuilt_from_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 100..150);
    stop(engine);
    let cuts: [&dyn Fn(); 4] = [
        // Creation was cut before READY, with the database whole, by half, or not there.
        &|| fs::remove_file(store.join("READY")).unwrap(),
        &|| {
            fs::remove_file(store.join("READY")).unwrap();
            fs::remove_dir_all(store.join("db/keyspaces")).unwrap();
        },
        &|| {
            fs::remove_dir_all(&store).unwrap();
            fs::create_dir(&store).unwrap();
        },
        &|| fs::remove_dir_all(&store).unwrap(),
    ];
    for (number, cut) in (1..).zip(cuts) {
        cut();
        let engine = open(settings(directory.path())).unwrap();
        assert_followers(&engine, 100..149 + number);
        write(&engine, 149 + number..150 + number);
        assert_followers(&engine, 100..150 + number);
        stop(engine);
        assert!(store.join("READY").exists());
    }
}

#[test]
fn a_ready_store_without_its_journal_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 100..150);
    stop(engine);
    let whole = tempfile::tempdir().unwrap();
    copy(directory.path(), whole.path());
    for entry in fs::read_dir(directory.path().join("store/db")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            fs::remove_file(path).unwrap();
        }
    }
    let why = refusal(directory.path());
    assert!(why.contains("no journal"), "{why}");
    assert!(why.contains("backup"), "{why}");
    // The copy with its journal is as good as the original.
    let engine = open(settings(whole.path())).unwrap();
    assert_followers(&engine, 100..150);
    stop(engine);
}

#[test]
fn a_store_ahead_of_its_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let older = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 100..150);
    stop(engine);
    copy(&log, older.path());
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 150..200);
    stop(engine);
    replace(older.path(), &log);
    let why = refusal(directory.path());
    assert!(why.contains("past the log's end"), "{why}");
    assert!(why.contains("backup"), "{why}");
}

#[test]
fn a_store_whose_log_is_gone_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 100..150);
    stop(engine);
    fs::remove_dir_all(directory.path().join("log")).unwrap();
    let why = refusal(directory.path());
    assert!(why.contains("past the log's end at 0"), "{why}");
}

#[test]
fn a_store_behind_a_trimmed_log_or_missing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let older = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 100..150);
    let behind = engine.status().applied;
    stop(engine);
    copy(&store, older.path());
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 150..4_000);
    stop(engine);
    assert!(trim(directory.path()).0 > behind.0 + 1, "too little to trim");
    let newer = tempfile::tempdir().unwrap();
    copy(&store, newer.path());
    replace(older.path(), &store);
    let why = refusal(directory.path());
    assert!(why.contains("but the log begins at"), "{why}");
    fs::remove_dir_all(&store).unwrap();
    let why = refusal(directory.path());
    assert!(why.contains("missing or unfinished"), "{why}");
    copy(newer.path(), &store);
    let engine = open(settings(directory.path())).unwrap();
    assert_followers(&engine, 100..4_000);
    stop(engine);
}

#[test]
fn a_store_behind_a_whole_log_catches_up() {
    let directory = tempfile::tempdir().unwrap();
    let older = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 100..150);
    stop(engine);
    copy(&store, older.path());
    let engine = open(settings(directory.path())).unwrap();
    write(&engine, 150..400);
    stop(engine);
    replace(older.path(), &store);
    let engine = open(settings(directory.path())).unwrap();
    assert_followers(&engine, 100..400);
    write(&engine, 400..401);
    assert_followers(&engine, 100..401);
    stop(engine);
}

#[test]
fn a_directory_of_a_newer_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(settings(directory.path())).unwrap();
    stop(engine);
    let file = directory.path().join("GUANXI");
    let identity = fs::read(&file).unwrap();
    let newer = without_checksum(&identity).unwrap().replace("format 2", "format 3");
    fs::write(&file, with_checksum(&newer)).unwrap();
    let refused = open(settings(directory.path())).unwrap_err();
    let OpenError::Directory(DirectoryError::NewerFormat { found: 3, .. }) = refused else {
        panic!("{refused}");
    };
    assert!(refusal(directory.path()).contains("newer version"));
    fs::write(&file, identity).unwrap();
    stop(open(settings(directory.path())).unwrap());
}

#[test]
fn a_second_engine_is_refused_while_the_first_has_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(settings(directory.path())).unwrap();
    let refused = open(settings(directory.path())).unwrap_err();
    let OpenError::Directory(DirectoryError::Locked { .. }) = refused else {
        panic!("{refused}");
    };
    write(&engine, 100..110);
    engine.close();
    let refused = open(settings(directory.path()));
    assert!(refused.is_err(), "a closed engine holds it until it is gone");
    drop(engine);
    let engine = open(settings(directory.path())).unwrap();
    assert_followers(&engine, 100..110);
    stop(engine);
}
