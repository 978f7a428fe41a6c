//! Import and export over the wire: every sort of line, places and conflicts, rejects, CSV, bodies
//! that break off, and an export that another server takes for its own.

use std::time::Duration;

use guanxi_tests::differences::news;
use guanxi_tests::{
    Answer, Client, RawConnection, Server, Watcher, edge, millis_now, node_run, nodes, poll_until,
    rfc3339, shared, tally, version_of,
};
use serde_json::{Value, json};

const NDJSON: &str = "application/x-ndjson";
const DEADLINE: Duration = Duration::from_secs(60);

fn import(client: &Client, parameters: &str, body: impl Into<Vec<u8>>) -> Answer {
    let path = format!("/v1/admin/import?{parameters}");
    client.request("POST", &path).bytes(NDJSON, body).send()
}

fn follows(edges: &[(u64, u64)]) -> String {
    let line = |(source, target): &(u64, u64)| {
        format!("{{\"kind\":\"follow\",\"source\":\"{source}\",\"target\":{target}}}\n")
    };
    edges.iter().map(line).collect()
}

/// An export's lines without what an import cannot keep.
fn comparable(export: &str) -> Vec<Value> {
    let lines = export.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("a line is JSON");
        line.as_object_mut().expect("an object").remove("version");
        line
    });
    lines.collect()
}

fn counts(answer: &Value) -> [u64; 4] {
    ["lines", "accepted", "changed", "rejected"].map(|name| answer[name].as_u64().unwrap())
}

#[test]
fn an_export_is_imported_by_another_server_and_exported_the_same() {
    let [first, second] = [Server::start(), Server::start()];
    let kind = json!({"name": "visit", "source_type": "user", "target_type": "place",
                      "data_bytes_max": 128, "expires": true});
    for server in [&first, &second] {
        server.post_json("/v1/admin/kinds", kind.clone()).expect_status(201);
    }
    for group in ["zeta", "密友, \"close\"", "alpha", "dead"] {
        first.post_json("/v1/groups/follow/1", json!({"name": group})).expect_status(201);
    }
    first.put_json("/v1/nodes/user/9", json!({"private": true})).ok();
    let expires_at = rfc3339(millis_now() + 3_600_000);
    let puts = [
        ("follow", 1, 2, json!({"group": "alpha", "data": "line\nbreak, \"quoted\""})),
        ("follow", 1, 3, json!({"group": "密友, \"close\""})),
        ("follow", 1, 4, json!({"group": "dead"})),
        ("follow", 5, 9, json!({})),
        ("follow", 6, u64::MAX, json!({"expires_at": expires_at})),
        ("like", 1, 11, json!({"owner": "77", "data": ""})),
        ("favorite", 2, 11, json!({"owner": 77})),
        ("block", 7, 8, json!({})),
        ("visit", 1, 1, json!({"data": "\u{1f600}"})),
    ];
    let edges = puts.len() as u64;
    for (kind, source, target, fields) in puts {
        first.put_json(edge(kind, source, target), fields).ok();
    }
    first.delete("/v1/groups/follow/1/dead").ok();
    first.post_json("/v1/counters/view/11", json!({"delta": 905})).ok();
    first.post_json("/v1/counters/play_seconds/12", json!({"delta": -3})).ok();
    for format in ["ndjson", "csv"] {
        let path = format!("/v1/admin/export?format={format}");
        let export = first.get(&path);
        assert_eq!(export.status, 200, "{}", export.text);
        let answer = import(&second, &format!("format={format}"), export.text.clone());
        let answer = answer.ok();
        assert_eq!(answer["rejected"], 0, "{answer}");
        let lines = export.text.lines().count();
        assert!(lines >= 15, "{}", export.text);
        if format == "ndjson" {
            assert_eq!(counts(answer), [lines as u64, lines as u64, edges, 0]);
        } else {
            assert_eq!(answer["changed"], 0, "all of it stands");
        }
        let [one, other] = [&first, &second].map(|server| server.get("/v1/admin/export").text);
        assert_eq!(comparable(&one), comparable(&other));
    }
    let pending = second.get(edge("follow", 5, 9));
    assert_eq!(pending.ok()["state"], "pending");
    assert_eq!(tally(&second, "like", 77)["owned"], 1);
    assert_eq!(tally(&second, "view", 11)["value"], 905);
    let groups = second.get("/v1/groups/follow/1");
    let names: Vec<&Value> =
        groups.ok()["groups"].as_array().unwrap().iter().map(|group| &group["name"]).collect();
    assert_eq!(names, ["zeta", "密友, \"close\"", "alpha"], "in the order of their creation");
    let only = first.get("/v1/admin/export?kind=view");
    assert_eq!(only.text, "{\"type\":\"counter\",\"kind\":\"view\",\"id\":\"11\",\"value\":905}\n");
    first.get("/v1/admin/export?kind=nothing").expect_error(404, "unknown_kind");
    first.get("/v1/admin/export?format=xml").expect_error(400, "invalid_argument");
}

#[test]
fn an_exports_position_is_where_watch_goes_on_without_a_gap() {
    let server = shared();
    let [source, before, after] = nodes();
    let held = version_of(server.put(edge("follow", source, before)).ok());
    let export = server.get("/v1/admin/export?kind=follow");
    let position = export.header("guanxi-position").expect("a position").to_owned();
    assert!(export.text.contains(&format!("\"target\":\"{before}\"")));
    server.put(edge("follow", source, after)).ok();
    let mut watcher = Watcher::open(server.address(), &format!("from={position}&kinds=follow"));
    let text = source.to_string();
    let ours = |record: &Value| record["source"] == text.as_str();
    let behind = after.to_string();
    let is_behind = |record: &Value| ours(record) && record["target"] == behind;
    let records = watcher.records_until(is_behind).into_iter().filter(&ours).collect();
    assert_eq!(news(records, held).len(), 1, "the first of ours is the one behind it");
}

#[test]
fn a_chunk_is_taken_once_and_what_a_user_removed_stays_removed() {
    let server = shared();
    let [source, kept, removed, later] = nodes();
    let body = follows(&[(source, kept), (source, removed)]);
    let answer = import(&server, "id=once", body.clone());
    assert_eq!(counts(answer.ok()), [2, 2, 2, 0]);
    assert_eq!(answer.header("guanxi-token"), answer.body["token"].as_str());
    server.delete(edge("follow", source, removed)).ok();
    let refused = import(&server, "id=once", body.clone());
    let message = refused.expect_error(409, "conflict");
    assert!(message.contains("go on after line 2"), "{message}");
    for after in [1, 3] {
        import(&server, &format!("id=once&after={after}"), body.clone())
            .expect_error(409, "conflict");
    }
    assert_eq!(server.get(edge("follow", source, removed)).ok()["related"], false);
    let more = import(&server, "id=once&after=2", follows(&[(source, later)]));
    assert_eq!(counts(more.ok()), [3, 1, 1, 0]);
    let place = server.get("/v1/admin/import/once");
    assert_eq!((&place.ok()["lines"], &place.ok()["rejected"]), (&json!(3), &json!(0)));
    server.get("/v1/admin/import/unknown").expect_error(404, "not_found");
    server.get("/v1/admin/import/a%20b").expect_error(400, "invalid_argument");
    import(&server, "id=a%20b", "").expect_error(400, "invalid_argument");
    import(&server, "after=x", "").expect_error(400, "invalid_argument");
    import(&server, "colour=x", "").expect_error(400, "invalid_argument");
}

#[test]
fn bad_lines_are_rejected_by_number_and_the_others_are_taken() {
    let server = shared();
    let [source, target, blocker] = nodes();
    server.put(edge("block", blocker, source)).ok();
    let future = rfc3339(millis_now() + 3_600_000);
    let ends = format!("\"kind\":\"follow\",\"source\":{source},\"target\":{target}");
    let long = "x".repeat(17 * 1024);
    let cases = [
        (format!("{{{ends}}}"), None),
        (String::new(), None),
        ("   \r".to_owned(), None),
        ("nonsense".to_owned(), Some("invalid_argument")),
        (format!("[{source}]"), Some("invalid_argument")),
        (format!("{{{ends}"), Some("invalid_argument")),
        (format!("{{{ends},\"colour\":1}}"), Some("invalid_argument")),
        (format!("{{{ends},\"since\":\"{future}\"}}"), Some("invalid_argument")),
        (format!("{{{ends},\"since\":\"yesterday\"}}"), Some("invalid_argument")),
        (format!("{{{ends},\"state\":\"removed\"}}"), Some("invalid_argument")),
        (format!("{{{ends},\"value\":1}}"), Some("invalid_argument")),
        (format!("{{{ends},\"data\":\"{long}\"}}"), Some("too_large")),
        ("{\"kind\":\"follow\",\"source\":1}".to_owned(), Some("invalid_argument")),
        ("{\"kind\":\"nothing\",\"source\":1,\"target\":2}".to_owned(), Some("unknown_kind")),
        (
            format!("{{\"kind\":\"follow\",\"source\":{source},\"target\":{source}}}"),
            Some("self_relation"),
        ),
        (
            format!("{{\"kind\":\"follow\",\"source\":{source},\"target\":{blocker}}}"),
            Some("excluded"),
        ),
        ("{\"type\":\"planet\"}".to_owned(), Some("invalid_argument")),
        ("{\"type\":\"node\",\"node_type\":\"planet\",\"id\":1}".to_owned(), Some("not_found")),
        (
            "{\"type\":\"counter\",\"kind\":\"follow\",\"id\":1,\"value\":1}".to_owned(),
            Some("invalid_argument"),
        ),
        (format!("{{{ends},\"data\":\"last, without a line break\"}}"), None),
    ];
    let body: Vec<&str> = cases.iter().map(|(line, _)| line.as_str()).collect();
    let answer = import(&server, "id=rejects", body.join("\n"));
    let expected: Vec<Value> = (1..)
        .zip(&cases)
        .filter_map(|(line, (_, code))| code.map(|code| json!([line, code])))
        .collect();
    let rejects = answer.ok()["rejects"].as_array().unwrap();
    let found: Vec<Value> =
        rejects.iter().map(|reject| json!([reject["line"], reject["error"]["code"]])).collect();
    assert_eq!(found, expected, "{}", answer.text);
    assert_eq!(counts(answer.ok()), [cases.len() as u64, 2, 2, expected.len() as u64]);
    // The place names them too, also those of a call before.
    let more = format!("id=rejects&after={}", cases.len());
    let last = import(&server, &more, "nonsense\n");
    let place = server.get("/v1/admin/import/rejects");
    let lines = cases.len() as u64 + 1;
    assert_eq!(counts(place.ok()), [lines, 2, 2, expected.len() as u64 + 1]);
    let [first, second] = [&answer, &last].map(|answer| answer.ok()["rejects"].as_array().unwrap());
    assert_eq!(place.ok()["rejects"], json!([first.as_slice(), second.as_slice()].concat()));
    assert_eq!(place.ok()["rejects_left_off"], 0);
    let stands = server.get(edge("follow", source, target));
    assert_eq!(stands.ok()["data"], "last, without a line break");
}

#[test]
fn since_state_and_groups_come_along_and_limits_can_be_lifted() {
    let server = shared();
    let kind = json!({"name": "few", "source_type": "user", "target_type": "user",
                      "outgoing_max": 2, "approval": true, "groups_max": 1});
    server.post_json("/v1/admin/kinds", kind).expect_status(201);
    let [source] = nodes();
    let targets = node_run(5);
    let line = |target: u64, fields: &str| {
        format!("{{\"kind\":\"few\",\"source\":{source},\"target\":{target}{fields}}}\n")
    };
    let since = ",\"since\":\"2020-02-29T12:00:00.5Z\",\"state\":\"pending\",\"group\":\"new\"";
    let body = [
        line(targets[0], since),
        line(targets[1], ",\"group\":\"new\""),
        line(targets[2], ""),
        line(targets[0], ",\"since\":\"2021-01-01T00:00:00Z\",\"state\":\"live\""),
        line(targets[1], ",\"group\":\"second\""),
    ];
    let answer = import(&server, "", body.concat());
    let codes: Vec<&Value> = answer.ok()["rejects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|reject| &reject["error"]["code"])
        .collect();
    assert_eq!(codes, ["limit_reached", "limit_reached"], "{}", answer.text);
    let pending = server.get(edge("few", source, targets[0]));
    assert_eq!(pending.ok()["since"], "2020-02-29T12:00:00.500Z", "it stood and keeps its since");
    assert_eq!(
        (&pending.ok()["state"], &pending.ok()["group"]),
        (&json!("pending"), &json!("new"))
    );
    let lifted = import(&server, "ignore_limits=true", line(targets[3], ""));
    assert_eq!(lifted.ok()["accepted"], 1);
    server.put(edge("few", source, targets[4])).expect_error(422, "limit_reached");
}

#[test]
fn csv_has_a_header_quotes_and_line_breaks() {
    let server = shared();
    let [source, one, two, three] = nodes();
    let csv = |body: String| {
        server.request("POST", "/v1/admin/import?id=csv").bytes("text/csv", body).send()
    };
    let body = format!(
        "\u{feff}target,source,kind,data,group\r\n{one},{source},follow,\"a, \"\"b\"\"\nc\",friends\r\n\
         {two},{source},follow,,\r\n{three},{source},follow\r\n{three},{source},follow,\"x\"y,\r\n"
    );
    let answer = csv(body);
    assert_eq!(counts(answer.ok()), [5, 2, 2, 2], "{}", answer.text);
    let rejects = &answer.body["rejects"];
    assert_eq!((&rejects[0]["line"], &rejects[1]["line"]), (&json!(4), &json!(5)));
    let read = server.get(edge("follow", source, one));
    assert_eq!(
        (&read.ok()["data"], &read.ok()["group"]),
        (&json!("a, \"b\"\nc"), &json!("friends"))
    );
    let wrong = server
        .request("POST", "/v1/admin/import?format=csv")
        .bytes("text/csv", "from,to\n1,2\n")
        .send();
    assert!(wrong.expect_error(400, "invalid_argument").contains("'from'"));
    let untold = server.request("POST", "/v1/admin/import").bytes("text/html", "x").send();
    untold.expect_error(415, "unsupported_media_type");
}

#[test]
fn a_body_that_breaks_off_leaves_what_was_committed_and_the_place_says_where() {
    let server = shared();
    let [source] = nodes();
    let targets = node_run(1_500);
    let edges: Vec<(u64, u64)> = targets.iter().map(|target| (source, *target)).collect();
    let body = follows(&edges);
    let half_a_line = &body[..body.len() - 10];
    let mut connection = RawConnection::open(server.address());
    connection.send(format!(
        "POST /v1/admin/import?id=broken HTTP/1.1\r\nhost: localhost\r\ncontent-type: {NDJSON}\r\n\
         content-length: {}\r\n\r\n{half_a_line}",
        body.len()
    ));
    let place = poll_until("the whole lines are committed", DEADLINE, || {
        let place = server.get("/v1/admin/import/broken");
        (place.status == 200 && place.body["lines"] == 1_499).then_some(place)
    });
    drop(connection);
    assert_eq!(place.body["rejected"], 0);
    assert_eq!(tally(&server, "follow", source)["outgoing"], 1_499);
    let rest = import(&server, "id=broken&after=1499", follows(&edges[1_499..]));
    assert_eq!(counts(rest.ok()), [1_500, 1, 1, 0]);
}

#[test]
fn the_longest_body_is_longer_than_any_other_calls() {
    let server = shared();
    let sources = node_run(40);
    let targets = node_run(1_000);
    let pairs =
        sources.iter().flat_map(|source| targets.iter().map(move |target| (*source, *target)));
    let edges: Vec<(u64, u64)> = pairs.collect();
    let body = follows(&edges);
    assert!(body.len() > 1024 * 1024);
    let answer = import(&server, "id=long", body);
    assert_eq!(counts(answer.ok()), [40_000, 40_000, 40_000, 0]);
    for source in [sources[0], sources[39]] {
        assert_eq!(tally(&server, "follow", source)["outgoing"], 1_000);
    }
}
