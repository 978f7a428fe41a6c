//! A log that loses its end, as one whose only broker lost power before its disk had everything.

#![allow(dead_code, reason = "each test program uses its part of it")]

use std::fs::OpenOptions;
use std::path::PathBuf;

use guanxi_services::Kafka;

/// How long a partition's file is now.
pub fn log_length(kafka: &Kafka, topic: &str, partition: u32) -> u64 {
    segment(kafka, topic, partition).metadata().unwrap().len()
}

/// The broker comes back with this length of each partition's file, from the first on.
pub fn lose_end(kafka: &Kafka, topic: &str, lengths: &[u64]) {
    kafka.kill();
    for (partition, length) in (0..).zip(lengths) {
        let file = OpenOptions::new().write(true).open(segment(kafka, topic, partition)).unwrap();
        file.set_len(*length).unwrap();
    }
    kafka.start_again();
}

/// The broker comes back without what it had of a partition.
pub fn lose_all(kafka: &Kafka, topic: &str, partition: u32) {
    kafka.kill();
    std::fs::remove_dir_all(segment(kafka, topic, partition).parent().unwrap()).unwrap();
    kafka.start_again();
}

fn segment(kafka: &Kafka, topic: &str, partition: u32) -> PathBuf {
    let folder = kafka.directory().join("logs").join(format!("{topic}-{partition}"));
    folder.join("00000000000000000000.log")
}
