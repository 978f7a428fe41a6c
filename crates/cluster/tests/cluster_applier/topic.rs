//! The whole loop: records in real topics, running appliers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guanxi_cluster::applier::{AppliedLog, Applier, ApplierParts};
use guanxi_cluster::kafka::{KafkaSettings, LogSender, Offsets};
use guanxi_cluster::leases::Leases;
use guanxi_cluster::sql::Database;
use guanxi_cluster::{barrier, value};
use guanxi_core::clock::SystemClock;
use guanxi_core::crew::Crew;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{BarrierId, Millis};
use guanxi_services::{Kafka, MariaDb, fresh_database, shared, topic_name};

use super::history::{History, history};
use super::proxy::{Proxy, server_port, through};
use super::world::{World, wait_until};

pub struct Topic {
    pub settings: KafkaSettings,
    sender: LogSender,
}

impl Topic {
    pub fn new(kafka: &Kafka, world: &mut World) -> Topic {
        let settings = KafkaSettings {
            brokers: kafka.brokers(),
            topic: topic_name("records"),
            dead_letter_topic: topic_name("dead"),
            partitions: world.place.partitions,
            security: Default::default(),
        };
        kafka.create_topic(&settings.topic, settings.partitions as u16);
        kafka.create_topic(&settings.dead_letter_topic, 1);
        world.place.topic = settings.topic.clone();
        let sender = LogSender::open(&settings).unwrap();
        Topic { settings, sender }
    }

    /// The same topic with a client of its own.
    pub fn another(&self) -> Topic {
        Topic { settings: self.settings.clone(), sender: LogSender::open(&self.settings).unwrap() }
    }

    /// Sends values and waits for the broker's word.
    pub fn send(&self, topic: &str, values: &[(u32, Vec<u8>)]) {
        let mut heard = 0;
        for (partition, value) in values {
            while !self.sender.send(topic, *partition, None, value, 0).unwrap() {
                heard += self.sender.reports(Duration::from_millis(10)).len();
            }
        }
        wait_until("the broker has all values", || {
            let reports = self.sender.reports(Duration::from_millis(100));
            assert!(reports.iter().all(|report| report.outcome.is_ok()), "{reports:?}");
            heard += reports.len();
            heard == values.len()
        });
    }

    pub fn send_records(&self, world: &World, records: &[EdgeRecord]) {
        let catalog = world.catalog.current();
        let values: Vec<(u32, Vec<u8>)> = records
            .iter()
            .map(|record| {
                let kind = catalog.kind(record.key.tenant, record.key.kind).unwrap();
                let value = value::encode(record, kind, Millis(1_760_000_000_000));
                (world.partition(&record.key), value)
            })
            .collect();
        self.send(&self.settings.topic, &values);
    }

    pub fn applier(&self, world: &World, instance: u64, log: AppliedLog) -> Running {
        self.applier_on(&world.database, world, instance, log)
    }

    fn applier_on(
        &self,
        database: &Arc<Database>,
        world: &World,
        instance: u64,
        log: AppliedLog,
    ) -> Running {
        let leases = Leases::start(&Crew::default(), world.database.clone(), instance).unwrap();
        let applier = Applier::start(ApplierParts {
            crew: Crew::default(),
            database: database.clone(),
            catalog: world.catalog.clone(),
            clock: Arc::new(SystemClock),
            leases: leases.clone(),
            kafka: self.settings.clone(),
            log,
            threads: 2,
        });
        Running { applier: applier.unwrap(), leases }
    }

    /// Waits until everything that a topic has now is applied.
    #[track_caller]
    pub fn wait_applied(&self, world: &World, topic: &str, partitions: u32) {
        let offsets = Offsets::open(&self.settings).unwrap();
        let ends: BTreeMap<u32, u64> =
            (0..partitions).map(|part| (part, offsets.of(topic, part).unwrap().end)).collect();
        wait_until("all is applied", || {
            let found = world.rows(&format!("SELECT part,next FROM applied WHERE topic='{topic}'"));
            let found: BTreeMap<u32, u64> = found
                .iter()
                .map(|row| {
                    let cell = |index| guanxi_cluster::rows::cell::<u64>(row, index).unwrap();
                    (cell(0) as u32, cell(1))
                })
                .collect();
            found == ends
        });
    }
}

/// An applier and its instance's leases; both are given back at the end.
pub struct Running {
    pub applier: Applier,
    leases: Arc<Leases>,
}

impl Running {
    pub fn close(self) {
        self.applier.close();
        self.leases.close();
    }
}

/// A database of the faster server, and a broker.
pub fn servers(test: &str) -> Option<(&'static MariaDb, &'static Kafka)> {
    Some((shared::mariadb_or_skip(test)?, shared::kafka_or_skip(test)?))
}

#[test]
fn the_last_ten_thousand_records_delivered_again_change_nothing() {
    let Some((mariadb, kafka)) =
        servers("the_last_ten_thousand_records_delivered_again_change_nothing")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(11), 12_000);
    world.put_outgoing(&outgoing);
    topic.send_records(&world, &records);
    let name = &topic.settings.topic;

    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, name, 4);
    wait_until("the lag is known and none", || {
        let lag = running.applier.lag();
        lag.len() == 4 && lag.iter().all(|lag| lag.records == 0 && lag.age_ms == 0)
    });
    let figures = running.applier.figures();
    assert_eq!((figures.records, figures.dead, figures.rebuilt), (12_000, 0, 0));
    running.close();
    world.assert_target_side();

    // Five sixths of each partition, rounded up.
    world.run(&format!("UPDATE applied SET next=FLOOR(next/6),mark=0 WHERE topic='{name}'"));
    let running = topic.applier(&world, 2, AppliedLog::Outbox);
    topic.wait_applied(&world, name, 4);
    let figures = running.applier.figures();
    assert!(figures.records >= 10_000, "{figures:?}");
    assert_eq!(figures.stale, figures.records);
    running.close();
    world.assert_target_side();
}

#[test]
fn an_applier_whose_connections_are_cut_again_and_again_stays_exact() {
    let Some((mariadb, kafka)) =
        servers("an_applier_whose_connections_are_cut_again_and_again_stays_exact")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(12), 6_000);
    world.put_outgoing(&outgoing);
    let proxy = Proxy::before(server_port(&world.url));
    let database = Database::open(&through(&proxy, &world.url), 4).unwrap();
    let running = topic.applier_on(&database, &world, 1, AppliedLog::Outbox);
    for (number, piece) in records.chunks(250).enumerate() {
        proxy.cut_after(number as i64 % 5, number % 2 == 0);
        topic.send_records(&world, piece);
    }
    topic.wait_applied(&world, &topic.settings.topic, 4);
    assert!(proxy.cuts() >= 3, "{} cuts", proxy.cuts());
    assert!(running.applier.figures().retries > 0);
    running.close();
    world.assert_target_side();
}

#[test]
fn two_appliers_share_the_partitions_and_one_takes_over() {
    let Some((mariadb, kafka)) = servers("two_appliers_share_the_partitions_and_one_takes_over")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(13), 4_000);
    world.put_outgoing(&outgoing);
    let first = topic.applier(&world, 1, AppliedLog::Outbox);
    let second = topic.applier(&world, 2, AppliedLog::Outbox);
    topic.send_records(&world, &records[..2_000]);
    wait_until("each has its share", || {
        first.applier.lag().len() == 2 && second.applier.lag().len() == 2
    });
    topic.wait_applied(&world, &topic.settings.topic, 4);
    first.close();
    topic.send_records(&world, &records[2_000..]);
    topic.wait_applied(&world, &topic.settings.topic, 4);
    second.close();
    world.assert_target_side();
}

#[test]
fn a_barrier_is_marked_by_what_passes_it() {
    let Some((mariadb, kafka)) = servers("a_barrier_is_marked_by_what_passes_it") else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    // One shard at a time to one partition, all at once to the others.
    let mut barriers: Vec<(u32, Vec<u8>)> =
        (0..64).map(|shard| (0, value::encode_barrier(BarrierId(77), 1 << shard))).collect();
    barriers.extend((1..4).map(|part| (part, value::encode_barrier(BarrierId(77), u64::MAX))));
    barriers.rotate_right(3);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    let deadline = || std::time::Instant::now() + super::world::PATIENCE;
    topic.send(&topic.settings.topic, &barriers[..66]);
    topic.wait_applied(&world, &topic.settings.topic, 4);
    assert!(!barrier::passed(&world.database, BarrierId(77), 4, deadline()).unwrap());
    topic.send(&topic.settings.topic, &barriers[66..]);
    assert!(barrier::wait(&world.database, BarrierId(77), 4, deadline()).unwrap());
    running.close();
}
