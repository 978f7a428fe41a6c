//! Counters of a cluster on real databases: rules, keys, bounds, instances that race, and COMMITs
//! whose answer is lost or an error.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_parts/proxy.rs"]
mod proxy;
#[path = "cluster_parts/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::commit::ClockCheck;
use guanxi_cluster::counters::{CounterSettings, Counters, CountersParts};
use guanxi_cluster::sql::Database;
use guanxi_core::clock::{Clock, SystemClock, VirtualClock};
use guanxi_core::crew::Crew;
use guanxi_model::change::{CounterDelta, KindSpec};
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::limits::COUNTER_ABS_MAX;
use guanxi_model::{Answer, Change, Code, Error, KindId, KindName, Outcome, Request};
use proxy::{Cut, Plan, Proxy, port_of};
use world::{AheadClock, Instance, TENANT, VIEW, databases, number, open, run, soon};

const HOUR_MS: u64 = 3_600_000;

struct Counting {
    database: Arc<Database>,
    counters: Counters,
    clock_check: Arc<ClockCheck>,
}

impl Counting {
    /// An instance of its own: its catalog, its connections.
    fn start(url: &str, instance: u64) -> Counting {
        Counting::start_by(url, instance, Arc::new(SystemClock))
    }

    fn start_by(url: &str, instance: u64, clock: Arc<dyn Clock>) -> Counting {
        let (database, clock_check) = (open(url), Arc::<ClockCheck>::default());
        let catalog = SharedCatalog::open(&database).unwrap();
        let counters = Counters::start(CountersParts {
            crew: Crew::default(),
            database: database.clone(),
            catalog,
            clock,
            clock_check: clock_check.clone(),
            settings: CounterSettings::default(),
            instance,
            memory: None,
        });
        Counting { database, counters: counters.unwrap(), clock_check }
    }

    async fn send(&self, changes: Vec<Change>) -> Result<Vec<Result<Answer, Error>>, Error> {
        self.counters.write(Request::new(TENANT, changes), soon()).await
    }

    async fn one(&self, change: Change) -> Result<i64, Code> {
        let answers = self.send(vec![change]).await.map_err(|error| error.code)?;
        match answers.into_iter().next().unwrap() {
            Ok(Answer::Counter { value }) => Ok(value),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.code),
        }
    }

    fn value(&self, node: u64) -> i64 {
        number(
            &self.database,
            &format!(
                "SELECT CAST(COALESCE(SUM(value),0) AS SIGNED) FROM counter \
                 WHERE kind={} AND node={node}",
                VIEW.0
            ),
        )
    }
}

fn count(kind: KindId, id: u64, delta: i64, key: Option<&str>) -> Change {
    let key = key.map(|key| IdempotencyKey::new(key).unwrap());
    Change::Count(CounterDelta { tenant: TENANT, kind, id, delta, key })
}

fn view(id: u64, delta: i64) -> Change {
    count(VIEW, id, delta, None)
}

/// A database with the built-in kinds and a reconciled counter `paid` on each server.
fn worlds(test: &'static str) -> Vec<(&'static str, String, KindId)> {
    // Starting an instance blocks, which a runtime's thread may not.
    std::thread::spawn(move || make_worlds(test)).join().unwrap()
}

fn make_worlds(test: &str) -> Vec<(&'static str, String, KindId)> {
    let made = databases(test).into_iter().map(|(server, url)| {
        let instance = Instance::start(&url, 99);
        let name = |name| KindName::new(name).unwrap();
        let spec = KindSpec { reconciled: true, ..KindSpec::counter(name("paid"), name("post")) };
        let created =
            instance.write(Change::CreateKind { tenant: TENANT, spec: Box::new(spec) }).unwrap();
        let Answer::Kind(kind) = created else { panic!("{created:?}") };
        (server, url, kind.id)
    });
    made.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_keys_and_bounds() {
    for (server, url, paid) in worlds("rules_keys_and_bounds") {
        let counting = Counting::start(&url, 3);
        assert_eq!(counting.one(view(7, 5)).await, Ok(5), "{server}");
        assert_eq!(counting.one(view(7, -7)).await, Ok(-2), "{server}");
        assert_eq!(counting.one(count(KindId(1), 7, 1, None)).await, Err(Code::InvalidArgument));
        assert_eq!(counting.one(count(KindId(99), 7, 1, None)).await, Err(Code::UnknownKind));
        assert_eq!(counting.one(count(paid, 7, 1, None)).await, Err(Code::InvalidArgument));
        assert_eq!(counting.one(count(paid, 7, 1, Some("a"))).await, Ok(1), "{server}");
        assert_eq!(counting.one(count(paid, 7, 1, Some("a"))).await, Ok(1), "{server}");
        assert_eq!(counting.one(count(paid, 7, 2, Some("a"))).await, Err(Code::KeyConflict));
        // Twice in one batch, and again by another instance.
        let answers = counting
            .send(vec![count(VIEW, 8, 4, Some("b")), count(VIEW, 8, 4, Some("b"))])
            .await
            .unwrap();
        assert!(answers.iter().all(|answer| *answer == Ok(Answer::Counter { value: 4 })));
        let other = Counting::start(&url, 4);
        assert_eq!(other.one(count(VIEW, 8, 4, Some("b"))).await, Ok(4), "{server}");
        assert_eq!(other.one(count(VIEW, 8, 5, Some("b"))).await, Err(Code::KeyConflict));
        assert_eq!(other.value(8), 4, "{server}");
        // A refusal keeps neither its key nor a row.
        let beyond = count(VIEW, 9, COUNTER_ABS_MAX, Some("c"));
        assert_eq!(counting.one(view(9, 1)).await, Ok(1), "{server}");
        assert_eq!(counting.one(beyond).await, Err(Code::LimitReached), "{server}");
        assert_eq!(counting.one(count(VIEW, 9, 2, Some("c"))).await, Ok(3), "{server}");
        let answers = counting.send(vec![view(7, 1), view(10, i64::MAX)]).await.unwrap();
        assert_eq!(answers[0], Ok(Answer::Counter { value: -1 }));
        assert_eq!(answers[1].as_ref().unwrap_err().code, Code::LimitReached);
        let rows = "SELECT COUNT(*) FROM counter WHERE node=10";
        assert_eq!(number(&counting.database, rows), 0, "{server}");
        // An erased node.
        run(&counting.database, "INSERT INTO nodes VALUES (1,2,11,0,77)");
        assert_eq!(counting.one(view(11, 1)).await, Err(Code::Conflict), "{server}");
        let answers = counting.send(vec![view(11, 1), view(7, 1)]).await.unwrap();
        assert_eq!(answers[0].as_ref().unwrap_err().code, Code::Conflict);
        let rows = "SELECT COUNT(*) FROM counter WHERE node=11";
        assert_eq!(number(&counting.database, rows), 0, "{server}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_counts_for_a_day_by_both_clocks() {
    for (server, url, _) in worlds("a_key_counts_for_a_day_by_both_clocks") {
        let right = Counting::start(&url, 1);
        let keyed = || {
            let mut request = Request::one(TENANT, view(8, 4));
            request.key = Some(IdempotencyKey::new("whole").unwrap());
            request
        };
        let key = Some("a");
        assert_eq!(right.one(count(VIEW, 7, 5, key)).await, Ok(5), "{server}");
        let answers = right.counters.write(keyed(), soon()).await.unwrap();
        // Its clock jumped, and it has not looked at the database's yet.
        let clock = Arc::<AheadClock>::default();
        clock.set(25 * HOUR_MS);
        let ahead = Counting::start_by(&url, 2, clock.clone());
        assert_eq!(ahead.one(count(VIEW, 7, 5, key)).await, Ok(5), "{server}: it counted again");
        assert_eq!(ahead.one(count(VIEW, 7, 6, key)).await, Err(Code::KeyConflict), "{server}");
        assert_eq!(ahead.counters.write(keyed(), soon()).await.unwrap(), answers, "{server}");
        let database = ahead.database.clone();
        let looked = ahead.clock_check.clone();
        std::thread::spawn(move || looked.look(&database, clock.as_ref()).unwrap()).join().unwrap();
        let refused = ahead.one(count(VIEW, 7, 1, None)).await;
        assert_eq!(refused, Err(Code::Unavailable), "{server}: its clock is off");
        // By the database's clock the day is over: as if that one had jumped.
        let yesterday = format!("UPDATE idempotency SET at=at-{}", 25 * HOUR_MS);
        run(&right.database, &yesterday);
        let early = SystemClock.now_ms() - 12 * HOUR_MS;
        let behind = Counting::start_by(&url, 3, Arc::new(VirtualClock::new(early)));
        assert_eq!(behind.one(count(VIEW, 7, 5, key)).await, Ok(5), "{server}: it counted again");
        assert_eq!(right.value(7), 5, "{server}");
        assert_eq!(right.one(count(VIEW, 7, 5, key)).await, Ok(10), "{server}: the key is free");
        assert_eq!(right.value(8), 4, "{server}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_range_and_values_that_are_set() {
    for (server, url, _) in worlds("whole_range_and_values_that_are_set") {
        let (one, two) = (Counting::start(&url, 1), Counting::start(&url, 2));
        assert_eq!(one.one(view(1, COUNTER_ABS_MAX)).await, Ok(COUNTER_ABS_MAX), "{server}");
        assert_eq!(two.one(view(1, 1)).await, Err(Code::LimitReached), "{server}");
        assert_eq!(two.one(view(1, -COUNTER_ABS_MAX)).await, Ok(0), "{server}");
        assert_eq!(two.one(view(1, -COUNTER_ABS_MAX)).await, Ok(-COUNTER_ABS_MAX), "{server}");
        assert_eq!(one.value(1), -COUNTER_ABS_MAX, "{server}");
        let most = "SELECT CAST(MAX(ABS(value)) AS SIGNED) FROM counter";
        assert!(number(&one.database, most) <= 1 << 49, "{server}");
        assert_eq!(one.one(view(2, 10)).await, Ok(10), "{server}");
        assert_eq!(two.one(view(2, 20)).await, Ok(30), "{server}");
        let set = |value| Change::ImportCounter { tenant: TENANT, kind: VIEW, id: 2, value };
        for value in [7, 7, -5, COUNTER_ABS_MAX, 0] {
            assert_eq!(two.one(set(value)).await, Ok(value), "{server}");
            assert_eq!(one.value(2), value, "{server}");
        }
        assert_eq!(two.one(set(COUNTER_ABS_MAX + 1)).await, Err(Code::LimitReached), "{server}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_race_lose_and_double_nothing() {
    const EACH: u64 = 150;
    for (server, url, _) in worlds("instances_that_race_lose_and_double_nothing") {
        // The last two share a slot.
        let instances = [1, 2, 18].map(|number| Arc::new(Counting::start(&url, number)));
        let mut callers = Vec::new();
        for instance in &instances {
            for caller in 0..4_u64 {
                let instance = instance.clone();
                callers.push(tokio::spawn(async move {
                    for step in 0..EACH {
                        // A celebrity, nodes of many, and keys that all instances send.
                        let key = format!("{caller}/{step}");
                        let changes = vec![
                            view(1, 1),
                            view(2 + step % 5, 2),
                            count(VIEW, 100, 1, Some(&key)),
                        ];
                        for answer in instance.send(changes).await.unwrap() {
                            answer.unwrap();
                        }
                    }
                }));
            }
        }
        for caller in callers {
            caller.await.unwrap();
        }
        let total = 3 * 4 * EACH as i64;
        assert_eq!(instances[0].value(1), total, "{server}");
        let many: i64 = (2..7).map(|node| instances[0].value(node)).sum();
        assert_eq!(many, 2 * total, "{server}");
        assert_eq!(instances[0].value(100), total / 3, "{server}: each key counts once");
    }
}

/// In the text by which a batch is committed: the question whether it is too late.
const COMMIT: &str = "SELECT 18446744073709551615+";

/// Counts once for each cut, every third time with a key, and looks that it counted once.
async fn count_through_cuts(test: &'static str, cuts: &[Cut]) {
    for (server, url, _) in worlds(test) {
        let proxy = Proxy::start(port_of(&url));
        let counting = Counting::start(&proxy.url(&url), 5);
        let direct = Counting::start(&url, 6);
        let mut expected = 0;
        for round in 0..3 {
            for cut in cuts {
                proxy.arm(&[Plan { at: COMMIT, cut: *cut }]);
                let keyed = format!("{round} {cut:?}");
                let key = (round == 2).then_some(keyed.as_str());
                expected += 1;
                let counted = counting.one(count(VIEW, 1, 1, key)).await;
                assert_eq!(counted, Ok(expected), "{server} {round} {cut:?}");
                assert_eq!(direct.value(1), expected, "{server} {round} {cut:?}");
                assert_eq!(proxy.armed(), 0, "{server} {round} {cut:?}: it was not cut");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_commit_counts_once() {
    let cuts = [Cut::Before, Cut::Halfway, Cut::After, Cut::Late];
    count_through_cuts("a_lost_commit_counts_once", &cuts).await;
}

/// Killed queries, a statement's time, a deadlock, a server that goes, an outcome that TiDB does not
/// know: each may be said of a COMMIT that was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_done_and_is_answered_with_an_error_counts_once() {
    let cuts = [1317, 1969, 3024, 1213, 1205, 1053, 8501, 1105, 1020].map(Cut::Denied);
    let test = "a_commit_that_was_done_and_is_answered_with_an_error_counts_once";
    count_through_cuts(test, &cuts).await;
}

const CALLERS: u64 = 6;
const COUNTS_EACH: u64 = 60;
const KILLING: Duration = Duration::from_secs(4);

/// Connections and queries are killed at random while several callers count.
#[tokio::test(flavor = "multi_thread")]
async fn killed_connections_and_queries_neither_lose_nor_double_a_count() {
    let test = "killed_connections_and_queries_neither_lose_nor_double_a_count";
    for (server, url, _) in worlds(test) {
        let counting = Arc::new(Counting::start(&url, 5));
        let killer = open(&url);
        let over = Arc::new(AtomicBool::new(false));
        let (ends, killed_at) = (over.clone(), killer.clone());
        let name = url.rsplit('/').next().unwrap().to_owned();
        let killing = std::thread::spawn(move || {
            let (mut kills, until) = (0, Instant::now() + KILLING);
            while !ends.load(Ordering::Acquire) && Instant::now() < until {
                kills += kill_one(&killed_at, &name, server);
                std::thread::sleep(Duration::from_millis(15));
            }
            kills
        });
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let counting = counting.clone();
                tokio::spawn(async move {
                    let (mut done, mut unknown) = (0, 0);
                    for step in 0..COUNTS_EACH {
                        let keyed = format!("{caller}/{step}");
                        let key = is_keyed(caller).then_some(keyed.as_str());
                        let until = soon();
                        // With its key a caller tries until it is done.
                        loop {
                            match counting.send(vec![count(VIEW, 1 + caller, 1, key)]).await {
                                Ok(answers) => {
                                    answers.into_iter().for_each(|answer| drop(answer.unwrap()));
                                    done += 1;
                                    break;
                                }
                                Err(error) if key.is_some() => {
                                    assert!(Instant::now() < until, "{keyed}: {}", error.message);
                                }
                                Err(error) => {
                                    unknown += i64::from(error.outcome == Outcome::Unknown);
                                    break;
                                }
                            }
                        }
                    }
                    (caller, done, unknown)
                })
            })
            .collect();
        let mut counted = Vec::new();
        for caller in callers {
            counted.push(caller.await.unwrap());
        }
        over.store(true, Ordering::Release);
        assert!(killing.join().unwrap() > 0, "{server}: nothing was killed");
        for (caller, done, unknown) in counted {
            let value = counting.value(1 + caller);
            if is_keyed(caller) {
                let all = COUNTS_EACH as i64;
                assert_eq!((value, done), (all, all), "{server} {caller}");
            }
            let may_be = done..=done + unknown;
            assert!(may_be.contains(&value), "{server} {caller}: {value}, not {may_be:?}");
        }
    }
}

/// Every other caller has a key for each count.
fn is_keyed(caller: u64) -> bool {
    caller.is_multiple_of(2)
}

/// Kills a random connection to the database, or what it runs; says whether there was one.
fn kill_one(killer: &Database, name: &str, server: &str) -> u64 {
    let mut session = killer.session(soon()).unwrap();
    let others = format!(
        "SELECT id FROM information_schema.processlist WHERE db='{name}' AND id<>CONNECTION_ID()"
    );
    let ids: Vec<u64> =
        session.rows(&others).unwrap().iter().map(|row| row.get(0).unwrap()).collect();
    let Some(id) = fastrand::choice(ids) else { return 0 };
    let kill = if server == "TiDB" { "KILL TIDB" } else { "KILL" };
    let what = if fastrand::bool() { "QUERY" } else { "CONNECTION" };
    // It may have ended by itself.
    u64::from(session.run(&format!("{kill} {what} {id}")).is_ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_told_in_time_and_closing_serves_the_rest() {
    for (server, url, _) in worlds("a_caller_is_told_in_time_and_closing_serves_the_rest") {
        let counting = Arc::new(Counting::start(&url, 1));
        assert_eq!(counting.one(view(1, 1)).await, Ok(1));
        // Somebody else sits on the row.
        let blocker = open(&url);
        let mut session = blocker.session(soon()).unwrap();
        session.run("BEGIN;SELECT * FROM counter WHERE node=1 FOR UPDATE").unwrap();
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(300);
        let request = Request::one(TENANT, view(1, 1));
        let error = counting.counters.write(request, deadline).await.unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded, "{server}");
        assert_eq!(error.outcome, guanxi_model::Outcome::Unknown, "{server}");
        session.run("ROLLBACK").unwrap();
        let waiting: Vec<_> = (0..50)
            .map(|_| {
                let counting = counting.clone();
                tokio::spawn(async move { counting.one(view(2, 1)).await })
            })
            .collect();
        for caller in waiting {
            caller.await.unwrap().unwrap();
        }
        counting.counters.close();
        assert_eq!(counting.one(view(1, 1)).await, Err(Code::Unavailable));
        assert_eq!((counting.value(1), counting.value(2)), (2, 50), "{server}");
    }
}
