//! The relay and barriers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::barrier::{self, ALL_SHARDS, BarrierMark};
use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::kafka::KafkaSettings;
use guanxi_cluster::leases::Leases;
use guanxi_cluster::outbox::OutboxKey;
use guanxi_cluster::relay::Relay;
use guanxi_cluster::sql::Database;
use guanxi_core::crew::Crew;
use guanxi_model::places::{edge_shard, partition};
use guanxi_model::record::EdgeRecord;
use guanxi_services::{Kafka, shared};

use crate::bench::{PATIENCE, Seen, database, leases, on_databases, outbox_rows, put_out};
use crate::bench::{put_out_in, record, topics, until, version};

pub fn relay(database: &Arc<Database>, settings: &KafkaSettings) -> (Arc<Leases>, Relay) {
    let leases = leases(database);
    let catalog = SharedCatalog::open(database).unwrap();
    let relay =
        Relay::start(&Crew::default(), database.clone(), catalog, settings.clone(), &leases)
            .unwrap();
    (leases, relay)
}

pub fn random_shard() -> u8 {
    fastrand::u8(..64)
}

/// Records of these sources, each with a target and a version of its own.
fn records(sources: std::ops::Range<u64>, late_ms_max: u64) -> Vec<EdgeRecord> {
    sources
        .map(|source| {
            let late_ms = if late_ms_max == 0 { 0 } else { fastrand::u64(..late_ms_max) };
            record(source, fastrand::u64(1..5_000), version(late_ms))
        })
        .collect()
}

#[test]
fn two_relays_lose_nothing() {
    let Some(kafka) = shared::kafka_or_skip("two relays") else { return };
    on_databases("two relays", |database| {
        let settings = topics(kafka, 4);
        let (first_leases, first) = relay(&database, &settings);
        let mut second = Some(relay(&database, &settings));
        let mut next = 1;
        for round in 0..30 {
            // Half of it is handed over as well; the first relay may hold its shard or not.
            let outgoing = first.outgoing();
            let rows = records(next..next + 50, 300);
            outgoing.committed(put_out_in(&database, &rows, 5, || outgoing.shard()));
            put_out_in(&database, &records(next + 50..next + 100, 300), 10, random_shard);
            first.wake();
            next += 100;
            // The second goes in the middle, and another comes.
            if round == 10 {
                second = None;
            } else if round == 20 {
                second = Some(relay(&database, &settings));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut seen = Seen::of(&settings);
        seen.has_all(1..next);
        until("the outbox is empty", || outbox_rows(&database) == 0);
        for (source, places) in &seen.edges {
            assert!(places.len() <= 3, "source {source} came {} times", places.len());
        }
        until("no lag is told", || first.lag().records == 0);
        drop((first, second, first_leases));
    });
}

#[test]
fn records_go_to_their_targets_partitions() {
    let Some(kafka) = shared::kafka_or_skip("partitions") else { return };
    let Some(server) = shared::mariadb_or_skip("partitions") else { return };
    let database = database(server);
    let settings = topics(kafka, 16);
    let records = records(1..500, 0);
    put_out(&database, &records);
    let _relay = relay(&database, &settings);
    let mut seen = Seen::of(&settings);
    seen.has_all(1..500);
    for record in &records {
        let expected = partition(edge_shard(&record.key), 16);
        let places = &seen.edges[&record.key.source.0];
        assert!(places.iter().all(|(part, _)| *part == expected), "{places:?} not {expected}");
    }
}

#[test]
fn stragglers_are_found_however_late() {
    let Some(kafka) = shared::kafka_or_skip("stragglers") else { return };
    on_databases("stragglers", |database| {
        let settings = topics(kafka, 4);
        let (first_leases, first) = relay(&database, &settings);
        let mut seen = Seen::of(&settings);
        put_out(&database, &records(1..200, 0));
        seen.has_all(1..200);
        // Committed now, with versions of up to 50 seconds ago.
        let late: Vec<EdgeRecord> = (0..100)
            .map(|index| record(1_000 + index, 1 + index, version(1 + index * 500)))
            .collect();
        put_out(&database, &late);
        first.wake();
        seen.has_all(1_000..1_100);
        until("the outbox is empty", || outbox_rows(&database) == 0);
        // Of an hour ago: whoever takes over a shard reads all of it.
        let late: Vec<EdgeRecord> = (0..100)
            .map(|index| record(2_000 + index, 1 + index, version(3_600_000 + index)))
            .collect();
        put_out(&database, &late);
        drop((first, first_leases));
        let _second = relay(&database, &settings);
        seen.has_all(2_000..2_100);
    });
}

#[test]
fn nothing_is_lost_while_the_broker_hangs_dies_and_returns() {
    let Some(server) = shared::mariadb_or_skip("failing broker") else { return };
    let Some(kafka) = Kafka::start_or_skip("failing broker") else { return };
    let database = database(server);
    let settings = topics(&kafka, 4);
    let (_leases, relay) = relay(&database, &settings);
    let ends = AtomicBool::new(false);
    let deadline = Instant::now() + PATIENCE;
    let (written, stood) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut next = 1;
            while !ends.load(Ordering::SeqCst) && Instant::now() < deadline {
                let outgoing = relay.outgoing();
                let handed = records(next..next + 30, 100);
                outgoing.committed(put_out_in(&database, &handed, 10, || outgoing.shard()));
                put_out(&database, &records(next + 30..next + 50, 100));
                relay.wake();
                next += 50;
                std::thread::sleep(Duration::from_millis(20));
            }
            next
        });
        let pause = |seconds| std::thread::sleep(Duration::from_secs(seconds));
        pause(2);
        kafka.pause();
        pause(1);
        // What is committed from here on cannot be in the log, so it must stay.
        let outgoing = relay.outgoing();
        let kept = records(1_000_000..1_000_040, 0);
        let rows = put_out_in(&database, &kept, 4, || outgoing.shard());
        let keys: Vec<_> = rows.iter().map(|row| row.key).collect();
        outgoing.committed(rows);
        pause(2);
        let stood = standing(&database, &keys);
        kafka.resume();
        pause(1);
        kafka.kill();
        pause(2);
        kafka.start_again();
        ends.store(true, Ordering::SeqCst);
        (writer.join().unwrap(), stood)
    });
    assert_eq!(stood, 10, "a row went without the broker's word");
    let mut seen = Seen::of(&settings);
    seen.has_all((1..written).chain(1_000_000..1_000_040));
    until("the outbox is empty", || outbox_rows(&database) == 0);
}

/// How many of these rows stand in the outbox.
fn standing(database: &Database, keys: &[OutboxKey]) -> usize {
    let mut session = database.session(Instant::now() + PATIENCE).unwrap();
    let is_there = |key: &&OutboxKey| {
        let OutboxKey { shard, version, id } = key;
        let statement = format!(
            "SELECT 1 FROM outbox WHERE shard={shard} AND version={} AND id={id}",
            version.0
        );
        !session.rows(&statement).unwrap().is_empty()
    };
    keys.iter().filter(is_there).count()
}

#[test]
fn a_barrier_comes_after_all_that_was_committed_before_it() {
    let Some(kafka) = shared::kafka_or_skip("barrier") else { return };
    on_databases("barrier", |database| {
        let settings = topics(kafka, 4);
        let (_leases, relay) = relay(&database, &settings);
        let mut seen = Seen::of(&settings);
        // The first sweep is over when this is through.
        put_out(&database, &records(1..500, 0));
        seen.has_all(1..500);
        until("the outbox is empty", || outbox_rows(&database) == 0);
        for round in 1..=3_u64 {
            // Late enough that only a sweep finds them.
            let first = round * 10_000;
            let late: Vec<EdgeRecord> = (first..first + 300)
                .map(|source| record(source, source, version(3_600_000)))
                .collect();
            let rows = put_out_in(&database, &late, 3, random_shard);
            let id = barrier::raise(&database, Instant::now() + PATIENCE).unwrap();
            relay.wake();
            seen.has_barrier(id, ALL_SHARDS);
            for row in &rows {
                for record in &row.records {
                    let (part, offset) = seen.edges[&record.key.source.0][0];
                    let barrier = seen.barrier_place(id, part, row.key.shard);
                    assert!(Some(offset) < barrier, "{part} {offset} not before {barrier:?}");
                }
            }
            let messages: usize = (0..4).map(|part| seen.barriers[&(id, part)].len()).sum();
            assert!(messages <= 32, "shards are not joined: {messages} messages");
        }
        until("the outbox is empty", || outbox_rows(&database) == 0);
    });
}

#[test]
fn a_barrier_has_passed_when_every_partition_has_every_shard() {
    on_databases("barrier marks", |database| {
        let deadline = Instant::now() + PATIENCE;
        let id = barrier::raise(&database, deadline).unwrap();
        assert_ne!(barrier::raise(&database, deadline).unwrap(), id);
        let mark = |marks: &[BarrierMark]| {
            let statement = format!("BEGIN; {}; COMMIT", barrier::mark(marks, 1));
            database.session(deadline).unwrap().run(&statement).unwrap();
        };
        let passed = || barrier::passed(&database, id, 2, deadline).unwrap();
        mark(&[BarrierMark { id, partition: 0, shards: ALL_SHARDS }]);
        assert!(!passed(), "in one of two partitions");
        mark(&[BarrierMark { id, partition: 2, shards: ALL_SHARDS }]);
        assert!(!passed(), "the topic has no third partition");
        let some = [0b01, 0b10].map(|shards| BarrierMark { id, partition: 1, shards });
        mark(&some);
        mark(&some);
        let soon = Instant::now() + Duration::from_millis(50);
        assert!(!barrier::wait(&database, id, 2, soon).unwrap());
        mark(&[BarrierMark { id, partition: 1, shards: ALL_SHARDS & !0b11 }]);
        assert!(barrier::wait(&database, id, 2, deadline).unwrap());
    });
}
