//! Single promises of the commit path: locks of others, clocks, bounds, kinds across instances,
//! long requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::commit::{SqlCommitSettings, SqlCommitter};
use guanxi_cluster::sql::Database;
use guanxi_core::clock::{Clock, SystemClock, VirtualClock};
use guanxi_model::change::{Field, KindSpec, Put};
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{Answer, Change, Code, KindName, Millis, NodeKey, Outcome, Request, Version};

use crate::bench::{FOLLOW, Instance, PATIENCE, REGION, TENANT, USER, connect, databases, edge};
use crate::tables::Tables;

/// The half of a transaction that a server keeps open after it refused to wait any longer never
/// becomes visible, and the write passes when the lock is gone.
#[test]
fn a_lock_wait_that_ends_amid_a_transaction_leaves_no_half() {
    for (server, url) in databases("a_lock_wait_that_ends_amid_a_transaction_leaves_no_half") {
        let instance = Instance::start(&url);
        let other = connect(&url);
        let (edge, at) = (edge(FOLLOW, 5, 6), Millis(SystemClock.now_ms() + 3_600_000));
        let shard = guanxi_model::places::source_shard(TENANT, FOLLOW, edge.source);
        let mut blocker = other.session(Instant::now() + PATIENCE).unwrap();
        // The entry that the write will want to make, uncommitted: rows before it are written.
        blocker
            .run(&format!("BEGIN;INSERT INTO expiry VALUES ({shard},{},1,{},5,6)", at.0, FOLLOW.0))
            .unwrap();
        let put = Put { expires_at: Field::Set(at), ..Put::plain(edge) };
        let answer = std::thread::scope(|scope| {
            let writing = scope.spawn(|| instance.change(Change::Put(put)));
            // Longer than a lock is waited for, so that the server has refused once.
            let until = Instant::now() + Duration::from_millis(6_500);
            while Instant::now() < until {
                assert!(Tables::read(&other).edges.is_empty(), "{server}: a half is visible");
                std::thread::sleep(Duration::from_millis(100));
            }
            blocker.run("ROLLBACK").unwrap();
            writing.join().unwrap()
        });
        assert!(matches!(answer, Ok(Answer::Edge(edge)) if edge.changed), "{server}: {answer:?}");
        let tables = Tables::read(&other);
        tables.check();
        assert_eq!(tables.outbox[&edge].len(), 1);
    }
}

#[test]
fn a_clock_that_is_off_refuses_writes_until_it_is_right() {
    for (server, url) in databases("a_clock_that_is_off_refuses_writes_until_it_is_right") {
        Instance::start(&url).put(edge(FOLLOW, 1, 2)).unwrap();
        // It stands still: by more than a busy machine takes to come to its time.
        for (target, off_ms) in [(3, 600_000), (4, -600_000)] {
            let wrong = SystemClock.now_ms().saturating_add_signed(off_ms);
            let clock = Arc::new(VirtualClock::new(wrong));
            let off = Instance::start_with(&url, clock.clone(), SqlCommitSettings::default());
            let error = off.put(edge(FOLLOW, 1, target)).unwrap_err();
            assert_eq!((error.code, error.outcome), (Code::Unavailable, Outcome::None), "{server}");
            assert!(error.message.contains("clock"), "{}", error.message);
            assert!(error.message.contains("another instance"), "{}", error.message);
            let until = Instant::now() + PATIENCE;
            loop {
                clock.set(SystemClock.now_ms());
                match off.put(edge(FOLLOW, 1, target)) {
                    // It had written nothing before.
                    Ok(answer) => break assert!(answer.changed),
                    Err(error) => assert!(Instant::now() < until, "{server}: {error}"),
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

#[test]
fn a_clock_that_jumps_between_two_looks_forgets_no_key() {
    for (server, url) in databases("a_clock_that_jumps_between_two_looks_forgets_no_key") {
        let clock = Arc::new(VirtualClock::new(SystemClock.now_ms()));
        let instance = Instance::start_with(&url, clock.clone(), SqlCommitSettings::default());
        let keyed = || {
            let mut request = Request::one(TENANT, Change::Put(Put::plain(edge(FOLLOW, 1, 2))));
            request.key = Some(IdempotencyKey::new("once").unwrap());
            request
        };
        let stored = instance.write(keyed()).unwrap().answers;
        clock.set(SystemClock.now_ms() + 25 * 3_600_000);
        match instance.write(keyed()) {
            Ok(again) => assert_eq!(again.answers, stored, "{server}: it was done twice"),
            // A slow machine: it has looked.
            Err(error) => assert_eq!(error.code, Code::Unavailable, "{server}"),
        }
        // Set back as far, a key that is used now counts for a day all the same.
        clock.set(SystemClock.now_ms());
        let instance = Instance::start_with(&url, clock.clone(), SqlCommitSettings::default());
        clock.set(SystemClock.now_ms() - 25 * 3_600_000);
        let again = Instance::start(&url);
        let mut request = keyed();
        request.key = Some(IdempotencyKey::new("back").unwrap());
        if let Ok(stored) = instance.write(request.clone()) {
            assert_eq!(again.write(request).unwrap().answers, stored.answers, "{server}");
        }
    }
}

/// What stood in the way of one change and goes by itself is not kept under the key: the request
/// comes again, what was done is not done twice, and the rest is.
#[test]
fn a_refusal_that_passes_is_not_kept_under_a_key() {
    for (server, url) in databases("a_refusal_that_passes_is_not_kept_under_a_key") {
        let instances = [Instance::start(&url), Instance::start(&url)];
        let node = NodeKey { tenant: TENANT, node_type: USER, id: 94 };
        let Answer::Job(job) = instances[0].change(Change::BeginErase { node }).unwrap() else {
            panic!("{server}: an erasure is a job");
        };
        let strict = |target| Put { strict: true, ..Put::plain(edge(FOLLOW, 1, target)) };
        let keyed = Request {
            key: Some(IdempotencyKey::new("once").unwrap()),
            ..Request::new(TENANT, vec![Change::Put(strict(94)), Change::Put(strict(95))])
        };
        let write = |which: usize| instances[which].write(keyed.clone()).unwrap().answers;
        let first = write(0);
        let refused = first[0].as_ref().unwrap_err();
        assert_eq!((refused.code, refused.retryable), (Code::Conflict, true), "{server}");
        assert!(first[1].is_ok(), "{server}: {first:?}");
        assert_eq!(write(1), first, "{server}: it still stands in the way");

        instances[0].change(Change::FinishErase { tenant: TENANT, job }).unwrap();
        let second = write(1);
        assert!(second[0].is_ok(), "{server}: {second:?}");
        assert_eq!(second[1], first[1], "{server}: what was done is not done again");
        assert_eq!(write(0), second, "{server}: all of it is kept now");
        Tables::read(&connect(&url)).check();
    }
}

#[test]
fn versions_grow_past_the_floor_and_carry_the_region() {
    for (server, url) in databases("versions_grow_past_the_floor_and_carry_the_region") {
        let database = connect(&url);
        let floor = (SystemClock.now_ms() + 3_600_000) << 12;
        execute(&database, &format!("INSERT INTO facts VALUES ('version_floor',{floor})"));
        let instance = Instance::start(&url);
        let mut last = Version(floor << 8);
        for target in 2..6 {
            let version = instance.put(edge(FOLLOW, 1, target)).unwrap().version.unwrap();
            assert!(version > last, "{server}: {version:?} after {last:?}");
            assert_eq!(version.0 & 0xff, u64::from(REGION));
            last = version;
        }
    }
}

#[test]
fn a_kind_of_one_instance_is_known_to_another_at_once_when_it_is_named() {
    let test = "a_kind_of_one_instance_is_known_to_another_at_once_when_it_is_named";
    for (server, url) in databases(test) {
        let instances = [Instance::start(&url), Instance::start(&url)];
        let user = KindName::new("user").unwrap();
        let spec = KindSpec::edges(KindName::new("knows").unwrap(), user.clone(), user);
        let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let Answer::Kind(kind) = instances[0].change(create).unwrap() else {
            panic!("{server}: no kind");
        };
        assert!(instances[1].put(edge(kind.id, 1, 2)).unwrap().changed, "{server}");
        let until = Instant::now() + PATIENCE;
        while instances[1].catalog.current().find(TENANT, "knows").is_none() {
            assert!(Instant::now() < until, "{server}: the catalog stayed old");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A request of more changes than a transaction takes, over all lanes, is done in order.
#[test]
fn a_long_request_is_done_in_order() {
    for (server, url) in databases("a_long_request_is_done_in_order") {
        let instance = Instance::start(&url);
        let mut changes = Vec::new();
        for number in 0..500_u64 {
            let edge = edge(FOLLOW, 1 + number % 7, 1_000 + number / 2);
            changes.push(Change::Put(Put::plain(edge)));
            if number % 3 == 0 {
                changes.push(Change::Delete { edge, strict: true });
            }
        }
        let written = instance.write(Request::new(TENANT, changes.clone())).unwrap();
        assert_eq!(written.answers.len(), changes.len());
        for (change, answer) in changes.iter().zip(&written.answers) {
            let changed = matches!(answer, Ok(Answer::Edge(edge)) if edge.changed);
            assert!(changed, "{server}: {change:?} is answered {answer:?}");
        }
        Tables::read(&instance.database).check();
    }
}

/// More waiting changes than the queue takes are refused, and closing answers all that wait.
#[test]
fn the_queue_is_bounded_and_closing_answers_everyone() {
    for (server, url) in databases("the_queue_is_bounded_and_closing_answers_everyone") {
        let settings = SqlCommitSettings { queue_max: 30, ..SqlCommitSettings::default() };
        let instance = Instance::start_with(&url, Arc::new(SystemClock), settings);
        let other = connect(&url);
        instance.put(edge(FOLLOW, 1, 2)).unwrap();
        let mut blocker = other.session(Instant::now() + PATIENCE).unwrap();
        blocker.run("BEGIN;UPDATE head SET version=version+1 WHERE source=1").unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let committer: &SqlCommitter = &instance.committer;
        let outcomes = runtime.block_on(async {
            let write = |target| {
                let put = Change::Put(Put::plain(edge(FOLLOW, 1, target)));
                committer.write(Request::one(TENANT, put), Instant::now() + PATIENCE)
            };
            let writes: Vec<_> = (10..60).map(write).collect();
            let freed = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                blocker.run("ROLLBACK").unwrap();
            };
            let (outcomes, ()) = tokio::join!(all(writes), freed);
            outcomes
        });
        let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let refused: Vec<_> = refused.collect();
        assert!(!refused.is_empty(), "{server}: nobody was refused");
        assert!(refused.iter().all(|error| error.code == Code::Overloaded), "{refused:?}");
        assert!(outcomes.iter().any(Result::is_ok), "{server}: somebody was served");
        instance.committer.close();
        let error = instance.put(edge(FOLLOW, 1, 99)).unwrap_err();
        assert_eq!(error.code, Code::Unavailable);
        let tables = Tables::read(&other);
        tables.check();
        let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(tables.standing().count(), 1 + done, "{server}");
    }
}

/// Runs all of them beside each other.
async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(ready) => *output = Some(ready),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

fn execute(database: &Database, statement: &str) {
    let mut session = database.session(Instant::now() + PATIENCE).unwrap();
    session.run(&format!("BEGIN;{statement};COMMIT")).unwrap();
}
