//! The rules that a kind lays on its edges: approval, limits, excludes and expiry.

use std::time::Duration;

use guanxi_tests::{
    Server, assert_change, assert_lists_and_tallies_agree, edge, edge_call, expect_problem,
    millis_now, node, node_run, nodes, page_of, parse_millis, poll_until, put_all, rfc3339, shared,
    tally, version_of, walk_ids,
};
use serde_json::{Value, json};

/// "Normally within a second" of its time; the rest is for a machine that does other things.
const EXPIRY_SLACK_MS: u64 = 30_000;

#[track_caller]
fn assert_pending_tallies(server: &Server, source: u64, target: u64, live: u64, pending: u64) {
    let outgoing = tally(server, "follow", source);
    assert_eq!(
        (&outgoing["outgoing"], &outgoing["pending_outgoing"]),
        (&json!(live), &json!(pending))
    );
    let incoming = tally(server, "follow", target);
    assert_eq!(
        (&incoming["incoming"], &incoming["pending_incoming"]),
        (&json!(live), &json!(pending))
    );
}

#[test]
fn a_pending_edge_is_approved() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);

    let asked = server.put_json(&path, json!({"approval": true, "data": "hello"}));
    let asked = asked.expect_change(true, "pending");
    assert_pending_tallies(&server, source, target, 0, 1);
    let read = server.get(&path);
    assert_eq!(read.ok()["related"], false);
    assert_eq!(read.ok()["state"], "pending");
    assert_eq!(read.ok()["since"], asked["since"]);
    assert_eq!(read.ok()["version"], asked["version"]);
    assert_eq!(read.ok()["data"], "hello");
    let seen_back = server.get(edge("follow", target, source));
    assert_eq!(seen_back.ok()["reverse"]["related"], false);
    for direction in ["outgoing", "incoming"] {
        let (id, other) = if direction == "outgoing" { (source, target) } else { (target, source) };
        let live = page_of(&server, &edge_call("follow", id, direction));
        assert!(live.items.is_empty(), "a pending edge is in no live list");
        let pending =
            page_of(&server, &edge_call("follow", id, &format!("{direction}?state=pending")));
        assert_eq!(pending.ids(), [other]);
        assert_eq!(pending.items[0]["state"], "pending");
        assert_eq!(pending.total, 1);
    }

    // A further put leaves it pending, whether or not it asks for approval again.
    server.put(&path).expect_change(false, "pending");
    server.put_json(&path, json!({"data": "please"})).expect_change(true, "pending");
    server.put(format!("{path}?strict=true")).expect_error(409, "already_related");

    let approved = server.post(format!("{path}/approve"));
    let approved = approved.expect_change(true, "live");
    assert!(version_of(approved) > version_of(asked));
    assert!(parse_millis(&approved["since"]) >= parse_millis(&asked["since"]));
    assert_eq!(server.get(&path).ok()["data"], "please");
    assert_pending_tallies(&server, source, target, 1, 0);

    server.post(format!("{path}/approve")).expect_change(false, "live");
    server.post(format!("{path}/decline")).expect_error(409, "not_pending");
    server.put_json(&path, json!({"approval": true})).expect_change(false, "live");
    assert_pending_tallies(&server, source, target, 1, 0);
}

#[test]
fn a_pending_edge_is_declined_or_withdrawn() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let ask = || {
        server.put_json(&path, json!({"approval": true})).expect_change(true, "pending");
    };

    ask();
    server.post(format!("{path}/decline")).expect_change(true, "removed");
    assert_pending_tallies(&server, source, target, 0, 0);
    server.post(format!("{path}/decline")).expect_error(409, "not_pending");

    ask();
    server.delete(&path).expect_change(true, "removed");
    assert_pending_tallies(&server, source, target, 0, 0);
    server.post(format!("{path}/approve")).expect_error(409, "not_pending");
    server.put(&path).expect_change(true, "live");
}

#[test]
fn a_private_node_must_approve() {
    let server = shared();
    let [early, late, private] = nodes();
    let setting = node("user", private);
    assert_eq!(*server.get(&setting).ok(), json!({"private": false}));
    server.put(edge("follow", early, private)).expect_change(true, "live");

    assert_eq!(*server.put_json(&setting, json!({"private": true})).ok(), json!({"private": true}));
    assert_eq!(*server.get(&setting).ok(), json!({"private": true}));
    server.put(edge("follow", late, private)).expect_change(true, "pending");
    server.put(edge("follow", early, private)).expect_change(false, "live");
    server.put_json(edge("follow", private, late), json!({})).expect_change(true, "live");
    // Blocks ask nobody.
    let [blocker] = nodes();
    server.put(edge("block", blocker, private)).expect_change(true, "live");

    server.put_json(&setting, json!({"private": false})).ok();
    server.put(edge("follow", late, private)).expect_change(false, "pending");
    let [newcomer] = nodes();
    server.put(edge("follow", newcomer, private)).expect_change(true, "live");
}

#[test]
fn fields_that_a_kind_does_not_know_are_refused() {
    let server = shared();
    let [source, target] = nodes();
    let cases = [
        ("like", json!({"approval": true})),
        ("follow", json!({"owner": "77"})),
        ("block", json!({"owner": "77"})),
        ("follow", json!({"expires_at": rfc3339(millis_now() - 1_000)})),
        ("follow", json!({"expires_at": "tomorrow"})),
    ];
    for (kind, body) in cases {
        let path = edge(kind, source, target);
        let answer = server.put_json(&path, body.clone());
        let message = answer.expect_error(400, "invalid_argument");
        let field = body.as_object().and_then(|body| body.keys().next()).expect("a field");
        assert!(message.contains(field.as_str()), "{message} does not name {field}");
        assert_eq!(server.get(&path).ok()["related"], false);
    }
    server
        .put_json(edge("follow", source, target), json!({"group": "no such group"}))
        .expect_error(404, "unknown_group");
}

/// Creates a user→user kind of three edges at most.
fn kind_of_three(server: &Server, name: &str) {
    server
        .post_json(
            "/v1/admin/kinds",
            json!({"name": name, "source_type": "user", "target_type": "user",
                "outgoing_max": 3, "approval": true}),
        )
        .expect_status(201);
}

#[test]
fn the_limit_counts_live_and_pending_edges() {
    let server = shared();
    kind_of_three(&server, "three");
    let [source, a, b, c, d] = nodes();
    let put = |target: u64| server.put(edge("three", source, target));
    put(a).expect_change(true, "live");
    put(b).expect_change(true, "live");
    server
        .put_json(edge("three", source, c), json!({"approval": true}))
        .expect_change(true, "pending");

    let refused = put(d);
    let message = refused.expect_error(422, "limit_reached");
    for part in [source.to_string().as_str(), "3", "three"] {
        assert!(message.contains(part), "{message} does not say {part}");
    }
    server
        .put_json(edge("three", source, d), json!({"approval": true}))
        .expect_error(422, "limit_reached");
    assert_eq!(server.get(edge("three", source, d)).ok()["related"], false);

    // What stands already may stay and change.
    put(a).expect_change(false, "live");
    server.post(format!("{}/approve", edge("three", source, c))).expect_change(true, "live");
    // Incoming edges do not count.
    server.put(edge("three", d, source)).expect_change(true, "live");

    server.delete(edge("three", source, a)).expect_change(true, "removed");
    put(d).expect_change(true, "live");
    put(a).expect_error(422, "limit_reached");

    // Within one batch each change sees those before it.
    let changes: Vec<Value> = [("delete", d), ("put", a), ("put", d), ("delete", b), ("put", d)]
        .iter()
        .map(|(op, target)| json!({"op": op, "kind": "three", "source": source, "target": target}))
        .collect();
    let answer = server.post_json("/v1/edges/batch", json!({"changes": changes}));
    let results = &answer.ok()["results"];
    assert_change(&results[0], true, "removed");
    assert_change(&results[1], true, "live");
    expect_problem(&results[2]["error"], 422, "limit_reached");
    assert_change(&results[3], true, "removed");
    assert_change(&results[4], true, "live");
    assert_eq!(tally(&server, "three", source)["outgoing"], 3);
}

#[test]
fn a_user_follows_two_thousand_and_no_more() {
    let server = shared();
    let [source] = nodes();
    let targets = node_run(2_001);
    let edges: Vec<_> = targets[..2_000].iter().map(|target| (source, *target)).collect();
    put_all(&server, "follow", &edges);
    let one_more = server.put(edge("follow", source, targets[2_000]));
    let message = one_more.expect_error(422, "limit_reached");
    for part in [source.to_string().as_str(), "2000", "follow"] {
        assert!(message.contains(part), "{message} does not say {part}");
    }
    assert_eq!(tally(&server, "follow", source)["outgoing"], 2_000);
    assert_eq!(walk_ids(&server, &edge_call("follow", source, "outgoing"), 1_000).len(), 2_000);
    server.delete(edge("follow", source, targets[7])).expect_change(true, "removed");
    server.put(edge("follow", source, targets[2_000])).expect_change(true, "live");
    // Likes have no limit.
    let edges: Vec<_> = targets.iter().map(|target| (source, *target)).collect();
    put_all(&server, "like", &edges);
    assert_eq!(tally(&server, "like", source)["outgoing"], 2_001);
}

/// Which follows stand before the block: a live or pending one, from the blocker or to it.
const STANDING: [(&str, Option<&str>, Option<&str>); 6] = [
    ("none", None, None),
    ("the blocker's", Some("live"), None),
    ("the blocked one's", None, Some("live")),
    ("both", Some("live"), Some("live")),
    ("both pending", Some("pending"), Some("pending")),
    ("live and pending", Some("live"), Some("pending")),
];

#[test]
fn a_block_cuts_both_follows_and_keeps_them_out() {
    let server = shared();
    for (what, from_blocker, to_blocker) in STANDING {
        let [blocker, blocked] = nodes();
        for (standing, source, target) in
            [(from_blocker, blocker, blocked), (to_blocker, blocked, blocker)]
        {
            if let Some(state) = standing {
                server
                    .put_json(
                        edge("follow", source, target),
                        json!({"approval": state == "pending"}),
                    )
                    .expect_change(true, state);
            }
        }
        server.put(edge("block", blocker, blocked)).expect_change(true, "live");
        for (source, target) in [(blocker, blocked), (blocked, blocker)] {
            let path = edge("follow", source, target);
            let read = server.get(&path);
            assert_eq!(
                (&read.ok()["related"], &read.ok()["state"]),
                (&json!(false), &Value::Null),
                "{what}"
            );
            server.put(&path).expect_error(422, "excluded");
            server.put_json(&path, json!({"approval": true})).expect_error(422, "excluded");
            server.delete(&path).expect_change(false, "removed");
            assert_pending_tallies(&server, source, target, 0, 0);
        }
        let edges = assert_lists_and_tallies_agree(
            &server,
            "follow",
            &[blocker, blocked],
            &[blocker, blocked],
        );
        assert!(edges.is_empty(), "{what}");

        server.put(edge("block", blocker, blocked)).expect_change(false, "live");
        server.delete(edge("block", blocker, blocked)).expect_change(true, "removed");
        for (source, target) in [(blocker, blocked), (blocked, blocker)] {
            let path = edge("follow", source, target);
            assert_eq!(server.get(&path).ok()["related"], false, "{what}: nothing is restored");
            server.put(&path).expect_change(true, "live");
        }
    }
}

#[test]
fn two_blocks_must_both_go() {
    let server = shared();
    let [a, b] = nodes();
    server.put(edge("block", a, b)).expect_change(true, "live");
    server.put(edge("block", b, a)).expect_change(true, "live");
    server.delete(edge("block", a, b)).expect_change(true, "removed");
    server.put(edge("follow", a, b)).expect_error(422, "excluded");
    server.put(edge("follow", b, a)).expect_error(422, "excluded");
    server.delete(edge("block", b, a)).expect_change(true, "removed");
    server.put(edge("follow", a, b)).expect_change(true, "live");
}

#[test]
fn blocks_and_follows_in_one_batch_see_each_other() {
    let server = shared();
    let [a, b] = nodes();
    let change = |op: &str, kind: &str, source: u64, target: u64| json!({"op": op, "kind": kind, "source": source, "target": target});
    let answer = server.post_json(
        "/v1/edges/batch",
        json!({"changes": [
            change("put", "follow", a, b),
            change("put", "follow", b, a),
            change("put", "block", a, b),
            change("put", "follow", b, a),
            change("delete", "block", a, b),
            change("put", "follow", b, a),
        ]}),
    );
    let results = &answer.ok()["results"];
    for (index, changed) in [(0, "live"), (1, "live"), (2, "live"), (4, "removed"), (5, "live")] {
        assert_change(&results[index], true, changed);
    }
    expect_problem(&results[3]["error"], 422, "excluded");
    let edges = assert_lists_and_tallies_agree(&server, "follow", &[a, b], &[a, b]);
    assert_eq!(edges.into_iter().collect::<Vec<_>>(), [(b, a)]);
}

#[test]
fn an_edge_expires_at_its_time_and_the_tallies_with_it() {
    let server = shared();
    let [target] = nodes();
    let sources = node_run(4);
    // One lives on, one is prolonged, one loses its expiry, one expires. All expire far from now
    // until everything else is done, however long that takes.
    let far = millis_now() + 600_000;
    let [stays, prolonged, freed, expires] = [sources[0], sources[1], sources[2], sources[3]];
    server.put(edge("follow", stays, target)).expect_change(true, "live");
    for source in [prolonged, freed, expires] {
        server
            .put_json(edge("follow", source, target), json!({"expires_at": rfc3339(far)}))
            .expect_change(true, "live");
    }
    server
        .put_json(edge("follow", prolonged, target), json!({"expires_at": rfc3339(far + 600_000)}))
        .expect_change(true, "live");
    server
        .put_json(edge("follow", freed, target), json!({"expires_at": null}))
        .expect_change(true, "live");
    // A change of another field raises the version and must not lose the expiry. Both are one
    // request, so that the edge stands when the second is made.
    let expiry = millis_now() + 5_000;
    let mut changes = [(); 2]
        .map(|()| json!({"op": "put", "kind": "follow", "source": expires, "target": target}));
    changes[0]["expires_at"] = json!(rfc3339(expiry));
    changes[1]["data"] = json!("soon gone");
    let answer = server.post_json("/v1/edges/batch", json!({"changes": changes}));
    for result in answer.ok()["results"].as_array().expect("results") {
        assert_change(result, true, "live");
    }

    let gone_at = poll_until("the edge expires", Duration::from_secs(60), || {
        // The list and its total are of one snapshot: they agree at every moment.
        let page = page_of(&server, &edge_call("follow", target, "incoming"));
        assert_eq!(page.total, json!(page.items.len()));
        (!page.ids().contains(&expires)).then(millis_now)
    });
    assert!(gone_at >= expiry, "it went {} ms early", expiry.saturating_sub(gone_at));
    assert!(gone_at <= expiry + EXPIRY_SLACK_MS, "it went {} ms late", gone_at - expiry);
    assert_eq!(server.get(edge("follow", expires, target)).ok()["related"], false);

    let edges = assert_lists_and_tallies_agree(&server, "follow", &sources, &[target]);
    let left: Vec<u64> = edges.into_iter().map(|(source, _)| source).collect();
    assert_eq!(left, [stays, prolonged, freed]);
    server.put(edge("follow", expires, target)).expect_change(true, "live");
}
