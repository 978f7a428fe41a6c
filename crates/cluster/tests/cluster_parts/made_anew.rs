//! A topic that is deleted and created again.

use std::time::{Duration, Instant};

use guanxi_services::Kafka;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;

const PATIENCE: Duration = Duration::from_secs(60);

pub fn make_anew(kafka: &Kafka, topic: &str, partitions: u32) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", kafka.brokers()).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let deleted = runtime.block_on(admin.delete_topics(&[topic], &AdminOptions::new())).unwrap();
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    let deadline = Instant::now() + PATIENCE;
    let is_there = || {
        let known = admin.inner().fetch_metadata(None, Duration::from_secs(10)).unwrap();
        known.topics().iter().any(|known| known.name() == topic)
    };
    while is_there() {
        assert!(Instant::now() < deadline, "{topic} does not go");
        std::thread::sleep(Duration::from_millis(50));
    }
    kafka.create_topic(topic, partitions as u16);
}
