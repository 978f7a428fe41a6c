//! Threads of the engine that are lost, and writes of theirs that fail.

use std::path::Path;

use guanxi_core::audit::{AuditError, AuditQuery, AuditWatch};
use guanxi_core::clock::{Clock, SystemClock, VirtualClock};
use guanxi_model::change::Put;
use guanxi_model::{Answer, Code, EdgeKey, NodeKey, Position, SourceId, TargetId};

use super::*;
use crate::engine::Settings;
use crate::log::Shipment;

const TENANT: TenantId = TenantId::DEFAULT;
/// Longer than any machine takes.
const SOON: Duration = Duration::from_secs(60);

/// Opening blocks, which a thread that drives async tasks must not do.
fn open(settings: Settings) -> Arc<Engine> {
    std::thread::spawn(|| Engine::open(settings)).join().unwrap().unwrap()
}

fn settings(directory: &Path) -> Settings {
    Settings::new(directory)
}

fn put(engine: &Engine, source: u64) -> Change {
    let kind = engine.catalog().named(TENANT, "follow").unwrap().id;
    let (source, target) = (SourceId(source), TargetId(7));
    Change::Put(Put::plain(EdgeKey { tenant: TENANT, kind, source, target }))
}

fn followers(engine: &Engine) -> i64 {
    let kind = engine.catalog().named(TENANT, "follow").unwrap().id;
    let user = engine.catalog().type_named(TENANT, "user").unwrap();
    let node = NodeKey { tenant: TENANT, node_type: user, id: 7 };
    let tallies = engine.reader().unwrap().tallies(&node).unwrap();
    tallies.get(kind, guanxi_model::Which::Incoming)
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn every_thread_that_panics_is_noticed_and_nothing_acknowledged_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let whole = open(settings(directory.path()));
    let workers = whole.crew().lasting();
    whole.close();
    assert!(workers.len() >= 8, "{workers:?}");
    for worker in workers {
        let directory = tempfile::tempdir().unwrap();
        let engine = open(settings(directory.path()));
        assert_eq!(engine.crew().lost(), None);
        engine.crew().plant_panic(&worker);
        let mut acknowledged = 0;
        let deadline = Instant::now() + SOON;
        for source in 100.. {
            if engine.crew().lost().is_some() {
                break;
            }
            assert!(Instant::now() < deadline, "{worker} was not missed");
            let request = Request::one(TENANT, put(&engine, source));
            let soon = Instant::now() + Duration::from_millis(500);
            acknowledged += i64::from(engine.write(request, soon).await.is_ok());
            engine.signal.wake();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(engine.crew().lost().unwrap().worker, worker);
        engine.close();
        drop(engine);
        let again = open(settings(directory.path()));
        assert!(followers(&again) >= acknowledged, "{worker}");
        assert_eq!(again.crew().lost(), None);
        again.close();
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy_all(&from, &to),
            false => drop(std::fs::copy(&from, &to).unwrap()),
        }
    }
}

/// What the primary has after that position.
fn shipment(primary: &Engine, after: Position) -> Shipment {
    let (mut made, mut bytes) = (primary.shipment(after).unwrap(), Vec::new());
    while let Some(piece) = made.next_piece().unwrap() {
        bytes.extend_from_slice(&piece);
    }
    Shipment::decode(&bytes).unwrap()
}

#[tokio::test]
async fn a_standby_whose_store_has_lost_its_thread_says_so_and_loses_nothing() {
    let (at_primary, at_standby) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let primary = open(settings(at_primary.path()));
    primary.close();
    drop(primary);
    copy_all(at_primary.path(), at_standby.path());
    let primary = open(settings(at_primary.path()));
    let request = Request::one(TENANT, put(&primary, 1));
    primary.write(request, Instant::now() + SOON).await.unwrap();
    let follow = Some("http://127.0.0.1:9".to_owned());
    let following = || open(Settings { follow: follow.clone(), ..settings(at_standby.path()) });
    let standby = following();
    assert!(standby.crew().lasting().contains(&"guanxi-apply".to_owned()));
    standby.crew().plant_panic("guanxi-apply");
    standby.follow(shipment(&primary, standby.status().durable)).unwrap();
    eventually("it is not missed", || standby.crew().lost().is_some()).await;
    assert_eq!(standby.crew().lost().unwrap().worker, "guanxi-apply");
    standby.close();
    drop(standby);
    let again = following();
    assert_eq!(followers(&again), 1);
    assert_eq!(again.crew().lost(), None);
    again.close();
    primary.close();
}

#[tokio::test]
async fn a_clock_that_jumps_forward_trims_nothing() {
    const HOUR_MS: u64 = 3_600_000;
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(directory.path());
    settings.log.retention_ms = HOUR_MS;
    let clock = Arc::new(VirtualClock::new(SystemClock.now_ms()));
    let (by, kept) = (clock.clone(), settings.log);
    let engine = std::thread::spawn(|| Engine::open_by(settings, by)).join().unwrap().unwrap();
    // At one look a segment is ended; when all of it is old, it goes at another.
    let look_twice = async |source| {
        for source in [source, source + 1] {
            let request = Request::one(TENANT, put(&engine, source));
            engine.write(request, Instant::now() + SOON).await.unwrap();
            let persisted = engine.store.persist().unwrap();
            checkpoint::trim(&engine.bench(), persisted, &engine.holds, &kept).unwrap();
        }
        engine.status().log_first
    };
    let first = look_twice(1).await;
    for source in [3, 5] {
        clock.set(clock.now_ms() + 48 * HOUR_MS);
        assert_eq!(look_twice(source).await, first, "its hour is not over");
    }
    clock.advance(2 * HOUR_MS);
    look_twice(7).await;
    clock.advance(2 * HOUR_MS);
    assert!(look_twice(9).await > first, "now it is");
    engine.close();
}

#[tokio::test]
async fn a_clean_stop_loses_no_thread() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(directory.path());
    settings.audit.scrub_rows_per_second = 0;
    let engine = open(settings);
    let request = Request::one(TENANT, put(&engine, 1));
    engine.write(request, Instant::now() + SOON).await.unwrap();
    engine.close();
    assert_eq!(engine.crew().lost(), None);
}

#[tokio::test]
async fn a_job_whose_write_was_refused_goes_on_later() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(settings(directory.path()));
    let request = Request::one(TENANT, put(&engine, 1));
    engine.write(request, Instant::now() + SOON).await.unwrap();
    let user = engine.catalog().type_named(TENANT, "user").unwrap();
    let node = NodeKey { tenant: TENANT, node_type: user, id: 7 };
    let request = Request::one(TENANT, Change::BeginErase { node });
    // The job is taken, and nothing after it for a second.
    let committer = engine.committer.get().unwrap();
    let why = Error::new(Code::Unavailable, "a test wanted this");
    let until = Instant::now() + Duration::from_secs(1);
    let (begun, paused) =
        tokio::join!(engine.write(request, Instant::now() + SOON), committer.pause(why, until));
    paused.unwrap();
    let Ok(Answer::Job(id)) = begun.unwrap().answers.remove(0) else { panic!("no job") };
    eventually("the job stands still", || {
        engine.reader().unwrap().job(TENANT, id).unwrap().unwrap().finished.is_some()
    })
    .await;
    assert_eq!(followers(&engine), 0);
    assert_eq!(engine.crew().lost(), None);
    engine.close();
}

#[tokio::test]
async fn an_audit_that_panics_is_reported_and_the_next_one_runs() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(settings(directory.path()));
    let query = AuditQuery { kind: None, repair: false };
    let watch = AuditWatch::new(engine.signal.clone());
    let board = &engine.auditor.board;
    let panics = |_: &AuditWatch| -> Result<_, AuditError> { panic!("a test wanted this") };
    let number = board.begin(query, watch, panics).unwrap();
    let ended = tokio::time::timeout(SOON, engine.audit_ended(number)).await.unwrap();
    let error = ended.unwrap().ended.unwrap().result.unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error}");
    let number = engine.begin_audit(query).unwrap();
    let ended = tokio::time::timeout(SOON, engine.audit_ended(number)).await.unwrap();
    assert!(ended.unwrap().ended.unwrap().result.is_ok());
    engine.close();
}
