//! The broker's clients.

use std::time::{Duration, Instant};

use guanxi_engine::cluster::kafka::{
    Ends, KafkaSettings, Offsets, ReadError, Reader, Sender, TopicError, check_topics,
    create_topics,
};
use guanxi_services::{Kafka, shared, topic_name};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::bench::{PATIENCE, topics, until};

/// Sends values and waits for the broker's word on each.
fn send(settings: &KafkaSettings, partition: u32, values: impl Iterator<Item = u64>) {
    let sender = Sender::open(settings).unwrap();
    let mut expected = 0;
    for value in values {
        let value = value.to_string();
        assert!(sender.send(&settings.topic, partition, None, value.as_bytes(), expected).unwrap());
        expected += 1;
    }
    let mut reported = 0;
    until("every value is reported", || {
        for report in sender.reports(Duration::from_millis(50)) {
            assert!(report.outcome.is_ok(), "{report:?}");
            reported += 1;
        }
        reported == expected
    });
}

/// Removes what lies before this offset, as retention would.
pub fn trim(settings: &KafkaSettings, partition: u32, before: u64) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &settings.brokers).create().unwrap();
    let mut list = TopicPartitionList::new();
    let offset = Offset::Offset(before as i64);
    list.add_partition_offset(&settings.topic, partition as i32, offset).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(admin.delete_records(&list, &AdminOptions::new())).unwrap();
}

/// Values of a partition from where the reader stands, until there are so many.
fn take(reader: &mut Reader, count: usize) -> Vec<u64> {
    let deadline = Instant::now() + PATIENCE;
    let mut values = Vec::new();
    while values.len() < count && Instant::now() < deadline {
        for taken in reader.next(100, Duration::from_millis(100)).unwrap() {
            values.push(String::from_utf8(taken.value).unwrap().parse().unwrap());
        }
    }
    values
}

#[test]
fn topics_are_created_once_and_other_ones_refused() {
    let Some(kafka) = shared::kafka_or_skip("topics") else { return };
    let settings = KafkaSettings {
        brokers: kafka.brokers(),
        topic: topic_name("records"),
        dead_letter_topic: topic_name("dead-letters"),
        partitions: 8,
    };
    assert!(matches!(check_topics(&settings, None), Err(TopicError::Missing(_))));
    let mut created = create_topics(&settings).unwrap();
    created.sort_unstable();
    assert_eq!(created, [settings.dead_letter_topic.clone(), settings.topic.clone()]);
    assert_eq!(create_topics(&settings).unwrap(), [""; 0]);
    check_topics(&settings, None).unwrap();
    // A changefeed's topic is made by the changefeed, with as many partitions.
    let changefeed = topic_name("changefeed");
    let checked = check_topics(&settings, Some(&changefeed));
    assert!(matches!(checked, Err(TopicError::NoChangefeed(_))));
    kafka.create_topic(&changefeed, settings.partitions as u16 + 1);
    let checked = check_topics(&settings, Some(&changefeed));
    assert!(matches!(checked, Err(TopicError::Differs { .. })));
    check_topics(&settings, Some(&settings.topic)).unwrap();
    let other = KafkaSettings { partitions: 16, ..settings.clone() };
    let error = create_topics(&other).unwrap_err();
    assert!(matches!(error, TopicError::Differs { found: 8, wanted: 16, .. }), "{error}");
    for partitions in [0, 3, 65] {
        let odd = KafkaSettings { partitions, ..settings.clone() };
        assert!(matches!(check_topics(&odd, None), Err(TopicError::Partitions(_))));
    }
}

#[test]
fn a_reader_begins_where_it_is_told_or_says_that_it_cannot() {
    let Some(kafka) = shared::kafka_or_skip("reader") else { return };
    let settings = topics(kafka, 2);
    send(&settings, 0, 0..100);
    send(&settings, 1, 1_000..1_010);
    let offsets = Offsets::open(&settings).unwrap();
    let ends = [Ends { first: 0, end: 100 }, Ends { first: 0, end: 10 }];
    assert_eq!(offsets.all(&settings.topic, 2).unwrap(), ends);
    assert_eq!(offsets.of(&settings.topic, 1).unwrap(), ends[1]);
    let next = offsets.next(&settings.topic, &[0, 1]).unwrap();
    assert_eq!(next.into_iter().collect::<Vec<_>>(), [(0, 100), (1, 10)]);
    offsets.next(&settings.topic, &[0, 2]).unwrap_err();

    let mut reader = Reader::open(&settings, &settings.topic, [(0, 90)]).unwrap();
    assert_eq!(take(&mut reader, 10), (90..100).collect::<Vec<u64>>());
    assert_eq!(reader.place(0), Some(100));
    // Another partition joins; the first is read on where it stands.
    reader.assign([(0, 100), (1, 5)]).unwrap();
    assert_eq!(take(&mut reader, 5), (1_005..1_010).collect::<Vec<u64>>());
    send(&settings, 0, 100..101);
    assert_eq!(take(&mut reader, 1), [100]);

    trim(&settings, 0, 50);
    let mut trimmed = Reader::open(&settings, &settings.topic, [(0, 49), (1, 10)]).unwrap();
    let expected = ReadError::Trimmed { partition: 0, wanted: 49, first: 50 };
    assert_eq!(error_of(&mut trimmed), expected);
    let mut beyond = Reader::open(&settings, &settings.topic, [(0, 50), (1, 11)]).unwrap();
    let expected = ReadError::Beyond { partition: 1, wanted: 11, end: 10 };
    assert_eq!(error_of(&mut beyond), expected);
}

/// Processor time that this thread has used, in clock ticks of 10 ms.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// The driver spins through parts of milliseconds if it is let.
#[test]
fn waiting_for_the_broker_takes_no_processor() {
    let Some(kafka) = shared::kafka_or_skip("waiting") else { return };
    let settings = topics(kafka, 1);
    let sender = Sender::open(&settings).unwrap();
    let mut reader = Reader::open(&settings, &settings.topic, [(0, 0)]).unwrap();
    let (before, begun) = (processor_time(), Instant::now());
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(sender.reports(Duration::from_micros(1_700)), []);
        assert_eq!(reader.next(10, Duration::from_micros(1_700)).unwrap(), []);
    }
    let used = processor_time() - before;
    assert!(used * 5 < begun.elapsed(), "{used:?} of {:?}", begun.elapsed());
}

fn error_of(reader: &mut Reader) -> ReadError {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Err(error) = reader.next(1_000, Duration::from_millis(100)) {
            return error;
        }
    }
    panic!("no error");
}

#[test]
fn a_reader_goes_on_after_the_broker_was_killed() {
    let Some(kafka) = Kafka::start_or_skip("killed broker") else { return };
    let settings = topics(&kafka, 4);
    let mut reader =
        Reader::open(&settings, &settings.topic, (0..4).map(|part| (part, 0))).unwrap();
    for part in 0..4 {
        send(&settings, part, 0..10);
    }
    assert_eq!(take(&mut reader, 40).len(), 40);
    kafka.kill();
    // The driver meets the closed door.
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        if let Err(ReadError::Log(error)) = reader.next(10, Duration::from_millis(100)) {
            assert!(error.may_pass(), "{error}");
        }
    }
    kafka.start_again();
    for part in 0..4 {
        send(&settings, part, 10..20);
    }
    let mut got = 0;
    until("the reader goes on", || {
        match reader.next(100, Duration::from_millis(100)) {
            Ok(taken) => got += taken.len(),
            Err(error) => assert!(matches!(&error, ReadError::Log(error) if error.may_pass())),
        }
        got == 40
    });
}
