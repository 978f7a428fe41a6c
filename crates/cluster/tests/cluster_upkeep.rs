//! The chores of a cluster on real servers: edges expire, nodes are erased, and what is of no use
//! any more goes, nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_parts/log.rs"]
mod log;
#[path = "cluster_parts/world.rs"]
mod world;

use std::sync::Arc;
use std::time::Duration;

use guanxi_cluster::clock::{Notes, steady_clock};
use guanxi_cluster::kafka::{KafkaSettings, create_topics};
use guanxi_cluster::upkeep::UpkeepSettings;
use guanxi_core::clock::{Clock, VirtualClock};
use guanxi_model::change::{Field, KindPatch, KindSpec, Put};
use guanxi_model::{
    Answer, Change, Code, GroupName, GroupsKey, KindName, Millis, NodeKey, SourceId,
};
use log::{Node, hasty, topics};
use world::{
    AheadClock, FOLLOW, Instance, LIKE, TENANT, USER, VIEW, databases, edge, eventually, now_ms,
    number, open, put, run,
};

const DAY_MS: u64 = 24 * 3_600_000;
/// How often an erasure is begun to see it wait.
const ERASURES_MAX: usize = 3;

fn log_of(kafka: &KafkaSettings, server: &str) -> KafkaSettings {
    let mut settings = kafka.clone();
    settings.topic = format!("{}.{server}", kafka.topic);
    settings.dead_letter_topic = format!("{}.{server}", kafka.dead_letter_topic);
    create_topics(&settings).unwrap();
    settings
}

/// Chores that are not meant to clean tombstones in this test.
fn calm() -> UpkeepSettings {
    UpkeepSettings { clean_interval: Duration::from_secs(3_600), ..hasty() }
}

#[test]
fn edges_expire_by_one_of_two_instances_and_stale_entries_go() {
    let test = "edges_expire_by_one_of_two_instances_and_stale_entries_go";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        let (one, two) = (Node::start(&url, 1, &kafka), Node::start(&url, 2, &kafka));
        let (keeps, _keeps_too) = (one.upkeep(calm()), two.upkeep(calm()));
        let database = &one.instance.database;
        let expiring = |source, target, at| {
            let put = Put::plain(edge(FOLLOW, source, target));
            Change::Put(Put { expires_at: Field::Set(Millis(at)), ..put })
        };
        let soon = now_ms() + 2_000;
        let later = now_ms() + DAY_MS;
        let mut changes: Vec<Change> =
            (1..=150).map(|source| expiring(source, 500, soon)).collect();
        changes.push(expiring(1, 501, later));
        changes.push(put(FOLLOW, 1, 502));
        one.instance.write_all(changes);
        // An entry without cause, which an edge once had.
        run(
            database,
            "INSERT INTO expiry (shard,expires_at,tenant,kind,source,target) \
             VALUES (3,5,1,1,1,502)",
        );
        let live = "SELECT COUNT(*) FROM outgoing WHERE kind=1 AND state=0";
        eventually("what is due is removed", || number(database, live) == 2);
        assert!(now_ms() >= soon, "{server}: nothing goes before its time");
        let cause = "SELECT COUNT(*) FROM outgoing WHERE kind=1 AND state=2 AND cause='expire'";
        assert_eq!(number(database, cause), 150, "{server}: each once, as an expiry");
        eventually("the entry of no cause goes", || {
            number(database, "SELECT COUNT(*) FROM expiry") == 1
        });
        assert_eq!(
            number(database, "SELECT CAST(outgoing AS SIGNED) FROM head WHERE source=1 AND kind=1"),
            2
        );
        one.settle();
        assert_eq!(one.audit(false).findings.drift(), 0, "{server}");
        // The other takes over.
        keeps.close();
        drop(keeps);
        drop(one);
        two.instance.write_all(vec![expiring(9, 600, now_ms() + 100)]);
        let left = "SELECT COUNT(*) FROM outgoing WHERE source=9 AND target=600 AND state=0";
        eventually("the other instance sweeps", || number(&two.instance.database, left) == 0);
    }
}

/// A kind that another instance has created, of which this one's copy of the catalog knows nothing.
#[test]
fn an_erasure_finds_the_edges_of_a_new_kind() {
    let test = "an_erasure_finds_the_edges_of_a_new_kind";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let node = Node::start(&url, 1, &log_of(&kafka, server));
        let other = Instance::start(&url, 2);
        let (knows, user) = (KindName::new("knows").unwrap(), KindName::new("user").unwrap());
        let spec = KindSpec::edges(knows, user.clone(), user);
        let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let Answer::Kind(kind) = other.write(create).unwrap() else { panic!("{server}: no kind") };
        other.write(put(kind.id, 7, 8)).unwrap();
        let user = NodeKey { tenant: TENANT, node_type: USER, id: 7 };
        other.write(Change::BeginErase { node: user }).unwrap();
        assert!(node.instance.catalog.current().kind(TENANT, kind.id).is_none(), "{server}");
        let _upkeep = node.upkeep(calm());
        let database = &node.instance.database;
        let running = "SELECT COUNT(*) FROM jobs WHERE finished=0";
        eventually("the job ends", || number(database, running) == 0);
        let standing = "SELECT COUNT(*) FROM outgoing WHERE source=7 AND state<2";
        assert_eq!(number(database, standing), 0, "{server}: an edge stands after the receipt");
    }
}

#[test]
fn an_erasure_leaves_nothing_of_the_node() {
    let test = "an_erasure_leaves_nothing_of_the_node";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        let node = Node::start(&url, 1, &kafka);
        let database = &node.instance.database;
        let user = NodeKey { tenant: TENANT, node_type: USER, id: 7 };
        let groups = GroupsKey { tenant: TENANT, kind: FOLLOW, source: SourceId(7) };
        let name = GroupName::new("friends").unwrap();
        let standing =
            "SELECT COUNT(*) FROM outgoing WHERE (source=7 OR (target=7 AND kind<>2)) AND state<2";
        let running = "SELECT COUNT(*) FROM jobs WHERE finished=0";
        let erased_but_not_ended = || {
            let mut changes = vec![Change::CreateGroup { groups, name: name.clone() }];
            changes.push(Change::SetNode { node: user, private: Some(true) });
            for other in 100..800 {
                changes.push(put(FOLLOW, 7, other));
                changes.push(put(FOLLOW, other, 7));
                changes.push(put(LIKE, 7, other));
            }
            changes.push(put(FOLLOW, 100, 101));
            node.instance.write_all(changes);
            let begun = node.instance.write(Change::BeginErase { node: user }).unwrap();
            let Answer::Job(job) = begun else { panic!("{server}: {begun:?}") };
            let refused = node.instance.write(put(FOLLOW, 900, 7)).unwrap_err();
            assert_eq!((refused.code, refused.retryable), (Code::Conflict, true), "{server}");
            // Edges go at once, though the job has to wait for writes that may be under way.
            let upkeep = node.upkeep(calm());
            eventually("the edges go", || number(database, standing) == 0);
            upkeep.close();
            (number(database, running) == 1).then_some(job)
        };
        // A machine that stands still for as long as the job waits misses that, but not each time.
        let waits = (0..ERASURES_MAX).find_map(|_| erased_but_not_ended());
        let job = waits.unwrap_or_else(|| panic!("{server}: it never waits"));
        // Such a write did not see the mark.
        run(database, "UPDATE nodes SET erased_by=NULL WHERE id=7");
        node.instance.write(put(FOLLOW, 7, 100)).unwrap();
        run(database, &format!("UPDATE nodes SET erased_by={} WHERE id=7", job.0));
        assert_eq!(number(database, standing), 1, "{server}");
        let upkeep = node.upkeep(calm());
        eventually("the job ends", || number(database, running) == 0);
        upkeep.close();
        for statement in [
            standing,
            "SELECT COUNT(*) FROM `groups` WHERE source=7",
            "SELECT COUNT(*) FROM nodes WHERE id=7 AND erased_by IS NOT NULL",
            "SELECT COUNT(*) FROM nodes WHERE id=7 AND private=1",
        ] {
            assert_eq!(number(database, statement), 0, "{server}: {statement}");
        }
        node.settle();
        let incoming = "SELECT COUNT(*) FROM incoming WHERE kind=1 AND state<2";
        assert_eq!(number(database, incoming), 1, "{server}: another's edge stands");
        assert_eq!(node.audit(false).findings.drift(), 0, "{server}");
        assert!(node.instance.write(put(FOLLOW, 900, 7)).is_ok(), "{server}: the mark is lifted");
    }
}

#[test]
fn an_index_that_is_always_there_is_built_at_once() {
    let test = "an_index_that_is_always_there_is_built_at_once";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        let node = Node::start(&url, 1, &kafka);
        let patch = KindPatch { outgoing_max: Field::Set(5_000), ..KindPatch::default() };
        let set = Change::SetKind { tenant: TENANT, kind: FOLLOW, patch: Box::new(patch) };
        node.instance.write(set).unwrap();
        let database = &node.instance.database;
        let running = "SELECT COUNT(*) FROM jobs WHERE finished=0";
        assert_eq!(number(database, running), 1, "{server}: raising the limit begins a job");
        let _upkeep = node.upkeep(calm());
        eventually("the job ends", || number(database, running) == 0);
    }
}

#[test]
fn only_what_no_late_record_can_touch_is_cleaned_up() {
    let test = "only_what_no_late_record_can_touch_is_cleaned_up";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        let node = Node::start(&url, 1, &kafka);
        let database = &node.instance.database;
        let name = GroupName::new("friends").unwrap();
        let groups = GroupsKey { tenant: TENANT, kind: FOLLOW, source: SourceId(4) };
        node.instance.write_all(vec![
            put(FOLLOW, 1, 10),
            put(FOLLOW, 1, 11),
            put(FOLLOW, 2, 10),
            put(FOLLOW, 3, 10),
            Change::CreateGroup { groups, name },
            put(FOLLOW, 4, 10),
        ]);
        for source in 1..=4 {
            let edge = edge(FOLLOW, source, 10);
            node.instance.write_all(vec![Change::Delete { edge, strict: false }]);
        }
        node.settle();
        // All but the third's removal happened long ago; Kafka keeps records for a week, in
        // segments of a week.
        let long_ago = now_ms() - 40 * DAY_MS;
        let (version, head) = (long_ago << 20, long_ago << 12);
        run(
            database,
            &format!(
                "UPDATE outgoing SET since={long_ago},version={version} WHERE state=2 AND source<>3;\
                 UPDATE incoming SET since={long_ago},version={version} WHERE state=2 AND source<>3;\
                 UPDATE head SET version={head} WHERE kind=1 AND source<>3;\
                 INSERT INTO idempotency (tenant,name,mark,at) VALUES (1,'old',1,{long_ago}),\
                 (1,'new',1,{});\
                 INSERT INTO head (tenant,kind,source,version,excluded) VALUES (1,1,5,{head},1),\
                 (0,0,6,{head},0);\
                 INSERT INTO barriers (id,part,shards,passed_at) VALUES ({version},1,1,{long_ago})",
                now_ms()
            ),
        );
        let count = |statement: &str| number(database, statement);
        let _upkeep = node.upkeep(hasty());
        eventually("old heads go", || count("SELECT COUNT(*) FROM head WHERE kind=1") == 4);
        eventually("heads of lanes go", || count("SELECT COUNT(*) FROM head WHERE source=6") == 0);
        eventually("old keys go", || {
            count("SELECT COUNT(*) FROM idempotency WHERE name='old'") == 0
        });
        eventually("old barriers go", || {
            count(&format!("SELECT COUNT(*) FROM barriers WHERE id={version}")) == 0
        });
        for table in ["outgoing", "incoming"] {
            let left = format!("SELECT COUNT(*) FROM {table} WHERE kind=1 AND state=2");
            assert_eq!(count(&left), 1, "{server}: the young tombstone stays in {table}");
            let live = format!("SELECT COUNT(*) FROM {table} WHERE kind=1 AND state=0");
            assert_eq!(count(&live), 1, "{server}: a live edge stays in {table}");
        }
        assert_eq!(count("SELECT COUNT(*) FROM idempotency WHERE name='new'"), 1, "{server}");
        for source in [1, 3, 4, 5] {
            let kept = format!("SELECT COUNT(*) FROM head WHERE kind=1 AND source={source}");
            assert_eq!(
                count(&kept),
                1,
                "{server}: {source} has a tally, a young row, groups or a mark"
            );
        }
        // The scrubber has looked at it all.
        eventually("a verdict", || node.auditor.verdict().is_some());
        assert_eq!(node.auditor.verdict().unwrap().drift, 0, "{server}");
        assert_eq!(node.audit(false).findings.drift(), 0, "{server}");
        let counted = Change::ImportCounter { tenant: TENANT, kind: VIEW, id: 5, value: 3 };
        assert!(node.instance.write(counted).is_ok());
    }
}

#[test]
fn a_clock_ahead_of_the_databases_removes_nothing_early() {
    let test = "a_clock_ahead_of_the_databases_removes_nothing_early";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let node = Node::start(&url, 1, &log_of(&kafka, server));
        let database = &node.instance.database;
        let expiring = |source, at| {
            let put = Put::plain(edge(FOLLOW, source, 500));
            Change::Put(Put { expires_at: Field::Set(Millis(at)), ..put })
        };
        node.instance.write_all(vec![
            expiring(1, now_ms() + DAY_MS),
            // What is due soon shows that the chore has passed by.
            expiring(2, now_ms() + 2_000),
        ]);
        // A key that was used a moment ago, and one of no use.
        for (name, at) in [("new", now_ms()), ("old", now_ms() - 3 * DAY_MS)] {
            let values = format!("(1,'{name}',1,{at},NULL)");
            run(
                database,
                &format!("INSERT INTO idempotency (tenant,name,mark,at,answers) VALUES {values}"),
            );
        }
        let ahead = Arc::new(VirtualClock::new(now_ms() + 10 * DAY_MS));
        let _keeps = node.upkeep_by(ahead, calm());
        let live = |source: u64| {
            let row = format!("kind=1 AND source={source} AND target=500 AND state=0");
            number(database, &format!("SELECT COUNT(*) FROM outgoing WHERE {row}")) > 0
        };
        eventually("what is due goes", || !live(2));
        assert!(live(1), "{server}: it is due tomorrow");
        let keys = |name: &str| {
            let named = format!("SELECT COUNT(*) FROM idempotency WHERE name='{name}'");
            number(database, &named)
        };
        eventually("the old key goes", || keys("old") == 0);
        assert_eq!(keys("new"), 1, "{server}: it counts for a day");
    }
}

#[test]
fn an_instance_whose_clock_is_off_leaves_the_chores_to_another() {
    let test = "an_instance_whose_clock_is_off_leaves_the_chores_to_another";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        let clock = Arc::<AheadClock>::default();
        let one = Node::of(Instance::start_by(&url, 1, clock.clone()), &kafka);
        let _keeps = one.upkeep_by(clock.clone(), calm());
        let database = &one.instance.database;
        let held_by = |instance: u64| {
            let held = format!("name LIKE 'upkeep/%' AND owner={instance} AND until_ms>0");
            number(database, &format!("SELECT COUNT(*) FROM leases WHERE {held}"))
        };
        eventually("it does all chores", || held_by(1) == 5);
        // Less than what would be taken for a jump; yet it may not write, and no job goes on.
        clock.set(60_000);
        let two = Node::start(&url, 2, &kafka);
        let _keeps_too = two.upkeep(calm());
        eventually("the other does all chores", || held_by(2) == 5);
        let put = Put::plain(edge(FOLLOW, 1, 500));
        let expiring = Change::Put(Put { expires_at: Field::Set(Millis(now_ms() + 100)), ..put });
        two.instance.write_all(vec![expiring]);
        let live = "SELECT COUNT(*) FROM outgoing WHERE source=1 AND target=500 AND state=0";
        eventually("what is due goes", || number(database, live) == 0);
        clock.set(0);
        eventually("it takes part again", || held_by(1) > 0);
    }
}

#[test]
fn an_instance_that_is_started_anew_does_not_believe_what_was_not_believed() {
    let test = "an_instance_that_is_started_anew_does_not_believe_what_was_not_believed";
    for (server, url) in databases(test) {
        let database = open(&url);
        let noon = now_ms();
        let under = Arc::new(VirtualClock::new(noon));
        let start = |may_have_jumped| {
            let clock = steady_clock(&database, under.clone(), may_have_jumped).unwrap();
            let mut notes = Notes::default();
            notes.note(&database, &clock).unwrap();
            (clock, notes)
        };
        let (right, mut notes) = start(false);
        under.set(noon + DAY_MS);
        assert_eq!(start(false).0.now_ms(), noon, "{server}");
        assert_eq!(start(true).0.now_ms(), noon + DAY_MS, "{server}: somebody said so");
        // One that was not told goes on, and takes nothing back.
        assert_eq!(right.now_ms(), noon, "{server}");
        notes.note(&database, &right).unwrap();
        assert_eq!(start(false).0.now_ms(), noon + DAY_MS, "{server}");
        under.reboot(noon + 3 * DAY_MS);
        assert_eq!(start(false).0.now_ms(), noon + 3 * DAY_MS, "{server}: it was off");
        // Machines that nobody speaks of any more are forgotten.
        run(&database, &format!("UPDATE clocks SET seen_ms=seen_ms-{}", 100 * DAY_MS));
        under.advance(DAY_MS);
        start(false);
        assert_eq!(number(&database, "SELECT COUNT(*) FROM clocks"), 1, "{server}");
    }
}
