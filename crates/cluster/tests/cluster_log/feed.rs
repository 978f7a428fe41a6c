//! Watching the log.

use guanxi_model::{BarrierId, Millis, Version};
use std::time::{Duration, Instant};

use guanxi_cluster::feed::{Feed, FeedError, FeedFrom, FeedLog, FeedReader, FeedRecord};
use guanxi_cluster::kafka::{KafkaSettings, LogPosition, LogSender, RecordMark, end_positions};
use guanxi_cluster::value;
use guanxi_core::crew::Crew;
use guanxi_model::places::{edge_shard, partition};
use guanxi_model::record::EdgeRecord;
use guanxi_services::{Kafka, shared};

use crate::bench::{PATIENCE, database, encoded, record, topics, until, version};
use crate::kafka::trim;
use crate::lose::{log_length, lose_end};
use crate::made_anew::make_anew;

/// The feed of our own topic, with an empty database; none without one.
fn watched(settings: &KafkaSettings) -> Option<Feed> {
    let database = database(shared::mariadb_or_skip("feed")?);
    Some(feed_on(settings, FeedLog::Outbox { database }))
}

fn feed_on(settings: &KafkaSettings, log: FeedLog) -> Feed {
    Feed::start(&Crew::default(), settings.clone(), log).unwrap()
}

/// Sends the records of these sources to their partitions, and a barrier between some.
fn send(settings: &KafkaSettings, sources: std::ops::Range<u64>) {
    send_with_barriers(settings, sources, |source| source % 10 == 0);
}

/// Sends the records of these sources alone.
fn send_to(settings: &KafkaSettings, sources: impl Iterator<Item = u64>) {
    send_with_barriers(settings, sources, |_| false);
}

fn send_with_barriers(
    settings: &KafkaSettings,
    sources: impl Iterator<Item = u64>,
    has_barrier: impl Fn(u64) -> bool,
) {
    let sender = LogSender::open(settings).unwrap();
    let mut left = 0;
    for source in sources {
        let record = record(source, source, version(0));
        let part = partition(edge_shard(&record.key), settings.partitions);
        assert!(sender.send(&settings.topic, part, None, &encoded(&record), 0).unwrap());
        left += 1;
        if has_barrier(source) {
            let barrier = value::encode_barrier(BarrierId(source), 1);
            assert!(sender.send(&settings.topic, 0, None, &barrier, 0).unwrap());
            left += 1;
        }
    }
    until("all is sent", || {
        left -= sender.reports(Duration::from_millis(50)).len();
        left == 0
    });
}

/// Records until there are so many.
#[track_caller]
pub fn take(reader: &mut FeedReader, count: usize) -> Vec<FeedRecord> {
    let deadline = Instant::now() + PATIENCE;
    let mut records = Vec::new();
    while records.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} records came", records.len());
        records.extend(reader.next(100, Duration::from_millis(500)).unwrap());
    }
    records
}

pub fn nexts(reader: &FeedReader) -> Vec<u64> {
    reader.positions().iter().map(|at| at.next).collect()
}

fn sources(records: &[FeedRecord]) -> Vec<u64> {
    let mut sources: Vec<u64> =
        records.iter().map(|record| record.event.record.key.source.0).collect();
    sources.sort_unstable();
    sources
}

#[test]
fn watchers_begin_at_the_start_now_or_where_they_stopped() {
    let Some(kafka) = shared::kafka_or_skip("feed") else { return };
    let settings = topics(kafka, 4);
    send(&settings, 1..301);
    let Some(feed) = watched(&settings) else { return };
    let mut now = feed.begin(FeedFrom::Now).unwrap();
    let mut all = feed.begin(FeedFrom::Earliest).unwrap();
    let begin = all.positions().to_vec();
    let old = take(&mut all, 300);
    assert_eq!(sources(&old), (1..301).collect::<Vec<u64>>());
    send(&settings, 301..401);
    assert_eq!(sources(&take(&mut now, 100)), (301..401).collect::<Vec<u64>>());
    let new = take(&mut all, 100);
    assert_eq!(sources(&new), (301..401).collect::<Vec<u64>>());

    // After any record, what comes is exactly what had not come.
    let everything: Vec<FeedRecord> = old.into_iter().chain(new).collect();
    for stop in [0, 1, 37, 150, 299, 399, 400] {
        let place = match stop {
            0 => begin.clone(),
            _ => everything[stop - 1].after.to_vec(),
        };
        let mut resumed = feed.begin(FeedFrom::At(place)).unwrap();
        let rest = take(&mut resumed, 400 - stop);
        assert_eq!(sources(&rest), sources(&everything[stop..]), "after {stop}");
    }
    // Order holds within a partition.
    let mut last = [None; 4];
    for record in &everything {
        let last = &mut last[record.partition as usize];
        assert!(last.is_none_or(|last| last < record.offset));
        *last = Some(record.offset);
    }
}

#[test]
fn many_watchers_see_the_same() {
    let Some(kafka) = shared::kafka_or_skip("many watchers") else { return };
    let settings = topics(kafka, 4);
    let Some(feed) = watched(&settings) else { return };
    std::thread::scope(|scope| {
        let watchers: Vec<_> = (0..40)
            .map(|_| {
                let mut reader = feed.begin(FeedFrom::Now).unwrap();
                scope.spawn(move || sources(&take(&mut reader, 500)))
            })
            .collect();
        send(&settings, 1..501);
        for watcher in watchers {
            assert_eq!(watcher.join().unwrap(), (1..501).collect::<Vec<u64>>());
        }
    });
    let began = Instant::now();
    feed.close();
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_place_that_was_trimmed_or_never_was_is_refused() {
    let Some(kafka) = shared::kafka_or_skip("trimmed feed") else { return };
    let settings = topics(kafka, 2);
    send(&settings, 1..201);
    let Some(feed) = watched(&settings) else { return };
    let start = feed.begin(FeedFrom::Earliest).unwrap().positions().to_vec();
    let mut slow = feed.begin(FeedFrom::At(start.clone())).unwrap();
    trim(&settings, 1, 20);
    let expired = FeedError::Expired { partition: 1, wanted: 0 };
    assert_eq!(feed.begin(FeedFrom::At(start)).unwrap_err(), expired);
    assert_eq!(nexts(&feed.begin(FeedFrom::Earliest).unwrap()), [0, 20]);
    // One that was on its way finds out too.
    let mut error = None;
    until("the slow watcher is told", || {
        error = slow.next(10_000, Duration::from_millis(200)).err();
        error.is_some()
    });
    assert_eq!(error, Some(expired));
    let ahead = FeedError::Expired { partition: 0, wanted: 1_000_000 };
    assert_eq!(
        feed.begin(FeedFrom::At([1_000_000, 20].map(LogPosition::from).to_vec())).unwrap_err(),
        ahead
    );
    let foreign = FeedError::Foreign { found: 3, partitions: 2 };
    assert_eq!(feed.begin(FeedFrom::At(vec![LogPosition::from(0); 3])).unwrap_err(), foreign);
}

#[test]
fn a_place_in_a_topic_that_was_made_anew_is_refused() {
    let Some(kafka) = shared::kafka_or_skip("feed made anew") else { return };
    let settings = topics(kafka, 2);
    send(&settings, 1..101);
    let Some(feed) = watched(&settings) else { return };
    let mut slow = feed.begin(FeedFrom::Earliest).unwrap();
    let place = take(&mut slow, 100).last().unwrap().after.to_vec();
    make_anew(kafka, &settings.topic, 2);
    send(&settings, 1..401);
    let refused = feed.begin(FeedFrom::At(place.clone())).unwrap_err();
    assert!(matches!(refused, FeedError::Expired { .. }), "{refused}");
    // One that was watching all the time is told too, instead of the rest alone.
    let mut error = None;
    until("the watcher is told", || {
        error = slow.next(10_000, Duration::from_millis(200)).err();
        error.is_some()
    });
    assert!(matches!(error, Some(FeedError::Expired { .. })), "{error:?}");
    assert_eq!(take(&mut feed.begin(FeedFrom::Earliest).unwrap(), 400).len(), 400);
}

#[test]
fn a_place_after_another_record_is_refused_wherever_it_is_read_from() {
    let Some(kafka) = shared::kafka_or_skip("feed of another history") else { return };
    let settings = topics(kafka, 1);
    send(&settings, 1..101);
    let Some(feed) = watched(&settings) else { return };
    let mut now = feed.begin(FeedFrom::Now).unwrap();
    let old = take(&mut feed.begin(FeedFrom::Earliest).unwrap(), 100);
    send(&settings, 101..201);
    let new = take(&mut now, 100);
    // Of what a client of its own reads, and of what the tip has.
    for record in [&old[50], &new[50]] {
        let right = record.after[0];
        let mut resumed = feed.begin(FeedFrom::At(vec![right])).unwrap();
        assert!(!take(&mut resumed, 10).is_empty());
        let other = LogPosition { before: RecordMark(right.before.0 ^ 1), ..right };
        let mut resumed = feed.begin(FeedFrom::At(vec![other])).unwrap();
        let mut error = None;
        until("the watcher is told", || {
            let read = resumed.next(10, Duration::from_millis(200));
            assert!(read.as_ref().map_or(true, Vec::is_empty), "{read:?}");
            error = read.err();
            error.is_some()
        });
        assert_eq!(error, Some(FeedError::Expired { partition: 0, wanted: right.next }));
    }
}

/// The first watchers of an instance stand where the log ends now.
#[test]
fn a_place_at_the_end_of_a_log_that_lost_its_last_record_is_refused() {
    let test = "a_place_at_the_end_of_a_log_that_lost_its_last_record_is_refused";
    let Some(kafka) = Kafka::start_or_skip(test) else { return };
    let settings = topics(&kafka, 1);
    send(&settings, 1..10);
    let length = log_length(&kafka, &settings.topic, 0);
    send(&settings, 11..12);
    let Some(feed) = watched(&settings) else { return };
    let mut all = feed.begin(FeedFrom::Earliest).unwrap();
    assert_eq!(take(&mut all, 10).len(), 10);
    // One that saw nothing learns what stands before it, and so does an export's place.
    let mut now = feed.begin(FeedFrom::Now).unwrap();
    until("the record before it is known", || {
        now.next(10, Duration::from_millis(50)).unwrap();
        now.positions() == all.positions()
    });
    assert!(now.positions()[0].before.is_known());
    let place = now.positions().to_vec();
    assert_eq!(end_positions(&settings, &settings.topic), Ok(place.clone()));
    drop((all, now, feed));

    lose_end(&kafka, &settings.topic, &[length]);
    send(&settings, 12..13);
    let Some(feed) = watched(&settings) else { return };
    let mut resumed = feed.begin(FeedFrom::At(place)).unwrap();
    let mut error = None;
    until("the watcher is told", || {
        let read = resumed.next(10, Duration::from_millis(200));
        assert!(read.as_ref().map_or(true, Vec::is_empty), "{read:?}");
        error = read.err();
        error.is_some()
    });
    assert_eq!(error, Some(FeedError::Expired { partition: 0, wanted: 10 }));
}

/// As a broker may tell for a moment after its start.
#[test]
fn an_end_before_a_place_is_asked_for_again() {
    let test = "an_end_before_a_place_is_asked_for_again";
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let settings = topics(kafka, 1);
    send(&settings, 1..10);
    let Some(feed) = watched(&settings) else { return };
    let place = vec![LogPosition::from(11)];
    std::thread::scope(|scope| {
        let begun = scope.spawn(|| feed.begin(FeedFrom::At(place)));
        std::thread::sleep(Duration::from_millis(500));
        send(&settings, 11..13);
        assert_eq!(nexts(&begun.join().unwrap().unwrap()), [11]);
    });
}

#[test]
fn watchers_do_not_believe_a_version_of_the_future() {
    let test = "watchers_do_not_believe_a_version_of_the_future";
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let Some(server) = shared::mariadb_or_skip(test) else { return };
    let (settings, database) = (topics(kafka, 1), database(server));
    let in_an_hour = version(0) + Version::at(Millis(3_600_000)).0;
    let (invented, known) = (record(1, 2, in_an_hour), record(3, 4, in_an_hour));
    let statement = format!(
        "BEGIN;INSERT INTO outgoing (tenant,kind,source,target,version,state,since) \
         VALUES (1,1,3,4,{in_an_hour},{},{});COMMIT",
        known.new.state as u8, known.new.since.0
    );
    database.session(Instant::now() + PATIENCE).unwrap().run(&statement).unwrap();
    send_records(&settings, &[invented, known.clone(), record(5, 6, version(0))]);
    let feed = feed_on(&settings, FeedLog::Outbox { database });
    let records = take(&mut feed.begin(FeedFrom::Earliest).unwrap(), 2);
    assert_eq!(sources(&records), [3, 5]);
    assert_eq!(*records[0].event.record, known);
}

fn send_records(settings: &KafkaSettings, records: &[EdgeRecord]) {
    let sender = LogSender::open(settings).unwrap();
    for record in records {
        assert!(sender.send(&settings.topic, 0, None, &encoded(record), 0).unwrap());
    }
    let mut left = records.len();
    until("all is sent", || {
        left -= sender.reports(Duration::from_millis(50)).len();
        left == 0
    });
}

/// A place that is lost is told of soon, however much comes of other partitions.
#[test]
fn a_watcher_hears_that_its_place_is_lost_while_others_have_much() {
    let Some(kafka) = shared::kafka_or_skip("a lost place under load") else { return };
    let settings = topics(kafka, 2);
    let all: Vec<u64> = (1..20_000).collect();
    let of = |wanted: u32| {
        let part = |source: &u64| {
            partition(edge_shard(&record(*source, *source, version(0)).key), settings.partitions)
        };
        all.iter().copied().filter(move |source| part(source) == wanted)
    };
    let (lost, busy) = (0, 1);
    send_to(&settings, of(lost).take(100));
    let Some(feed) = watched(&settings) else { return };
    let begin = feed.begin(FeedFrom::Earliest).unwrap().positions().to_vec();
    // The tip is read for this one already.
    let mut beside = feed.begin(FeedFrom::Now).unwrap();
    let mut rest = of(busy);
    send_to(&settings, rest.by_ref().take(10));
    take(&mut beside, 10);
    let place = vec![begin[lost as usize], beside.positions()[busy as usize]];
    let mut reader = feed.begin(FeedFrom::At(place)).unwrap();
    trim(&settings, lost, 50);
    let (mut sent, mut given) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "nothing was said after {given} records");
        // There is always more of the other at the tip.
        if sent - given < 200 {
            let more: Vec<u64> = rest.by_ref().take(400).collect();
            assert!(!more.is_empty(), "nothing was said after {given} records");
            sent += more.len();
            send_to(&settings, more.iter().copied());
            take(&mut beside, more.len());
        }
        match reader.next(1, Duration::from_millis(500)) {
            Ok(records) => given += records.len(),
            Err(error) => {
                assert!(matches!(error, FeedError::Expired { partition, .. } if partition == lost));
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(given > 0, "what was in hand went first");
}
