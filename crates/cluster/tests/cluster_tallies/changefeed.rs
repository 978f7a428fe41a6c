//! The follower behind a changefeed, and across a change of the log.

use guanxi_services::{shared, topic_name};

use crate::bad_days::{a_while, right, storm};
use crate::player::Player;
use crate::stage::{ALL, Stage, figures};
use crate::world::eventually;

#[test]
fn from_the_outbox_to_a_changefeed_and_back() {
    let test = "tallies changefeed";
    let Some(stage) = Stage::open_on_tidb(test) else { return };
    let Some(kafka) = shared::kafka_or_skip(test) else { return };
    let feed = topic_name("changefeed");
    kafka.create_topic(&feed, stage.kafka.partitions as u16);
    let one = stage.instance(ALL);
    storm(&stage, [&one, &one], a_while);
    right(&stage, "behind the outbox");
    let player = Player::start(&stage.url, &stage.kafka, &feed);
    let epoch = stage.epoch();
    one.close();

    let two = stage.instance_of(ALL, Some(&feed));
    storm(&stage, [&two, &two], || {
        a_while();
        eventually("it follows, from a new beginning", || {
            figures(&two).followed && stage.epoch() > epoch
        });
        a_while();
    });
    right(&stage, "behind the changefeed");
    assert!(player.told() > 0 && figures(&two).hits > 0);
    two.close();
    player.close();

    let three = stage.instance(ALL);
    storm(&stage, [&three, &three], || {
        a_while();
        eventually("it follows", || figures(&three).followed);
        a_while();
    });
    right(&stage, "behind the outbox again");
}
