//! Watching where a changefeed's topic is the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::feed::{Feed, FeedFrom, FeedLog, FeedRecord};
use guanxi_cluster::kafka::{KafkaSettings, LogSender};
use guanxi_cluster::rows::OUTGOING_COLUMNS;
use guanxi_cluster::sql::{Database, text};
use guanxi_core::crew::Crew;
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{EdgeKey, EdgeRow, GroupId, GroupName, Millis, Origin, State, Version};
use guanxi_services::{Kafka, MariaDb, shared, topic_name};
use serde_json::Map;

use crate::bench::{PATIENCE, database, encoded, record, topics, version};
use crate::feed::{nexts, take};
use crate::player;

const EXTENSION: &str = include_str!("../canal-json/tidb-extension.jsonl");
/// When the changes were committed, as timestamp and in milliseconds.
const COMMIT_TS: u64 = 1_760_000_000_123 << 18;
const TIME: Millis = Millis(1_760_000_000_123);

struct World {
    settings: KafkaSettings,
    database: Arc<Database>,
    topic: String,
    sender: LogSender,
}

impl World {
    fn new(kafka: &Kafka, mariadb: &MariaDb, partitions: u32) -> World {
        let settings = topics(kafka, partitions);
        let topic = topic_name("changefeed");
        kafka.create_topic(&topic, partitions as u16);
        let sender = LogSender::open(&settings).unwrap();
        World { settings, database: database(mariadb), topic, sender }
    }

    fn feed(&self) -> Feed {
        let log = FeedLog::Ticdc { topic: self.topic.clone(), database: self.database.clone() };
        Feed::start(&Crew::default(), self.settings.clone(), log).unwrap()
    }

    fn send(&self, values: &[(u32, Vec<u8>)]) {
        player::send(&self.sender, &self.topic, values);
    }

    fn run(&self, statements: &str) {
        let mut session = self.database.session(Instant::now() + PATIENCE).unwrap();
        session.run(&format!("BEGIN;{statements};COMMIT")).unwrap();
    }

    fn put_row(&self, key: &EdgeKey, row: &EdgeRow, cause: &str) {
        let mut values = String::new();
        text::bytes(&mut values, row.data.as_deref().unwrap_or_default().as_bytes());
        let group = row.group.map_or("NULL".to_owned(), |group| group.0.to_string());
        self.run(&format!(
            "REPLACE INTO outgoing ({OUTGOING_COLUMNS},cause) VALUES \
             ({},{},{},{},{},{},{},{group},NULL,{values},NULL,'{cause}')",
            key.tenant.0,
            key.kind.0,
            key.source.0,
            key.target.0,
            row.version.0,
            row.state as u8,
            row.since.0
        ));
    }
}

fn told(records: &[FeedRecord]) -> Vec<EdgeRecord> {
    assert!(records.iter().all(|record| record.event.time == TIME), "{records:?}");
    records.iter().map(|record| EdgeRecord::clone(&record.event.record)).collect()
}

fn group(name: &str) -> Option<GroupName> {
    Some(GroupName::new(name).unwrap())
}

/// A life of one edge and what beside it is in the topic: the messages, all of one partition, and
/// what watchers must be told.
fn life(world: &World) -> (Vec<Vec<u8>>, Vec<EdgeRecord>) {
    let base = record(7, 9, version(60_000));
    let (key, first) = (base.key, base.new.clone());
    let row = |later: u64| EdgeRow {
        version: Version::at(Millis(first.version.time().0 + later)),
        ..first.clone()
    };
    let pending = EdgeRow { state: State::Pending, data: Some("你好 \"x\"".into()), ..row(0) };
    let live = EdgeRow { data: pending.data.clone(), ..row(1) };
    let friend = EdgeRow { group: Some(GroupId(4)), ..live.clone() };
    let friend = EdgeRow { version: row(2).version, ..friend };
    let removed = EdgeRow { state: State::Removed, ..row(3) };
    let again = EdgeRow { group: Some(GroupId(4)), data: Some("again".into()), ..row(4) };
    world.run("INSERT INTO `groups` (tenant,kind,source,id,name,size) VALUES (1,1,7,4,'朋友',1)");
    world.put_row(&key, &again, "import");

    let columns =
        |row: &EdgeRow, cause: &str| player::columns(&(row.clone(), Some(cause.to_owned())));
    let update = |old: Option<&EdgeRow>, new: &EdgeRow, cause: &str| {
        player::change(&key, old.map(|old| columns(old, "put")), columns(new, cause), COMMIT_TS)
    };
    // With `only-output-updated-columns` the old row has only what differs.
    let mut differs = columns(&live, "put");
    differs.retain(|name, _| name == "version" || name == "group_id" || name == "cause");
    let moved = player::change(&key, Some(differs), columns(&friend, "move"), COMMIT_TS);
    let ddl = EXTENSION.lines().find(|line| line.contains("\"isDdl\":true")).unwrap();
    let other = EXTENSION.split('\n').find(|line| line.contains("\"table\":\"other\"")).unwrap();
    let messages = vec![
        ddl.as_bytes().to_vec(),
        player::watermark(COMMIT_TS - 1),
        update(None, &pending, "put"),
        update(Some(&pending), &live, "approve"),
        b"no message".to_vec(),
        moved,
        other.as_bytes().to_vec(),
        update(Some(&friend), &removed, "delete"),
        update(Some(&removed), &again, "put"),
        // Only the key: what stands in the table is told.
        player::change(&key, Some(Map::new()), Map::new(), COMMIT_TS),
        player::deletion(&key, COMMIT_TS),
        // Only the key of a row that is no more.
        player::change(&record(1, 2, 3).key, None, Map::new(), COMMIT_TS),
        // A value of the cluster's own topic is no message of a changefeed.
        encoded(&base),
        player::watermark(COMMIT_TS),
    ];
    let told = |cause, old: Option<&EdgeRow>, new: &EdgeRow| EdgeRecord {
        fresh: false,
        origin: Origin::default(),
        key,
        cause,
        old: old.cloned(),
        new: new.clone(),
        old_group: old.and_then(|old| old.group).and_then(|_| group("朋友")),
        new_group: new.group.and_then(|_| group("朋友")),
    };
    let expected = vec![
        told(Cause::Put, None, &pending),
        told(Cause::Approve, Some(&pending), &live),
        told(Cause::Move, Some(&live), &friend),
        told(Cause::Delete, Some(&friend), &removed),
        // What was removed reads as none.
        told(Cause::Put, None, &again),
        told(Cause::Import, None, &again),
    ];
    (messages, expected)
}

#[test]
fn watchers_of_a_changefeed_are_told_every_state() {
    let test = "watchers_of_a_changefeed_are_told_every_state";
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let Some(mariadb) = shared::mariadb_or_skip(test) else { return };
    let world = World::new(kafka, mariadb, 2);
    let (messages, expected) = life(&world);
    let values: Vec<(u32, Vec<u8>)> = messages.into_iter().map(|value| (1, value)).collect();
    let feed = world.feed();
    let mut now = feed.begin(FeedFrom::Now).unwrap();
    // The tip runs before anything is sent, so that both ways of reading are taken.
    assert!(now.next(1, Duration::from_millis(500)).unwrap().is_empty());
    world.send(&values);
    let records = take(&mut now, expected.len());
    assert_eq!(told(&records), expected);
    let mut all = feed.begin(FeedFrom::Earliest).unwrap();
    assert_eq!(told(&take(&mut all, expected.len())), expected);
    // After any record, what comes is exactly what had not come.
    for (stop, record) in (1..).zip(&records) {
        let mut resumed = feed.begin(FeedFrom::At(record.after.to_vec())).unwrap();
        assert_eq!(told(&take(&mut resumed, expected.len() - stop)), expected[stop..]);
    }
    // What is not for watchers moves their place all the same.
    let end = values.len() as u64;
    crate::bench::until("the place is the end", || {
        assert!(now.next(100, Duration::from_millis(200)).unwrap().is_empty());
        nexts(&now) == [0, end]
    });
    // One that has fallen behind the tip reads with a client of its own.
    drop((now, all));
    let other = world.feed();
    let mut late = other.begin(FeedFrom::Earliest).unwrap();
    assert_eq!(told(&take(&mut late, expected.len())), expected);
}

#[test]
fn watchers_of_a_changefeed_wait_for_the_database() {
    let test = "watchers_of_a_changefeed_wait_for_the_database";
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let Some(mariadb) = MariaDb::start_or_skip(test) else { return };
    let world = World::new(kafka, &mariadb, 1);
    let again = record(7, 9, version(0));
    world.put_row(&again.key, &EdgeRow { data: Some("x".into()), ..again.new.clone() }, "put");
    let whole = |source| {
        let EdgeRecord { key, new, .. } = record(source, 9, version(0));
        let columns = player::columns(&(new, Some("put".into())));
        (0, player::change(&key, None, columns, COMMIT_TS))
    };
    let feed = world.feed();
    let mut tip = feed.begin(FeedFrom::Now).unwrap();
    assert!(tip.next(1, Duration::from_millis(500)).unwrap().is_empty());
    mariadb.pause();
    world.send(&[whole(1), (0, player::change(&again.key, None, Map::new(), COMMIT_TS)), whole(2)]);
    // Nothing is passed over, by the tip or by a client of one's own.
    let other = world.feed();
    let mut late = other.begin(FeedFrom::Earliest).unwrap();
    for reader in [&mut tip, &mut late] {
        let early = reader.next(100, Duration::from_secs(2)).unwrap();
        assert!(early.iter().all(|record| record.event.record.key.source.0 == 1), "{early:?}");
        assert!(nexts(reader)[0] <= 1, "{:?}", reader.positions());
    }
    mariadb.resume();
    for reader in [&mut tip, &mut late] {
        let rest = take(reader, 3 - nexts(reader)[0] as usize);
        let sources: Vec<u64> = rest.iter().map(|one| one.event.record.key.source.0).collect();
        assert!([1, 7, 2].ends_with(&sources), "{sources:?}");
        assert_eq!(rest[rest.len() - 2].event.record.new.data.as_deref(), Some("x"));
    }
}
