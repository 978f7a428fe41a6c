//! A log that is no longer the one that was applied: its topic was deleted and made anew, or it
//! lost its end; and it grew past the old positions before anyone looked.

use std::time::Instant;

use guanxi_cluster::applier::AppliedLog;
use guanxi_cluster::barrier;
use guanxi_cluster::value::encode_barrier;
use guanxi_services::{Kafka, fresh_database, shared};

use super::history::{History, history};
use super::lost_end::{log_length, lose_end};
use super::made_anew::make_anew;
use super::topic::{Topic, servers};
use super::world::{PATIENCE, World, wait_until};

#[test]
fn a_topic_made_anew_is_applied_from_its_beginning() {
    let Some((mariadb, kafka)) = servers("a_topic_made_anew_is_applied_from_its_beginning") else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(41), 4_000);
    world.put_outgoing(&outgoing);
    topic.send_records(&world, &records[..1_000]);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    running.close();

    make_anew(kafka, &name, 4);
    let topic = topic.another();
    topic.send_records(&world, &records[1_000..]);
    let running = topic.applier(&world, 2, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    world.assert_target_side();
    assert_eq!(running.applier.figures().rebuilt, 4);
    running.close();

    // It belongs to this topic now.
    let running = topic.applier(&world, 3, AppliedLog::Outbox);
    topic.send_records(&world, &records[3_900..]);
    topic.wait_applied(&world, &name, 4);
    assert_eq!(running.applier.figures().rebuilt, 0);
    world.assert_target_side();
    running.close();
}

#[test]
fn a_topic_made_anew_under_a_running_applier_is_noticed() {
    let Some((mariadb, kafka)) = servers("a_topic_made_anew_under_a_running_applier_is_noticed")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(42), 4_000);
    world.put_outgoing(&outgoing);
    topic.send_records(&world, &records[..1_000]);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);

    make_anew(kafka, &name, 4);
    let topic = topic.another();
    topic.send_records(&world, &records[1_000..]);
    wait_until("every partition is rebuilt", || running.applier.figures().rebuilt >= 4);
    topic.wait_applied(&world, &name, 4);
    world.assert_target_side();
    running.close();
}

/// Nothing had come of it when its topic went, and so did all that was not applied.
#[test]
fn a_partition_that_never_had_a_record_belongs_to_a_topic() {
    let Some((mariadb, kafka)) = servers("a_partition_that_never_had_a_record_belongs_to_a_topic")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let bound =
        format!("SELECT COUNT(*) FROM applied WHERE topic='{name}' AND next=0 AND topic_id<>0");
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    wait_until("every partition belongs to the topic", || world.number(&bound) == 4);
    running.close();

    let History { outgoing, .. } = history(&mut fastrand::Rng::with_seed(44), 1_000);
    world.put_outgoing(&outgoing);
    make_anew(kafka, &name, 4);
    let running = topic.another().applier(&world, 2, AppliedLog::Outbox);
    wait_until("every partition is rebuilt", || running.applier.figures().rebuilt >= 4);
    world.assert_target_side();
    running.close();
}

/// A living reader goes on in the new topic where it stood in the old one; a barrier that it meets
/// there must not say that what lies before it was applied.
#[test]
fn a_barrier_of_a_topic_made_anew_passes_after_the_rebuild() {
    let Some((mariadb, kafka)) = servers("a_barrier_of_a_topic_made_anew_passes_after_the_rebuild")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(45), 400);
    world.put_outgoing(&outgoing);
    topic.send_records(&world, &records[..4]);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);

    make_anew(kafka, &name, 4);
    let topic = topic.another();
    topic.send_records(&world, &records);
    let barriers: Vec<_> = (0..4).map(|part| (part, encode_barrier(78, u64::MAX))).collect();
    topic.send(&name, &barriers);
    let soon = || Instant::now() + PATIENCE;
    assert!(barrier::wait(&world.database, 78, 4, soon()).unwrap());
    world.assert_target_side();
    running.close();
}

#[test]
fn a_log_that_lost_its_end_and_grew_again_is_noticed() {
    let test = "a_log_that_lost_its_end_and_grew_again_is_noticed";
    let Some(mariadb) = shared::mariadb_or_skip(test) else { return };
    let Some(kafka) = Kafka::start_or_skip(test) else { return };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(&kafka, &mut world);
    let name = topic.settings.topic.clone();
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(43), 2_000);
    world.put_outgoing(&outgoing);
    for piece in records[..800].chunks(80) {
        topic.send_records(&world, piece);
    }
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    running.close();

    let halves: Vec<u64> = (0..4).map(|part| log_length(&kafka, &name, part) / 2).collect();
    lose_end(&kafka, &name, &halves);
    let topic = topic.another();
    topic.send_records(&world, &records[800..]);
    let running = topic.applier(&world, 2, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    world.assert_target_side();
    assert_eq!(running.applier.figures().rebuilt, 4);
    running.close();
}
