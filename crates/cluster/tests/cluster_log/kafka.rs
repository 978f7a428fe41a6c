//! The broker's clients.

use std::time::{Duration, Instant};

use guanxi_cluster::kafka::{
    KafkaSettings, LogPosition, LogReader, LogSender, Offsets, PartitionEnds, ReadError,
    RecordMark, TopicError, TopicId, check_topics, create_topics,
};
use guanxi_services::{Kafka, shared, topic_name};
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::bench::{PATIENCE, topics, until};
use crate::lose::lose_all;
use crate::made_anew::make_anew;

/// Sends values and waits for the broker's word on each.
fn send(settings: &KafkaSettings, partition: u32, values: impl Iterator<Item = u64>) {
    let sender = LogSender::open(settings).unwrap();
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
fn take(reader: &mut LogReader, count: usize) -> Vec<u64> {
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
        security: Default::default(),
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

/// It would have the broker's own number of partitions, and records would go astray.
#[test]
fn a_topic_that_is_missing_is_not_made_by_sending_to_it() {
    let Some(_) = shared::kafka_or_skip("missing topic") else { return };
    let kafka = Kafka::start_with(&[("auto.create.topics.enable", "true")]);
    let settings = KafkaSettings { topic: topic_name("missing"), ..topics(&kafka, 2) };
    let sender = LogSender::open(&settings).unwrap();
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &settings.brokers).create().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        let _refused = sender.send(&settings.topic, 0, None, b"a value", 0);
        sender.reports(Duration::from_millis(100));
    }
    let known = admin.inner().fetch_metadata(None, PATIENCE).unwrap();
    let names: Vec<&str> = known.topics().iter().map(|topic| topic.name()).collect();
    assert!(!names.contains(&settings.topic.as_str()), "{names:?}");
}

fn setting_of(settings: &KafkaSettings, name: &str) -> Option<String> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &settings.brokers).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let asked = [ResourceSpecifier::Topic(&settings.topic)];
    let described = runtime.block_on(admin.describe_configs(&asked, &AdminOptions::new()));
    let described = described.unwrap().remove(0).unwrap();
    described.get(name).and_then(|entry| entry.value.clone())
}

/// Else an acknowledged record may be on one broker alone, and go with it.
#[test]
fn of_three_brokers_two_must_have_a_record() {
    let Some(first) = Kafka::start_or_skip("three brokers") else { return };
    let alone = topics(&first, 2);
    assert_eq!(setting_of(&alone, "min.insync.replicas").as_deref(), Some("1"));
    let (_second, third) = (first.start_beside(2), first.start_beside(3));
    let settings = topics(&first, 2);
    assert_eq!(setting_of(&settings, "min.insync.replicas").as_deref(), Some("2"));
    send(&settings, 0, 0..10);
    third.kill();
    send(&settings, 0, 10..20);
    let mut reader = LogReader::open(&settings, &settings.topic, [(0, 0)]).unwrap();
    assert_eq!(take(&mut reader, 20), (0..20).collect::<Vec<u64>>());
}

#[test]
fn a_reader_begins_where_it_is_told_or_says_that_it_cannot() {
    let Some(kafka) = shared::kafka_or_skip("reader") else { return };
    let settings = topics(kafka, 2);
    send(&settings, 0, 0..100);
    send(&settings, 1, 1_000..1_010);
    let offsets = Offsets::open(&settings).unwrap();
    let ends = [PartitionEnds { first: 0, end: 100 }, PartitionEnds { first: 0, end: 10 }];
    assert_eq!(offsets.all(&settings.topic, 2).unwrap(), ends);
    assert_eq!(offsets.of(&settings.topic, 1).unwrap(), ends[1]);
    let next = offsets.next(&settings.topic, &[0, 1]).unwrap();
    assert_eq!(next.into_iter().collect::<Vec<_>>(), [(0, 100), (1, 10)]);
    offsets.next(&settings.topic, &[0, 2]).unwrap_err();

    let mut reader = LogReader::open(&settings, &settings.topic, [(0, 90)]).unwrap();
    assert_eq!(take(&mut reader, 10), (90..100).collect::<Vec<u64>>());
    assert_eq!(reader.place(0).map(|place| place.next), Some(100));
    // Another partition joins; the first is read on where it stands.
    reader.assign([(0, 100), (1, 5)]).unwrap();
    assert_eq!(take(&mut reader, 5), (1_005..1_010).collect::<Vec<u64>>());
    send(&settings, 0, 100..101);
    assert_eq!(take(&mut reader, 1), [100]);

    trim(&settings, 0, 50);
    let mut trimmed = LogReader::open(&settings, &settings.topic, [(0, 49), (1, 10)]).unwrap();
    let expected = ReadError::Trimmed { partition: 0, wanted: 49, first: 50 };
    assert_eq!(error_of(&mut trimmed), expected);
    let mut beyond = LogReader::open(&settings, &settings.topic, [(0, 50), (1, 11)]).unwrap();
    let expected = ReadError::Beyond { partition: 1, wanted: 11, end: 10 };
    assert_eq!(error_of(&mut beyond), expected);
}

#[test]
fn a_position_is_read_on_from_only_in_the_log_that_it_is_of() {
    let Some(kafka) = shared::kafka_or_skip("lineage") else { return };
    let settings = topics(kafka, 2);
    send(&settings, 0, 0..100);
    send(&settings, 1, 0..10);
    let mut reader = LogReader::open(&settings, &settings.topic, [(0, 0)]).unwrap();
    take(&mut reader, 60);
    let stands = reader.place(0).unwrap();
    assert!(stands.topic.is_known() && stands.before.is_known(), "{stands:?}");
    let read_on = |from: LogPosition, count| {
        take(&mut LogReader::open(&settings, &settings.topic, [(0, from)]).unwrap(), count)
    };
    send(&settings, 0, 100..110);
    assert_eq!(read_on(stands, 110 - stands.next as usize).last(), Some(&109));
    let broken = |from: LogPosition| {
        let mut reader =
            LogReader::open(&settings, &settings.topic, [(0, from), (1, 0.into())]).unwrap();
        let error = error_of(&mut reader);
        assert_eq!(reader.lost().map(|(partition, _)| partition).collect::<Vec<_>>(), [0]);
        error
    };
    for other in [
        LogPosition { before: RecordMark(stands.before.0 ^ 1), ..stands },
        LogPosition { topic: TopicId(stands.topic.0 ^ 1), ..stands },
    ] {
        let error = broken(other);
        assert!(matches!(error, ReadError::Broken { partition: 0, .. }), "{error}");
    }
    // The record before it may go by retention; what comes after is still there.
    trim(&settings, 0, stands.next);
    assert_eq!(read_on(stands, 110 - stands.next as usize).last(), Some(&109));
    make_anew(kafka, &settings.topic, 2);
    send(&settings, 0, 0..200);
    let error = broken(stands);
    assert!(matches!(error, ReadError::Broken { partition: 0, .. }), "{error}");
}

/// What one call had taken was forgotten when it then found something wrong with another partition.
#[test]
fn what_was_taken_survives_the_loss_of_another_partition() {
    let Some(kafka) = shared::kafka_or_skip("a lost partition") else { return };
    let settings = topics(kafka, 2);
    send(&settings, 0, 0..100);
    trim(&settings, 0, 50);
    let mut reader = LogReader::open(&settings, &settings.topic, [(0, 49), (1, 0)]).unwrap();
    let lost = ReadError::Trimmed { partition: 0, wanted: 49, first: 50 };
    let (mut sent, mut values, mut errors) = (0, Vec::new(), 0);
    let sender = LogSender::open(&settings).unwrap();
    until("the loss is told again and again, with records between", || {
        // So many that there always is something to take.
        for value in sent..sent + 200 {
            let text = value.to_string();
            assert!(sender.send(&settings.topic, 1, None, text.as_bytes(), 0).unwrap());
        }
        sent += 200;
        sender.reports(Duration::ZERO);
        match reader.next(100, Duration::from_millis(20)) {
            Ok(taken) => values.extend(
                taken
                    .into_iter()
                    .map(|taken| String::from_utf8(taken.value).unwrap().parse::<u64>().unwrap()),
            ),
            Err(error) => {
                assert_eq!(error, lost);
                errors += 1;
            }
        }
        errors >= 3 && values.len() > 1_000
    });
    assert_eq!(values, (0..values.len() as u64).collect::<Vec<u64>>());
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
    let sender = LogSender::open(&settings).unwrap();
    let mut reader = LogReader::open(&settings, &settings.topic, [(0, 0)]).unwrap();
    let (before, begun) = (processor_time(), Instant::now());
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(sender.reports(Duration::from_micros(1_700)), []);
        assert_eq!(reader.next(10, Duration::from_micros(1_700)).unwrap(), []);
    }
    let used = processor_time() - before;
    assert!(used * 5 < begun.elapsed(), "{used:?} of {:?}", begun.elapsed());
}

fn error_of(reader: &mut LogReader) -> ReadError {
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
        LogReader::open(&settings, &settings.topic, (0..4).map(|part| (part, 0))).unwrap();
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

/// Retention has emptied a partition, so nobody can compare the record before the place. What comes
/// next is taken where the log still begins there, and not where it began anew and has grown past.
#[test]
fn a_partition_that_was_emptied_and_then_lost_is_not_gone_on_with() {
    let test = "a_partition_that_was_emptied_and_then_lost_is_not_gone_on_with";
    let Some(kafka) = Kafka::start_or_skip(test) else { return };
    let settings = topics(&kafka, 2);
    let (kept, lost) = (0, 1);
    for partition in [kept, lost] {
        send(&settings, partition, 0..100);
    }
    let mut first = LogReader::open(&settings, &settings.topic, [(kept, 0), (lost, 0)]).unwrap();
    assert_eq!(take(&mut first, 200).len(), 200);
    let positions = [kept, lost].map(|partition| (partition, first.place(partition).unwrap()));
    drop(first);
    for partition in [kept, lost] {
        trim(&settings, partition, 100);
    }
    let mut reader = LogReader::open(&settings, &settings.topic, positions).unwrap();
    // Each finds that the record before its place is gone.
    until("it looked at the ends", || {
        assert_eq!(reader.next(10, Duration::from_millis(100)).unwrap(), []);
        reader.renewals() > 0
    });
    send(&settings, kept, 100..103);
    assert_eq!(take(&mut reader, 3), [100, 101, 102]);

    lose_all(&kafka, &settings.topic, lost);
    send(&settings, lost, 1_000..1_300);
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < deadline, "nobody noticed");
        match reader.next(100, Duration::from_millis(100)) {
            Ok(taken) => assert_eq!(taken, [], "a record of another history"),
            // The broker was away.
            Err(ReadError::Log(_)) => {}
            Err(error) => break error,
        }
    };
    let broken = |error: &ReadError| match error {
        ReadError::Broken { partition, wanted, .. } => (*partition, *wanted) == (lost, 100),
        _ => false,
    };
    assert!(broken(&error), "{error}");
    // The other goes on.
    send(&settings, kept, 103..104);
    assert_eq!(reader.place(kept).unwrap().next, 103);
    until("the other goes on", || match reader.next(100, Duration::from_millis(100)) {
        Ok(taken) => taken.iter().any(|taken| taken.offset == 103),
        Err(ReadError::Log(_)) => false,
        Err(error) => {
            assert!(broken(&error), "{error}");
            false
        }
    });
}
