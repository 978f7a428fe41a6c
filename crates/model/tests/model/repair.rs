//! Repairs: planted differences are mended whatever was written since they were seen, and a record
//! of a repair leaves rows as they are where nothing was wrong.

use guanxi_model::change::{Field, Put};
use guanxi_model::record::Repair;
use guanxi_model::{
    Answer, Change, Code, EdgeKey, GroupId, Index, IndexEntry, Millis, Record, State, Which,
};

use crate::world::{
    Deployment, FOLLOW, LIKE, POST, USER, VIEW, World, edge, group_name, groups_of, node,
};

fn put(world: &mut World, edge: EdgeKey) {
    world.change(&Change::Put(Put::plain(edge))).unwrap();
}

/// Likes of post 9 by three users, all of them owned by user 77.
fn liked() -> World {
    let mut world = World::new(Deployment::Embedded);
    for source in 1..=3 {
        let like = Put { owner: Field::Set(77), ..Put::plain(edge(LIKE, source, 9)) };
        world.change(&Change::Put(like)).unwrap();
    }
    world
}

#[test]
fn a_tally_is_mended_by_the_difference_that_was_seen() {
    for (key, which) in [
        (node(USER, 1), Which::Outgoing),
        (node(POST, 9), Which::Incoming),
        (node(USER, 77), Which::Owned),
        (node(USER, 5), Which::PendingOutgoing),
    ] {
        for wrong in [-3, -1, 1, 1_000] {
            let world = liked();
            let mut drifted = world.clone();
            drifted.rows.tallies.entry(key).or_default().add(LIKE, which, wrong);
            let repair = Change::RepairTally { node: key, kind: LIKE, which, delta: -wrong };
            let decided = drifted.change(&repair).unwrap();
            assert_eq!(decided.answer, Answer::Repaired);
            assert_eq!(drifted.rows, world.rows, "{key:?} {which:?} wrong by {wrong}");
            // Whoever was right all along stays right.
            let mut standby = world.clone();
            decided.records.iter().for_each(|record| standby.rows.apply(record));
            assert_eq!(standby.rows, world.rows);
        }
    }
}

#[test]
fn writes_between_a_look_and_its_repair_are_kept() {
    let mut world = liked();
    let post = node(POST, 9);
    // Seen when it was short by two; since then one like has come.
    let mut drifted = world.clone();
    put(&mut world, edge(LIKE, 4, 9));
    drifted.rows = world.rows.clone();
    drifted.rows.tallies.entry(post).or_default().add(LIKE, Which::Incoming, -2);
    let (kind, which) = (LIKE, Which::Incoming);
    let repair = Change::RepairTally { node: post, kind, which, delta: 2 };
    let decided = drifted.change(&repair).unwrap();
    assert_eq!(
        decided.records,
        [Record::Repair(Repair::Tally { node: post, kind, which, value: 4 })]
    );
    assert_eq!(drifted.rows, world.rows);
}

#[test]
fn a_group_size_is_mended_while_the_group_is_there() {
    let mut world = World::new(Deployment::Embedded);
    let groups = groups_of(FOLLOW, 1);
    world.change(&Change::CreateGroup { groups, name: group_name("g") }).unwrap();
    let member = Put { group: Field::Set(group_name("g")), ..Put::plain(edge(FOLLOW, 1, 2)) };
    world.change(&Change::Put(member)).unwrap();
    let mut drifted = world.clone();
    drifted.rows.groups.get_mut(&groups).unwrap().resize(GroupId(1), 7);
    let repair = Change::RepairGroupSize { groups, id: GroupId(1), delta: -7 };
    drifted.change(&repair).unwrap();
    assert_eq!(drifted.rows, world.rows);
    let gone = Change::RepairGroupSize { groups, id: GroupId(2), delta: 1 };
    assert_eq!(world.change(&gone).unwrap().records, []);
}

#[test]
fn an_entry_is_there_when_the_row_says_so_now() {
    let mut world = World::new(Deployment::Embedded);
    let (like, follow) = (edge(LIKE, 1, 9), edge(FOLLOW, 1, 2));
    let expires_at = Field::Set(Millis(5_000));
    world.change(&Change::Put(Put { expires_at, ..Put::plain(like) })).unwrap();
    world.change(&Change::Put(Put { approval: true, ..Put::plain(follow) })).unwrap();
    let now = world.now;
    let (live, pending) = (State::Live, State::Pending);
    let cases = [
        (like, Index::Incoming { state: live, since: now }, true),
        (like, Index::Incoming { state: pending, since: now }, false),
        (like, Index::Incoming { state: live, since: Millis(999) }, false),
        (like, Index::Outgoing { state: live, since: now }, true),
        (like, Index::Expiry { at: Millis(5_000) }, true),
        (like, Index::Expiry { at: Millis(5_001) }, false),
        (follow, Index::Incoming { state: pending, since: now }, true),
        (follow, Index::Incoming { state: live, since: now }, false),
        // A kind with a small limit keeps no index of outgoing edges.
        (follow, Index::Outgoing { state: pending, since: now }, false),
        (edge(LIKE, 3, 9), Index::Incoming { state: live, since: now }, false),
    ];
    for (edge, index, present) in cases {
        let entry = IndexEntry { edge, index };
        let decided = world.change(&Change::RepairEntry { entry }).unwrap();
        let expected = Record::Repair(Repair::Entry { entry, present });
        assert_eq!(decided.records, [expected], "{entry:?}");
    }
}

#[test]
fn what_has_no_other_truth_is_not_mended() {
    let mut world = World::new(Deployment::Embedded);
    let (node, which) = (node(POST, 9), Which::Value);
    let counter = Change::RepairTally { node, kind: VIEW, which, delta: 1 };
    assert_eq!(world.change(&counter).unwrap_err().code, Code::InvalidArgument);
    world.rows.tallies.entry(node).or_default().add(LIKE, Which::Incoming, i64::MAX);
    let which = Which::Incoming;
    let beyond = Change::RepairTally { node, kind: LIKE, which, delta: 1 };
    assert_eq!(world.change(&beyond).unwrap_err().code, Code::LimitReached);
}
