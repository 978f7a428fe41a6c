//! A log that no longer has what must be applied next.

use guanxi_cluster::applier::AppliedLog;
use guanxi_cluster::kafka::Offsets;
use guanxi_model::{EdgeRow, Millis, State, Version};
use guanxi_services::fresh_database;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, TopicPartitionList};

use super::history::{History, edge, history, record, row};
use super::topic::{Running, Topic, servers};
use super::world::{FOLLOW, World, wait_until};

fn trim(topic: &Topic, partition: i32, before: i64) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &topic.settings.brokers);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    let offset = Offset::Offset(before);
    list.add_partition_offset(&topic.settings.topic, partition, offset).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(admin.delete_records(&list, &AdminOptions::new())).unwrap();
}

#[test]
fn partitions_behind_the_log_are_rebuilt_from_outgoing() {
    let Some((mariadb, kafka)) = servers("partitions_behind_the_log_are_rebuilt_from_outgoing")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let History { records, mut outgoing } = history(&mut fastrand::Rng::with_seed(31), 3_000);
    topic.send_records(&world, &records[..1_000]);
    let running = topic.applier(&world, 1, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    running.close();
    // An edge that the target's side has and its source has not (its tombstone is long gone).
    let gone = edge(FOLLOW, 500, 3);
    topic.send_records(&world, &[record(gone, row(256, State::Live, None))]);
    let running = topic.applier(&world, 2, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    running.close();

    // The rest is sent, and lost in three of the four partitions before anyone applies it.
    topic.send_records(&world, &records[1_000..]);
    let trimmed: Vec<u32> = (0..4).filter(|part| *part != world.partition(&gone)).take(2).collect();
    let trimmed: Vec<u32> = trimmed.into_iter().chain([world.partition(&gone)]).collect();
    for partition in &trimmed {
        let next = world
            .number(&format!("SELECT next FROM applied WHERE topic='{name}' AND part={partition}"));
        trim(&topic, *partition as i32, next + 40);
    }
    world.put_outgoing(&outgoing);
    let running = topic.applier(&world, 3, AppliedLog::Outbox);
    topic.wait_applied(&world, &name, 4);
    // It is counted after the tables show it.
    wait_until("three are rebuilt", || running.applier.figures().rebuilt == 3);
    world.assert_target_side();

    // It goes on from there.
    let key = edge(FOLLOW, 501, 4);
    let late = EdgeRow::removed(Version(1 << 40), Millis(9));
    outgoing.insert(key, late.clone());
    world.put_outgoing(&outgoing);
    topic.send_records(&world, &[record(key, late)]);
    topic.wait_applied(&world, &name, 4);
    world.assert_target_side();
    running.close();
}

/// What two partitions have is taken together, and one of them turns out to be trimmed again and
/// again: nothing of the other may be passed by.
#[test]
fn a_partition_that_is_trimmed_under_load_costs_the_others_nothing() {
    let Some((mariadb, kafka)) =
        servers("a_partition_that_is_trimmed_under_load_costs_the_others_nothing")
    else {
        return;
    };
    let mut world = World::on(&fresh_database(mariadb));
    let topic = Topic::new(kafka, &mut world);
    let name = topic.settings.topic.clone();
    let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(32), 12_000);
    world.put_outgoing(&outgoing);
    let trimmed = 2;
    let (lost, kept): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| world.partition(&record.key) == trimmed);
    let mut running = None;
    for (number, piece) in kept.chunks(kept.len().div_ceil(200)).enumerate() {
        topic.send_records(&world, piece);
        // While nobody applies it, the other partition gets records and loses them.
        if number % 40 == 5 {
            if let Some(before) = running.take() {
                Running::close(before);
            }
            let some = &lost[number * 10..number * 10 + 200];
            topic.send_records(&world, some);
            let end = Offsets::open(&topic.settings).unwrap().of(&name, trimmed).unwrap().end;
            trim(&topic, trimmed as i32, end as i64 - 50);
            running = Some(topic.applier(&world, number as u64 + 1, AppliedLog::Outbox));
        }
    }
    topic.wait_applied(&world, &name, 4);
    // The last one began behind what had been trimmed. It is counted after the tables show it.
    let last = running.unwrap();
    wait_until("it is rebuilt", || last.applier.figures().rebuilt > 0);
    world.assert_target_side();
    last.close();
}
