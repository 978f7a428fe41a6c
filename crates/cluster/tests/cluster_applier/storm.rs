//! A storm on one target beside quiet traffic on others: run as `measure.rs` says.

use std::time::{Duration, Instant};

use guanxi_cluster::applier::AppliedLog;
use guanxi_model::State;
use guanxi_services::fresh_database;

use super::history::{edge, record, row};
use super::topic::{Topic, servers};
use super::world::{FOLLOW, World, wait_until};

const PROBES: u64 = 80;
const STORM: u64 = 50_000;

/// From the sending until the row is there, for one record after another.
fn probe(world: &World, topic: &Topic, base: u64) -> Vec<Duration> {
    let mut latencies: Vec<Duration> = (base..base + PROBES)
        .map(|number| {
            let key = edge(FOLLOW, number, number);
            let begun = Instant::now();
            topic.send_records(world, &[record(key, row(256, State::Live, None))]);
            wait_until("the probe is applied", || {
                world.number(&format!("SELECT COUNT(*) FROM incoming WHERE target={number}")) == 1
            });
            begun.elapsed()
        })
        .collect();
    latencies.sort_unstable();
    latencies
}

#[test]
#[ignore = "a measurement"]
fn measure_a_storm_beside_quiet_traffic() {
    let Some((mariadb, kafka)) = servers("measure_a_storm_beside_quiet_traffic") else { return };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    probe(&world, &topic, 1_000_000);
    let quiet = probe(&world, &topic, 2_000_000);
    let storm: Vec<_> = (0..STORM)
        .map(|source| record(edge(FOLLOW, source, 7), row(256, State::Live, None)))
        .collect();
    let begun = Instant::now();
    let stormy = std::thread::scope(|scope| {
        scope.spawn(|| {
            let own = topic.another();
            own.send_records(&world, &storm);
        });
        probe(&world, &topic, 3_000_000)
    });
    topic.wait_applied(&world, &topic.settings.topic, 4);
    let show = |latencies: &[Duration]| {
        format!(
            "half {:?}, 95 % {:?}",
            latencies[latencies.len() / 2],
            latencies[latencies.len() * 95 / 100]
        )
    };
    eprintln!("quiet: {}", show(&quiet));
    eprintln!("storm: {}; over after {:?}", show(&stormy), begun.elapsed());
    running.close();
}
