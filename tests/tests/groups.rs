//! Groups: named folders of one source's outgoing edges.

use guanxi_tests::{Server, edge, edge_call, node_run, nodes, shared, tally, version_of, walk_ids};
use serde_json::{Value, json};

fn groups_of(source: u64) -> String {
    format!("/v1/groups/follow/{source}")
}

#[track_caller]
fn create(server: &Server, source: u64, name: &str) {
    let answer = server.post_json(groups_of(source), json!({"name": name}));
    assert_eq!(*answer.expect_status(201), json!({"name": name, "size": 0}));
}

#[track_caller]
fn assert_groups(server: &Server, source: u64, expected: &[(&str, u64)]) {
    let groups: Vec<Value> =
        expected.iter().map(|(name, size)| json!({"name": name, "size": size})).collect();
    assert_eq!(*server.get(groups_of(source)).ok(), json!({"groups": groups}));
}

#[test]
fn groups_are_created_listed_renamed_and_deleted() {
    let server = shared();
    let [source, target] = nodes();
    assert_groups(&server, source, &[]);
    create(&server, source, "zebra");
    create(&server, source, "apple");
    assert_groups(&server, source, &[("zebra", 0), ("apple", 0)]);
    server.post_json(groups_of(source), json!({"name": "apple"})).expect_error(409, "conflict");

    server.put_json(edge("follow", source, target), json!({"group": "apple"})).ok();
    let renamed =
        server.patch_json(format!("{}/apple", groups_of(source)), json!({"name": "pear"}));
    assert_eq!(*renamed.ok(), json!({"name": "pear", "size": 1}));
    assert_eq!(server.get(edge("follow", source, target)).ok()["group"], "pear");
    assert_groups(&server, source, &[("zebra", 0), ("pear", 1)]);
    server
        .patch_json(format!("{}/zebra", groups_of(source)), json!({"name": "pear"}))
        .expect_error(409, "conflict");
    server
        .patch_json(format!("{}/apple", groups_of(source)), json!({"name": "plum"}))
        .expect_error(404, "unknown_group");

    let deleted = server.delete(format!("{}/pear", groups_of(source)));
    assert_eq!(*deleted.ok(), json!({"name": "pear", "size": 1}));
    server.delete(format!("{}/pear", groups_of(source))).expect_error(404, "unknown_group");
    assert_groups(&server, source, &[("zebra", 0)]);

    // Members stay related, ungrouped; a new group of the old name does not inherit them.
    let read = server.get(edge("follow", source, target));
    assert_eq!((&read.ok()["related"], &read.ok()["group"]), (&json!(true), &Value::Null));
    assert_eq!(walk_ids(&server, &edge_call("follow", source, "outgoing?group="), 10), [target]);
    create(&server, source, "pear");
    assert_groups(&server, source, &[("zebra", 0), ("pear", 0)]);
    assert_eq!(server.get(edge("follow", source, target)).ok()["group"], Value::Null);
    assert_eq!(tally(&server, "follow", source)["outgoing"], 1);
}

#[test]
fn members_move_between_groups() {
    let server = shared();
    let [source, stranger] = nodes();
    let targets = node_run(3);
    create(&server, source, "a");
    create(&server, source, "b");
    let member =
        |group: &str, target: u64| format!("{}/{group}/members/{target}", groups_of(source));
    for target in &targets {
        server.put(edge("follow", source, *target)).ok();
    }
    let before = server.get(edge("follow", source, targets[0]));
    let moved = server.put(member("a", targets[0]));
    assert_eq!(*moved.ok(), json!({"name": "a", "size": 1}));
    let after = server.get(edge("follow", source, targets[0]));
    assert_eq!(after.ok()["group"], "a");
    assert_eq!(after.ok()["since"], before.ok()["since"], "a move keeps since");
    assert!(version_of(after.ok()) > version_of(before.ok()), "a move raises the version");

    assert_eq!(*server.put(member("a", targets[0])).ok(), json!({"name": "a", "size": 1}));
    server.put(member("a", targets[1])).ok();
    assert_eq!(*server.put(member("b", targets[1])).ok(), json!({"name": "b", "size": 1}));
    assert_groups(&server, source, &[("a", 1), ("b", 1)]);

    assert_eq!(*server.delete(member("a", targets[0])).ok(), json!({"name": "a", "size": 0}));
    assert_eq!(*server.delete(member("a", targets[0])).ok(), json!({"name": "a", "size": 0}));
    assert_eq!(server.get(edge("follow", source, targets[0])).ok()["related"], true);
    // A member of another group is not taken out of that one.
    server.delete(member("a", targets[1])).ok();
    assert_groups(&server, source, &[("a", 0), ("b", 1)]);

    server.put(member("a", stranger)).expect_error(409, "not_related");
    server.put(member("c", targets[0])).expect_error(404, "unknown_group");
    server.delete(member("c", targets[0])).expect_error(404, "unknown_group");
}

#[test]
fn a_size_counts_live_members() {
    let server = shared();
    let [source, target, asked] = nodes();
    create(&server, source, "g");
    server
        .put_json(edge("follow", source, asked), json!({"group": "g", "approval": true}))
        .expect_change(true, "pending");
    server.put_json(edge("follow", source, target), json!({"group": "g"})).ok();
    assert_groups(&server, source, &[("g", 1)]);
    server.post(format!("{}/approve", edge("follow", source, asked))).ok();
    assert_groups(&server, source, &[("g", 2)]);
    server.delete(edge("follow", source, target)).ok();
    assert_groups(&server, source, &[("g", 1)]);
    // Unfollowing dropped the membership.
    server.put(edge("follow", source, target)).ok();
    assert_eq!(server.get(edge("follow", source, target)).ok()["group"], Value::Null);
    assert_groups(&server, source, &[("g", 1)]);
    server.put(edge("block", asked, source)).ok();
    assert_groups(&server, source, &[("g", 0)]);
}

#[test]
fn names_are_checked_and_compared_exactly() {
    let server = shared();
    let [source] = nodes();
    let refused = [
        json!({"name": ""}),
        json!({"name": "."}),
        json!({"name": ".."}),
        json!({"name": "a/b"}),
        json!({"name": "n".repeat(65)}),
        json!({"name": 7}),
        json!({"name": null}),
        json!({}),
        json!({"name": "x", "size": 3}),
    ];
    for body in refused {
        let answer = server.post_json(groups_of(source), body.clone());
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        answer.expect_error(400, "invalid_argument");
    }
    for name in ["Friends", "friends", "朋友", "..a", "with space", &"关".repeat(64)] {
        create(&server, source, name);
    }
    server.get(format!("{}/friends", groups_of(source))).expect_error(405, "method_not_allowed");
    server.delete(format!("{}/%E6%9C%8B%E5%8F%8B", groups_of(source))).ok();
    server.delete(format!("{}/with%20space", groups_of(source))).ok();
}

#[test]
fn a_source_has_twenty_groups() {
    let server = shared();
    let [source, other] = nodes();
    for number in 0..20 {
        create(&server, source, &format!("group {number}"));
    }
    server
        .post_json(groups_of(source), json!({"name": "one more"}))
        .expect_error(422, "limit_reached");
    create(&server, other, "one more");
    server.delete(format!("{}/group%203", groups_of(source))).ok();
    create(&server, source, "one more");
    // Kinds without groups have none to create.
    server
        .post_json(format!("/v1/groups/like/{source}"), json!({"name": "x"}))
        .expect_error(422, "limit_reached");
}

#[test]
fn groups_of_one_source_are_not_those_of_another() {
    let server = shared();
    let [one, other, target] = nodes();
    create(&server, one, "mine");
    server
        .put_json(edge("follow", other, target), json!({"group": "mine"}))
        .expect_error(404, "unknown_group");
    server.delete(format!("{}/mine", groups_of(other))).expect_error(404, "unknown_group");
    assert_groups(&server, one, &[("mine", 0)]);
}
