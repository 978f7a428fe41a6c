//! Redis and the log go through bad days: what Redis has comes to be what the database has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::instance::{Cluster, Roles};
use guanxi_model::change::{Field, Put};
use guanxi_model::{Change, KindId, NodeKey};
use guanxi_services::{Redis, shared};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, TopicPartitionList};
use redis::cmd;

use crate::made_anew::make_anew;
use crate::stage::{ALL, From, SERVING, Stage, figures};
use crate::world::{FOLLOW, LIKE, TENANT, USER, edge, eventually, number, put};

/// Few, so that they are met again and again.
const SOURCES: u64 = 40;
const TARGETS: u64 = 60;
/// Strings without which nothing would be shown.
const FILLED_MIN: usize = 20;
/// How often a follower may forget once more: for the log, where the first time was for Redis, and
/// where a turn of a busy machine failed in between.
const FORGOTTEN_MORE_MAX: u32 = 4;

/// A change of any kind that tallies depend on.
fn any_change(random: &mut fastrand::Rng) -> Change {
    let kind: KindId = if random.bool() { FOLLOW } else { LIKE };
    let (source, target) = (random.u64(1..=SOURCES), random.u64(100..100 + TARGETS));
    let edge = edge(kind, source, target);
    match random.u8(0..10) {
        0..=2 => put(kind, source, target),
        3 | 4 => Change::Delete { edge, strict: false },
        5 if kind == FOLLOW => Change::Put(Put { approval: true, ..Put::plain(edge) }),
        6 if kind == FOLLOW => Change::Approve { edge },
        7 if kind == FOLLOW => Change::Decline { edge },
        _ if kind == LIKE => {
            Change::Put(Put { owner: Field::Set(random.u64(1..9)), ..Put::plain(edge) })
        }
        _ => put(kind, source, target),
    }
}

/// Two instances write and read at random while something happens, and until enough has: a busy
/// machine is slow.
pub fn storm(stage: &Stage, instances: [&Cluster; 2], happens: impl FnOnce()) {
    let (ends, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = Ending(&ends);
        for (index, cluster) in instances.into_iter().enumerate() {
            let (ends, writes) = (&ends, &writes);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(index as u64);
                while !ends.load(Ordering::Relaxed) {
                    let changes = (0..random.usize(1..8)).map(|_| any_change(&mut random));
                    stage.write(cluster, changes.collect());
                    writes.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            scope.spawn(move || {
                let mut random = fastrand::Rng::new();
                while !ends.load(Ordering::Relaxed) {
                    let kind = if random.bool() { FOLLOW } else { LIKE };
                    let ids: Vec<u64> =
                        (0..random.usize(1..8)).map(|_| random.u64(100..100 + TARGETS)).collect();
                    stage.tallies(cluster, kind, &ids);
                    stage.page(cluster, kind, ids[0], random.usize(1..30));
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        happens();
        let before = writes.load(Ordering::Relaxed);
        eventually("there is more that may be wrong", || {
            let enough = writes.load(Ordering::Relaxed) >= before + 50;
            enough && filled(stage) >= FILLED_MIN && stage.lists().len() >= FILLED_MIN / 2
        });
    });
}

fn filled(stage: &Stage) -> usize {
    stage.strings().values().filter(|string| !string.fields.is_empty()).count()
}

pub fn a_while() {
    std::thread::sleep(Duration::from_secs(3));
}

/// Everything is right, and there is something that could be wrong.
#[track_caller]
pub fn right(stage: &Stage, what: &str) {
    stage.converges(what);
    assert!(filled(stage) >= FILLED_MIN, "{what}: {} strings are filled", filled(stage));
}

#[test]
fn under_random_writes_redis_comes_to_what_the_database_says() {
    let Some(stage) = Stage::open("tallies storm") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(ALL));
    storm(&stage, [&one, &two], || {
        eventually("both are answered", || figures(&one).hits > 0 && figures(&two).hits > 0);
    });
    right(&stage, "after a storm");
    // The follower's instance ends: the other goes on from its positions.
    let epoch = stage.epoch();
    let (stays, goes) = if figures(&one).follower.is_some() { (two, one) } else { (one, two) };
    goes.close();
    storm(&stage, [&stays, &stays], a_while);
    eventually("the other follows", || figures(&stays).follower.is_some());
    right(&stage, "after a change of followers");
    assert_eq!(stage.epoch(), epoch, "nothing was forgotten");
    // Everything of a node goes, by a job.
    let node = NodeKey { tenant: TENANT, node_type: USER, id: 7 };
    stage.write(&stays, vec![Change::BeginErase { node }]);
    let left = "SELECT COUNT(*) FROM outgoing WHERE source=7 AND state<>2";
    eventually("its edges are gone", || number(&stage.database, left) == 0);
    right(&stage, "after an erasure");
}

#[test]
fn redis_flushed_paused_killed_and_away() {
    let Some(stage) = Stage::open("tallies bad days") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(SERVING));
    storm(&stage, [&one, &two], || {
        a_while();
        cmd("FLUSHALL").exec(&mut stage.connection()).unwrap();
        a_while();
    });
    right(&stage, "after a FLUSHALL");
    storm(&stage, [&one, &two], || {
        stage.redis.pause();
        a_while();
        stage.redis.resume();
        a_while();
    });
    right(&stage, "after a pause");
    stage.redis.kill();
    // Past what the process keeps.
    std::thread::sleep(Duration::from_secs(1));
    let truth = "SELECT incoming FROM tally WHERE kind=1 AND slot=0 AND node=";
    for id in 100..105 {
        let (numbers, from) = stage.followers(&two, &[id]);
        assert_eq!(from, From::Database);
        assert_eq!(numbers, [number(&stage.database, &format!("{truth}{id}"))]);
    }
    stage.redis.start_again();
    storm(&stage, [&one, &two], || {
        a_while();
        eventually("it is remembered again", || figures(&two).followed);
        a_while();
    });
    right(&stage, "after a kill");
}

/// A replica that stopped to follow takes the master's place: older values, and as old positions.
#[test]
fn a_failover_to_an_older_replica() {
    let Some(stage) = Stage::open("tallies failover") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(SERVING));
    let Some(replica) = Redis::start_or_skip("tallies failover") else { return };
    let client = redis::Client::open(replica.url()).unwrap();
    let follow = |connection: &mut redis::Connection, of: Option<u16>| {
        let mut command = cmd("REPLICAOF");
        match of {
            Some(port) => command.arg("127.0.0.1").arg(port),
            None => command.arg("NO").arg("ONE"),
        };
        command.exec(connection).unwrap();
    };
    let has = |connection: &mut redis::Connection, what: &str| {
        let told: String = cmd("INFO").arg("replication").query(connection).unwrap();
        told.contains(what)
    };
    let mut copy = client.get_connection().unwrap();
    follow(&mut copy, Some(stage.redis.port()));
    eventually("it is copied", || has(&mut copy, "master_link_status:up"));
    storm(&stage, [&one, &two], a_while);
    eventually("the copy has values", || {
        cmd("DBSIZE").query::<u64>(&mut copy).unwrap() >= FILLED_MIN as u64
    });
    // From here on the copy is left behind.
    follow(&mut copy, None);
    storm(&stage, [&one, &two], a_while);
    right(&stage, "before the failover");
    let (epoch, ids) = (stage.epoch(), (100..100 + TARGETS).collect::<Vec<u64>>());
    let mut master = stage.connection();
    follow(&mut master, Some(replica.port()));
    eventually("the master has the old copy", || has(&mut master, "master_link_status:up"));
    // As long as it is a replica, nobody can write to it what it lacks.
    assert!(!stage.wrong().is_empty(), "the copy is older");
    follow(&mut master, None);
    // Nobody is told the old values: another lineage has to be followed first.
    let truth = |id: u64| {
        let select =
            "SELECT COALESCE(SUM(incoming),0) FROM tally WHERE kind=1 AND slot=0 AND node=";
        number(&stage.database, &format!("{select}{id}"))
    };
    let truth: Vec<i64> = ids.iter().map(|id| truth(*id)).collect();
    std::thread::sleep(Duration::from_secs(1));
    eventually("it is followed again", || {
        assert_eq!(stage.followers(&two, &ids).0, truth);
        figures(&two).followed && stage.wrong().is_empty()
    });
    right(&stage, "after the failover");
    assert_eq!(stage.epoch(), epoch, "it was replayed, not forgotten");
}

/// The log loses what the follower has not seen.
#[test]
fn a_log_that_was_trimmed_makes_everybody_forget() {
    let Some(stage) = Stage::open("tallies trimmed") else { return };
    let (serving, follower) = (stage.instance(SERVING), stage.instance(ALL));
    let ids: Vec<u64> = (100..120).collect();
    stage.write(&serving, ids.iter().map(|id| put(FOLLOW, 1, *id)).collect());
    stage.settle();
    assert_eq!(stage.until_remembered(&serving, &ids), vec![1; ids.len()]);
    follower.close();
    stage.write(&serving, ids.iter().map(|id| put(FOLLOW, 2, *id)).collect());
    stage.settle();
    assert!(!stage.wrong().is_empty(), "nobody follows");
    eventually("nobody believes what nobody follows", || {
        stage.followers(&serving, &ids) == (vec![2; ids.len()], From::Database)
    });
    trim(&stage);
    let epoch = stage.epoch();
    let _follower = stage.instance(ALL);
    eventually("it is forgotten", || stage.epoch() > epoch);
    assert_eq!(stage.until_remembered(&serving, &ids), vec![2; ids.len()]);
    stage.write(&serving, ids.iter().map(|id| put(FOLLOW, 3, *id)).collect());
    right(&stage, "it goes on from there");
    assert_eq!(stage.until_remembered(&serving, &ids), vec![3; ids.len()]);
}

/// Nobody applies it, and so nobody rebuilds anything.
#[test]
fn a_topic_made_anew_makes_everybody_forget_once() {
    let test = "tallies of a topic made anew";
    let Some(stage) = Stage::open(test) else { return };
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let serving = stage.instance(SERVING);
    stage.write(&serving, (100..120).map(|id| put(FOLLOW, 1, id)).collect());
    stage.settle();
    serving.close();
    make_anew(kafka, &stage.kafka.topic, stage.kafka.partitions);
    let epoch = stage.epoch();
    let upkeep = Roles { api: false, relay: false, applier: false, upkeep: true };
    let _follower = stage.instance(upkeep);
    eventually("it is forgotten", || stage.epoch() > epoch);
    // It looks twice a second, and so would forget again by then.
    let (mut epoch, mut since, mut more) = (stage.epoch(), Instant::now(), 0);
    eventually("it is not forgotten again and again", || {
        let now = stage.epoch();
        if now != epoch {
            (epoch, since, more) = (now, Instant::now(), more + 1);
        }
        since.elapsed() >= Duration::from_secs(3)
    });
    assert!(more <= FORGOTTEN_MORE_MAX, "{more} times more");
    // Who applies takes it on.
    let serving = stage.instance(SERVING);
    let ids: Vec<u64> = (100..120).collect();
    assert_eq!(stage.until_remembered(&serving, &ids), vec![1; ids.len()]);
}

fn trim(stage: &Stage) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &stage.kafka.brokers);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..stage.kafka.partitions {
        let next = format!(
            "SELECT next FROM applied WHERE topic='{}' AND part={partition}",
            stage.kafka.topic
        );
        let before = Offset::Offset(number(&stage.database, &next));
        list.add_partition_offset(&stage.kafka.topic, partition as i32, before).unwrap();
    }
    let deleted = admin.delete_records(&list, &AdminOptions::new());
    stage.runtime.block_on(deleted).unwrap();
}

/// Says that it is over when it goes, also by a failed assertion: a scope waits for its threads.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
