//! The order in which the log gets what one process wrote. It is a courtesy, as versions decide; but
//! a relay that takes over keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use guanxi_cluster::sql::Database;
use guanxi_model::record::EdgeRecord;
use guanxi_services::shared;

use crate::bench::version;
use crate::bench::{PATIENCE, Seen, on_databases, outbox_rows, put_out_in, record, topics, until};
use crate::relay::{random_shard, relay};

/// Left behind by the last relay: few enough for one scan, too many for one fetch.
const LEFT: u64 = 3_500;
const TARGETS: u64 = 11;

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
                let new = change(written, version(0) + written);
                outgoing.committed(put_out_in(&database, &[new], 1, || outgoing.shard()));
                written += 1;
            }
        }
        let mut seen = Seen::of(&settings);
        until("all records are in the log", || {
            seen.look();
            seen.records.len() as u64 >= written
        });
        until("the outbox is empty", || outbox_rows(&database) == 0);
        assert_order(&seen);
    });
}
