//! A changefeed's messages in a real topic, those that its own encoder wrote.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use guanxi_cluster::applier::AppliedLog;
use guanxi_cluster::barrier;
use guanxi_cluster::canal_json::{self, CanalChange, ToldRow};
use guanxi_cluster::outbox::pack;
use guanxi_cluster::sql::text;
use guanxi_model::{EdgeKey, EdgeRow, KindId, State, TenantId};
use guanxi_services::{Kafka, fresh_database, shared, topic_name};

use super::history::{History, Log, edge, history, row};
use super::lost_end::lose_end;
use super::topic::{Topic, servers};
use super::world::{FOLLOW, World, add_kind};

const EXTENSION: &str = include_str!("../canal-json/tidb-extension.jsonl");
const PLAIN: &str = include_str!("../canal-json/plain.jsonl");

/// The samples number the states from 1.
fn with_our_states(line: &str) -> String {
    let mut line = line.to_owned();
    for (theirs, ours) in [("1", "0"), ("2", "1"), ("3", "2")] {
        let state = |number| format!("\"state\":\"{number}\"");
        line = line.replace(&state(theirs), &state(ours));
    }
    line
}

#[test]
fn the_samples_played_through_a_topic_are_applied() {
    let Some((mariadb, kafka)) = servers("the_samples_played_through_a_topic_are_applied") else {
        return;
    };
    for samples in [PLAIN, EXTENSION] {
        let mut world = World::on(&fresh_database(mariadb));
        let topic = Topic::new(kafka, &mut world);
        let feed = topic_name("changefeed");
        kafka.create_topic(&feed, 2);
        add_kind(&world.database, TenantId(2), FOLLOW);
        add_kind(&world.database, TenantId(u32::MAX), KindId(u16::MAX));
        world.catalog.refresh(&world.database).unwrap();

        let lines: Vec<String> =
            samples.split('\n').filter(|line| !line.is_empty()).map(with_our_states).collect();
        // What is only told by its key is read from the table.
        let reread = edge(FOLLOW, 7, 13);
        let mut expected: BTreeMap<EdgeKey, EdgeRow> = BTreeMap::new();
        let mut told = BTreeMap::from([(reread, row(1 << 63, State::Live, Some(4)))]);
        world.put_outgoing(&told);
        let (mut watermark, mut dead) = (0, 0);
        for line in &lines {
            match canal_json::decode(line.as_bytes()).unwrap() {
                CanalChange::Edge(change) => {
                    let mut new = match change.new {
                        // The largest value of every type: no state has that number.
                        ToldRow::Row(row) if row.state == u8::MAX => {
                            dead += 1;
                            continue;
                        }
                        ToldRow::Row(row) => row.target_side().unwrap(),
                        _ => told.remove(&change.key).unwrap(),
                    };
                    (new.group, new.expires_at) = (None, None);
                    let standing = expected.get(&change.key);
                    if standing.is_none_or(|standing| standing.version < new.version) {
                        expected.insert(change.key, new);
                    }
                }
                CanalChange::Watermark { commit_ts } => watermark = commit_ts as i64,
                CanalChange::PassedOver => {}
            }
        }
        assert!(expected.len() > 5, "{expected:?}");
        // Versions that lie ahead of the clock are believed because their source has them.
        let ahead = |(_, row): &(&EdgeKey, &EdgeRow)| row.version.0 > 1 << 60;
        world.put_outgoing(
            &expected.iter().filter(ahead).map(|(edge, row)| (*edge, row.clone())).collect(),
        );
        let values: Vec<(u32, Vec<u8>)> =
            lines.into_iter().map(|line| (1, line.into_bytes())).collect();
        topic.send(&feed, &values);
        let log = AppliedLog::Ticdc { topic: feed.clone(), partitions: 2 };
        let running = topic.applier(&world, 1, log);
        topic.wait_applied(&world, &feed, 2);
        assert_eq!((dead, running.applier.figures().dead), (2, 2));
        world.put_outgoing(&expected);
        world.assert_target_side();
        let place = format!("topic='{feed}' AND part=1");
        let found = world.number(&format!("SELECT watermark FROM applied WHERE {place}"));
        assert_eq!(found, watermark);
        running.close();
    }
}

#[test]
fn the_outbox_is_emptied_when_the_changefeed_has_passed_it() {
    let test = "the_outbox_is_emptied_when_the_changefeed_has_passed_it";
    let Some(tidb) = shared::tidb_or_skip(test) else { return };
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let mut world = World::on(&fresh_database(tidb));
    let topic = Topic::new(kafka, &mut world);
    let feed = topic_name("changefeed");
    kafka.create_topic(&feed, 2);
    // These were committed before the changefeed began, so it never tells of them.
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(42), 300);
    world.put_outgoing(&outgoing);
    for (index, records) in records.chunks(7).enumerate() {
        let shard = (index % 64) as u8;
        for (row, value) in pack(records.to_vec(), records[0].new.since, shard) {
            let mut statement = format!(
                "INSERT INTO outbox (shard,version,id,records,value) VALUES ({shard},{},{},{},",
                row.key.version.0,
                row.key.id,
                records.len()
            );
            text::bytes(&mut statement, &value);
            statement.push(')');
            world.run(&statement);
        }
    }
    let deadline = |seconds| Instant::now() + Duration::from_secs(seconds);
    let id = barrier::raise(&world.database, deadline(60)).unwrap();
    let log = AppliedLog::Ticdc { topic: feed.clone(), partitions: 2 };
    let running = topic.applier(&world, 1, log);
    let watermark = |partition, ts: u64| topic.send(&feed, &[(partition, watermark(ts))]);
    // Neither an old watermark nor one in a single partition is enough.
    watermark(0, 461_373_440_786_432_002);
    watermark(1, 1 << 62);
    topic.wait_applied(&world, &feed, 2);
    assert!(!barrier::wait(&world.database, id, 4, deadline(3)).unwrap());
    assert_ne!(world.number("SELECT COUNT(*) FROM outbox"), 0);
    watermark(0, 1 << 62);
    assert!(barrier::wait(&world.database, id, 4, deadline(90)).unwrap());
    super::world::wait_until("the outbox is empty", || {
        world.number("SELECT COUNT(*) FROM outbox") == 0
    });
    world.assert_target_side();
    running.close();
}

/// What our own topic had is waited for, but not what it has no more.
#[test]
fn a_barrier_beside_a_changefeed_does_not_wait_for_an_end_that_was_lost() {
    let test = "a_barrier_beside_a_changefeed_does_not_wait_for_an_end_that_was_lost";
    let Some(tidb) = shared::tidb_or_skip(test) else { return };
    let Some(kafka) = Kafka::start_or_skip(test) else { return };
    let mut world = World::on(&fresh_database(tidb));
    let topic = Topic::new(&kafka, &mut world);
    let feed = topic_name("changefeed");
    kafka.create_topic(&feed, 2);
    topic.send_records(&world, &history(&mut fastrand::Rng::with_seed(46), 100).records);
    let deadline = |seconds| Instant::now() + Duration::from_secs(seconds);
    let id = barrier::raise(&world.database, deadline(60)).unwrap();
    let log = AppliedLog::Ticdc { topic: feed.clone(), partitions: 2 };
    let running = topic.applier(&world, 1, log);
    topic.send(&feed, &[(0, watermark(1 << 62)), (1, watermark(1 << 62))]);
    topic.wait_applied(&world, &feed, 2);
    assert!(!barrier::wait(&world.database, id, 4, deadline(3)).unwrap());
    lose_end(&kafka, &topic.settings.topic, &[0; 4]);
    assert!(barrier::wait(&world.database, id, 4, deadline(90)).unwrap());
    running.close();
}

fn watermark(ts: u64) -> Vec<u8> {
    format!(r#"{{"type":"TIDB_WATERMARK","isDdl":false,"_tidb":{{"watermarkTs":{ts}}}}}"#)
        .into_bytes()
}

/// During a change from one log to the other the same records come by both at once.
#[test]
fn both_logs_at_once_count_each_change_once() {
    super::world::each_server("both_logs_at_once_count_each_change_once", |world| {
        let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(41), 1_500);
        world.put_outgoing(&outgoing);
        let log = Log::of(world, records);
        let mut other = World { url: String::new(), ..world_like(world) };
        other.place.topic = "changefeed".into();
        for partition in 0..4 {
            world.run(&format!(
                "INSERT INTO applied (topic,part,next) VALUES ('changefeed',{partition},0)"
            ));
        }
        std::thread::scope(|scope| {
            for world in [world, &other] {
                let log = &log;
                scope.spawn(move || apply_patiently(world, log));
            }
        });
        world.assert_target_side();
    });
}

fn world_like(world: &World) -> World {
    World {
        database: world.database.clone(),
        catalog: world.catalog.clone(),
        place: world.place.clone(),
        url: world.url.clone(),
    }
}

fn apply_patiently(world: &World, log: &Log) {
    let mut next = BTreeMap::from([(0, 0), (1, 0), (2, 0), (3, 0)]);
    let deadline = std::time::Instant::now() + super::world::PATIENCE;
    loop {
        let slices: Vec<_> = next
            .iter()
            .filter(|(partition, next)| **next < log.end(**partition))
            .map(|(partition, next)| log.slice(*partition, *next, 20))
            .collect();
        if slices.is_empty() {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "not all was applied");
        match world.apply(&slices) {
            Ok(applied) => {
                assert_eq!(applied.foreign, Vec::<u32>::new());
                next.extend(slices.iter().map(|slice| (slice.partition, slice.next.next)));
            }
            Err(error) => assert!(error.may_pass(), "{error}"),
        }
    }
}
