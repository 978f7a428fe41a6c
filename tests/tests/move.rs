//! `guanxi move`: a running embedded service goes into a cluster while it serves. Whatever it
//! acknowledged is there afterwards, however often the command was killed on the way.

#[path = "move/furnished.rs"]
mod furnished;
#[path = "move/gate.rs"]
mod gate;
#[path = "move/pauses.rs"]
mod pauses;
#[path = "move/refused.rs"]
mod refused;
#[path = "move/standbys.rs"]
mod standbys;
#[path = "move/starting.rs"]
mod starting;
#[path = "move/writers.rs"]
mod writers;

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use guanxi_services::{SqlServer, fresh_database, shared as services};
use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::proto::watch_client::WatchClient;
use guanxi_tests::grpc::{self, proto};
use guanxi_tests::{
    Cli, Cluster, Ran, Server, edge, edge_call, freeze_when, node_run, nodes, poll_until, put_all,
    tally,
};
use serde_json::{Value, json};

use self::furnished::{Furnished, assert_furnished, furnish};
use self::writers::{Acknowledged, assert_kept, is_pause, write_until_moved};

/// Everything here happens within seconds; a busy machine takes longer.
const SOON: Duration = Duration::from_secs(100);
/// What a pause may take by the contract.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What a caller's own thread may lose on a busy machine, beside the pause.
const NOISE: Duration = Duration::from_secs(20);

fn start_move(cluster: &Cluster, server: &Server, more: &[&str]) -> Child {
    start_move_at(cluster, &server.url(), more)
}

/// The same with another way to the service.
fn start_move_at(cluster: &Cluster, url: &str, more: &[&str]) -> Child {
    let config = cluster.config();
    let mut arguments = vec!["move", "--to", config.to_str().expect("UTF-8"), "--json"];
    arguments.extend(more);
    Cli::default().with("GUANXI_SERVER", url).spawn(&arguments, Stdio::piped())
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

fn fact(database: &dyn SqlServer, cluster: &Cluster, name: &str) -> Option<u64> {
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

/// Everybody follows everybody.
fn put_crowd(server: &Server, size: usize) -> Vec<u64> {
    let crowd = node_run(size);
    let pairs = crowd.iter().flat_map(|one| crowd.iter().map(|other| (*one, *other)));
    let edges: Vec<(u64, u64)> = pairs.filter(|(one, other)| one != other).collect();
    put_all(server, "follow", &edges);
    crowd
}

#[test]
fn a_service_moves_into_a_cluster_while_it_serves() {
    let Some(cluster) = Cluster::prepare_or_skip("move") else { return };
    let database = services::mariadb_or_skip("move").expect("it was there a moment ago");
    moves_while_it_serves(&cluster, database, 100);
}

#[test]
fn a_service_moves_into_tidb_while_it_serves() {
    let test = "a move into TiDB";
    let Some(database) = services::tidb_or_skip(test) else { return };
    let Some(kafka) = services::kafka_or_skip(test) else { return };
    let cluster = Cluster::on(&fresh_database(database), &kafka.brokers());
    moves_while_it_serves(&cluster, database, 60);
}

fn moves_while_it_serves(cluster: &Cluster, database: &dyn SqlServer, crowd: usize) {
    let server = Server::start();
    let furnished = furnish(&server);
    let crowd = put_crowd(&server, crowd);
    let ended = AtomicBool::new(false);
    let (acknowledged, report, instance) = thread::scope(|scope| {
        let (client, ended) = (server.client(), &ended);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let client = client.clone();
                scope.spawn(move || write_until_moved(&client, ended))
            })
            .collect();
        let moving = start_move(cluster, &server, &["--now-at", "http://the-cluster:7420"]);
        poll_until("the move's begin", SOON, || fact(database, cluster, "move.phase"));
        let instance = instance_beside(cluster);
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
    let floor = fact(database, cluster, "version_floor").expect("a floor");
    assert!(floor > newest >> 8, "{floor} {newest}");
    let counted: u64 = acknowledged.iter().map(|done| done.counted).sum();
    assert!(counted > 0);
    let report = audit_is_clean(&instance);
    let lines = here.iter().filter(|line| line.contains("\"target\":")).count();
    assert_eq!(report["edges"], json!(lines), "{report}");
    assert_furnished(&instance, &furnished);
    assert_goes_on(&instance, &crowd);
    assert_places_of_the_service(&instance, &furnished);
    assert_stays_moved(server, cluster);
}

/// Tokens of the service count as met, over both protocols, also beside the cluster's own; places
/// in its log are not in the cluster's.
fn assert_places_of_the_service(instance: &Server, furnished: &Furnished) {
    let (fan, star) = furnished.edge;
    let Furnished { token, event, .. } = furnished;
    let read = instance.get(format!("{}?at_least={token}", edge("follow", fan, star)));
    assert_eq!(read.ok()["related"], true);
    let list = edge_call("follow", fan, &format!("outgoing?at_least={token}"));
    assert!(instance.get(list).ok()["total"].as_u64() >= Some(1));
    // A write that is given one returns a token of its own, which is good for the next read.
    let [next] = nodes();
    let path = format!("{}?at_least={token}", edge("follow", fan, next));
    let merged = instance.put(path).token();
    let read = instance.get(format!("{}?at_least={merged}", edge("follow", fan, next)));
    assert_eq!(read.ok()["related"], true);
    let watch = instance.get(format!("/v1/watch?from={event}"));
    let message = watch.expect_error(410, "position_expired");
    assert!(message.contains("before it moved") && message.contains("export"), "{message}");
    let resumed = instance.request("GET", "/v1/watch").header("last-event-id", event).send();
    resumed.expect_error(410, "position_expired");

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut edges = EdgesClient::new(grpc::channel(instance));
        let at_least = Some(token.clone());
        let get = proto::GetEdgeRequest { at_least, ..grpc::get_request("follow", fan, star) };
        assert!(edges.get(get).await.expect("a get").into_inner().related);
        let mut watch = WatchClient::new(grpc::channel(instance));
        let request = proto::WatchRequest { from: Some(event.clone()), ..Default::default() };
        let refused = watch.watch(request).await;
        let status = grpc::expect_refusal(refused, tonic::Code::OutOfRange, "position_expired");
        assert!(status.message().contains("before it moved"), "{status:?}");
    });
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
    let ready = server.get("/readyz").ok().clone();
    let now_at = json!("http://the-cluster:7420");
    assert_eq!((&ready["role"], &ready["now_at"]), (&json!("moved"), &now_at), "{ready}");
    let doctor = Cli::of(&server).run(&["doctor"]);
    doctor.expect(0);
    for word in ["has moved to a cluster", "http://the-cluster:7420"] {
        assert!(doctor.stdout.contains(word), "{}", doctor.stdout);
    }
    let again = run_move(cluster, &server, &[]).ok().json();
    assert_eq!((&again["moved"], &again["already"]), (&json!(true), &json!(true)));
    if let Some(other) = Cluster::prepare_or_skip("move elsewhere") {
        run_move(&other, &server, &[])
            .expect_words(1, &["has moved already, to http://the-cluster:7420", "--to"]);
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

fn is_at(point: Point, database: &dyn SqlServer, cluster: &Cluster, server: &Server) -> bool {
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
    put_crowd(&server, 110);
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
    // A move that was done before anybody looked has left nothing to start beside.
    let instance = instance.unwrap_or_else(|| instance_beside(&cluster));
    let instance = instance.join().expect("an instance");
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
    let crowd = put_crowd(&server, 90);
    let mut moving = start_move(&cluster, &server, &[]);
    freeze_when(&moving, "the load", SOON, || is_at(Point::Loading, database, &cluster, &server));
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
