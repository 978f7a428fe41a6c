//! The order in which the log gets what one process wrote. It is a courtesy, as versions decide; but
//! a relay that takes over keeps it, and so does one whose log was away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use guanxi_cluster::kafka::KafkaSettings;
use guanxi_cluster::outbox::OutboxMover;
use guanxi_cluster::sql::Database;
use guanxi_model::record::EdgeRecord;
use guanxi_services::{Kafka, shared};

use crate::bench::version;
use crate::bench::{
    PATIENCE, Seen, database, on_databases, outbox_rows, put_out_in, record, topics, until,
};
use crate::relay::{random_shard, relay};

/// Left behind by the last relay: too many for one scan, and few enough to be remembered together
/// with what is written until all of them are found.
const LEFT: u64 = 9_000;
const TARGETS: u64 = 11;
/// How long the log is away: longer than the relay's client waits for its word, by some.
const AWAY: Duration = Duration::from_secs(24);

/// The change of this number, of an edge that changes again and again.
fn change(number: u64, version: u64) -> EdgeRecord {
    record(1 + number % 31, 1 + number % TARGETS, version)
}

fn rows_left(database: &Database, before: u64) -> u64 {
    let mut session = database.session(Instant::now() + PATIENCE).unwrap();
    let statement = format!("SELECT COUNT(*) FROM outbox WHERE version<{before}");
    session.rows(&statement).unwrap()[0].get(0).unwrap()
}

/// Every partition has the records of an edge, and of a target, in the order of their versions when
/// they come first. A relay whose lease ran out, as on a busy machine, may have sent some twice.
#[track_caller]
fn assert_order(seen: &Seen) {
    let mut edges = BTreeMap::new();
    let mut targets = BTreeMap::new();
    let (mut met, mut overtaken) = (BTreeSet::new(), 0);
    for EdgeRecord { key, new, .. } in &seen.records {
        if !met.insert((*key, new.version)) {
            continue;
        }
        let before = edges.insert(*key, new.version).max(targets.insert(key.target, new.version));
        overtaken += u64::from(before > Some(new.version));
    }
    assert_eq!(overtaken, 0, "of {} records so many come after newer ones", seen.records.len());
}

#[test]
fn what_was_left_behind_is_not_overtaken() {
    let Some(kafka) = shared::kafka_or_skip("order") else { return };
    on_databases("order", |database| {
        let settings = topics(kafka, 4);
        let old = version(60_000);
        let left: Vec<EdgeRecord> = (0..LEFT).map(|number| change(number, old + number)).collect();
        put_out_in(&database, &left, 1, random_shard);
        let (_leases, relay) = relay(&database, &settings);
        let outgoing = relay.outgoing();
        // Written from before the relay holds a shard until it has sent all that was left behind.
        let (mut written, deadline) = (LEFT, Instant::now() + PATIENCE);
        while rows_left(&database, old + LEFT) > 0 {
            assert!(Instant::now() < deadline, "what was left behind is not sent");
            for _ in 0..10 {
                hand_over(&database, &*outgoing, written);
                written += 1;
            }
        }
        assert_order(&all_of(&database, &settings, written));
    });
}

#[test]
fn what_the_log_failed_to_take_is_not_overtaken() {
    let Some(server) = shared::mariadb_or_skip("order after a failure") else { return };
    let Some(kafka) = Kafka::start_or_skip("order after a failure") else { return };
    let database = database(server);
    let settings = topics(&kafka, 4);
    let (_leases, relay) = relay(&database, &settings);
    let outgoing = relay.outgoing();
    let mut written = 0;
    let mut write = |time: Duration| {
        let until = Instant::now() + time;
        while Instant::now() < until {
            hand_over(&database, &*outgoing, written);
            written += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        written
    };
    write(Duration::from_secs(3));
    kafka.kill();
    write(AWAY);
    kafka.start_again();
    let written = write(Duration::from_secs(3));
    assert_order(&all_of(&database, &settings, written));
}

/// Commits the change of this number, now, and hands it to the relay.
fn hand_over(database: &Database, outgoing: &dyn OutboxMover, number: u64) {
    let new = change(number, version(0) + number);
    outgoing.committed(put_out_in(database, &[new], 1, || outgoing.shard()));
}

/// What the log has, once it has all of so many changes.
fn all_of(database: &Database, settings: &KafkaSettings, written: u64) -> Seen {
    let mut seen = Seen::of(settings);
    until("all records are in the log", || {
        seen.look();
        seen.records
            .iter()
            .map(|record| (record.key, record.new.version))
            .collect::<BTreeSet<_>>()
            .len() as u64
            >= written
    });
    until("the outbox is empty", || outbox_rows(database) == 0);
    seen.look();
    seen
}
