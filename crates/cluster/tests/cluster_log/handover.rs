//! Rows that a committer hands to the relay of its process, and rows that cannot be read.

use std::sync::Arc;
use std::time::Instant;

use guanxi_cluster::barrier::{self, ALL_SHARDS};
use guanxi_cluster::sql::Database;
use guanxi_model::kind::KindName;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{EdgeKey, Kind, KindId};
use guanxi_services::shared;

use crate::bench::{PATIENCE, Seen, create_kind, insert, kind, on_databases, outbox_rows, packed};
use crate::bench::{put_out, put_out_in, record, topics, until, version};
use crate::relay::relay;

fn records(sources: std::ops::Range<u64>) -> Vec<EdgeRecord> {
    sources.map(|source| record(source, source * 7, version(0))).collect()
}

/// Of a kind that nobody has created yet.
fn of_new_kind(source: u64) -> EdgeRecord {
    let record = record(source, source, version(0));
    EdgeRecord { key: EdgeKey { kind: KindId(9), ..record.key }, ..record }
}

fn new_kind() -> Kind {
    Kind { id: KindId(9), name: KindName::new("late").unwrap(), ..kind() }
}

/// Waits until the relay holds every shard; it learns of it a moment later.
fn until_held(database: &Arc<Database>) {
    until("the relay holds its shards", || {
        let mut session = database.session(Instant::now() + PATIENCE).unwrap();
        let held = "SELECT COUNT(*) FROM leases WHERE name LIKE 'outbox/%' AND until_ms>0";
        session.rows(held).unwrap()[0].get::<u64, usize>(0) == Some(64)
    });
}

#[test]
fn what_is_handed_over_needs_no_scan() {
    let Some(kafka) = shared::kafka_or_skip("handed over") else { return };
    on_databases("handed over", |database| {
        let settings = topics(kafka, 4);
        let (_leases, relay) = relay(&database, &settings);
        let outgoing = relay.outgoing();
        let mut seen = Seen::of(&settings);
        until_held(&database);
        // These stand in no table: nothing but the hand-over can bring them. The relay learns of
        // its shards a moment after the table does, so they are handed over until they come.
        let rows = packed(&records(1..101), 10, || outgoing.shard());
        until("the rows come", || {
            outgoing.committed(rows.iter().map(|(row, _)| row.clone()).collect());
            seen.look();
            (1..101).all(|source| seen.edges.contains_key(&source))
        });
        // As after a crash between the broker's word and the deletion: they are sent once more.
        let before: usize = seen.edges.values().map(Vec::len).sum();
        insert(&database, &rows);
        relay.wake();
        until("the outbox is empty", || outbox_rows(&database) == 0);
        until("they are sent once more", || {
            seen.look();
            seen.edges.values().map(Vec::len).sum::<usize>() >= before + 100
        });
    });
}

#[test]
fn what_is_too_much_to_be_handed_over_is_found() {
    let Some(kafka) = shared::kafka_or_skip("too much") else { return };
    on_databases("too much", |database| {
        let settings = topics(kafka, 4);
        let (_leases, relay) = relay(&database, &settings);
        let outgoing = relay.outgoing();
        until_held(&database);
        // At once, and more than twice what a relay takes at once.
        let rows = put_out_in(&database, &records(1..40_001), 1_000, || outgoing.shard());
        outgoing.committed(rows);
        let mut seen = Seen::of(&settings);
        seen.has_all(1..40_001);
        until("the outbox is empty", || outbox_rows(&database) == 0);
    });
}

#[test]
fn a_barrier_waits_for_what_is_handed_over() {
    let Some(kafka) = shared::kafka_or_skip("handed barrier") else { return };
    on_databases("handed barrier", |database| {
        let settings = topics(kafka, 4);
        let (_leases, relay) = relay(&database, &settings);
        let outgoing = relay.outgoing();
        let mut seen = Seen::of(&settings);
        until_held(&database);
        put_out(&database, &records(1..50));
        seen.has_all(1..50);
        // Its kind keeps it on its way: nobody knows it yet.
        let rows = put_out_in(&database, &[of_new_kind(1_000)], 1, || outgoing.shard());
        let shard = rows[0].key.shard;
        outgoing.committed(rows);
        let id = barrier::raise(&database, Instant::now() + PATIENCE).unwrap();
        relay.wake();
        let others = ALL_SHARDS & !(1 << shard);
        seen.has_barrier(id, others);
        // What comes later does not wait for it, and neither does another barrier of other shards.
        put_out(&database, &records(100..200));
        seen.has_all(100..200);
        assert!(seen.has_barrier_only(id, others), "it went too soon");
        create_kind(&database, &new_kind());
        seen.has_barrier(id, ALL_SHARDS);
        let (part, offset) = seen.edges[&1_000][0];
        assert!(Some(offset) < seen.barrier_place(id, part, shard));
        until("the outbox is empty", || outbox_rows(&database) == 0);
    });
}

#[test]
fn a_row_that_cannot_be_read_stops_no_other() {
    let Some(kafka) = shared::kafka_or_skip("unreadable") else { return };
    on_databases("unreadable", |database| {
        let settings = topics(kafka, 4);
        let run = |statement: &str| {
            let mut session = database.session(Instant::now() + PATIENCE).unwrap();
            session.run(statement).unwrap();
        };
        // Nonsense, a later format, half a row and one with a record too few, all in shard 5.
        let (_, value) = packed(&records(1..3), 2, || 5).remove(0);
        let hex = |value: &[u8]| value.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let bad = [&b"nonsense"[..], &[7, 1], &value[..value.len() - 1], &value];
        for (id, value) in bad.iter().enumerate() {
            run(&format!("INSERT INTO outbox VALUES (5,{},{id},NULL,3,x'{}')", 1 + id, hex(value)));
        }
        put_out_in(&database, &records(10..110), 5, || 5);
        let (_leases, relay) = relay(&database, &settings);
        let mut seen = Seen::of(&settings);
        seen.has_all(10..110);
        let id = barrier::raise(&database, Instant::now() + PATIENCE).unwrap();
        relay.wake();
        put_out_in(&database, &records(200..300), 5, || 5);
        seen.has_all(200..300);
        let others = ALL_SHARDS & !(1 << 5);
        seen.has_barrier(id, others);
        assert!(seen.has_barrier_only(id, others), "it passed what cannot be read");
        until("what can be read is gone", || outbox_rows(&database) == 5);
        until("the others count as lag", || relay.lag().records == 12);
        // Somebody clears them away.
        run("DELETE FROM outbox WHERE shard=5 AND version<100");
        seen.has_barrier(id, ALL_SHARDS);
        until("the outbox is empty", || outbox_rows(&database) == 0);
        until("no lag is told", || relay.lag().records == 0);
        assert!(!seen.edges.contains_key(&1), "nothing of half a row is sent");
    });
}
