//! Batches that mix new, standing, removed and repeated edges, held against a fold in memory after
//! each of them, whichever way they learn what stands.

use std::collections::BTreeMap;

use guanxi_cluster::applier::{Slice, Way};
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{EdgeKey, EdgeRow, KindId, Millis, State, Version};

use super::history::{Log, edge, record, row};
use super::world::{FOLLOW, LIKE, QUIET, World, each_server};

/// Records as sources make them: each tells what stood before it.
fn told(random: &mut fastrand::Rng, changes: u64) -> Vec<EdgeRecord> {
    let mut standing: BTreeMap<EdgeKey, EdgeRow> = BTreeMap::new();
    let mut one = |version: u64| {
        let kind = [FOLLOW, LIKE, QUIET][random.usize(..3)];
        // Some edges change again and again, most only once.
        let sources = if random.bool() { 4 } else { 4_000 };
        let key = edge(kind, random.u64(1..=sources), random.u64(1..=6));
        let old = standing.get(&key).filter(|row| row.state != State::Removed).cloned();
        let (cause, new) = match (random.u8(..6), &old) {
            (0..=1, Some(_)) => {
                (Cause::Delete, EdgeRow::removed(Version(version << 8), Millis(version)))
            }
            (2, _) => (Cause::Put, row(version << 8, State::Pending, None)),
            (3, _) => (Cause::Import, row(version << 8, State::Live, None)),
            _ => {
                let owner = (kind == LIKE).then(|| random.u64(1..=3));
                (Cause::Put, row(version << 8, State::Live, owner))
            }
        };
        standing.insert(key, new.clone());
        EdgeRecord { cause, old, ..record(key, new) }
    };
    (1..=changes).map(&mut one).collect()
}

/// Some once more, many not in their order.
fn disturbed(random: &mut fastrand::Rng, mut records: Vec<EdgeRecord>) -> Vec<EdgeRecord> {
    for _ in 0..records.len() / 4 {
        let again = records[random.usize(..records.len())].clone();
        records.insert(random.usize(..=records.len()), again);
    }
    for some in records.chunks_mut(30) {
        if random.bool() {
            random.shuffle(some);
        }
    }
    records
}

/// The fold in memory: the newest row of each edge, and the records that came late or twice.
#[derive(Default)]
struct Newest {
    edges: BTreeMap<EdgeKey, EdgeRow>,
    stale: u64,
}

impl Newest {
    fn take(&mut self, log: &Log, slice: &Slice) {
        let records =
            &log.0[&slice.partition][slice.expected.next as usize..slice.next.next as usize];
        for EdgeRecord { key, new, .. } in records {
            match self.edges.get(key) {
                Some(row) if row.version >= new.version => self.stale += 1,
                _ => {
                    self.edges.insert(*key, new.clone());
                }
            }
        }
    }
}

#[test]
fn mixed_batches_end_as_a_fold_in_memory() {
    each_server("mixed_batches_end_as_a_fold_in_memory", |world| {
        for seed in 0..8 {
            let mut random = fastrand::Rng::with_seed(seed);
            let records = told(&mut random, 300);
            let log = Log::of(world, disturbed(&mut random, records));
            world.run("DELETE FROM incoming;DELETE FROM tally;UPDATE applied SET next=0");
            let (mut newest, mut stale) = (Newest::default(), 0);
            let mut next: BTreeMap<u32, u64> = log.0.keys().map(|part| (*part, 0)).collect();
            while next.iter().any(|(part, next)| *next < log.end(*part)) {
                let mut slices = Vec::new();
                for (part, next) in &mut next {
                    let slice = log.slice(*part, *next, random.usize(1..60));
                    *next = slice.next.next;
                    slices.push(slice);
                }
                slices.retain(|slice| !slice.items.is_empty());
                let way = if random.u8(..4) == 0 { Way::Looking } else { Way::Foreseeing };
                let applied = world.apply_by(way, &slices).unwrap();
                slices.iter().for_each(|slice| newest.take(&log, slice));
                stale += applied.stale;
                assert_eq!((applied.foreign, stale), (vec![], newest.stale), "seed {seed}");
                world.assert_incoming(&newest.edges);
            }
        }
    });
}

#[test]
fn a_foreign_partition_leaves_nothing() {
    each_server("a_foreign_partition_leaves_nothing", |world| {
        let records = told(&mut fastrand::Rng::with_seed(31), 300);
        let log = Log::of(world, records);
        let slices: Vec<Slice> = (0..4).map(|part| log.slice(part, 0, 1_000)).collect();
        world.run("UPDATE applied SET next=5");
        let applied = world.apply(&slices).unwrap();
        assert_eq!((applied.foreign, applied.records), (vec![0, 1, 2, 3], 0));
        world.assert_incoming(&BTreeMap::new());
        world.run("UPDATE applied SET next=0 WHERE part IN (1,3)");
        let applied = world.apply(&slices).unwrap();
        assert_eq!((applied.foreign, applied.records), (vec![0, 2], log.end(1) + log.end(3)));
        let mut newest = Newest::default();
        newest.take(&log, &slices[1]);
        newest.take(&log, &slices[3]);
        world.assert_incoming(&newest.edges);
        assert_eq!(world.number("SELECT COUNT(*) FROM applied WHERE next=5"), 2);
    });
}

#[test]
fn a_batch_that_fails_after_its_insertions_leaves_nothing() {
    each_server("a_batch_that_fails_after_its_insertions_leaves_nothing", |world| {
        let unknown = record(edge(KindId(40), 1, 2), row(256, State::Live, None));
        let mut records = told(&mut fastrand::Rng::with_seed(32), 200);
        records.push(unknown);
        let log = Log::of(world, records);
        let slices: Vec<Slice> = (0..4).map(|part| log.slice(part, 0, 1_000)).collect();
        world.apply(&slices).unwrap_err();
        // Whoever uses the connections next does not commit what another left.
        for _ in 0..8 {
            world.run("UPDATE applied SET next=next");
        }
        world.assert_incoming(&BTreeMap::new());
        assert_eq!(world.number("SELECT SUM(next) FROM applied"), 0);
    });
}

/// Rows that the table refuses are no rows that stand.
#[test]
fn a_refused_row_is_an_error_and_not_one_that_stood() {
    each_server("a_refused_row_is_an_error_and_not_one_that_stood", |world: &World| {
        let refused = "ALTER TABLE incoming ADD CONSTRAINT picky CHECK (source<>666)";
        world.session_run(refused).unwrap();
        let key = edge(FOLLOW, 666, 5);
        let log = Log::of(world, [record(key, row(256, State::Live, None))]);
        let applied = world.apply(&[log.slice(world.partition(&key), 0, 1)]);
        // Not every server looks at such constraints.
        if let Err(error) = applied {
            assert_eq!(error.code(), Some(4025), "{error}");
            world.assert_incoming(&BTreeMap::new());
        }
    });
}
