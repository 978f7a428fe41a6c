//! Watching: the shape of events, order and exactly-once under load and kill -9, filters,
//! heartbeats and bad parameters. Many, slow and late readers stand in watch_bounds.rs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use guanxi_tests::differences::{
    across_targets, are_deliveries, as_decided, settle, version_scope, without_place,
};
use guanxi_tests::{
    Client, Next, Options, Server, Watcher, assert_keys, edge, expect_problem, metric, millis_now,
    node, nodes, parse_millis, poll_until, put_all, rfc3339, shared, version_of,
};
use serde_json::{Value, json};

const WRITERS: u64 = 8;
const WRITES_EACH: u64 = 120;
const KILLS: usize = 4;
/// Long enough for the put itself on a busy disk.
const EXPIRY_MS: u64 = 4_000;
const BREAK_DEADLINE: Duration = Duration::from_secs(60);
/// Longer than anything under way takes to arrive.
const QUIET: Duration = Duration::from_millis(300);

/// The few targets of all writers.
const TARGETS: std::ops::Range<u64> = 1_000_000..1_000_007;

/// Puts and deletes of one source, in turn, over a few targets.
fn write_number(client: &Client, source: u64, number: u64) -> Option<Value> {
    let target = TARGETS.start + number / 2 % (TARGETS.end - TARGETS.start);
    let method = if number.is_multiple_of(2) { "PUT" } else { "DELETE" };
    let answer = client.request(method, &edge("follow", source, target)).try_send().ok()?;
    (answer.status == 200).then(|| answer.body.clone())
}

/// Versions are given out in the log's order, so records in order have growing ones.
#[track_caller]
fn assert_in_order(records: &[Value]) {
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for record in records {
        let before = last.insert(version_scope(record), version_of(record));
        assert!(before < Some(version_of(record)), "after {before:?}: {record}");
    }
    // Of one edge, what was new is what is old next; a removed one reads as none.
    let mut standing: BTreeMap<(String, String, String), Value> = BTreeMap::new();
    for record in records {
        let end = |name: &str| record[name].as_str().unwrap().to_owned();
        let key = (end("kind"), end("source"), end("target"));
        let old = standing.remove(&key).unwrap_or(Value::Null);
        assert_eq!(record["old"], old, "{record}");
        if record["new"]["state"] != "removed" {
            standing.insert(key, record["new"].clone());
        }
    }
}

/// A source's write, as its record and its answer name it.
fn write_of(source: impl ToString, told: &Value) -> (String, u64) {
    (source.to_string(), version_of(told))
}

fn writes_of(records: &[Value]) -> BTreeSet<(String, u64)> {
    let source = |record: &Value| record["source"].as_str().expect("a source").to_owned();
    records.iter().map(|record| write_of(source(record), record)).collect()
}

/// A watcher of a server that others use too: it is told of these sources alone.
struct Told {
    server: Arc<Server>,
    watcher: Watcher,
    sources: [String; 2],
}

impl Told {
    fn of(sources: [u64; 2]) -> Self {
        let server = shared();
        let mut watcher = Watcher::open(server.address(), "from=now");
        let first = watcher.event();
        assert_eq!(first.name, "heartbeat", "an id at once");
        assert_keys(&first.data, &["id"]);
        assert_eq!(first.data["id"].as_str(), first.id.as_deref());
        Self { server, watcher, sources: sources.map(|source| source.to_string()) }
    }

    /// The record of what this does.
    #[track_caller]
    fn after(&mut self, act: impl FnOnce(&Client)) -> Value {
        act(&self.server.client());
        self.next()
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        loop {
            let event = self.watcher.event();
            let ours = self.sources.iter().any(|source| event.data["source"] == *source);
            if event.name == "record" && ours {
                assert_eq!(event.data["id"].as_str(), event.id.as_deref());
                return event.data;
            }
        }
    }
}

#[test]
fn a_record_has_the_shape_of_the_contract_and_an_id_to_read_on_from() {
    let [source, target] = nodes();
    let mut told = Told::of([source, target]);
    let server = told.server.clone();
    server.post_json(format!("/v1/groups/follow/{source}"), json!({"name": "g"}));
    let follow = edge("follow", source, target);
    let (data, expires_at) = ("hello\n\u{2028}", "2100-01-01T00:00:00.000Z");
    let put = told.after(|client| {
        let body = json!({"group": "g", "data": data, "expires_at": expires_at});
        client.put_json(&follow, body).expect_change(true, "live");
    });
    let shape = ["id", "time", "op", "kind", "source", "target", "old", "new", "version"];
    assert_keys(&put, &[&shape[..], &["fresh"]].concat());
    let stands = server.get(&follow);
    let expected = json!({
        "id": put["id"], "time": put["time"], "op": "put", "kind": "follow",
        "source": source.to_string(), "target": target.to_string(), "old": null,
        "new": {"state": "live", "since": stands.ok()["since"], "group": "g", "owner": null,
            "data": data, "expires_at": expires_at},
        "version": stands.ok()["version"], "fresh": true,
    });
    assert_eq!(put, expected);
    assert!(parse_millis(&put["time"]) >= parse_millis(&put["new"]["since"]));

    let moved = told.after(|client| {
        client.delete(format!("/v1/groups/follow/{source}/g/members/{target}")).expect_status(200);
    });
    let removed = told.after(|client| {
        client.delete(&follow).expect_change(true, "removed");
    });
    assert_eq!((&moved["op"], &moved["old"]), (&json!("move"), &put["new"]));
    assert_eq!(moved["new"]["group"], Value::Null);
    assert_eq!((&removed["op"], &removed["old"]), (&json!("delete"), &moved["new"]));
    let nothing = json!({"state": "removed", "since": removed["new"]["since"], "group": null,
        "owner": null, "data": null, "expires_at": null});
    assert_eq!(removed["new"], nothing);
    assert_keys(&removed, &shape);

    // From its id the rest comes again, after it and without it.
    let from = format!("from={}&kinds=follow", put["id"].as_str().unwrap());
    let mut again = Watcher::open(server.address(), &from);
    let ours = source.to_string();
    let about = |record: &Value| record["source"] == ours;
    let rest = again.records_until(|record| about(record) && record["op"] == "delete");
    let found: Vec<Value> = rest.into_iter().filter(about).collect();
    assert_eq!(
        found.into_iter().map(without_place).collect::<Vec<_>>(),
        [moved, removed].map(without_place)
    );
}

#[test]
fn a_record_tells_the_reason_that_its_caller_gave() {
    let [source, target] = nodes();
    let mut told = Told::of([source, target]);
    let follow = edge("follow", source, target);
    let send = |client: &Client, method: &str, reason: &str| {
        client.request(method, &follow).header("Guanxi-Reason", reason).send()
    };
    let put = told.after(|client| {
        send(client, "PUT", "asked to; see 12").expect_change(true, "live");
    });
    assert_eq!((&put["reason"], &put["fresh"]), (&json!("asked to; see 12"), &json!(true)));
    let longest = "x".repeat(64);
    let removed = told.after(|client| {
        send(client, "DELETE", &longest).expect_change(true, "removed");
    });
    assert_eq!((&removed["reason"], &removed["fresh"]), (&json!(longest), &Value::Null));
    let many = told.after(|client| {
        let change = json!({"op": "put", "kind": "follow", "source": source.to_string(),
            "target": target.to_string()});
        let batch = client.request("POST", "/v1/edges/batch").header("guanxi-reason", "many");
        batch.json(&json!({"changes": [change]})).send().expect_status(200);
    });
    assert_eq!(many["reason"], "many");
    // Nothing is written for a reason that could not be told.
    let refused = send(&told.server.client(), "DELETE", &"x".repeat(65));
    let message = refused.expect_error(400, "invalid_argument");
    assert!(message.starts_with("guanxi-reason: "), "{message}");
    assert_eq!(told.server.get(&follow).ok()["state"], "live");
    // What an erasure removes names its job.
    let mut job = Value::Null;
    let erased = told.after(|client| {
        job = client.delete(node("user", source)).expect_status(202)["job"].clone();
    });
    assert_eq!((&erased["op"], &erased["job"]), (&json!("erase"), &job));
}

#[test]
fn every_way_to_change_an_edge_has_its_op() {
    let [source, target, owner, post] = nodes();
    let mut told = Told::of([source, target]);
    let follow = edge("follow", source, target);
    let followed = told.after(|client| {
        client.put(&follow).expect_change(true, "live");
    });
    // What a block cuts comes before it.
    let first = told.after(|client| {
        client.put(edge("block", target, source)).expect_change(true, "live");
    });
    let both = across_targets(vec![first, told.next()], |record| record["kind"] == "block");
    let [cut, block] = both.try_into().expect("two records");
    assert_eq!((&block["kind"], &block["op"]), (&json!("block"), &json!("put")));
    assert_eq!((&cut["op"], &cut["kind"]), (&json!("cut"), &json!("follow")));
    assert_eq!((&cut["old"], &cut["new"]["state"]), (&followed["new"], &json!("removed")));
    let unblock = told.after(|client| {
        client.delete(edge("block", target, source)).expect_change(true, "removed");
    });
    assert_eq!(unblock["op"], "delete");
    for answer in ["decline", "approve"] {
        let pending = told.after(|client| {
            client.put_json(&follow, json!({"approval": true})).expect_change(true, "pending");
        });
        assert_eq!(pending["new"]["state"], "pending");
        let answered = told.after(|client| {
            client.post(format!("{follow}/{answer}")).expect_status(200);
        });
        assert_eq!((&answered["op"], &answered["old"]), (&json!(answer), &pending["new"]));
    }
    let liked = told.after(|client| {
        let owned = json!({"owner": owner.to_string()});
        client.put_json(edge("like", source, post), owned).expect_change(true, "live");
    });
    assert_eq!(liked["new"]["owner"], owner.to_string());
    told.after(|client| {
        let soon = rfc3339(millis_now() + EXPIRY_MS);
        client.put_json(&follow, json!({"expires_at": soon})).expect_change(true, "live");
    });
    let expired = told.next();
    assert_eq!((&expired["op"], &expired["new"]["state"]), (&json!("expire"), &json!("removed")));
    let erased = told.after(|client| {
        client.delete(node("user", source)).expect_status(202);
    });
    assert_eq!((&erased["op"], &erased["kind"]), (&json!("erase"), &json!("like")));
}

#[test]
fn every_watcher_sees_every_acknowledged_write_once_and_in_order() {
    let server = Server::start();
    let address = server.address();
    let acknowledged = Mutex::new(BTreeSet::new());
    let expected = (WRITERS * WRITES_EACH) as usize;
    let seen: Vec<Vec<Value>> = thread::scope(|scope| {
        let mut watchers: Vec<Watcher> =
            (0..3).map(|_| Watcher::open(address, "from=now&kinds=follow,like")).collect();
        // Once it has an id it is in its place.
        watchers.iter_mut().for_each(|watcher| assert_eq!(watcher.event().name, "heartbeat"));
        for source in 1..=WRITERS {
            let (client, acknowledged) = (server.client(), &acknowledged);
            scope.spawn(move || {
                for number in 0..WRITES_EACH {
                    let answer = write_number(&client, source, number).expect("it is answered");
                    assert_eq!(answer["changed"], true);
                    assert!(acknowledged.lock().unwrap().insert(write_of(source, &answer)));
                }
            });
        }
        let reading: Vec<_> = watchers
            .into_iter()
            .map(|mut watcher| {
                scope.spawn(move || {
                    let (mut records, mut writes) = (Vec::new(), BTreeSet::new());
                    while writes.len() < expected {
                        let record = watcher.record();
                        writes.extend(writes_of(std::slice::from_ref(&record)));
                        records.push(record);
                    }
                    records
                })
            })
            .collect();
        reading.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let read: usize = seen.iter().map(Vec::len).sum();
    let seen: Vec<Vec<Value>> = seen.into_iter().map(as_decided).collect();
    assert_eq!(seen[0].len(), expected, "none comes twice");
    assert_in_order(&seen[0]);
    assert_eq!(writes_of(&seen[0]), *acknowledged.lock().unwrap());
    assert!(seen.iter().all(|records| *records == seen[0]), "all watchers see the same");
    poll_until("all records counted", BREAK_DEADLINE, || {
        let sent = metric(&server, "guanxi_watch_records_total");
        are_deliveries(sent as u64, read as u64).then_some(())
    });
}

/// Reads until nothing more comes or the stream breaks; now and then it hangs up by itself.
fn read_some(server: &Server, seen: &mut Vec<Value>, last_id: &mut Option<String>, events: usize) {
    let from = if last_id.is_none() { "from=earliest" } else { "from=now" };
    let mut watcher = Watcher::open_with(server.address(), from, last_id.as_deref());
    for _ in 0..events {
        match watcher.next(QUIET) {
            Next::Event(event) if event.name == "record" => seen.push(event.data),
            Next::Event(event) => assert_eq!(event.name, "heartbeat"),
            Next::Nothing | Next::Broken => break,
            Next::Ended => panic!("nobody stopped the service"),
        }
    }
    last_id.clone_from(&watcher.last_id);
}

/// The records up to the end of the connection, and where to read on.
fn read_until_broken(mut watcher: Watcher) -> (Vec<Value>, Option<String>) {
    let mut records = Vec::new();
    loop {
        match watcher.next(BREAK_DEADLINE) {
            Next::Event(event) if event.name == "record" => records.push(event.data),
            Next::Event(_) => {}
            Next::Broken => return (records, watcher.last_id),
            other => panic!("the connection should break: {other:?}"),
        }
    }
}

/// The records up to the last of each target, which this source put.
fn read_to_the_end(watcher: &mut Watcher, source: u64) -> Vec<Value> {
    let last = source.to_string();
    let mut left: BTreeSet<String> = TARGETS.map(|target| target.to_string()).collect();
    let mut records = Vec::new();
    while !left.is_empty() {
        let record = watcher.record();
        // What settles a cluster's log is of another kind, and told whenever it comes.
        if record["kind"] != "follow" {
            continue;
        }
        if record["source"] == last {
            left.remove(record["target"].as_str().expect("a target"));
        }
        records.push(record);
    }
    records
}

#[test]
fn kills_of_server_and_reader_leave_no_gap_and_no_duplicate() {
    let mut server = Server::start();
    let mut acknowledged = BTreeSet::new();
    let (mut seen, mut last_id) = (Vec::new(), None);
    let mut numbers = vec![0; WRITERS as usize];
    for kill in 0..KILLS {
        let written = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (source, number) in (1..).zip(&mut numbers) {
                let (client, written) = (server.client(), &written);
                scope.spawn(move || {
                    while let Some(answer) = write_number(&client, source, *number) {
                        // The one that was cut off may have been done, so its repetition need
                        // not change anything.
                        if answer["changed"] == true {
                            written.lock().unwrap().push(write_of(source, &answer));
                        }
                        *number += 1;
                    }
                });
            }
            // The reader hangs up after a few events, comes again, and is cut off in the end.
            for events in [7, 40, 3, 90] {
                read_some(&server, &mut seen, &mut last_id, events + kill);
            }
            // Its stream has begun before the kill.
            let watcher = Watcher::open_with(server.address(), "", last_id.take().as_deref());
            let reader = scope.spawn(move || read_until_broken(watcher));
            poll_until("writes beside the reader", Duration::from_secs(60), || {
                (written.lock().unwrap().len() > 200).then_some(())
            });
            server.send_kill();
            let (records, id) = reader.join().unwrap();
            seen.extend(records);
            last_id = id;
        });
        server = server.kill().restart();
        acknowledged.extend(written.into_inner().unwrap());
    }
    // What a killed instance of a cluster left in the outbox is told when the next one finds it,
    // which may be after later writes: it is waited for.
    settle(&server);
    poll_until("all that was left is told", BREAK_DEADLINE, || {
        (server.get("/v1/edges/follow/1/outgoing").status == 200).then_some(())
    });
    // Behind the last write of each target nothing of it is left to come.
    let [source] = nodes();
    for target in TARGETS {
        server.put(edge("follow", source, target)).expect_change(true, "live");
    }
    let mut watcher = Watcher::open_with(server.address(), "", last_id.as_deref());
    seen.extend(read_to_the_end(&mut watcher, source));
    let mut watcher = Watcher::open(server.address(), "from=earliest");
    let whole = as_decided(read_to_the_end(&mut watcher, source));
    let seen = as_decided(seen);
    assert_eq!(seen.len(), whole.len());
    assert!(seen == whole, "what was read in pieces is what the log has");
    assert_in_order(&whole);
    assert!(acknowledged.is_subset(&writes_of(&whole)), "nothing acknowledged is missing");
    assert!(acknowledged.len() > 200 * KILLS);
}

#[test]
fn filters_let_through_what_they_name() {
    let server = Server::start();
    let [source, target, post] = nodes();
    let begin = Watcher::open(server.address(), "").event().id.unwrap();
    server.put(edge("follow", source, target)).expect_change(true, "live");
    server.put(edge("like", source, post)).expect_change(true, "live");
    server.post_json(format!("/v1/counters/view/{post}"), json!({"delta": 1})).expect_status(200);
    server.delete(edge("like", source, post)).expect_change(true, "removed");
    server.put(edge("block", source, target)).expect_change(true, "live");
    server.put(edge("favorite", source, post)).expect_change(true, "live");
    for (filter, expected) in [
        ("", "follow put, like put, like delete, follow cut, block put, favorite put"),
        ("&kinds=like", "like put, like delete"),
        ("&kinds=like,favorite", "like put, like delete, favorite put"),
        ("&ops=cut", "follow cut"),
        ("&ops=delete,cut", "like delete, follow cut"),
        ("&kinds=like,block&ops=put", "like put, block put"),
        ("&kinds=like&ops=expire", ""),
    ] {
        let mut watcher = Watcher::open(server.address(), &format!("from={begin}{filter}"));
        let expected: Vec<&str> = expected.split_terminator(", ").collect();
        let found: Vec<String> = expected
            .iter()
            .map(|_| {
                let record = watcher.record();
                let word = |name: &str| record[name].as_str().unwrap().to_owned();
                format!("{} {}", word("kind"), word("op"))
            })
            .collect();
        let place = |one: &String| expected.iter().position(|other| other == one);
        assert_eq!(across_targets(found, place), expected, "{filter}");
        while let Next::Event(event) = watcher.next(QUIET) {
            assert_eq!(event.name, "heartbeat", "{filter} lets through {event:?}");
        }
    }
}

#[test]
fn heartbeats_take_a_reader_of_a_rare_kind_along() {
    let every = ("GUANXI_HTTP_WATCH_HEARTBEAT_MS".to_owned(), "100".to_owned());
    let server = Server::start_with(Options { environment: vec![every], ..Options::default() });
    let [source, target, post] = nodes();
    let mut rare = Watcher::open(server.address(), "kinds=favorite");
    let begin = rare.event().id.unwrap();
    // Quiet: the same place again and again.
    for _ in 0..3 {
        let heartbeat = rare.event();
        assert_eq!((heartbeat.name.as_str(), heartbeat.id), ("heartbeat", Some(begin.clone())));
    }
    let edges: Vec<(u64, u64)> = (1..=500).map(|other| (source, 2_000_000 + other)).collect();
    put_all(&server, "follow", &edges);
    server.put(edge("follow", target, source)).expect_change(true, "live");
    let advanced = poll_until("a heartbeat further on", Duration::from_secs(30), || {
        let event = rare.event();
        assert_eq!(event.name, "heartbeat");
        event.id.filter(|id| *id != begin)
    });
    // It stands behind the writes: whoever resumes there passes over them, and misses nothing.
    poll_until("a heartbeat behind all", Duration::from_secs(30), || {
        let id = rare.event().id.unwrap();
        let mut all = Watcher::open(server.address(), &format!("from={id}"));
        assert_eq!(all.event().name, "heartbeat");
        let next = all.event();
        (next.name == "heartbeat").then_some(())
    });
    server.put(edge("favorite", source, post)).expect_change(true, "live");
    let mut resumed =
        Watcher::open_with(server.address(), "from=earliest&kinds=favorite", Some(&advanced));
    assert_eq!(resumed.record()["kind"], "favorite");
    assert_eq!(rare.record()["kind"], "favorite");
}

#[test]
fn bad_parameters_are_named() {
    let server = shared();
    let [source, target] = nodes();
    let token = server.put(edge("follow", source, target)).token();
    let many_ops = format!("ops={}", vec!["put"; 50].join(","));
    let token_from = format!("from={token}");
    for (parameters, status, code, named) in [
        ("from=yesterday", 400, "invalid_argument", "from"),
        ("from=", 400, "invalid_argument", "from"),
        ("from=1", 400, "invalid_argument", "from"),
        (&token_from, 400, "invalid_argument", "from"),
        ("from=now&from=now", 400, "invalid_argument", "from"),
        ("kinds=folow", 404, "unknown_kind", "folow"),
        ("kinds=", 404, "unknown_kind", "''"),
        ("kinds=follow,", 404, "unknown_kind", "''"),
        ("kinds=follow,view", 400, "invalid_argument", "view"),
        ("ops=unput", 400, "invalid_argument", "unput"),
        ("ops=", 400, "invalid_argument", "ops"),
        ("ops=put,,delete", 400, "invalid_argument", "ops"),
        ("ops=PUT", 400, "invalid_argument", "PUT"),
        ("since=now", 400, "invalid_argument", "since"),
        ("at_least=x", 400, "invalid_argument", "at_least"),
    ] {
        let message =
            server.get(format!("/v1/watch?{parameters}")).expect_error(status, code).to_owned();
        assert!(message.contains(named), "{parameters}: {message}");
    }
    let mangled = server.request("GET", "/v1/watch?from=now").header("last-event-id", "x").send();
    assert!(mangled.expect_error(400, "invalid_argument").contains("last-event-id"));
    let twice = server
        .request("GET", "/v1/watch")
        .header("last-event-id", "x")
        .header("last-event-id", "y")
        .send();
    twice.expect_error(400, "invalid_argument");
    server.request("POST", "/v1/watch").send().expect_error(405, "method_not_allowed");
    server
        .request("GET", "/v1/watch")
        .json(&json!({"from": 1}))
        .send()
        .expect_error(400, "invalid_argument");
    server.request("HEAD", "/v1/watch").send().expect_status(200);
    let mut watcher = Watcher::open(server.address(), &format!("{many_ops}&at_least={token}"));
    assert_eq!(watcher.event().name, "heartbeat");
    expect_problem(&server.get("/v1/watch?from=x").body, 400, "invalid_argument");
}
