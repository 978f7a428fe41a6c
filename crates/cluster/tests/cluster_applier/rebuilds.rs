//! A rebuild by itself: it ends on a database that fails again and again, and what waited for the
//! log that is gone comes to its end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::applier::{LostPartitions, Rebuilt, rebuild};
use guanxi_cluster::barrier;
use guanxi_cluster::kafka::{LogPosition, TopicId};
use guanxi_cluster::sql::Database;
use guanxi_model::State;
use guanxi_services::{fresh_database, shared};

use super::history::{edge, nth, row};
use super::proxy::{Proxy, server_port, through};
use super::world::{FOLLOW, PATIENCE, World, each_server};

const ANEW: TopicId = TopicId(5);
/// Many times what a rebuild settles at once.
const EDGES: u64 = 9_000;
/// Requests between two cuts: far fewer than a rebuild makes.
const CUT_EVERY: i64 = 9;

/// These partitions of the topic that is gone.
fn behind(partitions: std::ops::Range<u32>) -> LostPartitions {
    let from = partitions.clone().map(|part| (part, 0.into())).collect();
    let to = partitions.map(|part| (part, LogPosition::at(0, ANEW))).collect();
    LostPartitions::new(from, to)
}

fn patient(pause: Duration) -> bool {
    std::thread::sleep(pause);
    false
}

#[test]
fn a_rebuild_whose_connections_are_cut_again_and_again_comes_to_its_end() {
    let test = "a_rebuild_whose_connections_are_cut_again_and_again_comes_to_its_end";
    let Some(mariadb) = shared::mariadb_or_skip(test) else { return };
    let world = World::on(&fresh_database(mariadb));
    let edges: BTreeMap<_, _> = (0..EDGES)
        .map(|id| (edge(FOLLOW, id, id % 97), row(nth(id + 1).0, State::Live, None)))
        .collect();
    world.put_outgoing(&edges);
    let proxy = Proxy::before(server_port(&world.url));
    let database = Database::open(&through(&proxy, &world.url), 4).unwrap();
    let catalog = world.catalog.current();
    let ended = AtomicBool::new(false);
    let rebuilt = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut before = u64::MAX;
            while !ended.load(Ordering::Relaxed) {
                if proxy.cuts() != before {
                    before = proxy.cuts();
                    proxy.cut_after(CUT_EVERY, before.is_multiple_of(2));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let rebuilt = rebuild(&database, &catalog, &world.place, &behind(0..4), &patient);
        ended.store(true, Ordering::Relaxed);
        rebuilt
    });
    assert!(matches!(rebuilt, Ok(Rebuilt::Done { .. })), "{rebuilt:?}");
    assert!(proxy.cuts() >= 3, "{} cuts", proxy.cuts());
    world.assert_target_side();
    let moved = format!("SELECT COUNT(*) FROM applied WHERE topic_id={}", ANEW.0);
    assert_eq!(world.number(&moved), 4);
}

#[test]
fn barriers_that_went_with_the_log_pass_when_all_is_rebuilt() {
    each_server("barriers_that_went_with_the_log_pass_when_all_is_rebuilt", |world| {
        let soon = || Instant::now() + PATIENCE;
        let passed = |id| barrier::passed(&world.database, id, 4, soon()).unwrap();
        let catalog = world.catalog.current();
        let rebuilt = |partitions| {
            let behind = behind(partitions);
            let done = rebuild(&world.database, &catalog, &world.place, &behind, &patient);
            assert!(matches!(done, Ok(Rebuilt::Done { .. })), "{done:?}");
        };
        let first = barrier::raise(&world.database, soon()).unwrap();
        rebuilt(0..3);
        assert!(!passed(first), "a partition has not been rebuilt");
        let second = barrier::raise(&world.database, soon()).unwrap();
        rebuilt(3..4);
        assert!(passed(first));
        assert!(!passed(second), "it was raised after most were rebuilt");
    });
}
