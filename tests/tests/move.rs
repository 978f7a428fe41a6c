//! `guanxi move`: a running embedded service goes into a cluster while it serves. Whatever it
//! acknowledged is there afterwards, however often the command was killed on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use guanxi_services::{MariaDb, SqlServer, shared as services};
use guanxi_tests::{
    Answer, Cli, Client, Cluster, Ran, Server, edge, edge_call, millis_now, node, node_run, nodes,
    poll_until, put_all, rfc3339, start_standby, tally, version_of,
};
use serde_json::{Value, json};

/// Everything here happens within seconds; a busy machine takes longer.
const SOON: Duration = Duration::from_secs(100);
/// What a pause may take by the contract.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What a caller's own thread may lose on a busy machine, beside the pause.
const NOISE: Duration = Duration::from_secs(2);
/// A move's number that is no other's.
const SOME_MOVE: &str = "424242";

fn start_move(cluster: &Cluster, server: &Server, more: &[&str]) -> Child {
    let config = cluster.config();
    let mut arguments = vec!["move", "--to", config.to_str().expect("UTF-8"), "--json"];
    arguments.extend(more);
    Cli::of(server).spawn(&arguments, Stdio::piped())
}

fn run_move(cluster: &Cluster, server: &Server, more: &[&str]) -> Ran {
    Ran::of(start_move(cluster, server, more))
}

/// What a service holds, as its export tells it.
fn held(server: &Server) -> BTreeSet<String> {
    let ran = Cli::of(server).run(&["export"]);
    ran.expect(0);
    ran.stdout.lines().map(str::to_owned).collect()
}

fn fact(database: &MariaDb, cluster: &Cluster, name: &str) -> Option<u64> {
    let statement = format!("SELECT value FROM {}.facts WHERE name='{name}'", cluster.database);
    let rows = database.try_query(&statement).ok()?;
    rows.first()?.first()?.as_ref()?.parse().ok()
}

fn audit_is_clean(server: &Server) -> Value {
    let report = Cli::of(server).run(&["audit", "--json"]).ok().json();
    assert_eq!(report["drift"], 0, "{report}");
    report
}

/// An instance that somebody starts before the move has ended.
fn instance_beside(cluster: &Cluster) -> JoinHandle<Server> {
    let options = cluster.options(&[]);
    thread::spawn(move || {
        let begun = Instant::now();
        loop {
            // It waits for the move longer than the harness waits for it.
            match Server::try_start_with(options.clone()) {
                Ok(server) => return server,
                Err(error) => assert!(begun.elapsed() < 3 * SOON, "{error}"),
            }
        }
    })
}

/// What `furnish` has made: an edge with its version, a token, and whose numbers are known.
struct Furnished {
    edge: (u64, u64),
    version: u64,
    token: String,
    post: u64,
    owner: u64,
    private: u64,
    source_with_groups: u64,
    counted: u64,
}

/// Makes some of everything that a service keeps.
fn furnish(server: &Server) -> Furnished {
    let [fan, star, private, asker, post, owner, blocker, blocked, counted] = nodes();
    let kind = json!({ "name": "subscribe", "source_type": "user", "target_type": "channel",
        "outgoing_tally": false, "expires": true });
    server.post_json("/v1/admin/kinds", kind).expect_status(201);
    server.put(edge("subscribe", fan, 5)).expect_change(true, "live");
    let later = rfc3339(millis_now() + 3_600_000);
    let expiring = json!({ "expires_at": later });
    server.put_json(edge("subscribe", fan, 6), expiring).expect_change(true, "live");
    let put = server.put_json(edge("follow", fan, star), json!({ "data": "é '\\ \"" }));
    put.expect_change(true, "live");
    server.put_json(node("user", private), json!({ "private": true })).ok();
    server.put(edge("follow", asker, private)).expect_change(true, "pending");
    for fan in node_run(30) {
        let owned = json!({ "owner": owner.to_string() });
        server.put_json(edge("like", fan, post), owned.clone()).expect_change(true, "live");
        // Posts of several partitions have one owner.
        server.put_json(edge("like", fan, post + fan), owned).expect_change(true, "live");
    }
    server.put(edge("block", blocker, blocked)).expect_change(true, "live");
    let groups = format!("/v1/groups/follow/{fan}");
    for name in ["friends", "colleagues", "gone"] {
        server.post_json(&groups, json!({ "name": name })).expect_status(201);
    }
    server.put(format!("{groups}/friends/members/{star}")).ok();
    server.delete(format!("{groups}/gone")).ok();
    for (key, delta) in [("a", 1_000_003), ("b", -5)] {
        let body = json!({ "delta": delta, "key": format!("{counted}-{key}") });
        server.post_json(format!("/v1/counters/view/{counted}"), body).ok();
    }
    let put = server.get(edge("follow", fan, star)).ok().clone();
    let token = server.put(edge("follow", star, fan)).token();
    Furnished {
        edge: (fan, star),
        version: version_of(&put),
        token,
        post,
        owner,
        private,
        source_with_groups: fan,
        counted,
    }
}

/// Everything that `furnish` made, asked of the cluster.
fn assert_furnished(server: &Server, furnished: &Furnished) {
    let (fan, star) = furnished.edge;
    let read = server.request("GET", &edge("follow", fan, star));
    let read = read.header("guanxi-at-least", &furnished.token).send().ok().clone();
    assert_eq!((&read["related"], &read["group"]), (&json!(true), &json!("friends")), "{read}");
    assert_eq!(read["data"], "é '\\ \"");
    assert_eq!(read["mutual"], true, "an embedded token is met");
    let before = version_of(&read);
    assert!(before >= furnished.version);
    let again = server.put_json(edge("follow", fan, star), json!({ "data": "later" }));
    assert!(version_of(again.expect_change(true, "live")) > before, "versions go on");
    assert_eq!(tally(server, "like", furnished.owner)["owned"], 60);
    assert_eq!(tally(server, "like", furnished.post)["incoming"], 30);
    assert_eq!(tally(server, "follow", furnished.private)["pending_incoming"], 1);
    assert_eq!(tally(server, "view", furnished.counted)["value"], 999_998);
    assert_eq!(server.get(node("user", furnished.private)).ok()["private"], true);
    let groups = server.get(format!("/v1/groups/follow/{}", furnished.source_with_groups));
    let named = json!([{ "name": "friends", "size": 1 }, { "name": "colleagues", "size": 0 }]);
    assert_eq!(groups.ok()["groups"], named);
    // A key that was used before the move counts no second time.
    let body = json!({ "delta": -5, "key": format!("{}-b", furnished.counted) });
    server.post_json(format!("/v1/counters/view/{}", furnished.counted), body).ok();
    assert_eq!(tally(server, "view", furnished.counted)["value"], 999_998);
}

/// What one caller did and was told, until the service had moved.
#[derive(Default)]
struct Acknowledged {
    follows: BTreeMap<(u64, u64), bool>,
    likes: BTreeSet<(u64, u64)>,
    counted: u64,
    /// The longest time without an acknowledgement, up to the word that the service has moved.
    silence: Duration,
    writes: u64,
}

/// Writes until the service says that it has moved; a pause is waited out.
fn write_until_moved(client: &Client, ended: &AtomicBool) -> Acknowledged {
    let (sources, targets, posts) = (node_run(20), node_run(300), node_run(40));
    let [owner] = nodes();
    let mut done = Acknowledged::default();
    let mut last = Instant::now();
    for round in 0_usize.. {
        let (source, target) = (sources[round % 20], targets[round % 300]);
        let post = posts[round % 40];
        let removes = round % 7 == 3;
        let ask = || match round % 3 {
            0 if removes => client.delete(edge("follow", source, target)),
            0 => client.put(edge("follow", source, target)),
            1 => {
                let owned = json!({ "owner": owner.to_string() });
                client.put_json(edge("like", source, post), owned)
            }
            _ => {
                let body = json!({ "delta": 1, "key": format!("{}-{round}", posts[0]) });
                client.post_json(format!("/v1/counters/play_seconds/{}", posts[0]), body)
            }
        };
        let answer = loop {
            assert!(!ended.load(Ordering::Acquire), "the service never said that it has moved");
            let answer = ask();
            if !is_pause(&answer) {
                break answer;
            }
            thread::sleep(Duration::from_millis(2));
        };
        done.silence = done.silence.max(last.elapsed());
        if answer.status == 503 {
            let message = answer.expect_error(503, "read_only");
            assert!(message.contains("http://the-cluster"), "{message}");
            return done;
        }
        answer.ok();
        last = Instant::now();
        done.writes += 1;
        match round % 3 {
            0 => drop(done.follows.insert((source, target), !removes)),
            1 => drop(done.likes.insert((source, post))),
            _ => done.counted += 1,
        }
    }
    done
}

fn is_pause(answer: &Answer) -> bool {
    answer.body["code"] == "read_only" && answer.body["retryable"] == true
}

fn assert_kept(held: &BTreeSet<String>, done: &Acknowledged) {
    let edges: BTreeSet<(String, u64, u64)> = held
        .iter()
        .filter_map(|line| {
            let line: Value = serde_json::from_str(line).expect("a line of JSON");
            let id = |end: &str| line[end].as_str()?.parse().ok();
            Some((line["kind"].as_str()?.to_owned(), id("source")?, id("target")?))
        })
        .collect();
    for ((source, target), stands) in &done.follows {
        let kept = edges.contains(&("follow".to_owned(), *source, *target));
        assert_eq!(kept, *stands, "follow {source} → {target}");
    }
    for (source, post) in &done.likes {
        assert!(edges.contains(&("like".to_owned(), *source, *post)), "like {source} → {post}");
    }
}

#[test]
fn a_service_moves_into_a_cluster_while_it_serves() {
    let Some(cluster) = Cluster::prepare_or_skip("move") else { return };
    let database = services::mariadb_or_skip("move").expect("it was there a moment ago");
    let server = Server::start();
    let furnished = furnish(&server);
    let crowd = node_run(100);
    let edges: Vec<(u64, u64)> =
        crowd.iter().flat_map(|one| crowd.iter().map(|other| (*one, *other))).collect();
    let edges: Vec<(u64, u64)> = edges.into_iter().filter(|(one, other)| one != other).collect();
    put_all(&server, "follow", &edges);
    let ended = AtomicBool::new(false);
    let (acknowledged, report, instance) = thread::scope(|scope| {
        let (client, ended) = (server.client(), &ended);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let client = client.clone();
                scope.spawn(move || write_until_moved(&client, ended))
            })
            .collect();
        let moving = start_move(&cluster, &server, &["--now-at", "http://the-cluster:7420"]);
        poll_until("the move's begin", SOON, || fact(database, &cluster, "move.phase"));
        let instance = instance_beside(&cluster);
        let moved = Ran::of(moving);
        // Callers that were not told would go on for ever.
        let told = Instant::now();
        while writers.iter().any(|writer| !writer.is_finished()) && told.elapsed() < SOON {
            thread::sleep(Duration::from_millis(20));
        }
        ended.store(true, Ordering::Release);
        let report = moved.ok().json();
        let done: Vec<Acknowledged> =
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        (done, report, instance.join().expect("an instance"))
    });
    assert_eq!((&report["moved"], &report["drift"]), (&json!(true), &json!(0)), "{report}");
    assert!(report["pause_ms"].as_u64().expect("a number") <= 5_000, "{report}");
    let silence = acknowledged.iter().map(|done| done.silence).max().expect("three writers");
    let writes: u64 = acknowledged.iter().map(|done| done.writes).sum();
    eprintln!("{report}; {writes} writes beside it, the longest silence {silence:?}");
    assert!(silence <= PAUSE_MAX + NOISE, "{silence:?}");
    let (there, here) = (held(&server), held(&instance));
    assert_eq!(there.difference(&here).next(), None, "the cluster lacks it");
    assert_eq!(here.difference(&there).next(), None, "the service never had it");
    for done in &acknowledged {
        assert!(done.writes > 0);
        assert_kept(&here, done);
    }
    let versions = here.iter().filter_map(|line| {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        line["version"].as_str()?.parse::<u64>().ok()
    });
    let newest = versions.max().expect("edges");
    // Whatever the clocks say, the cluster gives out none that is not above.
    let floor = fact(database, &cluster, "version_floor").expect("a floor");
    assert!(floor > newest >> 8, "{floor} {newest}");
    let counted: u64 = acknowledged.iter().map(|done| done.counted).sum();
    assert!(counted > 0);
    let report = audit_is_clean(&instance);
    let lines = here.iter().filter(|line| line.contains("\"target\":")).count();
    assert_eq!(report["edges"], json!(lines), "{report}");
    assert_furnished(&instance, &furnished);
    assert_goes_on(&instance, &crowd);
    assert_stays_moved(server, &cluster);
}

/// The cluster takes writes on what was moved, and its target side follows.
fn assert_goes_on(instance: &Server, crowd: &[u64]) {
    let [fan] = nodes();
    let star = crowd[0];
    let before = tally(instance, "follow", star)["incoming"].as_u64().expect("a number");
    instance.put(edge("follow", fan, star)).expect_change(true, "live");
    instance.delete(edge("follow", crowd[1], star)).expect_change(true, "removed");
    instance.delete(edge("follow", crowd[2], star)).expect_change(true, "removed");
    poll_until("the target's side", SOON, || {
        let list = instance.get(edge_call("follow", star, "incoming?limit=1")).ok().clone();
        (list["total"] == before - 1).then_some(())
    });
    audit_is_clean(instance);
}

/// The service reads on, refuses writes also after a restart, and cannot be moved twice.
fn assert_stays_moved(server: Server, cluster: &Cluster) {
    let refused = |server: &Server| {
        let [fan, star] = nodes();
        let answer = server.put(edge("follow", fan, star));
        let message = answer.expect_error(503, "read_only");
        assert!(message.contains("http://the-cluster:7420"), "{message}");
        assert_eq!(answer.body["retryable"], false);
        assert_eq!(server.get(edge("follow", fan, star)).ok()["related"], false);
    };
    refused(&server);
    let server = server.kill().restart();
    refused(&server);
    assert_eq!(server.get("/v1/admin/move").ok()["state"], "moved");
    let again = run_move(cluster, &server, &[]).ok().json();
    assert_eq!((&again["moved"], &again["already"]), (&json!(true), &json!(true)));
    if let Some(other) = Cluster::prepare_or_skip("move elsewhere") {
        run_move(&other, &server, &[]).expect_words(1, &["has moved already"]);
    }
}

/// When a move is killed.
#[derive(Debug, Clone, Copy)]
enum Point {
    Migrating,
    Copying,
    Loading,
    Following,
    Paused,
}

fn is_at(point: Point, database: &MariaDb, cluster: &Cluster, server: &Server) -> bool {
    let work = cluster.directory().join("cluster.toml.move");
    match point {
        Point::Migrating => {
            let tables = format!(
                "SELECT 1 FROM information_schema.tables WHERE table_schema='{}'",
                cluster.database
            );
            database.query(&tables).len() > 1
        }
        Point::Copying => work.exists(),
        Point::Loading => fact(database, cluster, "move.rows").is_some_and(|rows| rows > 0),
        Point::Following => fact(database, cluster, "move.phase") == Some(3),
        Point::Paused => server.get("/v1/admin/move").ok()["state"] == "paused",
    }
}

#[test]
fn a_move_that_is_killed_anywhere_goes_on() {
    let Some(cluster) = Cluster::prepare_or_skip("killed moves") else { return };
    let database = services::mariadb_or_skip("killed moves").expect("it was there a moment ago");
    let server = Server::start();
    let furnished = furnish(&server);
    let crowd = node_run(110);
    let pairs = crowd.iter().flat_map(|one| crowd.iter().map(|other| (*one, *other)));
    let edges: Vec<(u64, u64)> = pairs.filter(|(one, other)| one != other).collect();
    put_all(&server, "follow", &edges);
    let mut instance = None;
    let points =
        [Point::Migrating, Point::Copying, Point::Loading, Point::Following, Point::Paused];
    for point in points {
        let mut moving = start_move(&cluster, &server, &[]);
        let begun = Instant::now();
        while !is_at(point, database, &cluster, &server)
            && moving.try_wait().expect("it is ours").is_none()
        {
            assert!(begun.elapsed() < SOON, "{point:?} never came");
        }
        moving.kill().expect("it is ours");
        moving.wait().expect("it is ours");
        let phase = fact(database, &cluster, "move.phase");
        eprintln!(
            "killed at {point:?}: phase {phase:?}, {:?}",
            fact(database, &cluster, "move.rows")
        );
        if matches!(point, Point::Loading) {
            instance = Some(instance_beside(&cluster));
        }
        if phase == Some(4) {
            break;
        }
        // The service serves, whenever the command died; a pause ends by itself.
        let [fan, star] = nodes();
        poll_until("a write", PAUSE_MAX + NOISE, || {
            let answer = server.put(edge("follow", fan, star));
            match is_pause(&answer) {
                true => None,
                false => Some(answer.expect_change(true, "live").clone()),
            }
        });
        let waiting = instance.as_ref().is_none_or(|instance| !instance.is_finished());
        assert!(waiting, "an instance serves tables that a move still writes");
    }
    run_move(&cluster, &server, &[]).ok();
    let instance = instance.expect("it was started").join().expect("an instance");
    let (there, here) = (held(&server), held(&instance));
    assert_eq!(there.difference(&here).next(), None, "the cluster lacks it");
    assert_eq!(here.difference(&there).next(), None, "the service never had it");
    audit_is_clean(&instance);
    assert_furnished(&instance, &furnished);
    let work = cluster.directory().join("cluster.toml.move");
    assert!(!work.exists(), "the snapshot is gone");
}

#[test]
fn a_move_whose_last_word_was_lost_or_whose_snapshot_is_gone_goes_on() {
    let Some(cluster) = Cluster::prepare_or_skip("lost words") else { return };
    let database = services::mariadb_or_skip("lost words").expect("it was there a moment ago");
    let server = Server::start();
    let furnished = furnish(&server);
    let crowd = node_run(90);
    let pairs = crowd.iter().flat_map(|one| crowd.iter().map(|other| (*one, *other)));
    let edges: Vec<(u64, u64)> = pairs.filter(|(one, other)| one != other).collect();
    put_all(&server, "follow", &edges);
    let mut moving = start_move(&cluster, &server, &[]);
    poll_until("the load", SOON, || {
        is_at(Point::Loading, database, &cluster, &server).then_some(())
    });
    moving.kill().expect("it is ours");
    moving.wait().expect("it is ours");
    let work = cluster.directory().join("cluster.toml.move");
    let _gone_already = std::fs::remove_file(work.join("snapshot.gxb"));
    // Of what is loaded so far, this is gone when the next snapshot is taken.
    server.delete(edge("follow", crowd[0], crowd[1])).expect_change(true, "removed");
    run_move(&cluster, &server, &[]).ok();
    // As if the command had died between the service's word and its own.
    let table = &cluster.database;
    database.query(&format!("UPDATE {table}.facts SET value=3 WHERE name='move.phase'"));
    let done = run_move(&cluster, &server, &[]).ok().json();
    assert_eq!((&done["moved"], &done["already"]), (&json!(true), &json!(false)), "{done}");
    assert_eq!(fact(database, &cluster, "move.phase"), Some(4));
    let instance = cluster.instance();
    assert_eq!(held(&server), held(&instance));
    audit_is_clean(&instance);
    assert_furnished(&instance, &furnished);
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let Some(cluster) = Cluster::start_or_skip("refused moves") else { return };
    let server = Server::start();
    let used = cluster.instance();
    run_move(&cluster, &server, &[]).expect_words(1, &["the database is not empty"]);
    drop(used);
    let [fan, star] = nodes();
    server.put(edge("follow", fan, star)).expect_change(true, "live");
    let Some(empty) = Cluster::prepare_or_skip("refused moves") else { return };
    let standby = start_standby(&server);
    run_move(&empty, &standby, &[]).expect_words(1, &["is a standby"]);
    let config = empty.config();
    let away = Cli::default().with("GUANXI_SERVER", "http://127.0.0.1:9");
    let arguments = ["move", "--to", config.to_str().expect("UTF-8")];
    away.run(&arguments).expect_words(3, &["nothing answers"]);
    let embedded = empty.directory().join("embedded.toml");
    std::fs::write(&embedded, "mode = \"embedded\"\n").expect("it can be written");
    let arguments = ["move", "--to", embedded.to_str().expect("UTF-8")];
    Cli::of(&server).run(&arguments).expect_words(2, &["embedded service"]);
    // Nothing of this has touched the empty one.
    let database = services::mariadb_or_skip("refused moves").expect("it was there a moment ago");
    assert_eq!(fact(database, &empty, "move.phase"), None);
    run_move(&empty, &server, &[]).ok();
    let instance = empty.instance();
    assert_eq!(instance.get(edge("follow", fan, star)).ok()["related"], true);
}

#[test]
fn a_pause_ends_by_itself_and_only_its_own_move_can_use_it() {
    let server = Server::start();
    let state = || server.get("/v1/admin/move").ok()["state"].clone();
    assert_eq!(state(), "here");
    let [fan, star, next] = nodes();
    server.put(edge("follow", fan, star)).expect_change(true, "live");
    let paused = server.post_json("/v1/admin/move", json!({ "id": SOME_MOVE, "limit_ms": 5_000 }));
    let paused = paused.ok().clone();
    assert_eq!((&paused["state"], &paused["id"]), (&json!("paused"), &json!(SOME_MOVE)));
    let refused = server.put(edge("follow", star, fan));
    if state() == "paused" {
        assert!(is_pause(&refused), "{}", refused.text);
    }
    assert_eq!(server.get(edge("follow", fan, star)).ok()["related"], true, "reads go on");
    let other = server.post_json("/v1/admin/move", json!({ "id": "7" }));
    let confirm = |id: &str, position: &Value| {
        server.put_json("/v1/admin/move", json!({ "id": id, "position": position }))
    };
    if state() == "paused" {
        other.expect_error(409, "conflict");
        confirm("7", &paused["position"]).expect_error(409, "conflict");
        confirm(SOME_MOVE, &json!(1)).expect_error(409, "conflict");
    }
    poll_until("the pause's end", PAUSE_MAX + NOISE, || (state() == "here").then_some(()));
    server.put(edge("follow", next, star)).expect_change(true, "live");
    confirm(SOME_MOVE, &paused["position"]).expect_error(409, "conflict");
    // One that is given back ends at once.
    server.post_json("/v1/admin/move", json!({ "id": SOME_MOVE })).ok();
    let resumed = server.delete(format!("/v1/admin/move?id={SOME_MOVE}"));
    assert_eq!(resumed.ok()["state"], "here");
    server.put(edge("follow", next, fan)).expect_change(true, "live");
    for wrong in [json!({ "id": "x" }), json!({ "id": "1", "limit_ms": 5_001 }), json!({})] {
        server.post_json("/v1/admin/move", wrong).expect_error(400, "invalid_argument");
    }
    server.delete("/v1/admin/move").expect_error(400, "invalid_argument");
}
