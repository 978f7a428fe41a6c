//! Single edges: put, get, delete, their fields, strictness, idempotency keys and self relations.
//! Approval, limits, excludes and expiry stand in edge_rules.rs.

use guanxi_tests::{
    Server, assert_change, assert_keys, edge, expect_problem, millis_now, nodes, parse_millis,
    rfc3339, shared, tally, version_of, without_token,
};
use serde_json::{Value, json};

/// The largest clock difference between the test and the service on one machine.
const CLOCK_SLACK_MS: u64 = 2_000;

#[test]
fn an_edge_is_put_read_and_removed() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let before = millis_now();

    let put = server.put(&path);
    let put = put.expect_change(true, "live");
    let since = parse_millis(&put["since"]);
    assert!(
        (before.saturating_sub(CLOCK_SLACK_MS)..=millis_now() + CLOCK_SLACK_MS).contains(&since)
    );

    let expected = json!({
        "related": true, "state": "live", "since": put["since"], "group": null, "owner": null,
        "data": null, "version": put["version"], "expires_at": null, "mutual": false,
        "reverse": {"related": false},
    });
    assert_eq!(*server.get(&path).ok(), expected);

    let removed = server.delete(&path);
    let removed = removed.expect_change(true, "removed");
    assert!(version_of(removed) > version_of(put));
    assert_not_related(&server.get(&path).ok().clone(), Some(false));
    assert_eq!(tally(&server, "follow", source)["outgoing"], 0);
    assert_eq!(tally(&server, "follow", target)["incoming"], 0);
}

#[test]
fn an_edge_that_never_was_reads_as_not_related() {
    let server = shared();
    let [source, target] = nodes();
    assert_not_related(server.get(edge("follow", source, target)).ok(), Some(false));
    assert_not_related(server.get(edge("like", source, target)).ok(), None);
}

#[track_caller]
fn assert_not_related(body: &Value, mutual: Option<bool>) {
    let reverse = mutual.map(|_| json!({"related": false}));
    let expected = json!({
        "related": false, "state": null, "since": null, "group": null, "owner": null,
        "data": null, "version": null, "expires_at": null, "mutual": mutual, "reverse": reverse,
    });
    assert_eq!(*body, expected);
}

#[test]
fn mutual_and_reverse_follow_both_directions() {
    let server = shared();
    let [a, b] = nodes();
    let there = server.put(edge("follow", a, b));
    let since = there.expect_change(true, "live")["since"].clone();

    let seen_back = server.get(edge("follow", b, a));
    assert_eq!(seen_back.ok()["related"], false);
    assert_eq!(seen_back.ok()["mutual"], false);
    assert_eq!(seen_back.ok()["reverse"]["related"], true);
    assert_eq!(seen_back.ok()["reverse"]["since"], since);

    server.put(edge("follow", b, a)).expect_change(true, "live");
    for path in [edge("follow", a, b), edge("follow", b, a)] {
        assert_eq!(server.get(&path).ok()["mutual"], true);
    }
    server.delete(edge("follow", a, b)).ok();
    assert_eq!(server.get(edge("follow", b, a)).ok()["mutual"], false);
}

#[test]
fn ends_of_different_types_may_have_the_same_id_and_no_reverse() {
    let server = shared();
    let [seven] = nodes();
    server.put(edge("like", seven, seven)).expect_change(true, "live");
    let read = server.get(edge("like", seven, seven));
    assert_eq!(read.ok()["related"], true);
    assert!(read.ok()["mutual"].is_null());
    assert!(read.ok()["reverse"].is_null());
}

#[test]
fn ids_reach_from_one_to_the_largest_64_bit_number() {
    let server = shared();
    let [source] = nodes();
    for id in [1, u64::from(u32::MAX), (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
        let path = edge("favorite", source, id);
        server.put(&path).expect_change(true, "live");
        assert_eq!(server.get(&path).ok()["related"], true, "{id}");
    }
    // In JSON an id may be a string or a whole number, each exactly.
    let pairs: Vec<Value> =
        [json!(u64::MAX), json!(u64::MAX.to_string()), json!((1_u64 << 53) + 1)]
            .into_iter()
            .map(|target| json!({"kind": "favorite", "source": source, "target": target}))
            .collect();
    let checked = server.post_json("/v1/check", json!({"pairs": pairs}));
    for result in checked.ok()["results"].as_array().expect("results") {
        assert_eq!(result["related"], true);
    }
    let neighbour = edge("favorite", source, (1 << 53) + 2);
    assert_eq!(server.get(neighbour).ok()["related"], false);
}

#[test]
fn writes_are_idempotent_and_strict_ones_refuse() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let strict = format!("{path}?strict=true");

    server.delete(&path).expect_change(false, "removed");
    server.delete(&strict).expect_error(409, "not_related");

    let first = server.put(&strict);
    let first = first.expect_change(true, "live");
    let again = server.put(&path);
    let again = again.expect_change(false, "live");
    assert_eq!((&again["since"], &again["version"]), (&first["since"], &first["version"]));
    server.put(&strict).expect_error(409, "already_related");
    server.put_json(&strict, json!({"data": "new"})).expect_error(409, "already_related");
    assert!(server.get(&path).ok()["data"].is_null(), "a refused write leaves nothing");
    server.put(format!("{path}?strict=false")).expect_change(false, "live");

    server.delete(&strict).expect_change(true, "removed");
    server.delete(&path).expect_change(false, "removed");
    assert_eq!(tally(&server, "follow", target)["incoming"], 0);
}

#[test]
fn absent_fields_keep_and_null_clears() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    for name in ["friends", "family"] {
        server
            .post_json(format!("/v1/groups/follow/{source}"), json!({"name": name}))
            .expect_status(201);
    }
    let expiry = rfc3339(millis_now() + 3_600_000);
    let steps = [
        // (body, changed, group, data, expires_at)
        (json!({}), true, None, None, None),
        (json!({}), false, None, None, None),
        (json!({"group": "friends"}), true, Some("friends"), None, None),
        (json!({"group": "friends"}), false, Some("friends"), None, None),
        (json!({"data": "met in 2020"}), true, Some("friends"), Some("met in 2020"), None),
        (json!({"group": "family", "data": "aunt"}), true, Some("family"), Some("aunt"), None),
        (json!({"expires_at": expiry}), true, Some("family"), Some("aunt"), Some(expiry.as_str())),
        (json!({"group": null}), true, None, Some("aunt"), Some(expiry.as_str())),
        (json!({"group": null}), false, None, Some("aunt"), Some(expiry.as_str())),
        (json!({"expires_at": null}), true, None, Some("aunt"), None),
        (json!({"data": null}), true, None, None, None),
    ];
    let mut since = Value::Null;
    let mut version = 0;
    for (body, changed, group, data, expires_at) in steps {
        let answer = server.put_json(&path, body.clone());
        let answer = answer.expect_change(changed, "live");
        if since.is_null() {
            since = answer["since"].clone();
        }
        assert_eq!(answer["since"], since, "a standing edge keeps its since: {body}");
        if changed {
            assert!(version_of(answer) > version, "a change raises the version: {body}");
        } else {
            assert_eq!(version_of(answer), version, "{body}");
        }
        version = version_of(answer);
        let read = server.get(&path);
        let read = read.ok();
        assert_eq!(read["group"], json!(group), "{body}");
        assert_eq!(read["data"], json!(data), "{body}");
        assert_eq!(read["expires_at"], json!(expires_at), "{body}");
        assert_eq!(read["since"], since, "{body}");
        assert_eq!(version_of(read), version, "{body}");
    }
    assert_eq!(tally(&server, "follow", source)["outgoing"], 1);
}

#[test]
fn versions_grow_over_removals_and_since_starts_anew() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let mut last = 0;
    let mut last_since = 0;
    for _ in 0..5 {
        let put = server.put(&path);
        let put = put.expect_change(true, "live");
        assert!(version_of(put) > last);
        let since = parse_millis(&put["since"]);
        assert!(since >= last_since);
        let removed = server.delete(&path);
        let removed = removed.expect_change(true, "removed");
        assert!(version_of(removed) > version_of(put));
        last = version_of(removed);
        last_since = since;
    }
}

#[test]
fn owners_are_tallied_and_follow_every_change() {
    let server = shared();
    let [fan, post, first_owner, second_owner] = nodes();
    let path = edge("like", fan, post);
    let steps = [
        // (body or a removal, owned by the first, owned by the second)
        (Some(json!({"owner": first_owner.to_string()})), 1, 0),
        (Some(json!({})), 1, 0),
        (Some(json!({"owner": second_owner})), 0, 1),
        (Some(json!({"owner": null})), 0, 0),
        (Some(json!({"owner": first_owner.to_string()})), 1, 0),
        (None, 0, 0),
        (Some(json!({"owner": second_owner.to_string()})), 0, 1),
    ];
    for (body, first, second) in steps {
        match &body {
            Some(body) => server.put_json(&path, body.clone()).ok().clone(),
            None => server.delete(&path).ok().clone(),
        };
        assert_eq!(tally(&server, "like", first_owner)["owned"], first, "{body:?}");
        assert_eq!(tally(&server, "like", second_owner)["owned"], second, "{body:?}");
    }
    let owner = second_owner.to_string();
    assert_eq!(server.get(&path).ok()["owner"], json!(owner));
}

#[test]
fn data_is_bounded_in_bytes() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let cases = [
        ("a".repeat(128), true),
        ("a".repeat(129), false),
        ("关".repeat(42), true),
        ("关".repeat(43), false),
        ("\u{0}\"\\\n".to_owned(), true),
    ];
    for (text, fits) in cases {
        let answer = server.put_json(&path, json!({"data": text}));
        if fits {
            answer.ok();
            assert_eq!(server.get(&path).ok()["data"], json!(text));
        } else {
            answer.expect_error(413, "too_large");
        }
    }
}

#[test]
fn a_key_replays_its_answer_and_refuses_another_request() {
    let server = shared();
    let [source, target, other] = nodes();
    let key = format!("put-{source}");
    let path = edge("follow", source, target);
    let strict = format!("{path}?strict=true");
    let send = |method: &str, path: &str| {
        server.request(method, path).header("Idempotency-Key", &key).send()
    };

    let first = send("PUT", &strict);
    first.expect_change(true, "live");
    let replay = send("PUT", &strict);
    assert_eq!(
        without_token(replay.expect_change(true, "live")),
        without_token(first.ok()),
        "the stored answer"
    );

    for (method, path) in [
        ("PUT", format!("{}?strict=true", edge("follow", source, other))),
        ("DELETE", path.clone()),
    ] {
        send(method, &path).expect_error(409, "key_conflict");
    }
    server
        .request("PUT", &strict)
        .header("Idempotency-Key", &key)
        .json(&json!({"data": "other"}))
        .send()
        .expect_error(409, "key_conflict");
    assert_eq!(server.get(edge("follow", source, other)).ok()["related"], false);
    assert_eq!(server.get(&path).ok()["related"], true);

    // The replay stays what it was, whatever happened since.
    server.delete(&path).expect_change(true, "removed");
    let replay = send("PUT", &strict);
    assert_eq!(without_token(replay.ok()), without_token(first.ok()));
    assert_eq!(server.get(&path).ok()["related"], false, "a replay writes nothing");
}

#[test]
fn keys_hold_for_every_edge_write() {
    let server = shared();
    let [source, target, second] = nodes();
    server.put_json(edge("follow", source, target), json!({"approval": true})).ok();
    server.put_json(edge("follow", source, second), json!({"approval": true})).ok();
    let calls = [
        ("POST", format!("{}/approve", edge("follow", source, target)), "live"),
        ("POST", format!("{}/decline", edge("follow", source, second)), "removed"),
        ("DELETE", format!("{}?strict=true", edge("follow", source, target)), "removed"),
    ];
    for (number, (method, path, state)) in calls.iter().enumerate() {
        let key = format!("each-{source}-{number}");
        let first = server.request(method, path).header("Idempotency-Key", &key).send();
        first.expect_change(true, state);
        let again = server.request(method, path).header("Idempotency-Key", &key).send();
        assert_eq!(without_token(again.ok()), without_token(first.ok()), "{method} {path}");
    }

    let changes = json!({"changes": [
        {"op": "put", "kind": "follow", "source": source, "target": target},
        {"op": "put", "kind": "follow", "source": source, "target": source},
    ]});
    let send = |body: &Value| {
        server
            .request("POST", "/v1/edges/batch")
            .header("Idempotency-Key", &format!("batch-{source}"))
            .json(body)
            .send()
    };
    let first = send(&changes);
    assert_change(&first.ok()["results"][0], true, "live");
    let again = send(&changes);
    assert_eq!(without_token(&again.ok()["results"][0]), without_token(&first.ok()["results"][0]));
    let other = json!({"changes": [
        {"op": "put", "kind": "follow", "source": source, "target": second},
    ]});
    send(&other).expect_error(409, "key_conflict");
}

#[test]
fn a_refusal_is_not_kept_under_its_key() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let strict = format!("{path}?strict=true");
    server.put(&path).ok();
    let key = format!("refused-{source}");
    let send = || server.request("PUT", &strict).header("Idempotency-Key", &key).send();
    send().expect_error(409, "already_related");
    server.delete(&path).ok();
    send().expect_change(true, "live");
}

#[test]
fn bad_keys_are_refused() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    for key in [String::new(), "k".repeat(65)] {
        server
            .request("PUT", &path)
            .header("Idempotency-Key", &key)
            .send()
            .expect_error(400, "invalid_argument");
    }
    server
        .request("PUT", &path)
        .header("Idempotency-Key", &"k".repeat(64))
        .send()
        .expect_change(true, "live");
}

#[test]
fn nobody_relates_to_itself() {
    let server = shared();
    let [own] = nodes();
    for kind in ["follow", "block"] {
        let path = edge(kind, own, own);
        server.put(&path).expect_error(422, "self_relation");
        server.delete(&path).expect_error(422, "self_relation");
        assert_eq!(tally(&server, kind, own)["outgoing"], 0);
    }
}

/// Changed and state, or the refusal.
type Expected = Result<(bool, &'static str), (u16, &'static str)>;

#[test]
fn a_batch_decides_each_change_on_its_own_in_order() {
    let server = shared();
    let [a, b, c, post] = nodes();
    let answer = server.post_json(
        "/v1/edges/batch",
        json!({"changes": [
            {"op": "put", "kind": "follow", "source": a, "target": b.to_string()},
            {"op": "put", "kind": "follow", "source": a, "target": b},
            {"op": "put", "kind": "follow", "source": a, "target": a},
            {"op": "put", "kind": "nothing", "source": a, "target": b},
            {"op": "put", "kind": "like", "source": a, "target": post, "owner": c, "data": "x"},
            {"op": "delete", "kind": "follow", "source": a, "target": b},
            {"op": "delete", "kind": "follow", "source": a, "target": b},
            {"op": "approve", "kind": "follow", "source": a, "target": b},
            {"op": "put", "kind": "follow", "source": a, "target": c, "approval": true},
            {"op": "decline", "kind": "follow", "source": a, "target": c},
            {"op": "put", "kind": "follow", "source": a, "target": c, "approval": true},
            {"op": "approve", "kind": "follow", "source": a, "target": c},
            {"op": "put", "kind": "follow", "source": a, "target": b, "group": "no such group"},
        ]}),
    );
    assert_keys(answer.ok(), &["results"]);
    let results = answer.ok()["results"].as_array().expect("results");
    let expected: [Expected; 13] = [
        Ok((true, "live")),
        Ok((false, "live")),
        Err((422, "self_relation")),
        Err((404, "unknown_kind")),
        Ok((true, "live")),
        Ok((true, "removed")),
        Ok((false, "removed")),
        Err((409, "not_pending")),
        Ok((true, "pending")),
        Ok((true, "removed")),
        Ok((true, "pending")),
        Ok((true, "live")),
        Err((404, "unknown_group")),
    ];
    assert_eq!(results.len(), expected.len());
    for (index, (result, expected)) in results.iter().zip(expected).enumerate() {
        match expected {
            Ok((changed, state)) => assert_change(result, changed, state),
            Err((status, code)) => {
                assert_keys(result, &["error"]);
                let message = expect_problem(&result["error"], status, code);
                assert!(!message.is_empty(), "change {index}");
            }
        }
    }
    assert_eq!(server.get(edge("follow", a, c)).ok()["related"], true);
    assert_eq!(server.get(edge("follow", a, b)).ok()["related"], false);
    assert_eq!(tally(&server, "like", c)["owned"], 1);
}

/// A key stands for the whole batch: with a kind that is not there nothing is done, nor kept.
#[test]
fn a_keyed_batch_with_an_unknown_kind_is_refused_whole() {
    let server = Server::start();
    let [source, target] = nodes();
    let changes = json!([
        {"op": "put", "kind": "follow", "source": source, "target": target},
        {"op": "put", "kind": "later", "source": source, "target": target},
    ]);
    let batch = || {
        let request = server.request("POST", "/v1/edges/batch").header("idempotency-key", "whole");
        request.json(&json!({ "changes": changes })).send()
    };
    let refused = batch();
    let message = refused.expect_error(404, "unknown_kind");
    assert!(message.contains("'later'"), "{message}");
    assert_eq!(server.get(edge("follow", source, target)).ok()["related"], false);
    let kind = json!({"name": "later", "source_type": "user", "target_type": "user"});
    server.post_json("/v1/admin/kinds", kind).expect_status(201);
    let done = batch();
    for result in done.ok()["results"].as_array().expect("results") {
        assert_change(result, true, "live");
    }
    assert_eq!(batch().ok()["results"], done.ok()["results"]);
}
