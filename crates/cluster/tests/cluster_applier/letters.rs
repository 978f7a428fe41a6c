//! Poison: records that can never be applied, amid records that can.

use std::collections::BTreeMap;
use std::time::Duration;

use guanxi_cluster::applier::AppliedLog;
use guanxi_cluster::dead_letters::{DeadLetterError, DeadLetterTable};
use guanxi_cluster::kafka::LogReader;
use guanxi_cluster::value;
use guanxi_core::clock::{Clock, SystemClock};
use guanxi_model::{KindId, Millis, State, Version};
use guanxi_services::fresh_database;

use super::history::{History, edge, history, record, row};
use super::made_anew::make_anew;
use super::topic::{Topic, servers};
use super::world::{FOLLOW, TENANT, World, add_kind, kind, wait_until};

/// A source that the table refuses.
const REFUSED: u64 = 666;
const UNKNOWN: KindId = KindId(40);

/// Whoever can write to the topic could otherwise say what no later change ever replaces.
#[test]
fn a_version_ahead_of_the_clock_is_believed_only_with_its_source() {
    let test = "a_version_ahead_of_the_clock_is_believed_only_with_its_source";
    let Some((mariadb, kafka)) = servers(test) else { return };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let in_an_hour = Version::at(Millis(SystemClock.now_ms() + 3_600_000)).0;
    // One that its source does not know, one that it knows otherwise, and one that a clock that
    // was put back has left there.
    let (unknown, other, known) = (edge(FOLLOW, 1, 2), edge(FOLLOW, 3, 4), edge(FOLLOW, 5, 6));
    let outgoing = BTreeMap::from([
        (other, row(512, State::Live, None)),
        (known, row(in_an_hour, State::Live, None)),
    ]);
    world.put_outgoing(&outgoing);
    let records = [
        record(unknown, row(in_an_hour, State::Live, None)),
        record(other, row(in_an_hour, State::Pending, None)),
        record(known, row(in_an_hour, State::Live, None)),
    ];
    topic.send_records(&world, &records);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    world.assert_target_side();
    let letters = DeadLetterTable::new(world.database.clone(), world.catalog.clone(), &name, 4);
    let mut listed: Vec<_> =
        letters.list(None, 10).unwrap().into_iter().map(|letter| letter.edge).collect();
    listed.sort_unstable();
    assert_eq!(listed, [Some(unknown), Some(other)]);
    running.close();
}

/// A topic that was made anew has other records at the same positions.
#[test]
fn a_letter_takes_the_place_of_none_but_its_own() {
    let test = "a_letter_takes_the_place_of_none_but_its_own";
    let Some((mariadb, kafka)) = servers(test) else { return };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    topic.send(&name, &[(2, b"poison".to_vec())]);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    running.close();
    make_anew(kafka, &name, 4);
    let topic = topic.another();
    topic.send(&name, &[(2, b"poison of another kind".to_vec())]);
    // The second time it is passed by again.
    for instance in [2, 3] {
        world.run(&format!("UPDATE applied SET next=0,mark=0 WHERE topic='{name}'"));
        let running = topic.applier(&world, instance, AppliedLog::Outbox);
        topic.wait_applied(&world, &name, 4);
        running.close();
        let letters = DeadLetterTable::new(world.database.clone(), world.catalog.clone(), &name, 4);
        let listed = letters.list(None, 10).unwrap();
        let values: Vec<_> =
            listed.iter().map(|letter| letters.show(letter.id).unwrap().1).collect();
        assert_eq!(values, [b"poison".to_vec(), b"poison of another kind".to_vec()]);
    }
}

#[test]
fn poison_stops_nothing_and_is_kept() {
    let Some((mariadb, kafka)) = servers("poison_stops_nothing_and_is_kept") else { return };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let refusing = format!("ALTER TABLE incoming ADD CONSTRAINT picky CHECK (source<>{REFUSED})");
    world.session_run(&refusing).unwrap();
    let History { records, mut outgoing } = history(&mut fastrand::Rng::with_seed(21), 900);
    world.put_outgoing(&outgoing);

    topic.send_records(&world, &records[..300]);
    let unknown = record(edge(UNKNOWN, 1, 2), row(256, State::Live, None));
    let refused = record(edge(FOLLOW, REFUSED, 5), row(256, State::Live, None));
    let poison = vec![
        (0, b"not a record".to_vec()),
        (1, value::encode(&unknown, &kind(UNKNOWN), Millis(5))),
    ];
    topic.send(&name, &poison);
    topic.send_records(&world, &records[300..600]);
    topic.send_records(&world, std::slice::from_ref(&refused));
    topic.send_records(&world, &records[600..]);

    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    assert_eq!(running.applier.figures().dead, 3);
    world.assert_target_side();
    wait_until("the topic has the letters", || running.applier.figures().published == 3);
    let mut reader =
        LogReader::open(&topic.settings, &topic.settings.dead_letter_topic, [(0, 0)]).unwrap();
    let mut published = Vec::new();
    wait_until("the letters can be read", || {
        published.extend(reader.next(10, Duration::from_millis(200)).unwrap());
        published.len() >= 3
    });
    assert!(published.iter().any(|letter| letter.value == b"not a record"));

    let letters = DeadLetterTable::new(world.database.clone(), world.catalog.clone(), &name, 4);
    let listed = letters.list(None, 10).unwrap();
    assert_eq!((listed.len(), letters.count().unwrap()), (3, 3));
    let paged = letters.list(Some(letters.list(None, 2).unwrap()[1].id), 2).unwrap();
    assert_eq!(paged, listed[2..]);
    let by_edge: BTreeMap<_, _> = listed.iter().map(|letter| (letter.edge, letter)).collect();
    let unreadable = by_edge[&None];
    assert_eq!(letters.show(unreadable.id).unwrap().1, b"not a record");
    assert!(by_edge[&Some(refused.key)].cause.contains("4025"), "{by_edge:?}");

    // What says nothing of its edge stays, until it is dropped.
    let error = letters.retry(unreadable.id).unwrap_err();
    assert!(matches!(error, DeadLetterError::Unreadable(_)), "{error}");
    letters.drop(unreadable.id).unwrap();
    assert!(matches!(letters.drop(unreadable.id), Err(DeadLetterError::Unknown(_))));
    // A kind that is there by now; the edge has been removed meanwhile.
    let unknown_id = by_edge[&Some(unknown.key)].id;
    let error = letters.retry(unknown_id).unwrap_err();
    assert!(matches!(error, DeadLetterError::UnknownKind(_)), "{error}");
    add_kind(&world.database, TENANT, UNKNOWN);
    outgoing.insert(unknown.key, row(512, State::Pending, None));
    // Still refused: the letter stays.
    outgoing.insert(refused.key, row(512, State::Live, None));
    world.put_outgoing(&outgoing);
    assert!(letters.retry(unknown_id).unwrap().changed);
    let refused_id = by_edge[&Some(refused.key)].id;
    assert!(matches!(letters.retry(refused_id), Err(DeadLetterError::Sql(_))));
    assert_eq!(letters.count().unwrap(), 1);
    world.session_run("ALTER TABLE incoming DROP CONSTRAINT picky").unwrap();
    assert!(letters.retry(refused_id).unwrap().changed);
    assert_eq!(letters.count().unwrap(), 0);
    world.assert_target_side();
    running.close();
}

#[test]
fn an_error_of_the_database_passes_nothing_by() {
    let Some((mariadb, kafka)) = servers("an_error_of_the_database_passes_nothing_by") else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(22), 300);
    world.put_outgoing(&outgoing);
    world.session_run("RENAME TABLE tally TO hidden").unwrap();
    topic.send_records(&world, &records);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    wait_until("it has tried more than once", || running.applier.figures().retries >= 3);
    assert_eq!(running.applier.figures().dead, 0);
    assert_eq!(world.number("SELECT COUNT(*) FROM incoming"), 0);
    assert_eq!(world.number(&format!("SELECT SUM(next) FROM applied WHERE topic='{name}'")), 0);
    world.session_run("RENAME TABLE hidden TO tally").unwrap();
    topic.wait_applied(&world, &name, 4);
    assert_eq!(world.number("SELECT COUNT(*) FROM dead_letters"), 0);
    world.assert_target_side();
    running.close();
}
