//! Reads over many edges: check, pairs, tallies, hydrate, and reads that present a token.

use guanxi_tests::{Server, assert_keys, edge, node_run, nodes, put_followers, shared, tally};
use serde_json::{Value, json};

fn texts(ids: &[u64]) -> Vec<String> {
    ids.iter().map(u64::to_string).collect()
}

#[test]
fn one_source_is_checked_against_many_targets() {
    let server = shared();
    let [source, a, b, c, d] = nodes();
    server.put(edge("follow", source, a)).ok();
    server.put(edge("like", source, a)).ok();
    server.put_json(edge("follow", source, b), json!({"approval": true})).ok();
    server.put(edge("follow", c, source)).ok();
    let asked =
        json!({"source": source, "targets": texts(&[d, a, b, c, a]), "kinds": ["follow", "like"]});
    let expected = |reverse: bool| {
        let lines = [
            (d, vec![], vec![], vec![]),
            (a, vec!["follow", "like"], vec![], vec![]),
            (b, vec![], vec!["follow"], vec![]),
            (c, vec![], vec![], vec!["follow"]),
            (a, vec!["follow", "like"], vec![], vec![]),
        ];
        let results: Vec<Value> = lines
            .into_iter()
            .map(|(target, related, pending, back)| {
                let mut line =
                    json!({"target": target.to_string(), "related": related, "pending": pending});
                if reverse {
                    line["reverse"] = json!(back);
                }
                line
            })
            .collect();
        json!({"results": results})
    };
    assert_eq!(*server.post_json("/v1/check", asked.clone()).ok(), expected(false));
    let mut with_reverse = asked;
    with_reverse["reverse"] = json!(true);
    assert_eq!(*server.post_json("/v1/check", with_reverse).ok(), expected(true));
}

#[test]
fn pairs_are_checked_in_order() {
    let server = shared();
    let [a, b, c] = nodes();
    server.put(edge("follow", a, b)).ok();
    server.put_json(edge("follow", b, c), json!({"approval": true})).ok();
    server.put(edge("like", c, a)).ok();
    let pair = |kind: &str, source: u64, target: u64| json!({"kind": kind, "source": source.to_string(), "target": target});
    let asked = json!({"pairs": [
        pair("like", c, a), pair("follow", b, c), pair("follow", b, a), pair("follow", a, b),
    ]});
    let expected = json!({"results": [
        {"related": true, "state": "live"},
        {"related": false, "state": "pending"},
        {"related": false, "state": null},
        {"related": true, "state": "live"},
    ]});
    assert_eq!(*server.post_json("/v1/check", asked).ok(), expected);
}

#[test]
fn tallies_show_what_each_kind_keeps() {
    let server = shared();
    let [user, fan, post] = nodes();
    server.put(edge("follow", fan, user)).ok();
    server.put_json(edge("follow", user, fan), json!({"approval": true})).ok();
    server.put_json(edge("like", fan, post), json!({"owner": user})).ok();
    server.put(edge("block", user, post)).ok();
    server.post_json(format!("/v1/counters/view/{user}"), json!({"delta": 9})).ok();
    let asked = json!({"ids": texts(&[user, fan]), "kinds": ["follow", "like", "block", "view"]});
    let expected = json!({"results": [
        {"id": user.to_string(), "tallies": {
            "follow": {"outgoing": 0, "incoming": 1, "pending_outgoing": 1, "pending_incoming": 0},
            "like": {"outgoing": 0, "incoming": 0, "owned": 1},
            "block": {"outgoing": 1, "incoming": 0},
            "view": {"value": 9},
        }},
        {"id": fan.to_string(), "tallies": {
            "follow": {"outgoing": 1, "incoming": 0, "pending_outgoing": 0, "pending_incoming": 1},
            "like": {"outgoing": 1, "incoming": 0, "owned": 0},
            "block": {"outgoing": 0, "incoming": 0},
            "view": {"value": 0},
        }},
    ]});
    assert_eq!(*server.post_json("/v1/tallies", asked).ok(), expected);
}

/// A viewer who likes one post, follows its author, waits for another and is followed by a third.
fn feed(server: &Server) -> ([u64; 4], [u64; 3]) {
    let [viewer, followed, asked, follower] = nodes();
    let posts = nodes();
    let [liked, plain, _] = posts;
    server.put_json(edge("like", viewer, liked), json!({"owner": followed})).ok();
    put_followers(server, "like", liked, &node_run(4));
    put_followers(server, "like", plain, &node_run(2));
    server.put(edge("follow", viewer, followed)).ok();
    server.put_json(edge("follow", viewer, asked), json!({"approval": true})).ok();
    server.put(edge("follow", follower, viewer)).ok();
    server.post_json(format!("/v1/counters/view/{liked}"), json!({"delta": 900})).ok();
    ([viewer, followed, asked, follower], posts)
}

#[test]
fn hydrate_answers_a_feed_in_one_call() {
    let server = shared();
    let ([viewer, followed, asked, follower], [liked, plain, bare]) = feed(&server);
    let request = json!({
        "viewer": viewer.to_string(),
        "objects": [
            {"id": liked.to_string(), "author": followed.to_string()},
            {"id": plain, "author": asked},
            {"id": plain.to_string(), "author": follower.to_string()},
            bare.to_string(),
            bare,
        ],
        "kinds": ["like", "favorite", "follow"],
        "tallies": ["like", "view"],
    });
    let object = |id: u64, related: Value, pending: Value, like: u64, view: u64| {
        json!({"id": id.to_string(), "related": related, "pending": pending,
            "tallies": {"like": like, "view": view}})
    };
    let expected = [
        object(liked, json!(["like", "follow"]), json!([]), 5, 900),
        object(plain, json!([]), json!(["follow"]), 2, 0),
        object(plain, json!([]), json!([]), 2, 0),
        object(bare, json!([]), json!([]), 0, 0),
        object(bare, json!([]), json!([]), 0, 0),
    ];
    assert_eq!(
        *server.post_json("/v1/hydrate", request.clone()).ok(),
        json!({"objects": expected})
    );

    // The author's side: who of them relates to the viewer, and how many follow them.
    let mut reversed = request.clone();
    reversed["reverse"] = json!(["follow", "block"]);
    reversed["tallies"] = json!(["follow"]);
    let answer = server.post_json("/v1/hydrate", reversed);
    let objects = answer.ok()["objects"].as_array().expect("objects");
    let back: Vec<&Value> = objects.iter().map(|object| &object["reverse"]).collect();
    assert_eq!(back, [&json!([]), &json!([]), &json!(["follow"]), &json!([]), &json!([])]);
    let followers: Vec<&Value> =
        objects.iter().map(|object| &object["tallies"]["follow"]).collect();
    assert_eq!(followers, [1, 0, 0, 0, 0]);

    // Many at once are the same, in order.
    let other = json!({"viewer": followed, "objects": [liked], "kinds": ["like"], "tallies": []});
    let many = server.post_json("/v1/hydrate", json!({"requests": [request, other]}));
    let lone = json!({"id": liked.to_string(), "related": [], "pending": [], "tallies": {}});
    assert_eq!(*many.ok(), json!({"results": [{"objects": expected}, {"objects": [lone]}]}));
}

#[test]
fn hydrate_is_about_users_when_asked() {
    let server = shared();
    let ([viewer, followed, asked, follower], _) = feed(&server);
    let request = json!({
        "viewer": viewer, "object_type": "user", "objects": [followed, asked, follower],
        "kinds": ["follow"], "tallies": ["follow"], "reverse": ["follow"],
    });
    let expected = json!({"objects": [
        {"id": followed.to_string(), "related": ["follow"], "pending": [], "reverse": [], "tallies": {"follow": 1}},
        {"id": asked.to_string(), "related": [], "pending": ["follow"], "reverse": [], "tallies": {"follow": 0}},
        {"id": follower.to_string(), "related": [], "pending": [], "reverse": ["follow"], "tallies": {"follow": 0}},
    ]});
    assert_eq!(*server.post_json("/v1/hydrate", request).ok(), expected);
}

#[test]
fn hydrate_is_bounded_and_checks_its_kinds() {
    let server = shared();
    let ids = |count: usize| (1..=count).map(|id| id.to_string()).collect::<Vec<_>>();
    let request = |objects: usize| json!({"viewer": "1", "objects": ids(objects), "kinds": ["like"], "tallies": ["like"]});
    assert_eq!(
        server.post_json("/v1/hydrate", request(256)).ok()["objects"].as_array().map(Vec::len),
        Some(256)
    );
    let too_large = [
        request(257),
        json!({"requests": vec![request(1); 257]}),
        // 33 × 256 × (1 kind + 1 tally) is beyond 16,384 checks and tallies.
        json!({"requests": vec![request(256); 33]}),
    ];
    for body in too_large {
        server.post_json("/v1/hydrate", body).expect_error(413, "too_large");
    }
    server.post_json("/v1/hydrate", json!({"requests": vec![request(256); 32]})).ok();

    let refused = [
        // view is about posts, and posts relate to nobody.
        (
            json!({"viewer": "1", "objects": ["2"], "kinds": ["view"], "tallies": []}),
            400,
            "invalid_argument",
        ),
        (
            json!({"viewer": "1", "objects": ["2"], "kinds": ["nothing"], "tallies": []}),
            404,
            "unknown_kind",
        ),
        (
            json!({"viewer": "1", "objects": ["2"], "kinds": [], "tallies": ["nothing"]}),
            404,
            "unknown_kind",
        ),
        (
            json!({"viewer": "0", "objects": ["2"], "kinds": ["like"], "tallies": []}),
            400,
            "invalid_argument",
        ),
        (
            json!({"viewer": "1", "objects": ["0"], "kinds": ["like"], "tallies": []}),
            400,
            "invalid_argument",
        ),
        (
            json!({"viewer": "1", "objects": [{"author": "2"}], "kinds": ["like"], "tallies": []}),
            400,
            "invalid_argument",
        ),
        (
            json!({"viewer": "1", "objects": [{"id": "2", "writer": "3"}], "kinds": ["like"], "tallies": []}),
            400,
            "invalid_argument",
        ),
        (
            json!({"viewer": "1", "author_type": "post", "objects": ["2"], "kinds": ["follow"], "tallies": []}),
            400,
            "invalid_argument",
        ),
        (
            json!({"viewer": "1", "objects": ["2"], "kinds": ["like"], "tallies": [], "reverse": ["like"]}),
            400,
            "invalid_argument",
        ),
        (
            json!({"viewer": "1", "objects": ["2"], "kinds": ["like"], "tallies": [], "requests": []}),
            400,
            "invalid_argument",
        ),
        (json!({"objects": ["2"], "kinds": ["like"], "tallies": []}), 400, "invalid_argument"),
        (json!({}), 400, "invalid_argument"),
    ];
    for (body, status, code) in refused {
        let answer = server.post_json("/v1/hydrate", body.clone());
        assert_eq!(answer.status, status, "{body}: {}", answer.text);
        answer.expect_error(status, code);
    }
}

#[test]
fn batch_reads_are_bounded() {
    let server = shared();
    let ids = |count: usize| (1..=count).map(|id| id.to_string()).collect::<Vec<_>>();
    let pair = json!({"kind": "follow", "source": "1", "target": "2"});
    let cases = [
        ("/v1/check", json!({"source": "1", "targets": ids(1000), "kinds": ["like"]}), true),
        ("/v1/check", json!({"source": "1", "targets": ids(1001), "kinds": ["like"]}), false),
        (
            "/v1/check",
            json!({"source": "1", "targets": ids(501), "kinds": ["like", "favorite"]}),
            false,
        ),
        ("/v1/check", json!({"pairs": vec![pair.clone(); 1000]}), true),
        ("/v1/check", json!({"pairs": vec![pair; 1001]}), false),
        ("/v1/check", json!({"source": "1", "targets": [], "kinds": ["like"]}), true),
        ("/v1/check", json!({"pairs": []}), true),
        ("/v1/tallies", json!({"ids": ids(500), "kinds": ["like", "follow"]}), true),
        ("/v1/tallies", json!({"ids": ids(501), "kinds": ["like", "follow"]}), false),
        ("/v1/tallies", json!({"ids": [], "kinds": ["like"]}), true),
        ("/v1/tallies", json!({"ids": ["1"], "kinds": []}), true),
    ];
    for (path, body, fits) in cases {
        let answer = server.post_json(path, body);
        if fits {
            answer.ok();
        } else {
            answer.expect_error(413, "too_large");
        }
    }
}

#[test]
fn a_read_may_present_the_token_of_a_write() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let written = server.put(&path);
    let token = written.token();
    let reads: [(&str, String, Option<Value>); 5] = [
        ("GET", path.clone(), None),
        ("GET", format!("/v1/edges/follow/{target}/incoming"), None),
        ("GET", format!("/v1/edges/follow/{target}/incoming/scan"), None),
        ("POST", "/v1/tallies".to_owned(), Some(json!({"ids": [target], "kinds": ["follow"]}))),
        (
            "POST",
            "/v1/check".to_owned(),
            Some(json!({"pairs": [{"kind": "follow", "source": source, "target": target}]})),
        ),
    ];
    for (method, path, body) in &reads {
        let by_query = format!("{path}?at_least={token}");
        let with_body = |path: &str| {
            let request = server.request(method, path);
            match body {
                Some(body) => request.json(body),
                None => request,
            }
        };
        with_body(&by_query).send().ok();
        with_body(path).header("guanxi-at-least", &token).send().ok();
        for bad in ["", "x", "AAAA", &token[..token.len() - 1]] {
            with_body(path)
                .header("guanxi-at-least", bad)
                .send()
                .expect_error(400, "invalid_argument");
            let answer = with_body(&format!("{path}?at_least={bad}")).send();
            let message = answer.expect_error(400, "invalid_argument");
            assert!(message.contains("at_least") || message.contains("token"), "{message}");
        }
    }
    // A write that is given one returns a merged token.
    let merged = server.delete(format!("{path}?at_least={token}"));
    merged.expect_change(true, "removed");
    server.get(format!("{path}?at_least={}", merged.token())).ok();
}

#[test]
fn a_token_of_another_server_is_none_here() {
    let (here, elsewhere) = (Server::start(), Server::start());
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    for _ in 0..20 {
        elsewhere.put(&path).ok();
        elsewhere.delete(&path).ok();
    }
    let token = elsewhere.put(&path).token();
    // It is sealed with a secret that is not ours.
    here.get(format!("{path}?at_least={token}")).expect_error(400, "invalid_argument");
}

#[test]
fn reads_refuse_counters_where_edges_are_meant() {
    let server = shared();
    let [source, target] = nodes();
    let pair = json!({"pairs": [{"kind": "view", "source": source, "target": target}]});
    server.post_json("/v1/check", pair).expect_error(400, "invalid_argument");
    let many = json!({"source": source, "targets": [target], "kinds": ["view"]});
    server.post_json("/v1/check", many).expect_error(400, "invalid_argument");
    let path = edge("view", source, target);
    server.get(&path).expect_error(400, "invalid_argument");
    server.put(&path).expect_error(400, "invalid_argument");
    server.delete(&path).expect_error(400, "invalid_argument");
    assert_eq!(tally(&server, "view", target), json!({"value": 0}));
    let both = json!({"source": "1", "targets": ["2"], "kinds": ["follow"], "pairs": []});
    server.post_json("/v1/check", both).expect_error(400, "invalid_argument");
    assert_keys(server.post_json("/v1/check", json!({"pairs": []})).ok(), &["results"]);
}
