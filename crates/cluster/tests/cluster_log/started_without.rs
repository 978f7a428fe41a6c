//! Instances that started while the log was away.

use guanxi_model::Region;
use std::time::Instant;

use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_cluster::instance::{Cluster, ClusterSettings, Roles, migrate};
use guanxi_cluster::kafka::KafkaSettings;
use guanxi_cluster::read_budget::ReadBudgetSettings;
use guanxi_cluster::rows::cell;
use guanxi_cluster::sql::Database;
use guanxi_cluster::sql::tls::Tls;
use guanxi_core::AuditSettings;
use guanxi_services::{Kafka, fresh_database, shared, topic_name};

use crate::bench::{PATIENCE, database, outbox_rows, put_out, record, topics, until, version};
use crate::relay::relay;

fn number(database: &Database, statement: &str) -> u64 {
    let mut session = database.session(Instant::now() + PATIENCE).unwrap();
    cell(&session.rows(statement).unwrap()[0], 0).unwrap()
}

const BOUND: &str = "SELECT COUNT(*) FROM applied WHERE topic_id<>0";

/// Otherwise what it sent would be missing unnoticed if the topic were made anew.
#[test]
fn a_relay_binds_partitions_to_their_topic_before_it_sends() {
    let test = "a_relay_binds_partitions_to_their_topic_before_it_sends";
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let Some(server) = shared::mariadb_or_skip(test) else { return };
    let (database, settings) = (database(server), topics(kafka, 4));
    put_out(&database, &[record(1, 2, version(0))]);
    // Into a topic of another shape nothing is sent.
    let other = KafkaSettings { partitions: 8, ..settings.clone() };
    let wrong = relay(&database, &other);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!((outbox_rows(&database), number(&database, BOUND)), (1, 0));
    drop(wrong);
    let _relay = relay(&database, &settings);
    until("the outbox is empty", || outbox_rows(&database) == 0);
    assert_eq!(number(&database, BOUND), 4);
}

#[test]
fn an_instance_that_started_without_the_log_checks_it_later() {
    let test = "an_instance_that_started_without_the_log_checks_it_later";
    let Some(server) = shared::mariadb_or_skip(test) else { return };
    let Some(kafka) = Kafka::start_or_skip(test) else { return };
    let settings = ClusterSettings {
        url: fresh_database(server),
        connections_max: 8,
        reads: ReadBudgetSettings::of_connections(8),
        kafka: KafkaSettings {
            brokers: kafka.brokers(),
            topic: topic_name("records"),
            dead_letter_topic: topic_name("dead"),
            partitions: 4,
            security: Default::default(),
        },
        ticdc_topic: None,
        roles: Roles { api: true, ..Roles::NONE },
        region: Region::default(),
        commit: SqlCommitSettings::default(),
        audit: AuditSettings { scrub_rows_per_second: 0 },
        tls: Tls::Off,
        memory: None,
        clock_may_have_jumped: false,
    };
    migrate(&settings).unwrap();
    kafka.kill();
    let with = |kafka| Cluster::open(ClusterSettings { kafka, ..settings.clone() }).unwrap();
    let right = with(settings.kafka.clone());
    let other_shape = with(KafkaSettings { partitions: 8, ..settings.kafka.clone() });
    let other_topic = with(KafkaSettings { topic: topic_name("none"), ..settings.kafka.clone() });
    kafka.start_again();
    for wrong in [&other_shape, &other_topic] {
        until("it ends", || wrong.crew().lost().is_some());
    }
    let database = Database::open(&settings.url, 1).unwrap();
    until("the partitions are bound", || number(&database, BOUND) == 4);
    assert_eq!(number(&database, "SELECT COUNT(*) FROM applied WHERE part>=4"), 0);
    assert_eq!(right.crew().lost(), None);
}
