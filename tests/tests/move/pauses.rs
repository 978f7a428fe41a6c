//! Who may make writes pause, and that nobody can do it for long: calls that no `guanxi move` makes.

use std::path::Path;
use std::time::Instant;

use guanxi_services::shared as services;
use guanxi_tests::{Answer, Cli, Client, Cluster, Ran, Server, edge, nodes, poll_until};
use serde_json::{Value, json};

use super::gate::Gate;
use super::writers::is_pause;
use super::{NOISE, PAUSE_MAX, SOON, fact, held, put_crowd, run_move, start_move_at};

/// A move that is made call by call.
pub struct ByHand<'a> {
    client: &'a Client,
    pub id: &'a str,
    pub run: String,
}

impl<'a> ByHand<'a> {
    pub fn begin(client: &'a Client, id: &'a str) -> ByHand<'a> {
        let run = begin(client, id).ok()["run"].as_str().expect("a run").to_owned();
        ByHand { client, id, run }
    }

    pub fn go_on(&self) -> Answer {
        self.client.post_json("/v1/admin/move", json!({ "id": self.id, "run": self.run }))
    }

    /// Asks for the end of the log.
    pub fn follow(&self) -> Answer {
        let position = state(self.client)["position"].clone();
        self.client.get(format!("/v1/admin/backup?after={position}&move={}", self.run))
    }

    pub fn pause(&self, limit_ms: u64) -> Answer {
        let body = json!({ "run": self.run, "limit_ms": limit_ms });
        self.client.post_json("/v1/admin/move/pause", body)
    }

    pub fn confirm(&self, position: &Value, now_at: &str) -> Answer {
        let body = json!({ "run": self.run, "position": position, "now_at": now_at });
        self.client.put_json("/v1/admin/move", body)
    }

    pub fn let_go(&self) -> Answer {
        self.client.delete(format!("/v1/admin/move?id={}", self.id))
    }
}

fn begin(client: &Client, id: &str) -> Answer {
    client.post_json("/v1/admin/move", json!({ "id": id }))
}

pub fn state(client: &Client) -> Value {
    client.get("/v1/admin/move").ok().clone()
}

#[track_caller]
fn expect_conflict(answer: &Answer, words: &str) {
    let message = answer.expect_error(409, "conflict");
    assert!(message.contains(words), "{message}");
}

#[track_caller]
fn assert_writes(server: &Server) {
    let [source, target] = nodes();
    server.put(edge("follow", source, target)).expect_change(true, "live");
}

#[test]
fn only_a_move_that_has_begun_and_follows_makes_writes_pause() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(state(&client)["state"], "here");
    let made_up = ByHand { client: &client, id: "7", run: "424242".into() };
    expect_conflict(&made_up.pause(5_000), "no such move has begun");
    expect_conflict(&made_up.follow(), "no such move has begun");
    expect_conflict(&made_up.confirm(&json!(1), "http://nowhere"), "no such move has begun");
    assert_writes(&server);

    let moving = ByHand::begin(&client, "7");
    let begun = state(&client);
    assert_eq!((&begun["state"], &begun["id"]), (&json!("begun"), &json!("7")));
    expect_conflict(&moving.pause(5_000), "has not asked for the end of the log");
    client.get(format!("/v1/admin/backup?move={}", moving.run)).expect_status(200);
    expect_conflict(&moving.pause(5_000), "has not asked for the end of the log");
    expect_conflict(&made_up.pause(5_000), "has begun since");
    assert_writes(&server);
    moving.follow().expect_status(200);
    let paused = moving.pause(5_000).ok().clone();
    assert_eq!((&paused["state"], &paused["id"]), (&json!("paused"), &json!("7")));
    let [fan, star] = nodes();
    let refused = server.put(edge("follow", fan, star));
    server.get(edge("follow", fan, star)).ok();
    let (again, other) = (moving.pause(5_000), begin(&client, "8"));
    let confirmed = [
        made_up.confirm(&paused["position"], "http://nowhere"),
        moving.confirm(&json!(1), "http://nowhere"),
    ];
    // On a busy machine all of this may have come too late to say anything.
    if state(&client)["state"] == "paused" {
        assert!(is_pause(&refused), "{}", refused.text);
        expect_conflict(&again, "writes pause already");
        expect_conflict(&other, "another move of this service, 7,");
        expect_conflict(&confirmed[0], "has begun since");
        expect_conflict(&confirmed[1], "and not at 1");
    }
    let here = || (state(&client)["state"] == "begun").then_some(());
    poll_until("the pause's end", PAUSE_MAX + NOISE, here);
    assert_writes(&server);
    let late = moving.confirm(&paused["position"], "http://nowhere");
    expect_conflict(&late, "writes do not pause for this move");
    expect_conflict(
        &client.delete("/v1/admin/move?id=8"),
        "the move that has begun is 7, and not 8",
    );
    assert_eq!(moving.let_go().ok()["state"], "here");
    ByHand::begin(&client, "8");
}

#[test]
fn writes_are_taken_between_two_pauses() {
    let server = Server::start();
    let client = server.client();
    let begun = Instant::now();
    let mut paused = Vec::new();
    // Whoever asks again and again, each time with another run.
    while paused.len() < 2 {
        assert!(begun.elapsed() < SOON, "the second pause never came");
        let moving = ByHand::begin(&client, "7");
        moving.follow().expect_status(200);
        let asked = Instant::now();
        let pause = moving.pause(300);
        if pause.status == 200 {
            paused.push((asked, Instant::now()));
            continue;
        }
        expect_conflict(&pause, "they may pause again in");
        let rest = moving.go_on().ok()["rest_ms"].as_u64().expect("a number");
        assert!(rest <= 5_000, "{rest}");
        assert_writes(&server);
    }
    // The first began after it was asked for, the second before its answer came.
    let apart = paused[1].1 - paused[0].0;
    assert!(apart >= PAUSE_MAX, "{apart:?}");
}

#[test]
fn a_run_that_was_killed_is_replaced_and_a_service_that_was_is_told_again() {
    let server = Server::start();
    let client = server.client();
    let killed = ByHand::begin(&client, "7");
    killed.follow().expect_status(200);
    let paused = killed.pause(5_000).ok().clone();
    let next = ByHand::begin(&client, "7");
    // Its pause ends with it.
    assert_eq!(state(&client)["state"], "begun");
    assert_writes(&server);
    expect_conflict(&killed.confirm(&paused["position"], "http://nowhere"), "has begun since");
    for answer in [killed.go_on(), killed.follow(), killed.pause(5_000)] {
        expect_conflict(&answer, "has begun since");
    }
    next.go_on().ok();
    let run = next.run.clone();
    let server = server.kill().restart();
    let client = server.client();
    let next = ByHand { client: &client, id: "7", run };
    expect_conflict(&next.pause(5_000), "no such move has begun");
    assert_eq!(next.go_on().ok()["run"], next.run);
    expect_conflict(&next.pause(5_000), "has not asked for the end of the log");
    next.follow().expect_status(200);
    next.pause(5_000).ok();
}

#[test]
fn calls_of_a_move_are_read_strictly() {
    let server = Server::start();
    let move_call = "/v1/admin/move";
    let pause_call = "/v1/admin/move/pause";
    let posts = [
        (move_call, json!({})),
        (move_call, json!({ "id": "x" })),
        (move_call, json!({ "id": "18446744073709551616" })),
        (move_call, json!({ "id": "1", "run": "" })),
        (move_call, json!({ "id": "1", "limit_ms": 1 })),
        (pause_call, json!({})),
        (pause_call, json!({ "run": "-1" })),
        (pause_call, json!({ "run": "1", "limit_ms": 0 })),
        (pause_call, json!({ "run": "1", "limit_ms": 5_001 })),
    ];
    for (path, body) in posts {
        server.post_json(path, body).expect_error(400, "invalid_argument");
    }
    let puts = [
        json!({ "run": "1" }),
        json!({ "run": "x", "position": 1 }),
        json!({ "run": "1", "position": 1, "now_at": "" }),
        json!({ "run": "1", "position": 1, "now_at": "a\nb" }),
        json!({ "run": "1", "position": 1, "now_at": "not a url" }),
    ];
    for body in puts {
        server.put_json(move_call, body).expect_error(400, "invalid_argument");
    }
    for path in [move_call, "/v1/admin/move?id=x", "/v1/admin/move?id=1&run=1"] {
        server.delete(path).expect_error(400, "invalid_argument");
    }
    server.get("/v1/admin/backup?move=x").expect_error(400, "invalid_argument");
    assert_eq!(state(&server.client())["state"], "here");
}

#[test]
fn of_two_moves_at_once_one_goes_on() {
    let test = "two moves at once";
    let (Some(one), Some(other)) = (Cluster::prepare_or_skip(test), Cluster::prepare_or_skip(test))
    else {
        return;
    };
    let database = services::mariadb_or_skip(test).expect("it was there a moment ago");
    let server = Server::start();
    put_crowd(&server, 60);
    // It has begun, and waits for its snapshot until it may have it.
    let gate = Gate::before(&server, "GET /v1/admin/backup");
    let first = start_move_at(&one, &gate.url(), &[]);
    poll_until("the move's begin", SOON, || gate.holds().then_some(()));
    assert_eq!(state(&server.client())["state"], "begun");
    // Into another cluster, which stays as new as it was.
    run_move(&other, &server, &[]).expect_words(1, &["another move of this service", "stop it"]);
    assert_eq!(fact(database, &other, "move.phase"), None);
    // Into the same, with another place for its snapshot.
    let elsewhere = other.directory().join("work");
    let work_dir = ["--work-dir", path_text(&elsewhere)];
    run_move(&one, &server, &work_dir).expect_words(1, &["another guanxi move", "stop it"]);
    gate.open();
    Ran::of(first).ok();
    run_move(&other, &server, &[]).expect_words(1, &["has moved already"]);
    let instance = one.instance();
    assert_eq!(held(&server), held(&instance));
    Cli::of(&instance).run(&["audit"]).ok();
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
