//! What a record costs: `cargo test --profile checked -p guanxi-cluster --test cluster_applier \
//! measure -- --ignored --nocapture`. The server's processor time says more than the clock on a
//! machine that does other things too.

use std::time::{Duration, Instant};

use guanxi_cluster::applier::Way;
use guanxi_model::State;
use guanxi_model::record::EdgeRecord;
use guanxi_services::{MariaDb, fresh_database, shared};

use super::history::{Log, edge, record, row};
use super::world::{FOLLOW, LIKE, World};

const RECORDS: u64 = 60_000;
const BATCH: usize = 1024;

/// Processor time that the server has used, in clock ticks of 10 ms.
fn processor_time(server: &MariaDb) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn measure(
    server: &MariaDb,
    name: &str,
    partitions: u32,
    way: Way,
    records: impl Iterator<Item = EdgeRecord>,
) {
    let mut world = World::on(&fresh_database(server));
    world.place.partitions = partitions;
    for partition in 4..partitions {
        world.run(&format!(
            "INSERT INTO applied (topic,part,next) VALUES ('records',{partition},0)"
        ));
    }
    let log = Log::of(&world, records);
    let mut next: std::collections::BTreeMap<u32, u64> =
        log.0.keys().map(|part| (*part, 0)).collect();
    let each = BATCH / next.len();
    let (mut done, mut batches) = (0, 0);
    let (begun, processor) = (Instant::now(), processor_time(server));
    loop {
        let slices: Vec<_> = next
            .iter()
            .filter(|(partition, next)| **next < log.end(**partition))
            .map(|(partition, next)| log.slice(*partition, *next, each))
            .collect();
        if slices.is_empty() {
            break;
        }
        let applied = world.apply_by(way, &slices).unwrap();
        done += applied.records;
        batches += 1;
        next.extend(slices.iter().map(|slice| (slice.partition, slice.next.next)));
    }
    let (took, used) = (begun.elapsed(), processor_time(server) - processor);
    eprintln!(
        "{name}: {:.0} records/s; the server's processor {:.1} us a record; {batches} batches",
        done as f64 / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / done as f64,
    );
}

#[test]
#[ignore = "a measurement"]
fn measure_records() {
    let Some(server) = shared::mariadb_or_skip("measure_records") else { return };
    let mut random = fastrand::Rng::with_seed(1);
    let live = |version: u64, owner| row((version + 1) << 8, State::Live, owner);
    let uniform: Vec<_> = (0..RECORDS)
        .map(|at| {
            record(edge(FOLLOW, random.u64(..100_000), random.u64(..100_000)), live(at, None))
        })
        .collect();
    let looking = Way::Looking;
    measure(server, "uniform, looking first", 16, looking, uniform.iter().cloned());
    let way = Way::Foreseeing;
    measure(server, "uniform, 64 partitions", 64, way, uniform.iter().cloned());
    measure(server, "uniform, 16 partitions", 16, way, uniform.iter().cloned());
    measure(server, "uniform, 4 partitions", 4, way, uniform.into_iter());
    let celebrity = (0..RECORDS).map(|at| record(edge(FOLLOW, at, 7), live(at, None)));
    measure(server, "celebrity", 16, way, celebrity);
    let likes = (0..RECORDS).map(|at| {
        let (post, author) = (random.u64(..20_000), random.u64(..2_000));
        record(edge(LIKE, random.u64(..100_000), post), live(at, Some(author)))
    });
    measure(server, "likes with owners", 16, way, likes);
}
