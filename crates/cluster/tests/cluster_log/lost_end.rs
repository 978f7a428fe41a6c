//! A log that lost records which were acknowledged, deleted from the outbox and not applied yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::applier::{AppliedLog, Applier, ApplierParts};
use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::kafka::{KafkaSettings, LogSender, Offsets, RecordMark};
use guanxi_cluster::leases::Leases;
use guanxi_cluster::relay::Relay;
use guanxi_cluster::rows::cell;
use guanxi_cluster::sql::Database;
use guanxi_core::clock::SystemClock;
use guanxi_core::crew::Crew;
use guanxi_model::places::{edge_shard, partition};
use guanxi_services::{Kafka, shared};

use crate::bench::{PATIENCE, database, encoded, leases, outbox_rows, put_out, reader, record};
use crate::bench::{topics, until, version};
use crate::lose::{log_length, lose_end};
use crate::relay::relay;

const PARTITIONS: u32 = 4;

/// Edges whose records go by the relay into the log, some of them applied.
struct Ground {
    kafka: Kafka,
    database: Arc<Database>,
    settings: KafkaSettings,
    sources: u64,
}

impl Ground {
    fn new(test: &str) -> Option<Ground> {
        let database = database(shared::mariadb_or_skip(test)?);
        let kafka = Kafka::start_or_skip(test)?;
        let settings = topics(&kafka, PARTITIONS);
        Some(Ground { kafka, database, settings, sources: 0 })
    }

    /// Commits edges and waits until the broker has all of their records.
    fn relay(&mut self, edges: u64) {
        let (leases, relay) = relay(&self.database, &self.settings);
        self.relay_by(&relay, edges);
        relay.close();
        leases.close();
    }

    fn relay_by(&mut self, relay: &Relay, edges: u64) {
        // In pieces, so that each partition has many batches.
        for _ in 0..edges / 40 {
            let sources = self.sources + 1..self.sources + 41;
            self.sources += 40;
            let records: Vec<_> = sources.map(|one| record(one, one, version(0))).collect();
            let rows: Vec<String> = records
                .iter()
                .map(|record| {
                    let (key, new) = (&record.key, &record.new);
                    let (source, target) = (key.source.0, key.target.0);
                    let (version, state, since) = (new.version.0, new.state as u8, new.since.0);
                    format!("(1,1,{source},{target},{version},{state},{since})")
                })
                .collect();
            self.run(&format!(
                "INSERT INTO outgoing (tenant,kind,source,target,version,state,since) VALUES {}",
                rows.join(",")
            ));
            put_out(&self.database, &records);
            relay.wake();
            until("the outbox is empty", || outbox_rows(&self.database) == 0);
        }
    }

    /// Another sends so much, once more, of what was applied long ago.
    fn send_by_another(&self, records: u64) {
        let sender = LogSender::open(&self.settings).unwrap();
        for number in 0..records {
            let record = record(1 + number % 40, 1 + number % 40, version(600_000));
            let part = partition(edge_shard(&record.key), PARTITIONS);
            let value = encoded(&record);
            assert!(sender.send(&self.settings.topic, part, None, &value, number).unwrap());
        }
        let mut reports = 0;
        until("the broker has all of it", || {
            let came = sender.reports(Duration::from_millis(100));
            assert!(came.iter().all(|report| report.outcome.is_ok()), "{came:?}");
            reports += came.len() as u64;
            reports == records
        });
    }

    /// Notes of what stands at this offset of each partition, as a relay may write them late.
    fn note(&self, offset: u64, mark: impl Fn(RecordMark) -> u32) {
        let mut reader = reader(&self.settings);
        let mut notes = BTreeMap::new();
        until("each partition's record is read", || {
            for taken in reader.next(1_000, Duration::from_millis(100)).unwrap() {
                if taken.offset == offset {
                    notes.insert(taken.partition, taken.after);
                }
            }
            notes.len() == PARTITIONS as usize
        });
        let topic = &self.settings.topic;
        let rows = notes.into_iter().map(|(part, after)| {
            format!("('{topic}',{part},42,{offset},{},{})", after.topic.0, mark(after.before))
        });
        let rows: Vec<String> = rows.collect();
        self.run(&format!(
            "INSERT INTO acknowledged (topic,part,writer,position,topic_id,mark) VALUES {}",
            rows.join(",")
        ));
    }

    fn applier(&self) -> (Arc<Leases>, Applier) {
        let leases = leases(&self.database);
        let applier = Applier::start(ApplierParts {
            crew: Crew::default(),
            database: self.database.clone(),
            catalog: SharedCatalog::open(&self.database).unwrap(),
            clock: Arc::new(SystemClock),
            leases: leases.clone(),
            kafka: self.settings.clone(),
            log: AppliedLog::Outbox,
            threads: 2,
        });
        (leases, applier.unwrap())
    }

    fn ends(&self) -> u64 {
        let offsets = Offsets::open(&self.settings).unwrap();
        let mut sum = None;
        // A broker that has just started tells of its ends when it leads the partitions again.
        until("the broker tells its ends", || {
            let ends = offsets.all(&self.settings.topic, PARTITIONS).ok();
            sum = ends.map(|ends| ends.iter().map(|ends| ends.end).sum());
            sum.is_some()
        });
        sum.unwrap()
    }

    #[track_caller]
    fn wait_applied(&self) {
        let end = self.ends();
        until("all is applied", || self.number("SELECT SUM(next) FROM applied") == end);
    }

    fn lengths(&self) -> Vec<u64> {
        let length = |part| log_length(&self.kafka, &self.settings.topic, part);
        (0..PARTITIONS).map(length).collect()
    }

    fn apply_all(&self) {
        let (leases, applier) = self.applier();
        self.wait_applied();
        applier.close();
        leases.close();
    }

    #[track_caller]
    fn rebuild_all(&self) {
        let (leases, applier) = self.applier();
        self.wait_rebuilt(&applier);
        applier.close();
        leases.close();
    }

    /// Between what was applied and the log's end, all of it acknowledged.
    fn lose_some_unapplied(&mut self) {
        self.relay(200);
        self.apply_all();
        self.relay(200);
        let lengths = self.lengths();
        self.relay(400);
        lose_end(&self.kafka, &self.settings.topic, &lengths);
        assert!(self.ends() < 800);
    }

    fn run(&self, statements: &str) {
        let mut session = self.database.session(Instant::now() + PATIENCE).unwrap();
        session.run(&format!("BEGIN;{statements};COMMIT")).unwrap();
    }

    fn number(&self, statement: &str) -> u64 {
        let mut session = self.database.session(Instant::now() + PATIENCE).unwrap();
        let statement = format!("SELECT CAST(({statement}) AS UNSIGNED)");
        cell(&session.rows(&statement).unwrap()[0], 0).unwrap()
    }

    #[track_caller]
    fn wait_rebuilt(&self, applier: &Applier) {
        until("every partition is rebuilt", || applier.figures().rebuilt >= 4);
        self.wait_applied();
        assert_eq!(self.number("SELECT COUNT(*) FROM incoming"), self.sources);
        until("what was acknowledged was read past", || {
            self.number("SELECT COUNT(*) FROM acknowledged") == 0
        });
        assert_eq!(applier.figures().rebuilt, 4);
    }
}

#[test]
fn a_lost_end_above_what_was_applied_is_noticed_though_the_log_grew_again() {
    let test = "a_lost_end_above_what_was_applied_is_noticed_though_the_log_grew_again";
    let Some(mut ground) = Ground::new(test) else { return };
    ground.lose_some_unapplied();
    ground.relay(800);
    ground.rebuild_all();
}

#[test]
fn a_lost_end_above_what_was_applied_is_noticed_though_nobody_sends_more() {
    let test = "a_lost_end_above_what_was_applied_is_noticed_though_nobody_sends_more";
    let Some(mut ground) = Ground::new(test) else { return };
    ground.lose_some_unapplied();
    ground.rebuild_all();
}

/// What was acknowledged and is still there costs no rebuild, nor does it gather.
#[test]
fn a_log_that_lost_nothing_is_not_rebuilt() {
    let test = "a_log_that_lost_nothing_is_not_rebuilt";
    let Some(mut ground) = Ground::new(test) else { return };
    ground.relay(200);
    let (leases, applier) = ground.applier();
    ground.relay(200);
    ground.wait_applied();
    until("what was acknowledged was read past", || {
        ground.number("SELECT COUNT(*) FROM acknowledged") == 0
    });
    ground.relay(40);
    ground.wait_applied();
    assert_eq!(applier.figures().rebuilt, 0);
    assert_eq!(ground.number("SELECT COUNT(*) FROM incoming"), 440);
    applier.close();
    leases.close();
}

/// A relay sends this much before the log's end is lost and more after it, while others let the log
/// grow past its old end.
fn one_of_two_relays_loses_its_last(test: &str, sent_before: u64) {
    let Some(mut ground) = Ground::new(test) else { return };
    ground.relay(200);
    ground.apply_all();
    let (relay_leases, relay) = relay(&ground.database, &ground.settings);
    if sent_before > 0 {
        ground.relay_by(&relay, sent_before);
    }
    let lengths = ground.lengths();
    ground.relay_by(&relay, 200);
    lose_end(&ground.kafka, &ground.settings.topic, &lengths);
    ground.send_by_another(800);
    ground.relay_by(&relay, 200);
    relay.close();
    relay_leases.close();
    ground.rebuild_all();
}

/// A broker takes whatever a sender sends of whom it has nothing left; and when others have let the
/// log grow meanwhile, no offset goes back.
#[test]
fn a_loss_of_all_that_one_of_two_relays_sent_is_noticed_though_it_goes_on() {
    let test = "a_loss_of_all_that_one_of_two_relays_sent_is_noticed_though_it_goes_on";
    one_of_two_relays_loses_its_last(test, 0);
}

/// The same where some of it is left, so that the broker itself sees that something is missing.
#[test]
fn a_loss_of_some_that_one_of_two_relays_sent_is_noticed_though_it_goes_on() {
    let test = "a_loss_of_some_that_one_of_two_relays_sent_is_noticed_though_it_goes_on";
    one_of_two_relays_loses_its_last(test, 200);
}

/// A relay may be held up between the broker's word and its note, and the log lose its end and grow
/// past it under an applier that knows of nothing.
#[test]
fn a_note_that_comes_after_its_place_was_applied_is_compared() {
    let test = "a_note_that_comes_after_its_place_was_applied_is_compared";
    let Some(mut ground) = Ground::new(test) else { return };
    let another = |mark: RecordMark| mark.0 ^ 1;
    let read_past = |ground: &Ground| {
        until("what was acknowledged was read past", || {
            ground.number("SELECT COUNT(*) FROM acknowledged") == 0
        });
    };
    ground.relay(200);
    let (leases, applier) = ground.applier();
    ground.wait_applied();
    ground.note(2, |mark| mark.0);
    read_past(&ground);
    assert_eq!(applier.figures().rebuilt, 0, "it stands there");
    ground.note(3, another);
    ground.wait_rebuilt(&applier);
    applier.close();
    leases.close();

    // One that comes after does not remember what was applied.
    ground.note(2, |mark| mark.0);
    let (leases, applier) = ground.applier();
    read_past(&ground);
    assert_eq!(applier.figures().rebuilt, 0, "it stands there");
    applier.close();
    leases.close();
    ground.note(3, another);
    ground.rebuild_all();
}
