//! Pure counters: exact sums, keys that count once, and their bounds.

use guanxi_tests::differences::counted;
use guanxi_tests::{assert_keys, edge, expect_problem, nodes, shared, tally};
use serde_json::{Value, json};

const VALUE_MAX: i64 = (1 << 53) - 1;

fn counter(kind: &str, id: u64) -> String {
    format!("/v1/counters/{kind}/{id}")
}

#[test]
fn deltas_add_up() {
    let server = shared();
    let [post] = nodes();
    let mut sum = 0;
    for delta in [5, 900, -3, 0, -1000, 98] {
        sum += delta;
        let answer = server.post_json(counter("view", post), json!({"delta": delta}));
        assert_keys(answer.ok(), &["accepted", "token", "value"]);
        assert_eq!(answer.ok()["accepted"], true);
        assert_eq!(answer.ok()["value"], counted(sum));
        assert_eq!(answer.ok()["token"], json!(answer.token()));
        assert_eq!(tally(&server, "view", post), json!({"value": sum}));
    }
    assert_eq!(tally(&server, "play_seconds", post), json!({"value": 0}));
}

#[test]
fn the_same_key_counts_once() {
    let server = shared();
    let [post, other] = nodes();
    let key = format!("once-{post}");
    let send = |id: u64, delta: i64| {
        server.post_json(counter("view", id), json!({"delta": delta, "key": key}))
    };
    assert_eq!(send(post, 5).ok()["value"], counted(5));
    server.post_json(counter("view", post), json!({"delta": 2})).ok();
    let again = send(post, 5);
    assert_eq!(again.ok()["accepted"], true);
    assert_eq!(tally(&server, "view", post)["value"], 7);
    send(post, 6).expect_error(409, "key_conflict");
    send(other, 5).expect_error(409, "key_conflict");
    assert_eq!(tally(&server, "view", post)["value"], 7);
    assert_eq!(tally(&server, "view", other)["value"], 0);
    // Edges and counters share the key space of a tenant.
    server
        .request("PUT", &edge("follow", post, other))
        .header("Idempotency-Key", &key)
        .send()
        .expect_error(409, "key_conflict");
}

/// A header that is taken without a word would let a retry count twice.
#[test]
fn a_key_in_the_header_is_refused() {
    let server = shared();
    let [id] = nodes();
    let path = counter("view", id);
    let request = server.request("POST", &path).header("Idempotency-Key", "once");
    request.json(&json!({"delta": 1})).send().expect_error(400, "invalid_argument");
    assert_eq!(server.post_json(&path, json!({"delta": 1})).ok()["value"], counted(1));
}

#[test]
fn values_and_deltas_are_bounded() {
    let server = shared();
    let [post] = nodes();
    let add = |delta: i64| server.post_json(counter("view", post), json!({"delta": delta}));
    assert_eq!(add(VALUE_MAX).ok()["value"], counted(VALUE_MAX));
    add(1).expect_error(422, "limit_reached");
    assert_eq!(tally(&server, "view", post)["value"], VALUE_MAX);
    assert_eq!(add(-VALUE_MAX).ok()["value"], counted(0));
    assert_eq!(add(-VALUE_MAX).ok()["value"], counted(-VALUE_MAX));
    add(-1).expect_error(422, "limit_reached");
    add(VALUE_MAX + 1).expect_error(422, "limit_reached");
    add(i64::MIN).expect_error(422, "limit_reached");
    assert_eq!(tally(&server, "view", post)["value"], -VALUE_MAX);
}

#[test]
fn bad_requests_count_nothing() {
    let server = shared();
    let [post] = nodes();
    let cases = [
        ("view", json!({"delta": 1.5}), 400, "invalid_argument"),
        ("view", json!({"delta": "x"}), 400, "invalid_argument"),
        ("view", json!({"delta": null}), 400, "invalid_argument"),
        ("view", json!({}), 400, "invalid_argument"),
        ("view", json!({"delta": 1, "key": ""}), 400, "invalid_argument"),
        ("view", json!({"delta": 1, "key": "k".repeat(65)}), 400, "invalid_argument"),
        ("view", json!({"delta": 1, "by": "me"}), 400, "invalid_argument"),
        ("follow", json!({"delta": 1}), 400, "invalid_argument"),
        ("nothing", json!({"delta": 1}), 404, "unknown_kind"),
    ];
    for (kind, body, status, code) in cases {
        let answer = server.post_json(counter(kind, post), body.clone());
        assert_eq!(answer.status, status, "{kind} {body}: {}", answer.text);
        answer.expect_error(status, code);
    }
    assert_eq!(tally(&server, "view", post)["value"], 0);
}

#[test]
fn a_batch_counts_each_change_on_its_own() {
    let server = shared();
    let [first, second] = nodes();
    let key = format!("batch-{first}");
    let answer = server.post_json(
        "/v1/counters/batch",
        json!({"changes": [
            {"kind": "view", "id": first.to_string(), "delta": 5, "key": key},
            {"kind": "view", "id": first, "delta": 5, "key": key},
            {"kind": "view", "id": first, "delta": 4, "key": key},
            {"kind": "play_seconds", "id": second, "delta": 30},
            {"kind": "follow", "id": second, "delta": 30},
            {"kind": "view", "id": second, "delta": VALUE_MAX},
            {"kind": "view", "id": second, "delta": 1},
            {"kind": "view", "id": second, "delta": -1},
        ]}),
    );
    let results = answer.ok()["results"].as_array().expect("results");
    assert_eq!(results.len(), 8);
    for (index, value) in [(0, 5), (3, 30), (5, VALUE_MAX), (7, VALUE_MAX - 1)] {
        assert_eq!(results[index]["accepted"], true, "change {index}");
        assert_eq!(results[index]["value"], counted(value), "change {index}");
    }
    assert_eq!(results[1]["accepted"], true);
    expect_problem(&results[2]["error"], 409, "key_conflict");
    expect_problem(&results[4]["error"], 400, "invalid_argument");
    expect_problem(&results[6]["error"], 422, "limit_reached");
    assert_eq!(tally(&server, "view", first)["value"], 5);

    let one = json!({"kind": "view", "id": first, "delta": 1});
    let none: [Value; 0] = [];
    server
        .post_json("/v1/counters/batch", json!({"changes": none}))
        .expect_error(400, "invalid_argument");
    server
        .post_json("/v1/counters/batch", json!({"changes": vec![one.clone(); 1001]}))
        .expect_error(413, "too_large");
    server.post_json("/v1/counters/batch", json!({"changes": vec![one; 1000]})).ok();
    assert_eq!(tally(&server, "view", first)["value"], 1005);
}

#[test]
fn a_reconciled_counter_needs_keys() {
    let server = shared();
    let [post] = nodes();
    let created = server.post_json(
        "/v1/admin/kinds",
        json!({"name": "coins", "target_type": "post", "counter": true, "reconciled": true}),
    );
    created.expect_status(201);
    let answer = server.post_json(counter("coins", post), json!({"delta": 3}));
    let message = answer.expect_error(400, "invalid_argument");
    assert!(message.contains("key"), "{message}");
    let keyed = json!({"delta": 3, "key": format!("coins-{post}")});
    for _ in 0..2 {
        server.post_json(counter("coins", post), keyed.clone()).ok();
        assert_eq!(tally(&server, "coins", post)["value"], 3);
    }
}
