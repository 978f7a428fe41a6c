//! Kinds over the admin API, live: create, change, and what is fixed at creation.

use std::time::Duration;

use guanxi_tests::{
    Server, assert_keys, edge, edge_call, node_run, nodes, page_of, poll_until, put_all,
    put_followers, shared, tally, walk, walk_ids,
};
use serde_json::{Value, json};

const KINDS: &str = "/v1/admin/kinds";
const FIELDS: [&str; 20] = [
    "name",
    "id",
    "source_type",
    "target_type",
    "counter",
    "reconciled",
    "owner_type",
    "outgoing_list",
    "incoming_list",
    "outgoing_tally",
    "incoming_tally",
    "self_allowed",
    "outgoing_max",
    "groups_max",
    "approval",
    "data_bytes_max",
    "excludes",
    "expires",
    "list_depth_max",
    "on_overload",
];

#[track_caller]
fn create(server: &Server, body: Value) -> Value {
    let answer = server.post_json(KINDS, body);
    answer.expect_status(201).clone()
}

#[track_caller]
fn create_between_users(server: &Server, name: &str, rules: Value) -> Value {
    let mut body = json!({"name": name, "source_type": "user", "target_type": "user"});
    for (rule, value) in rules.as_object().expect("rules") {
        body[rule.as_str()] = value.clone();
    }
    create(server, body)
}

#[test]
fn the_ready_kinds_are_there() {
    let server = shared();
    let listed = server.get(KINDS);
    let kinds = listed.ok()["kinds"].as_array().expect("kinds");
    let find = |name: &str| {
        kinds.iter().find(|kind| kind["name"] == name).unwrap_or_else(|| panic!("no kind {name}"))
    };
    for (name, source_type, target_type, counter) in [
        ("follow", json!("user"), "user", false),
        ("like", json!("user"), "post", false),
        ("favorite", json!("user"), "post", false),
        ("block", json!("user"), "user", false),
        ("view", json!(null), "post", true),
        ("play_seconds", json!(null), "post", true),
    ] {
        let kind = find(name);
        assert_keys(kind, &FIELDS);
        assert_eq!(kind["target_type"], target_type, "{name}");
        assert_eq!(kind["counter"], counter, "{name}");
        if !counter {
            assert_eq!(kind["source_type"], source_type, "{name}");
        }
        assert_eq!(server.get(format!("{KINDS}/{name}")).ok(), kind);
    }
    let follow = find("follow");
    assert_eq!(follow["outgoing_max"], 2000);
    assert_eq!(follow["groups_max"], 20);
    assert_eq!(follow["approval"], true);
    assert_eq!(find("block")["excludes"], json!(["follow"]));
    assert_eq!(find("like")["owner_type"], "user");
    assert!(find("like")["outgoing_max"].is_null());
    server.get(format!("{KINDS}/nothing")).expect_error(404, "unknown_kind");
}

#[test]
fn a_new_kind_serves_at_once() {
    let server = shared();
    let created = create(
        &server,
        json!({"name": "shared.with_me", "source_type": "user", "target_type": "comment"}),
    );
    assert_keys(&created, &FIELDS);
    let [user, comment] = nodes();
    server.put(edge("shared.with_me", user, comment)).expect_change(true, "live");
    assert_eq!(tally(&server, "shared.with_me", comment)["incoming"], 1);
    let again = json!({"name": "shared.with_me", "source_type": "user", "target_type": "comment"});
    server.post_json(KINDS, again).expect_error(409, "conflict");
    let ids: Vec<u64> = server.get(KINDS).ok()["kinds"]
        .as_array()
        .expect("kinds")
        .iter()
        .map(|kind| kind["id"].as_u64().expect("a kind's id"))
        .collect();
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "kind ids are never reused");
}

#[test]
fn wrong_kinds_are_refused() {
    let server = shared();
    let good = json!({"name": "good", "source_type": "user", "target_type": "user"});
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let refused = [
        with("name", json!("Big")),
        with("name", json!("1st")),
        with("name", json!("")),
        with("name", json!("a".repeat(33))),
        with("name", json!("a-b")),
        with("name", json!("a b")),
        with("outgoing_max", json!(-1)),
        with("outgoing_max", json!("3")),
        with("data_bytes_max", json!(129)),
        with("excludes", json!("follow")),
        with("colour", json!("red")),
        with("approval", json!("yes")),
        with("target_type", json!(null)),
        // A limit needs the outgoing tally.
        json!({"name": "good", "source_type": "user", "target_type": "user",
            "outgoing_tally": false, "outgoing_max": 5}),
        // What excludes must be of the same node types.
        json!({"name": "good", "source_type": "user", "target_type": "post", "excludes": ["follow"]}),
        // Equal ids of two node types are no self relation.
        json!({"name": "good", "source_type": "user", "target_type": "post", "self_allowed": true}),
        json!({"name": "good"}),
    ];
    for body in refused {
        let answer = server.post_json(KINDS, body.clone());
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        answer.expect_error(400, "invalid_argument");
    }
    server
        .post_json(KINDS, with("excludes", json!(["nothing"])))
        .expect_error(400, "invalid_argument");
    server.get(format!("{KINDS}/good")).expect_error(404, "unknown_kind");
}

#[test]
fn rules_change_live_and_bind_new_writes_only() {
    let server = shared();
    create_between_users(&server, "live_rules", json!({"outgoing_max": 2, "data_bytes_max": 8}));
    let [source, a, b, c] = nodes();
    let path = format!("{KINDS}/live_rules");
    let put = |target: u64| server.put(edge("live_rules", source, target));
    put(a).expect_change(true, "live");
    put(b).expect_change(true, "live");
    put(c).expect_error(422, "limit_reached");
    let patched = server.patch_json(&path, json!({"outgoing_max": 3}));
    assert_eq!(patched.ok()["outgoing_max"], 3);
    put(c).expect_change(true, "live");
    server.patch_json(&path, json!({"outgoing_max": 1})).ok();
    put(c).expect_change(false, "live");
    assert_eq!(tally(&server, "live_rules", source)["outgoing"], 3, "what stands stays");
    let [d] = nodes();
    put(d).expect_error(422, "limit_reached");

    let data = |text: &str| server.put_json(edge("live_rules", a, source), json!({"data": text}));
    data("12345678").expect_change(true, "live");
    data("123456789").expect_error(413, "too_large");
    server.patch_json(&path, json!({"data_bytes_max": 9})).ok();
    data("123456789").expect_change(true, "live");

    let itself = edge("live_rules", a, a);
    server.put(&itself).expect_error(422, "self_relation");
    server.patch_json(&path, json!({"self_allowed": true})).ok();
    server.put(&itself).expect_error(422, "limit_reached");
    server.patch_json(&path, json!({"outgoing_max": 100})).ok();
    server.put(&itself).expect_change(true, "live");

    let ask = || server.put_json(edge("live_rules", b, d), json!({"approval": true}));
    ask().expect_error(400, "invalid_argument");
    server.patch_json(&path, json!({"approval": true})).ok();
    ask().expect_change(true, "pending");

    server.put(edge("live_rules", c, d)).expect_change(true, "live");
    server.put(edge("block", c, d)).expect_change(true, "live");
    assert_eq!(server.get(edge("live_rules", c, d)).ok()["related"], true);
    server.patch_json(&path, json!({"no_such_rule": 1})).expect_error(400, "invalid_argument");
    server
        .patch_json(format!("{KINDS}/nothing"), json!({"approval": true}))
        .expect_error(404, "unknown_kind");
}

#[test]
fn what_is_fixed_at_creation_is_refused_by_name() {
    let server = shared();
    create_between_users(&server, "fixed_rules", json!({}));
    let path = format!("{KINDS}/fixed_rules");
    let before = server.get(&path).ok().clone();
    let fixed = [
        ("source_type", json!("post")),
        ("target_type", json!("post")),
        ("counter", json!(true)),
        ("owner_type", json!("user")),
        ("outgoing_list", json!(false)),
        ("incoming_list", json!(false)),
        ("outgoing_tally", json!(false)),
        ("incoming_tally", json!(false)),
        ("name", json!("renamed")),
        ("id", json!(9)),
    ];
    for (field, value) in fixed {
        let mut body = json!({});
        body[field] = value;
        let answer = server.patch_json(&path, body);
        let message = answer.expect_error(400, "invalid_argument");
        assert!(message.contains(field), "{message} does not name {field}");
    }
    assert_eq!(*server.get(&path).ok(), before);
}

#[test]
fn a_kind_keeps_only_what_it_declares() {
    let server = shared();
    create_between_users(
        &server,
        "quiet",
        json!({"incoming_list": false, "incoming_tally": false}),
    );
    let [source, target] = nodes();
    server.put(edge("quiet", source, target)).expect_change(true, "live");
    assert_eq!(walk_ids(&server, &edge_call("quiet", source, "outgoing"), 10), [target]);
    server.get(edge_call("quiet", target, "incoming")).expect_error(400, "invalid_argument");
    server.get(edge_call("quiet", target, "incoming/scan")).expect_error(400, "invalid_argument");
    assert_eq!(tally(&server, "quiet", target), json!({"outgoing": 0}));
    assert_eq!(tally(&server, "quiet", source), json!({"outgoing": 1}));
    assert_eq!(server.get(edge("quiet", source, target)).ok()["related"], true);
    server.delete(edge("quiet", source, target)).expect_change(true, "removed");

    create_between_users(
        &server,
        "inward",
        json!({"outgoing_list": false, "outgoing_tally": false}),
    );
    server.put(edge("inward", source, target)).expect_change(true, "live");
    server.get(edge_call("inward", source, "outgoing")).expect_error(400, "invalid_argument");
    assert_eq!(walk_ids(&server, &edge_call("inward", target, "incoming"), 10), [source]);
    assert_eq!(tally(&server, "inward", target), json!({"incoming": 1}));
}

#[test]
fn a_created_kind_may_exclude() {
    let server = shared();
    create_between_users(&server, "wave", json!({}));
    create_between_users(&server, "mute", json!({"excludes": ["wave", "follow"]}));
    let [a, b] = nodes();
    server.put(edge("wave", a, b)).ok();
    server.put(edge("follow", b, a)).ok();
    server.put(edge("mute", a, b)).expect_change(true, "live");
    for kind in ["wave", "follow"] {
        for (source, target) in [(a, b), (b, a)] {
            assert_eq!(server.get(edge(kind, source, target)).ok()["related"], false);
            server.put(edge(kind, source, target)).expect_error(422, "excluded");
        }
    }
    server.patch_json(format!("{KINDS}/mute"), json!({"excludes": ["follow"]})).ok();
    server.put(edge("wave", a, b)).expect_change(true, "live");
}

#[test]
fn a_depth_bounds_the_public_list_and_not_the_scan() {
    let server = shared();
    create_between_users(&server, "shallow", json!({"list_depth_max": 10}));
    let [target] = nodes();
    put_followers(&server, "shallow", target, &node_run(25));
    let mut path = edge_call("shallow", target, "incoming?limit=5");
    let mut seen = 0;
    for _ in 0..5 {
        let answer = server.get(&path);
        if answer.status != 200 {
            answer.expect_error(422, "depth_exceeded");
            break;
        }
        seen += answer.ok()["items"].as_array().expect("items").len();
        let next = answer.ok()["next"].as_str().expect("there is more");
        path = edge_call("shallow", target, &format!("incoming?limit=5&cursor={next}"));
    }
    assert_eq!(seen, 10);
    for way_around in ["until=2100-01-01T00:00:00Z", "order=oldest"] {
        let path = edge_call("shallow", target, &format!("incoming?{way_around}"));
        server.get(&path).expect_error(400, "invalid_argument");
    }
    assert_eq!(page_of(&server, &edge_call("shallow", target, "incoming")).total, 25);
    assert_eq!(walk_ids(&server, &edge_call("shallow", target, "incoming/scan"), 10).len(), 25);
    server.patch_json(format!("{KINDS}/shallow"), json!({"list_depth_max": 0})).ok();
    assert_eq!(walk_ids(&server, &edge_call("shallow", target, "incoming"), 10).len(), 25);
}

#[test]
fn raising_a_limit_past_two_thousand_builds_the_time_index() {
    let server = shared();
    create_between_users(&server, "growing", json!({"outgoing_max": 2000}));
    let [source] = nodes();
    let targets = node_run(2_600);
    let edges: Vec<_> = targets.iter().map(|target| (source, *target)).collect();
    put_all(&server, "growing", &edges[..2_000]);
    let path = edge_call("growing", source, "outgoing");
    let before = walk(&server, &path, 500, |_, _| ());
    server.patch_json(format!("{KINDS}/growing"), json!({"outgoing_max": 5000})).ok();
    poll_until("the index is built", Duration::from_secs(60), || {
        let listed = server.get("/v1/admin/jobs");
        let jobs = listed.ok()["jobs"].as_array().expect("jobs");
        let job = jobs.iter().find(|job| job["kind"] == "growing").expect("a job builds the index");
        assert_eq!(job["type"], "build_index");
        (job["state"] == "done").then_some(())
    });
    assert_eq!(walk(&server, &path, 500, |_, _| ()), before, "what stood is listed as before");
    put_all(&server, "growing", &edges[2_000..]);
    let mut all = walk_ids(&server, &path, 500);
    assert_eq!(page_of(&server, &path).total, 2_600);
    let oldest = walk_ids(&server, &format!("{path}?order=oldest"), 500);
    assert!(all.iter().eq(oldest.iter().rev()));
    all.sort_unstable();
    assert_eq!(all, targets);
    server.delete(edge("growing", source, targets[0])).expect_change(true, "removed");
    assert_eq!(walk_ids(&server, &path, 500).len(), 2_599);
}

#[test]
fn what_a_kind_does_on_overload_may_change_at_any_time() {
    let server = shared();
    let listed = server.get(KINDS);
    for kind in listed.ok()["kinds"].as_array().expect("kinds") {
        if ["follow", "like", "block", "view"].map(Value::from).contains(&kind["name"]) {
            assert_eq!(
                kind["on_overload"], "refuse",
                "nothing is made up unless asked for: {kind}"
            );
        }
    }
    let made = create_between_users(&server, "lenient", json!({"on_overload": "answer_default"}));
    assert_eq!(made["on_overload"], "answer_default");
    let path = format!("{KINDS}/lenient");
    for (body, expected) in [
        (json!({"on_overload": "refuse"}), "refuse"),
        (json!({"on_overload": "answer_default"}), "answer_default"),
        (json!({"groups_max": 2}), "answer_default"),
    ] {
        assert_eq!(server.patch_json(&path, body).ok()["on_overload"], expected);
        assert_eq!(server.get(&path).ok()["on_overload"], expected);
    }
    for wrong in [json!("guess"), json!(null), json!(1), json!("")] {
        let body = json!({"on_overload": wrong});
        server.patch_json(&path, body).expect_error(400, "invalid_argument");
    }
    // A counter is read, too.
    let counter = json!({"name": "lenient.count", "target_type": "post", "counter": true,
                         "on_overload": "answer_default"});
    assert_eq!(create(&server, counter)["on_overload"], "answer_default");
    // An embedded service always knows: nothing of its answers is degraded.
    let [source, target] = nodes();
    server.put(edge("lenient", source, target)).ok();
    let answer = server.get(edge("lenient", source, target));
    assert_eq!((&answer.ok()["related"], answer.ok().get("degraded")), (&json!(true), None));
}
