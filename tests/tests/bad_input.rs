//! Bad input over well-formed HTTP: each case gets the right code of the closed list and leaves
//! nothing written. What is no HTTP at all, or comes too slowly, stands in bad_clients.rs.

use std::collections::BTreeSet;

use guanxi_tests::{Server, edge, nodes, shared};
use serde_json::{Value, json};

const JSON: &str = "application/json";

/// A line is a request, with a JSON body where it has one, and what it gets: status, code, and a
/// word that the message must name.
const CASES: &str = r##"
# Kinds and ids.
PUT /v1/edges/nothing/1/2 => 404 unknown_kind nothing
GET /v1/edges/nothing/1/2 => 404 unknown_kind nothing
DELETE /v1/edges/nothing/1/2 => 404 unknown_kind nothing
GET /v1/edges/nothing/1/outgoing => 404 unknown_kind nothing
POST /v1/edges/nothing/1/2/approve => 404 unknown_kind nothing
GET /v1/groups/nothing/1 => 404 unknown_kind nothing
PUT /v1/edges/FOLLOW/1/2 => 404 unknown_kind FOLLOW
PUT /v1/edges/follow/0/2 => 400 invalid_argument source
PUT /v1/edges/follow/1/0 => 400 invalid_argument target
PUT /v1/edges/follow/1/18446744073709551616 => 400 invalid_argument target
PUT /v1/edges/follow/99999999999999999999999999/2 => 400 invalid_argument source
PUT /v1/edges/follow/-1/2 => 400 invalid_argument source
PUT /v1/edges/follow/+1/2 => 400 invalid_argument source
PUT /v1/edges/follow/1.0/2 => 400 invalid_argument source
PUT /v1/edges/follow/abc/2 => 400 invalid_argument source
PUT /v1/edges/follow/%201/2 => 400 invalid_argument source
PUT /v1/edges/follow/%D9%A3/2 => 400 invalid_argument source
PUT /v1/edges/follow/%FF/2 => 400 invalid_argument
DELETE /v1/edges/follow/0/2 => 400 invalid_argument source
GET /v1/edges/follow/1/x => 400 invalid_argument target
GET /v1/edges/follow/0/outgoing => 400 invalid_argument
GET /v1/edges/follow/1/common/0 => 400 invalid_argument
PUT /v1/edges/follow/1/1 => 422 self_relation 1
DELETE /v1/edges/follow/1/1 => 422 self_relation 1
POST /v1/counters/view/0 {"delta":1} => 400 invalid_argument
GET /v1/groups/follow/0 => 400 invalid_argument
# JSON that is none.
PUT /v1/edges/follow/1/2 { => 400 invalid_argument JSON
PUT /v1/edges/follow/1/2 {"data => 400 invalid_argument JSON
POST /v1/check {"source":"1","targets":["2", => 400 invalid_argument targets
PUT /v1/edges/follow/1/2 {} x => 400 invalid_argument
PUT /v1/edges/follow/1/2 [] => 400 invalid_argument
PUT /v1/edges/follow/1/2 7 => 400 invalid_argument
PUT /v1/edges/follow/1/2 {'data':1} => 400 invalid_argument JSON
PUT /v1/edges/follow/1/2 {"data":"\ud800"} => 400 invalid_argument
POST /v1/check {} => 400 invalid_argument
# Fields.
PUT /v1/edges/follow/1/2 {"colour":"red"} => 400 invalid_argument colour
PUT /v1/edges/follow/1/2 {"data":"a","data":"b"} => 400 invalid_argument data
PUT /v1/edges/follow/1/2 {"data":7} => 400 invalid_argument data
PUT /v1/edges/follow/1/2 {"approval":"yes"} => 400 invalid_argument approval
PUT /v1/edges/follow/1/2 {"group":7} => 400 invalid_argument group
PUT /v1/edges/like/1/2 {"owner":0} => 400 invalid_argument owner
PUT /v1/edges/like/1/2 {"owner":-5} => 400 invalid_argument owner
PUT /v1/edges/like/1/2 {"owner":1.5} => 400 invalid_argument owner
PUT /v1/edges/like/1/2 {"owner":18446744073709551616} => 400 invalid_argument owner
PUT /v1/edges/like/1/2 {"owner":1e16} => 400 invalid_argument 1e16
PUT /v1/edges/like/1/2 {"owner":9007199254740993.0} => 400 invalid_argument best
PUT /v1/edges/like/1/2 {"owner":1125899906842624.0} => 400 invalid_argument best
PUT /v1/edges/follow/1/2 {"group":"a\nb"} => 400 invalid_argument control
PUT /v1/edges/follow/1/2 {"group":"\u0007"} => 400 invalid_argument control
POST /v1/groups/follow/1 {"name":"a\tb"} => 400 invalid_argument control
POST /v1/groups/follow/1 {"name":"a\u0085"} => 400 invalid_argument control
PATCH /v1/groups/follow/1/a {"name":"\u007f"} => 400 invalid_argument control
DELETE /v1/groups/follow/1/a%0Ab => 400 invalid_argument control
PUT /v1/edges/like/1/2 {"owner":"x"} => 400 invalid_argument owner
PUT /v1/edges/like/1/2 {"owner":true} => 400 invalid_argument owner
PUT /v1/edges/like/1/2 {"expires_at":1} => 400 invalid_argument expires_at
PUT /v1/edges/like/1/2 {"expires_at":"2020-01-01T00:00:00.000Z"} => 400 invalid_argument expires_at
PUT /v1/edges/like/1/2 {"expires_at":"2030-13-01T00:00:00.000Z"} => 400 invalid_argument expires_at
# Content types.
# Parameters.
PUT /v1/edges/follow/1/2?strikt=true => 400 invalid_argument strikt
PUT /v1/edges/follow/1/2?strict=maybe => 400 invalid_argument strict
PUT /v1/edges/follow/1/2?strict=true&strict=true => 400 invalid_argument strict
GET /v1/edges/follow/1/2?strict=true => 400 invalid_argument strict
GET /v1/edges/follow/1/2?at_least=x => 400 invalid_argument
GET /v1/edges/follow/1/outgoing?cursor=x => 400 invalid_argument cursor
GET /v1/edges/follow/1/outgoing?limit=1001 => 400 invalid_argument limit
GET /v1/edges/follow/1/outgoing?limit=99999999999999999999 => 400 invalid_argument limit
POST /v1/check?verbose=1 {"pairs":[]} => 400 invalid_argument verbose
GET /v1/groups/follow/1?limit=1 => 400 invalid_argument limit
GET /v1/admin/kinds?x=1 => 400 invalid_argument x
# Batches.
POST /v1/edges/batch {"changes":[]} => 400 invalid_argument changes
POST /v1/edges/batch {"change":[]} => 400 invalid_argument change
POST /v1/edges/batch [] => 400 invalid_argument
POST /v1/tallies {"ids":["1"]} => 400 invalid_argument kinds
POST /v1/tallies {"ids":["1"],"kinds":["nothing"]} => 404 unknown_kind nothing
POST /v1/tallies {"ids":[0],"kinds":["follow"]} => 400 invalid_argument
POST /v1/check {"source":"1","targets":["x"],"kinds":["follow"]} => 400 invalid_argument
# Paths.
GET / => 404 not_found
GET /v1 => 404 not_found
GET /v1/edges => 404 not_found
GET /v1/edges/follow/1/2/ => 404 not_found
GET /v1/edges/follow/1/2/3/4 => 404 not_found
GET /v2/edges/follow/1/2 => 404 not_found
PUT /v1/../etc/passwd => 404 not_found
GET /v1/jobs/nothing => 404 not_found
POST /v1/edges/follow/1/2/forget => 404 not_found
"##;

/// A token says how far the log is: two equal ones have nothing between them.
fn log_end(server: &Server) -> String {
    let [source, target] = nodes();
    let nothing = server.delete(edge("follow", source, target));
    nothing.expect_change(false, "removed");
    nothing.token()
}

#[test]
fn each_case_gets_its_code_and_writes_nothing() {
    let server = Server::start();
    let before = log_end(&server);
    for line in CASES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (sent, expected) = line.split_once(" => ").expect("a line has two sides");
        let mut sent = sent.splitn(3, ' ');
        let (method, path) = (sent.next().expect("a method"), sent.next().expect("a path"));
        let request = server.request(method, path);
        let answer = match sent.next() {
            Some(body) => request.bytes(JSON, body).send(),
            None => request.send(),
        };
        let mut expected = expected.split(' ');
        let status = expected.next().and_then(|status| status.parse().ok()).expect("a status");
        let code = expected.next().expect("a code");
        assert_eq!(
            (answer.status, answer.body["code"].as_str()),
            (status, Some(code)),
            "{line}: {}",
            answer.text
        );
        let message = answer.expect_error(status, code);
        let named = expected.next().unwrap_or_default();
        assert!(message.contains(named), "{line}: {message:?} does not name {named}");
    }
    server.assert_healthy();
    assert_eq!(log_end(&server), before, "bad input wrote something");
}

#[test]
fn a_change_in_a_batch_is_checked_like_a_lone_one() {
    let server = shared();
    let [source, target] = nodes();
    let good = json!({"op": "put", "kind": "follow", "source": source, "target": target});
    let with = |field: &str, value: Value| {
        let mut change = good.clone();
        change[field] = value;
        change
    };
    let without = |field: &str| {
        let mut change = good.clone();
        change.as_object_mut().expect("an object").remove(field);
        change
    };
    // A batch whose shape is wrong is refused whole.
    let wrong = [
        with("op", json!("upsert")),
        with("op", json!(null)),
        with("colour", json!("red")),
        with("source", json!("x")),
        with("source", json!(0)),
        with("target", json!(-1)),
        with("target", json!("18446744073709551616")),
        without("op"),
        without("kind"),
        without("source"),
        without("target"),
        json!("put"),
    ];
    for change in wrong {
        let answer = server.post_json("/v1/edges/batch", json!({"changes": [good, change]}));
        let refused = match answer.status {
            200 => answer.ok()["results"][1]["error"]["code"].clone(),
            _ => {
                answer.expect_error(400, "invalid_argument");
                json!("invalid_argument")
            }
        };
        assert_eq!(refused, "invalid_argument", "{change}: {}", answer.text);
    }
    let many = |count: usize| json!({"changes": vec![good.clone(); count]});
    server.post_json("/v1/edges/batch", many(1001)).expect_error(413, "too_large");
    server.post_json("/v1/edges/batch", many(1000)).ok();
}

#[test]
fn a_body_says_what_it_is() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    server
        .request("PUT", &path)
        .untyped(r#"{"data":"x"}"#)
        .send()
        .expect_error(415, "unsupported_media_type");
    assert_eq!(server.get(&path).ok()["related"], false);
    for content_type in ["application/json", "application/json; charset=utf-8", "Application/JSON"]
    {
        server.request("PUT", &path).bytes(content_type, r#"{"data":"x"}"#).send().ok();
    }
    for other in ["text/plain", "text/json", "application/x-www-form-urlencoded"] {
        server
            .request("PUT", &path)
            .bytes(other, "{}")
            .send()
            .expect_error(415, "unsupported_media_type");
    }
    for bytes in [&b"{\"data\":\"\xff\xfe\"}"[..], b"{\"data\":\"a\nb\"}", b"\0"] {
        server
            .request("PUT", &path)
            .bytes(JSON, bytes)
            .send()
            .expect_error(400, "invalid_argument");
    }
    // A call that needs a body says so.
    for path in ["/v1/check", "/v1/tallies", "/v1/hydrate", "/v1/edges/batch"] {
        let answer = server.request("POST", path).bytes(JSON, "").send();
        answer.expect_error(400, "invalid_argument");
    }
}

#[test]
fn depth_and_length_of_json_are_bounded() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let depth = 100_000;
    let bombs = [
        "[".repeat(depth),
        format!("{}{}", "[".repeat(depth), "]".repeat(depth)),
        format!("{}1{}", "{\"data\":".repeat(depth), "}".repeat(depth)),
    ];
    for bomb in bombs {
        let answer = server.request("PUT", &path).bytes(JSON, bomb).send();
        assert!(matches!(answer.status, 400 | 413), "{}", answer.text);
    }
    let long = json!({"data": "x".repeat(200_000)});
    server.put_json(&path, long).expect_error(413, "too_large");
    assert_eq!(server.get(&path).ok()["related"], false);
    server.assert_healthy();
}

#[test]
fn a_wrong_method_is_told_the_right_ones() {
    let server = shared();
    let cases: [(&str, &str, &[&str]); 12] = [
        ("POST", "/v1/edges/follow/1/2", &["GET", "PUT", "DELETE"]),
        ("PATCH", "/v1/edges/follow/1/2", &["GET", "PUT", "DELETE"]),
        ("OPTIONS", "/v1/edges/follow/1/2", &["GET", "PUT", "DELETE"]),
        ("GET", "/v1/check", &["POST"]),
        ("PUT", "/v1/tallies", &["POST"]),
        ("DELETE", "/v1/edges/batch", &["POST"]),
        ("POST", "/v1/edges/follow/1/outgoing", &["GET"]),
        ("DELETE", "/v1/groups/follow/1", &["GET", "POST"]),
        ("GET", "/v1/groups/follow/1/friends", &["PATCH", "DELETE"]),
        ("POST", "/v1/nodes/user/1", &["GET", "PUT", "DELETE"]),
        ("PUT", "/v1/jobs/1", &["GET"]),
        ("DELETE", "/healthz", &["GET"]),
    ];
    for (method, path, allowed) in cases {
        let answer = server.request(method, path).send();
        answer.expect_error(405, "method_not_allowed");
        let allow = answer.header("allow").unwrap_or_else(|| panic!("{method} {path}: no Allow"));
        let mut found: BTreeSet<&str> = allow.split(',').map(str::trim).collect();
        found.remove("HEAD");
        assert_eq!(found, allowed.iter().copied().collect(), "{method} {path}");
    }
}
