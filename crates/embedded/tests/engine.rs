//! The whole engine on a real directory: what one caller sees of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::clock::{Clock, SystemClock, VirtualClock};
use guanxi_core::{Direction, ListQuery};
use guanxi_embedded::{Engine, OpenError, Settings};
use guanxi_model::change::{Field, Put};
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{
    Answer, Change, EdgeKey, Millis, NodeKey, Request, SourceId, TargetId, TenantId, Which,
};

const TENANT: TenantId = TenantId::DEFAULT;

/// Opening blocks, which a thread that drives async tasks must not do.
fn open(directory: &Path) -> Result<Arc<Engine>, OpenError> {
    let settings = Settings::new(directory);
    std::thread::spawn(|| Engine::open(settings)).join().unwrap()
}

fn follow(engine: &Engine, source: u64, target: u64) -> EdgeKey {
    let kind = engine.catalog().named(TENANT, "follow").unwrap().id;
    EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(target) }
}

async fn write(engine: &Engine, change: Change) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(10);
    let written = engine.write(Request::one(TENANT, change), deadline).await.unwrap();
    written.answers.into_iter().next().unwrap().unwrap()
}

fn followers(engine: &Engine, id: u64) -> (Vec<u64>, i64) {
    let kind = engine.catalog().named(TENANT, "follow").unwrap().clone();
    let query = ListQuery::newest(TENANT, &kind, Direction::Incoming, id, 100);
    let page = engine.reader().unwrap().list(&query).unwrap();
    (page.items.iter().map(|item| item.id).collect(), page.total.unwrap())
}

#[tokio::test]
async fn writes_are_seen_at_once_and_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..3u64 {
        let engine = open(directory.path()).unwrap();
        let source = 10 + round;
        write(&engine, Change::Put(Put::plain(follow(&engine, source, 7)))).await;
        write(&engine, Change::Put(Put::plain(follow(&engine, 1, 7)))).await;
        write(&engine, Change::Delete { edge: follow(&engine, 1, 7), strict: true }).await;
        let (ids, total) = followers(&engine, 7);
        let expected: Vec<u64> = (10..=source).rev().collect();
        assert_eq!((ids, total), (expected, round as i64 + 1));
        let kind = follow(&engine, 1, 7).kind;
        let user = engine.catalog().type_named(TENANT, "user").unwrap();
        let node = NodeKey { tenant: TENANT, node_type: user, id: source };
        let tallies = engine.reader().unwrap().tallies(&node).unwrap();
        assert_eq!(tallies.get(kind, Which::Outgoing), 1);
        assert!(open(directory.path()).is_err(), "it is locked");
        engine.close();
    }
}

#[tokio::test]
async fn an_erased_node_is_gone_both_ways_with_a_receipt() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    for other in 100..1_300 {
        write(&engine, Change::Put(Put::plain(follow(&engine, 7, other)))).await;
        write(&engine, Change::Put(Put::plain(follow(&engine, other, 7)))).await;
    }
    let user = engine.catalog().type_named(TENANT, "user").unwrap();
    let node = NodeKey { tenant: TENANT, node_type: user, id: 7 };
    let Answer::Job(id) = write(&engine, Change::BeginErase { node }).await else { panic!() };
    let deadline = Instant::now() + Duration::from_secs(30);
    let job = loop {
        let job = engine.reader().unwrap().job(TENANT, id).unwrap().unwrap();
        if job.finished.is_some() {
            break job;
        }
        assert!(Instant::now() < deadline, "{job:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(job.edges_done, 2_400);
    assert!(job.receipt.is_some());
    assert_eq!(followers(&engine, 7), (vec![], 0));
    assert_eq!(followers(&engine, 100), (vec![], 0));
    engine.close();
}

#[tokio::test]
async fn a_clock_that_jumps_forward_expires_nothing_and_nor_does_a_restart() {
    const HOUR_MS: u64 = 3_600_000;
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(VirtualClock::new(SystemClock.now_ms()));
    let open = |may_have_jumped| {
        let settings =
            Settings { clock_may_have_jumped: may_have_jumped, ..Settings::new(directory.path()) };
        let clock = clock.clone();
        std::thread::spawn(move || Engine::open_by(settings, clock)).join().unwrap().unwrap()
    };
    let expiring = |engine: &Engine, source, at| {
        let put = Put::plain(follow(engine, source, 7));
        Change::Put(Put { expires_at: Field::Set(Millis(at)), ..put })
    };
    // What is due soon shows that the sweeper has passed by.
    let passes = async |engine: &Engine, now| {
        write(engine, expiring(engine, 50, now + 1_000)).await;
        clock.advance(2_000);
        let deadline = Instant::now() + Duration::from_secs(60);
        while followers(engine, 7).0.contains(&50) {
            assert!(Instant::now() < deadline, "nothing expires at all");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let now = clock.now_ms();
    let engine = open(false);
    write(&engine, expiring(&engine, 40, now + HOUR_MS)).await;
    let keyed = async |engine: &Engine| {
        let mut request = Request::one(TENANT, Change::Put(Put::plain(follow(engine, 60, 8))));
        request.key = Some(IdempotencyKey::new("once").unwrap());
        engine.write(request, Instant::now() + Duration::from_secs(60)).await.unwrap().answers
    };
    let stored = keyed(&engine).await;
    clock.set(now + 48 * HOUR_MS);
    passes(&engine, now).await;
    assert_eq!(followers(&engine, 7).0, [40], "its hour is not over");
    assert_eq!(keyed(&engine).await, stored, "the key's day is not over");
    assert_eq!(engine.status().clock_held_back_ms, Some(48 * HOUR_MS));
    engine.close();
    drop(engine);
    let engine = open(false);
    passes(&engine, now + 2_000).await;
    assert_eq!(followers(&engine, 7).0, [40], "nobody has said that the new time is right");
    engine.close();
    drop(engine);
    let engine = open(true);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !followers(&engine, 7).0.is_empty() {
        assert!(Instant::now() < deadline, "the new time is right, and two days are over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(engine.status().clock_held_back_ms, None);
    engine.close();
}

#[tokio::test]
async fn what_a_machine_believes_just_after_its_start_removes_nothing() {
    const HOUR_MS: u64 = 3_600_000;
    const SETTLED_AFTER_MS: u64 = 600_000;
    let directory = tempfile::tempdir().unwrap();
    let now = SystemClock.now_ms();
    let clock = Arc::new(VirtualClock::new(now));
    let open = || {
        let (settings, clock) = (Settings::new(directory.path()), clock.clone());
        std::thread::spawn(move || Engine::open_by(settings, clock)).join().unwrap().unwrap()
    };
    let expiring = |engine: &Engine, source, at| {
        let put = Put::plain(follow(engine, source, 7));
        Change::Put(Put { expires_at: Field::Set(Millis(at)), ..put })
    };
    let keyed = async |engine: &Engine| {
        let mut request = Request::one(TENANT, Change::Put(Put::plain(follow(engine, 60, 8))));
        request.key = Some(IdempotencyKey::new("once").unwrap());
        engine.write(request, Instant::now() + Duration::from_secs(60)).await.unwrap().answers
    };
    let becomes = async |engine: &Engine, sources: &[u64], why: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while followers(engine, 7).0 != sources {
            assert!(Instant::now() < deadline, "{why}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let engine = open();
    write(&engine, expiring(&engine, 40, now + HOUR_MS)).await;
    // What is due by any time shows that the sweeper has passed by.
    write(&engine, expiring(&engine, 50, now + 1_000)).await;
    write(&engine, expiring(&engine, 51, now + 20 * 60_000)).await;
    let stored = keyed(&engine).await;
    engine.close();
    drop(engine);
    clock.reboot(now + 48 * HOUR_MS);
    let engine = open();
    becomes(&engine, &[51, 40], "what was due at the known time expires").await;
    assert_eq!(keyed(&engine).await, stored, "the key's day is not over");
    write(&engine, Change::Put(Put::plain(follow(&engine, 61, 8)))).await;
    engine.close();
    drop(engine);
    // What was written by the wrong time is not what was known.
    let engine = open();
    clock.advance(SETTLED_AFTER_MS / 2 + 1_000);
    becomes(&engine, &[40], "time goes on").await;
    assert_eq!(keyed(&engine).await, stored, "the key's day is not over");
    clock.set(now + SETTLED_AFTER_MS / 2 + 1_000);
    clock.advance(SETTLED_AFTER_MS);
    assert_eq!(followers(&engine, 7).0, [40], "its hour is not over");
    clock.advance(HOUR_MS);
    becomes(&engine, &[], "its hour is over").await;
    engine.close();
}
