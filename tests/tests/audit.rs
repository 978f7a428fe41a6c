//! Audits: a rich history has no drift, planted drift of every sort is found and mended, and
//! neither writes beside an audit nor the scrubber's slices are ever mistaken for drift.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guanxi_embedded::store::disk::DiskBackend;
use guanxi_embedded::store::{KeyedStore, planting};
use guanxi_model::{
    EdgeKey, EdgeRow, GroupId, GroupsKey, Index, IndexEntry, KindId, Millis, NodeKey, NodeTypeId,
    SourceId, State, TargetId, TenantId, Which,
};
use guanxi_tests::{
    Cli, Client, Options, Ran, Server, assert_keys, edge, edge_call, interrupt, millis_now, node,
    poll_until, put_followers, rfc3339, run_to_exit, tally, walk_ids,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const AUDIT: &str = "/v1/admin/audit";
const PATIENCE: Duration = Duration::from_secs(60);
const PAGE_ITEMS: usize = 1_000;
const TENANT: TenantId = TenantId::DEFAULT;
const FOLLOW: KindId = KindId(1);
const LIKE: KindId = KindId(2);
const USER: NodeTypeId = NodeTypeId(1);
const POST: NodeTypeId = NodeTypeId(2);
const SORTS: [&str; 9] = [
    "missing_incoming",
    "surplus_incoming",
    "missing_outgoing",
    "surplus_outgoing",
    "missing_expiry",
    "surplus_expiry",
    "wrong_tallies",
    "wrong_group_sizes",
    "unreadable",
];

/// The report of a whole audit, waited for if it takes longer than a request.
#[track_caller]
fn audit(client: &Client, request: Value) -> Value {
    let answer = client.post_json(AUDIT, request);
    if answer.status == 200 {
        return answer.body;
    }
    answer.expect_status(202);
    poll_until("the audit ends", PATIENCE, || {
        let state = client.get(AUDIT).ok().clone();
        (state["running"].is_null()).then(|| state["last"].clone())
    })
}

#[track_caller]
fn assert_drift(report: &Value, drift: u64) {
    assert_eq!(report["drift"], drift, "{report:#}");
}

/// What a report counts of a kind, without what is 0.
fn counts(report: &Value, kind: &str) -> Vec<(&'static str, u64)> {
    let kinds = report["kinds"].as_array().expect("kinds");
    let of_kind = kinds.iter().find(|found| found["kind"] == kind).expect("the kind");
    let counted = SORTS.map(|sort| (sort, of_kind[sort].as_u64().expect("a number")));
    counted.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Something of every sort that the store keeps. Users are 1 to 40, posts 100 to 119.
fn write_history(client: &Client) {
    let later = rfc3339(millis_now() + 3_600_000);
    for name in ["friends", "work", "gone"] {
        client.post_json("/v1/groups/follow/1", json!({"name": name})).expect_status(201);
    }
    let mut changes = Vec::new();
    let mut put = |kind: &str, source: u64, target: u64, fields: Value| {
        let mut change = json!({"op": "put", "kind": kind, "source": source, "target": target});
        for (name, value) in fields.as_object().expect("fields") {
            change[name] = value.clone();
        }
        changes.push(change);
    };
    for user in 2..=20 {
        let group = ["friends", "work", "gone"][user as usize % 3];
        put("follow", 1, user, json!({"group": group}));
        put("follow", user, 1, json!({}));
        let likes = json!({"owner": user % 5 + 1, "data": "d", "expires_at": later});
        put("like", user, 100 + user % 20, likes);
        put("favorite", user, 100, json!({}));
    }
    for user in 21..=29 {
        put("follow", user, 30, json!({"approval": true}));
        put("follow", 30, user, json!({"approval": true}));
    }
    let written = client.post_json("/v1/edges/batch", json!({ "changes": changes }));
    let results = written.ok()["results"].as_array().expect("results");
    assert!(results.iter().all(|result| result["changed"] == true), "{results:?}");
    client.delete("/v1/groups/follow/1/gone").ok();
    client.put_json(node("user", 30), json!({"private": true})).ok();
    client.post(format!("{}/approve", edge("follow", 21, 30))).ok();
    client.post(format!("{}/decline", edge("follow", 22, 30))).ok();
    client.put(edge("block", 2, 1)).ok();
    client.delete(edge("like", 3, 103)).ok();
    // Late enough to be in the future when a busy machine decides it.
    let soon = rfc3339(millis_now() + 4_000);
    client.put_json(edge("like", 31, 110), json!({"owner": 1, "expires_at": soon})).ok();
    client.post_json("/v1/counters/view/100", json!({"delta": 41})).ok();
    let bare = json!({"name": "bare", "source_type": "user", "target_type": "post",
        "outgoing_list": false, "incoming_list": false, "outgoing_tally": false});
    client.post_json("/v1/admin/kinds", bare).expect_status(201);
    client.put(edge("bare", 1, 100)).ok();
    client.put(edge("bare", 2, 100)).ok();
    let erased = client.delete(node("user", 19)).expect_status(202)["job"].clone();
    let job = format!("/v1/jobs/{}", erased.as_str().expect("a job"));
    poll_until("the erasure ends", PATIENCE, || {
        (client.get(&job).ok()["state"] == "done").then_some(())
    });
    poll_until("the edge expires", PATIENCE, || {
        (client.get(edge("like", 31, 110)).ok()["related"] == false).then_some(())
    });
}

fn key(kind: KindId, source: u64, target: u64) -> EdgeKey {
    EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(target) }
}

fn of_type(node_type: NodeTypeId, id: u64) -> NodeKey {
    NodeKey { tenant: TENANT, node_type, id }
}

/// Works on the store of a stopped server.
fn plant(directory: &Path, work: impl FnOnce(&KeyedStore<DiskBackend>)) {
    let store = planting::open(directory).expect("a store");
    work(&store);
    planting::close(store).expect("it closes");
}

fn row(store: &KeyedStore<DiskBackend>, edge: EdgeKey) -> EdgeRow {
    store.row_of(&edge).expect("readable").expect("the edge stands")
}

/// Drift of every sort, in two kinds.
fn plant_everything(store: &KeyedStore<DiskBackend>) {
    let entry = |edge, index, present| {
        store.plant_entry(&IndexEntry { edge, index }, present).expect("planted");
    };
    let tally = |node, kind, which, delta| {
        store.plant_tally(&node, kind, which, delta).expect("planted");
    };
    let live = State::Live;
    // Without its tally the source seems to have no edge at all: what is decided about its entry
    // must not rest on that.
    let followed = row(store, key(FOLLOW, 1, 5));
    entry(key(FOLLOW, 1, 5), Index::Incoming { state: live, since: followed.since }, false);
    let standing = 17;
    tally(of_type(USER, 1), FOLLOW, Which::Outgoing, -standing);
    entry(key(FOLLOW, 33, 5), Index::Incoming { state: live, since: Millis(1_000) }, true);
    tally(of_type(USER, 1), FOLLOW, Which::Incoming, 3);
    tally(of_type(USER, 23), FOLLOW, Which::PendingOutgoing, -1);
    tally(of_type(USER, 30), FOLLOW, Which::PendingIncoming, 1_000_000);
    let groups = GroupsKey { tenant: TENANT, kind: FOLLOW, source: SourceId(1) };
    store.plant_group_size(&groups, GroupId(1), -2).expect("planted");

    let liked = row(store, key(LIKE, 4, 104));
    let (state, since) = (liked.state, liked.since);
    entry(key(LIKE, 4, 104), Index::Outgoing { state, since }, false);
    entry(key(LIKE, 4, 104), Index::Outgoing { state: State::Pending, since }, true);
    entry(key(LIKE, 4, 104), Index::Expiry { at: liked.expires_at.expect("it expires") }, false);
    let far = Millis(millis_now() + 7_200_000);
    entry(key(LIKE, 39, 104), Index::Expiry { at: far }, true);
    tally(of_type(USER, 2), LIKE, Which::Owned, 5);
    tally(of_type(USER, 40), LIKE, Which::Owned, 1);
    tally(of_type(POST, 119), LIKE, Which::Incoming, -7);
}

#[test]
fn planted_drift_is_found_by_kind_and_mended() {
    let server = Server::start();
    write_history(&server);
    let clean = audit(&server, json!({}));
    assert_drift(&clean, 0);
    assert!(clean["edges"].as_u64() > Some(80) && clean["tallies"].as_u64() > Some(80), "{clean}");
    assert_eq!(tally(&server, "follow", 1)["outgoing"], 17);
    let lists = ["outgoing", "incoming"].map(|list| {
        [("follow", 1), ("follow", 5), ("like", 4), ("follow", 30)]
            .map(|(kind, id)| walk_ids(&server, &edge_call(kind, id, list), PAGE_ITEMS))
    });

    let stopped = server.terminate();
    plant(stopped.data_directory(), plant_everything);
    let server = stopped.restart();

    let of_follow = vec![
        ("missing_incoming", 1),
        ("surplus_incoming", 1),
        ("wrong_tallies", 4),
        ("wrong_group_sizes", 1),
    ];
    let of_like = vec![
        ("missing_outgoing", 1),
        ("surplus_outgoing", 1),
        ("missing_expiry", 1),
        ("surplus_expiry", 1),
        ("wrong_tallies", 3),
    ];
    for request in [json!({}), json!({"kind": null, "repair": false})] {
        let found = audit(&server, request);
        assert_drift(&found, 14);
        assert_eq!((&found["repaired"], &found["left"]), (&json!(0), &json!(14)));
        assert_eq!(counts(&found, "follow"), of_follow, "{found:#}");
        assert_eq!(counts(&found, "like"), of_like, "{found:#}");
        assert_eq!(counts(&found, "favorite"), []);
        assert_eq!(found["examples"].as_array().map(Vec::len), Some(14));
    }
    let only = audit(&server, json!({"kind": "like"}));
    assert_drift(&only, 7);
    assert_eq!(only["kind"], "like");

    let repaired = audit(&server, json!({"repair": true}));
    assert_drift(&repaired, 14);
    assert_eq!((&repaired["repaired"], &repaired["left"]), (&json!(14), &json!(0)), "{repaired:#}");
    assert_drift(&audit(&server, json!({})), 0);
    assert_right(&server, &lists);

    // The repairs are in the log: a kill loses none of them.
    let server = server.kill().restart();
    assert_drift(&audit(&server, json!({})), 0);
    assert_right(&server, &lists);

    // Replayed over rows that were never wrong, they leave them right.
    let stopped = server.terminate();
    std::fs::remove_dir_all(stopped.data_directory().join("store")).expect("the store goes");
    let server = stopped.restart();
    assert_drift(&audit(&server, json!({})), 0);
    assert_right(&server, &lists);
}

type Lists = [[Vec<u64>; 4]; 2];

#[track_caller]
fn assert_right(server: &Server, lists: &Lists) {
    for (list, expected) in ["outgoing", "incoming"].iter().zip(lists) {
        let now = [("follow", 1), ("follow", 5), ("like", 4), ("follow", 30)]
            .map(|(kind, id)| walk_ids(server, &edge_call(kind, id, list), PAGE_ITEMS));
        assert_eq!(now, *expected, "{list}");
    }
    assert_eq!(tally(server, "follow", 1)["outgoing"], 17);
    assert_eq!(tally(server, "follow", 30)["pending_incoming"], 7);
    assert_eq!(tally(server, "like", 40)["owned"], 0);
    let groups = server.get("/v1/groups/follow/1").ok().clone();
    for group in groups["groups"].as_array().expect("groups") {
        let name = group["name"].as_str().expect("a name");
        let path = edge_call("follow", 1, &format!("outgoing?group={name}"));
        let members = walk_ids(server, &path, PAGE_ITEMS);
        assert_eq!(group["size"], members.len(), "{name}");
    }
}

#[test]
fn what_cannot_be_read_is_named_and_left() {
    let server = Server::start();
    write_history(&server);
    let stopped = server.terminate();
    plant(stopped.data_directory(), |store| {
        store.plant_unreadable_edge(&key(FOLLOW, 6, 1)).expect("planted");
        let tally = |which, delta| store.plant_tally(&of_type(USER, 7), LIKE, which, delta);
        tally(Which::Outgoing, 1).expect("planted");
    });
    let server = stopped.restart();
    for repair in [false, true] {
        let report = audit(&server, json!({"repair": repair}));
        // Its tallies are reported, and left: the row may be repaired by other means.
        let of_follow = vec![("wrong_tallies", 2), ("unreadable", 1)];
        assert_eq!(counts(&report, "follow"), of_follow, "{report:#}");
        assert_eq!(counts(&report, "like"), vec![("wrong_tallies", 1)]);
        let left = if repair { 3 } else { 4 };
        assert_eq!(report["left"], left, "{report:#}");
    }
    assert_eq!(tally(&server, "follow", 1)["incoming"], 17);
    let followers = walk_ids(&server, &edge_call("follow", 1, "incoming"), PAGE_ITEMS);
    assert!(followers.contains(&6), "{followers:?}");
}

#[test]
fn writes_beside_audits_are_never_drift() {
    let fast = ("GUANXI_AUDIT_SCRUB_ROWS_PER_SECOND".to_owned(), "3000".to_owned());
    let options = Options { environment: vec![fast], ..Options::default() };
    let server = Server::start_with(options);
    write_history(&server);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (client, done) = (server.client(), &done);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !done.load(Ordering::Relaxed) {
                    write_something(&client, &mut random);
                }
            });
        }
        for number in 0..60 {
            let report = audit(&server, json!({"repair": number % 10 == 9}));
            assert_drift(&report, 0);
            assert_eq!(report["repaired"], 0);
        }
        let passes = |server: &Server| server.get(AUDIT).ok()["scrubber"]["passes"].as_u64();
        let begun = passes(&server);
        poll_until("the scrubber passes twice", PATIENCE, || {
            (passes(&server) >= begun.map(|passes| passes + 2)).then_some(())
        });
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.get(AUDIT).ok()["drift"], 0);
    assert!(!server.log().contains("differs from what its edges say"), "{}", server.log());
    assert_drift(&audit(&server, json!({})), 0);
}

/// A batch of random changes over few nodes.
fn write_something(client: &Client, random: &mut fastrand::Rng) {
    let changes: Vec<Value> = (0..random.usize(1..40))
        .map(|_| {
            let kind = ["follow", "like", "favorite", "block", "bare"][random.usize(..5)];
            let op = ["put", "put", "delete", "approve", "decline"][random.usize(..5)];
            let (source, target) = (random.u64(1..60), random.u64(60..160));
            let mut change = json!({"op": op, "kind": kind, "source": source, "target": target});
            if op == "put" && kind == "follow" && random.bool() {
                change["approval"] = json!(true);
            }
            if op == "put" && kind == "like" {
                change["owner"] = json!(random.u64(1..10));
                change["expires_at"] = json!(rfc3339(millis_now() + random.u64(100..5_000)));
            }
            change
        })
        .collect();
    client.post_json("/v1/edges/batch", json!({ "changes": changes })).ok();
    if random.u8(..8) == 0 {
        let source = random.u64(1..60);
        let groups = format!("/v1/groups/follow/{source}");
        client.post_json(&groups, json!({"name": "g"}));
        for target in 60..70 {
            client.put(format!("{groups}/g/members/{target}"));
        }
        if random.bool() {
            client.delete(format!("{groups}/g"));
        }
    }
}

#[test]
fn the_scrubber_says_it_in_metrics() {
    let server = Server::start();
    write_history(&server);
    let metric = |server: &Server, name: &str| -> u64 {
        let text = server.get("/metrics").text;
        let line = text.lines().find(|line| line.starts_with(&format!("guanxi_{name} ")));
        let value = line.unwrap_or_else(|| panic!("{name} in {text}")).rsplit(' ').next();
        value.expect("a value").parse().expect("a number")
    };
    poll_until("a first pass", PATIENCE, || (metric(&server, "audit_position") > 0).then_some(()));
    assert_eq!(metric(&server, "audit_drift"), 0);
    let stopped = server.terminate();
    plant(stopped.data_directory(), plant_everything);
    let server = stopped.restart();
    poll_until("the scrubber sees it", PATIENCE, || {
        (metric(&server, "audit_drift") == 14).then_some(())
    });
    let now = millis_now() / 1_000;
    assert!(metric(&server, "audit_finished_timestamp_seconds").abs_diff(now) < 120);
    assert!(server.log().contains("differs from what its edges say"), "{}", server.log());
    let state = server.get(AUDIT).ok().clone();
    assert_keys(
        &state,
        &["drift", "failed", "finished_at", "last", "position", "running", "scrubber"],
    );
    assert_eq!((&state["drift"], &state["last"]), (&json!(14), &Value::Null));
    // A repair is the newest word.
    audit(&server, json!({"repair": true}));
    assert_eq!(metric(&server, "audit_drift"), 0);
    assert_eq!(server.get(AUDIT).ok()["last"]["repaired"], 14);
}

#[test]
fn the_command_says_it_by_its_exit_code() {
    let off = ("GUANXI_AUDIT_SCRUB_ROWS_PER_SECOND".to_owned(), "0".to_owned());
    let options = Options { environment: vec![off], ..Options::default() };
    let server = Server::start_with(options);
    write_history(&server);
    let command = |server: &Server, arguments: &[&str]| {
        let url = server.url();
        let arguments = [&["audit", "--server", &url], arguments].concat();
        let output = run_to_exit(&arguments, server.data_directory());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, _) = command(&server, &["--json"]);
    let report: Value = serde_json::from_str(&out).expect("one JSON value");
    assert_eq!((code, &report["drift"], &report["repaired"]), (Some(0), &json!(0), &json!(0)));
    assert!(report["position"].as_u64() > Some(0), "{report}");
    let stopped = server.terminate();
    plant(stopped.data_directory(), plant_everything);
    let server = stopped.restart();
    let (code, out, error) = command(&server, &[]);
    assert_eq!(code, Some(1), "{out}{error}");
    for part in ["missing incoming entries", "the owned tally of like of user 40 is wrong by 1"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(error.contains("drift 14") && error.contains("--repair"), "{error}");
    assert_eq!(command(&server, &["--kind", "favorite"]).0, Some(0));
    let (code, out, _) = command(&server, &["--repair", "--json"]);
    let report: Value = serde_json::from_str(&out).expect("one JSON value");
    assert_eq!((code, &report["drift"], &report["repaired"]), (Some(0), &json!(14), &json!(14)));
    assert_eq!(command(&server, &[]).0, Some(0));
    assert_eq!(command(&server, &["--kind", "nothing"]).0, Some(1));
    let state = server.get(AUDIT).ok().clone();
    assert_eq!(state["scrubber"]["rows_per_second"], 0);
}

/// One that takes longer than a request may goes on, alone, and is asked for.
#[test]
fn a_long_audit_goes_on_without_its_caller() {
    let short = ("GUANXI_HTTP_REQUEST_TIMEOUT_MS".to_owned(), "1000".to_owned());
    let server = Server::start();
    put_followers(&server, "follow", 7, &(1_000..9_000).collect::<Vec<u64>>());
    let stopped = server.terminate();
    let options = Options { environment: vec![short], ..Options::default() };
    let server = stopped.restart_with(options);
    let mut refused = false;
    for _ in 0..20 {
        let begun = server.post_json(AUDIT, json!({}));
        assert!(begun.expect_status(202)["running"]["rows"].is_u64(), "{}", begun.text);
        let second = server.post_json(AUDIT, json!({"repair": true}));
        if second.status == 409 {
            second.expect_error(409, "conflict");
            refused = true;
        }
        let report = poll_until("the audit ends", PATIENCE, || {
            let state = server.get(AUDIT).ok().clone();
            state["running"].is_null().then(|| state["last"].clone())
        });
        assert_eq!((&report["drift"], &report["edges"]), (&json!(0), &json!(8_000)));
        if refused {
            break;
        }
    }
    assert!(refused, "no second audit was refused beside the first");
    let url = server.url();
    let output = run_to_exit(&["audit", "--server", &url, "--json"], server.data_directory());
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    assert_eq!((output.status.code(), &report["edges"]), (Some(0), &json!(8_000)));
}

/// The server is held, so that the command waits for as long as it takes.
#[test]
fn ctrl_c_says_what_goes_on_without_the_command() {
    let server = Server::start();
    server.pause();
    let process = Cli::of(&server).spawn(&["audit", "--repair"], Stdio::piped());
    poll_until("Ctrl-C is caught", PATIENCE, || catches_interrupts(process.id()).then_some(()));
    interrupt(&process);
    let ran = Ran::of(process);
    server.resume();
    ran.expect_words(3, &["stopped waiting", "goes on at the server", "repairs", AUDIT]);
    // There is one audit at a time, and the one that the command began may still run.
    let report = poll_until("another audit is done", PATIENCE, || {
        let answer = server.post_json(AUDIT, json!({}));
        (answer.status == 200).then_some(answer.body)
    });
    assert_drift(&report, 0);
}

/// Whether a process has a handler for SIGINT, as Linux tells it.
fn catches_interrupts(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (Signal::INT.as_raw() - 1)) != 0)
}

#[test]
fn wrong_requests_change_nothing() {
    let server = Server::start();
    for (request, status, code) in [
        (json!({"kind": "nothing"}), 404, "unknown_kind"),
        (json!({"kind": "view"}), 400, "invalid_argument"),
        (json!({"kind": 7}), 400, "invalid_argument"),
        (json!({"repair": "yes"}), 400, "invalid_argument"),
        (json!({"fix": true}), 400, "invalid_argument"),
        (json!([]), 400, "invalid_argument"),
    ] {
        server.post_json(AUDIT, request).expect_error(status, code);
    }
    server.get(format!("{AUDIT}?kind=follow")).expect_error(400, "invalid_argument");
    assert_eq!(server.get(AUDIT).ok()["last"], Value::Null);
    server.post(AUDIT).ok();
}
