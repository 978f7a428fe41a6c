//! Records in any order, any number of times, by any partition, from two owners at once.

use std::sync::atomic::{AtomicU64, Ordering};

use guanxi_cluster::applier::BatchOutcome;
use guanxi_model::{EdgeRow, Millis, State};

use super::history::{History, Log, edge, history, nth, record, row};
use super::world::{FOLLOW, LIKE, World, each_server};

#[test]
fn any_order_and_any_repetition_ends_as_outgoing_contributes() {
    each_server("any_order_and_any_repetition_ends_as_outgoing_contributes", |world| {
        for seed in 0..6 {
            let mut random = fastrand::Rng::with_seed(seed);
            let History { mut records, outgoing } = history(&mut random, 400);
            let again: Vec<_> = records.iter().filter(|_| random.u8(..3) == 0).cloned().collect();
            records.extend(again);
            random.shuffle(&mut records);
            let mut log = Log::of(world, records);
            // Every second time records also come by partitions that are not theirs.
            if seed % 2 == 1 {
                let astray: Vec<_> = log.0.values().flatten().cloned().collect();
                for record in astray {
                    log.0.entry(random.u32(..4)).or_default().push(record);
                }
            }
            world.run("DELETE FROM incoming;DELETE FROM tally;DELETE FROM outgoing");
            world.run("UPDATE applied SET next=0");
            world.put_outgoing(&outgoing);
            log.apply_all(world, &mut random);
            world.assert_target_side();
        }
    });
}

/// Applies one record alone.
fn apply_next(
    world: &World,
    log: &mut Log,
    record: guanxi_model::record::EdgeRecord,
) -> BatchOutcome {
    let partition = world.partition(&record.key);
    let from = log.end(partition);
    log.0.entry(partition).or_default().push(record);
    world.apply(&[log.slice(partition, from, 1)]).unwrap()
}

fn incoming_tally(world: &World, target: u64) -> i64 {
    world.number(&format!("SELECT COALESCE(SUM(incoming),0) FROM tally WHERE node={target}"))
}

#[test]
fn a_removal_before_its_put_leaves_the_tally_at_zero() {
    each_server("a_removal_before_its_put_leaves_the_tally_at_zero", |world| {
        let key = edge(FOLLOW, 7, 9);
        let mut log = Log::default();
        let removed = EdgeRow::removed(nth(2), Millis(5));
        apply_next(world, &mut log, record(key, removed.clone()));
        assert_eq!(incoming_tally(world, 9), 0);
        let late = apply_next(world, &mut log, record(key, row(nth(1).0, State::Live, None)));
        assert_eq!((late.stale, incoming_tally(world, 9)), (1, 0));
        world.put_outgoing(&[(key, removed)].into_iter().collect());
        world.assert_target_side();
    });
}

#[test]
fn a_removal_between_two_puts_that_comes_last_removes_nothing() {
    each_server("a_removal_between_two_puts_that_comes_last_removes_nothing", |world| {
        let key = edge(FOLLOW, 7, 9);
        let last = row(nth(3).0, State::Live, None);
        let mut log = Log::default();
        apply_next(world, &mut log, record(key, row(nth(1).0, State::Live, None)));
        apply_next(world, &mut log, record(key, last.clone()));
        let removed = EdgeRow::removed(nth(2), Millis(5));
        apply_next(world, &mut log, record(key, removed));
        assert_eq!(incoming_tally(world, 9), 1);
        world.put_outgoing(&[(key, last)].into_iter().collect());
        world.assert_target_side();
    });
}

#[test]
fn one_batch_may_hold_an_edge_and_a_target_many_times() {
    each_server("one_batch_may_hold_an_edge_and_a_target_many_times", |world| {
        let mut outgoing = std::collections::BTreeMap::new();
        let mut records = Vec::new();
        for source in 1..=300 {
            let key = edge(LIKE, source, 9);
            for version in 1..=3 {
                let new = row(nth(version).0, State::Live, Some(version + source % 2));
                outgoing.insert(key, new.clone());
                records.push(record(key, new));
            }
        }
        let log = Log::of(world, records);
        let partition = world.partition(&edge(LIKE, 1, 9));
        world.apply(&[log.slice(partition, 0, 900)]).unwrap();
        world.put_outgoing(&outgoing);
        world.assert_target_side();
        // The target's row, and one for each of the owners that stayed.
        assert_eq!(world.number("SELECT COUNT(*) FROM tally"), 3);
        assert_eq!(world.number("SELECT MAX(revision) FROM tally"), 1);
    });
}

#[test]
fn two_owners_of_a_partition_apply_each_record_once() {
    each_server("two_owners_of_a_partition_apply_each_record_once", |world| {
        let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(3), 1_500);
        world.put_outgoing(&outgoing);
        let log = Log::of(world, records);
        let total: u64 = log.0.values().map(|records| records.len() as u64).sum();
        let (applied, foreign) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for owner in 0..2 {
                let (log, applied, foreign) = (&log, &applied, &foreign);
                scope.spawn(move || {
                    let done = drive(world, log, 25 + 10 * owner);
                    applied.fetch_add(done.records, Ordering::Relaxed);
                    foreign.fetch_add(done.foreign.len() as u64, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(applied.into_inner(), total);
        world.assert_target_side();
    });
}

#[test]
fn a_foreign_position_stops_its_partition_alone() {
    each_server("a_foreign_position_stops_its_partition_alone", |world| {
        let History { records, .. } = history(&mut fastrand::Rng::with_seed(4), 300);
        let log = Log::of(world, records);
        world.run("UPDATE applied SET next=5 WHERE part=1");
        let slices: Vec<_> = (0..4).map(|partition| log.slice(partition, 0, 1_000)).collect();
        let applied = world.apply(&slices).unwrap();
        assert_eq!(applied.foreign, vec![1]);
        assert_eq!(applied.records, log.end(0) + log.end(2) + log.end(3));
        assert_eq!(world.number("SELECT next FROM applied WHERE part=1"), 5);
        let theirs = log.0[&1].iter().map(|record| record.key);
        for key in theirs {
            let place = format!("source={} AND target={}", key.source.0, key.target.0);
            let kind = key.kind.0;
            let found = world
                .number(&format!("SELECT COUNT(*) FROM incoming WHERE {place} AND kind={kind}"));
            assert_eq!(found, 0, "{key:?}");
        }
    });
}

/// An owner that slept while the log was made anew meets its own offset again, not its position.
#[test]
fn a_position_of_another_lineage_is_foreign() {
    each_server("a_position_of_another_lineage_is_foreign", |world| {
        let History { records, .. } = history(&mut fastrand::Rng::with_seed(5), 300);
        let log = Log::of(world, records);
        for other in ["topic_id=7", "mark=7"] {
            world.run(&format!("UPDATE applied SET topic_id=0,mark=0,{other} WHERE part=1"));
            let applied = world.apply(&[log.slice(1, 0, 1_000)]).unwrap();
            assert_eq!((applied.foreign, applied.records), (vec![1], 0), "{other}");
            assert_eq!(world.number("SELECT next FROM applied WHERE part=1"), 0, "{other}");
        }
    });
}

/// An owner: applies from the stored positions until all is applied. Errors only make it look
/// again, as an applier does.
pub fn drive(world: &World, log: &Log, records_max: usize) -> BatchOutcome {
    let deadline = std::time::Instant::now() + super::world::PATIENCE;
    let mut done = BatchOutcome::default();
    loop {
        assert!(std::time::Instant::now() < deadline, "not all was applied");
        let Ok(mut session) = world.database.session(deadline) else { continue };
        let Ok(found) = session.rows("SELECT part,next FROM applied WHERE topic='records'") else {
            continue;
        };
        drop(session);
        let positions = found.iter().map(|row| {
            let cell = |index| guanxi_cluster::rows::cell::<u64>(row, index).unwrap();
            (cell(0) as u32, cell(1))
        });
        let slices: Vec<_> = positions
            .filter(|(partition, next)| *next < log.end(*partition))
            .map(|(partition, next)| log.slice(partition, next, records_max))
            .collect();
        if slices.is_empty() {
            return done;
        }
        if let Ok(applied) = world.apply(&slices) {
            done.records += applied.records;
            done.stale += applied.stale;
            done.foreign.extend(applied.foreign);
        }
    }
}
