//! The relay and barriers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_engine::cluster::barrier;
use guanxi_engine::cluster::kafka::KafkaSettings;
use guanxi_engine::cluster::leases::Leases;
use guanxi_engine::cluster::places::{SHARDS, edge_shard, partition};
use guanxi_engine::cluster::relay::Relay;
use guanxi_engine::cluster::sql::Database;
use guanxi_model::record::EdgeRecord;
use guanxi_services::{Kafka, shared};

use crate::bench::{PATIENCE, Seen, database, leases, on_databases, outbox_rows, put_out};
use crate::bench::{record, topics, until, version};

fn relay(database: &Arc<Database>, settings: &KafkaSettings) -> (Arc<Leases>, Relay) {
    let leases = leases(database);
    let relay = Relay::start(database.clone(), settings.clone(), &leases).unwrap();
    (leases, relay)
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
            put_out(&database, &records(next..next + 100, 300));
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
        until("no lag is told", || first.lag().rows == 0);
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
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut next = 1;
            while !ends.load(Ordering::SeqCst) {
                put_out(&database, &records(next..next + 50, 100));
                relay.wake();
                next += 50;
                std::thread::sleep(Duration::from_millis(20));
            }
            next
        });
        let pause = |seconds| std::thread::sleep(Duration::from_secs(seconds));
        pause(2);
        kafka.pause();
        pause(3);
        kafka.resume();
        pause(1);
        kafka.kill();
        pause(2);
        kafka.start_again();
        ends.store(true, Ordering::SeqCst);
        writer.join().unwrap()
    });
    let mut seen = Seen::of(&settings);
    seen.has_all(1..written);
    until("the outbox is empty", || outbox_rows(&database) == 0);
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
            put_out(&database, &late);
            let id = barrier::raise(&database, Instant::now() + PATIENCE).unwrap();
            relay.wake();
            until("the barrier is in every shard", || {
                seen.look();
                (0..SHARDS).all(|shard| seen.barriers.contains_key(&(id, shard)))
            });
            for record in &late {
                let shard = edge_shard(&record.key);
                let barrier = seen.barriers[&(id, shard)][0];
                let place = seen.edges.get(&record.key.source.0).map(|places| places[0]);
                assert!(
                    place.is_some_and(|place| place.0 == barrier.0 && place.1 < barrier.1),
                    "{place:?} is not before {barrier:?} of shard {shard}"
                );
            }
        }
        until("the outbox is empty", || outbox_rows(&database) == 0);
    });
}

#[test]
fn a_barrier_has_passed_when_every_shard_is_marked() {
    on_databases("barrier marks", |database| {
        let deadline = Instant::now() + PATIENCE;
        let id = barrier::raise(&database, deadline).unwrap();
        assert_ne!(barrier::raise(&database, deadline).unwrap(), id);
        let mark = |marks: &[(u64, u8)]| {
            let statement = format!("BEGIN; {}; COMMIT", barrier::mark(marks, 1));
            database.session(deadline).unwrap().run(&statement).unwrap();
        };
        let marks: Vec<(u64, u8)> = (0..SHARDS - 1).map(|shard| (id, shard)).collect();
        mark(&marks);
        mark(&marks);
        let soon = Instant::now() + Duration::from_millis(50);
        assert!(!barrier::wait(&database, id, soon).unwrap());
        mark(&[(id, SHARDS - 1)]);
        assert!(barrier::wait(&database, id, deadline).unwrap());
    });
}
