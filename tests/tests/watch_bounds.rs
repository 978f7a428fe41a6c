//! Watchers that are many, slow or late, and a service that stops: writers never wait for them,
//! and whoever is dropped is told so and can read on.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use guanxi_tests::{
    Client, Next, Options, Server, WatchEvent, Watcher, edge, expect_problem, nodes, poll_until,
    version_of,
};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(60);
const WATCHERS: usize = 200;
const BATCH: u64 = 1_000;
/// More than the buffers of two sockets and the queue between them take.
const BACKLOG_BATCHES: u64 = 40;
const STALL_TIMEOUT: Duration = Duration::from_secs(3);
const STALLED: usize = 6;
/// A disk that others keep busy can hold up one round's puts; a writer that waits for watchers
/// waits in every round.
const ROUNDS_MAX: usize = 4;
/// The worst put beside watchers who do not read, against the worst without them.
const WORST_RATIO_MAX: f64 = 3.0;
/// What the worst put may take whatever it took without them: half of what it would take at least
/// if it waited for a watcher to be dropped.
const WORST_ALLOWED: Duration = Duration::from_millis(1_500);
/// The log is looked at twice a minute: its active file is ended at one look and goes at another.
const TRIM_DEADLINE: Duration = Duration::from_secs(150);

fn server_with(settings: &[(&str, &str)]) -> Server {
    let environment =
        settings.iter().map(|(name, value)| (format!("GUANXI_{name}"), (*value).to_owned()));
    Server::start_with(Options { environment: environment.collect(), ..Options::default() })
}

fn metric(client: &Client, name: &str) -> u64 {
    let text = client.get("/metrics").text;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.parse().unwrap_or_else(|_| panic!("{name} {line}"))
}

/// Likes with all the text that an edge may carry, so that few of them fill a socket.
fn put_backlog(client: &Client, batches: u64) {
    for batch in 0..batches {
        let changes: Vec<Value> = (0..BATCH)
            .map(|number| {
                let source = 1 + batch * BATCH + number;
                json!({"op": "put", "kind": "like", "source": source, "target": 7,
                    "data": "x".repeat(128)})
            })
            .collect();
        client.post_json("/v1/edges/batch", json!({"changes": changes})).expect_status(200);
    }
}

/// Reads to the end of the stream: the records, and the error that stood last.
#[track_caller]
fn read_to_error(watcher: &mut Watcher) -> (Vec<Value>, WatchEvent) {
    let mut records = Vec::new();
    loop {
        match watcher.next(DEADLINE) {
            Next::Event(event) if event.name == "record" => records.push(event.data),
            Next::Event(event) if event.name == "heartbeat" => {}
            Next::Event(event) => {
                assert_eq!(event.name, "error");
                assert_eq!(watcher.next(DEADLINE), Next::Ended, "the error is the last");
                return (records, event);
            }
            other => panic!("an error was expected after {} records: {other:?}", records.len()),
        }
    }
}

#[test]
fn two_hundred_watchers_see_everything() {
    let server = server_with(&[("HTTP_STREAMS_MAX", "200")]);
    let mut watchers: Vec<Watcher> =
        (0..WATCHERS).map(|_| Watcher::open(server.address(), "")).collect();
    for watcher in &mut watchers {
        assert_eq!(watcher.event().name, "heartbeat");
    }
    assert_eq!(metric(&server, "guanxi_watchers"), WATCHERS as u64);
    let message = server.get("/v1/watch").expect_error(503, "overloaded").to_owned();
    assert!(message.contains("200"), "{message}");
    let [target] = nodes();
    let writers = 1..=4_u64;
    thread::scope(|scope| {
        for writer in writers.clone() {
            let client = server.client();
            scope.spawn(move || {
                for number in 0..50 {
                    let path = edge("follow", writer * 1_000 + number, target);
                    client.put(path).expect_change(true, "live");
                }
            });
        }
    });
    let mut first: Option<Vec<Value>> = None;
    for watcher in &mut watchers {
        let records: Vec<Value> = (0..200).map(|_| watcher.record()).collect();
        let expected = first.get_or_insert_with(|| records.clone());
        assert!(records == *expected, "every watcher has the same order");
    }
    let versions: BTreeSet<u64> = first.iter().flatten().map(version_of).collect();
    assert_eq!(versions.len(), 200);
    // Whoever goes makes room, as soon as it is noticed.
    watchers.truncate(WATCHERS - 1);
    poll_until("a free place", DEADLINE, || {
        (metric(&server, "guanxi_watchers") < WATCHERS as u64).then_some(())
    });
    let mut late = Watcher::open(server.address(), "");
    assert_eq!(late.event().name, "heartbeat");
    drop((watchers, late));
    poll_until("all gone", DEADLINE, || (metric(&server, "guanxi_streams") == 0).then_some(()));
    assert_eq!(metric(&server, "guanxi_watchers_dropped_total"), 0, "they went by themselves");
}

/// The worst of puts one after the other, until `done` says so; the watcher sees each.
#[track_caller]
fn worst_put(
    server: &Server,
    healthy: &mut Watcher,
    source: &mut u64,
    mut done: impl FnMut() -> bool,
) -> Duration {
    let mut worst = Duration::ZERO;
    poll_until("all stalled watchers dropped", DEADLINE, || {
        *source += 1;
        let begun = Instant::now();
        server.put(edge("follow", *source, 9)).expect_change(true, "live");
        worst = worst.max(begun.elapsed());
        assert_eq!(healthy.record()["source"], source.to_string());
        done().then_some(())
    });
    worst
}

#[test]
fn a_stalled_watcher_is_dropped_and_can_read_on_and_no_writer_waits() {
    let stall_ms = STALL_TIMEOUT.as_millis().to_string();
    let server = server_with(&[
        ("HTTP_STREAM_STALL_TIMEOUT_MS", &stall_ms),
        ("HTTP_WRITE_TIMEOUT_MS", "15000"),
        // A disk that others keep busy is not what is tested here.
        ("HTTP_REQUEST_TIMEOUT_MS", "60000"),
    ]);
    put_backlog(&server, BACKLOG_BATCHES);
    // Beside the others one reads as it should, all the while.
    let mut healthy = Watcher::open(server.address(), "from=now&kinds=follow");
    let mut source = 1_000_000;
    let mut rounds = Vec::new();
    let mut stalled: Vec<Watcher> = Vec::new();
    let is_well = |(alone, beside): &(Duration, Duration)| {
        *beside <= WORST_ALLOWED.max(alone.mul_f64(WORST_RATIO_MAX))
    };
    while rounds.len() < ROUNDS_MAX && !rounds.iter().any(is_well) {
        let until = Instant::now() + STALL_TIMEOUT;
        // It asks for the metrics as often, so that the two differ in the watchers alone.
        let alone = worst_put(&server, &mut healthy, &mut source, || {
            metric(&server, "guanxi_watchers_dropped_total");
            Instant::now() >= until
        });
        let dropped = metric(&server, "guanxi_watchers_dropped_total") + STALLED as u64;
        let open = |_| Watcher::open(server.address(), "from=earliest&kinds=like");
        stalled.extend((0..STALLED).map(open));
        let beside = worst_put(&server, &mut healthy, &mut source, || {
            metric(&server, "guanxi_watchers_dropped_total") == dropped
        });
        rounds.push((alone, beside));
    }
    assert!(
        rounds.iter().any(is_well),
        "the worst puts of each round, without stalled watchers and beside them: {rounds:?}"
    );
    assert_eq!(metric(&server, "guanxi_streams_stalled_total"), stalled.len() as u64);

    let mut woken = stalled.pop().expect("some were opened");
    let (mut records, error) = read_to_error(&mut woken);
    expect_problem(&error.data, 503, "overloaded");
    let all = (BACKLOG_BATCHES * BATCH) as usize;
    assert!(!records.is_empty() && records.len() < all, "{} records", records.len());
    let id = woken.last_id.expect("records have ids");
    let mut resumed = Watcher::open(server.address(), &format!("from={id}&kinds=like"));
    while records.len() < all {
        records.push(resumed.record());
    }
    let sources: Vec<u64> =
        records.iter().map(|r| r["source"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(sources, (1..=all as u64).collect::<Vec<_>>(), "no gap, no duplicate");
    // Those who never read lose their connection in the end.
    poll_until("their connections closed", DEADLINE, || {
        (metric(&server, "guanxi_connections_closed_total") >= 5).then_some(())
    });
    server.put(edge("follow", 999_999, 9)).expect_change(true, "live");
    assert_eq!(healthy.record()["source"], "999999", "whoever reads stays");
    server.assert_healthy();
}

#[test]
fn a_stop_ends_every_watch_with_a_word_and_soon() {
    // A stop that waits for the deaf one takes longer than any machine is busy.
    let server = server_with(&[
        ("HTTP_DRAIN_TIMEOUT_MS", "120000"),
        ("HTTP_STREAM_STALL_TIMEOUT_MS", "600000"),
    ]);
    put_backlog(&server, BACKLOG_BATCHES / 2);
    let mut idle: Vec<Watcher> = (0..20).map(|_| Watcher::open(server.address(), "")).collect();
    for watcher in &mut idle {
        assert_eq!(watcher.event().name, "heartbeat");
    }
    // It does not read, so it cannot hear of the stop; nor may it delay it.
    let deaf = Watcher::open(server.address(), "from=earliest");
    let begun = Instant::now();
    server.send_terminate();
    for watcher in &mut idle {
        let (records, error) = read_to_error(watcher);
        assert!(records.is_empty());
        expect_problem(&error.data, 503, "unavailable");
    }
    let told = begun.elapsed();
    assert!(told < DEADLINE, "the last watcher was told after {told:?}");
    let stopped = server.terminate();
    assert!(stopped.status.success(), "{}", stopped.log);
    let took = begun.elapsed();
    assert!(took < DEADLINE, "the stop took {took:?}, though nobody was served");
    drop(deaf);
    // Where they were told to read on is still good.
    let id = idle[0].last_id.clone().expect("a heartbeat has an id");
    let server = stopped.restart();
    server.put(edge("follow", 1, 2)).expect_change(true, "live");
    assert_eq!(Watcher::open(server.address(), &format!("from={id}")).record()["target"], "2");
}

#[test]
fn an_id_or_token_of_another_service_is_none_here() {
    let theirs = Server::start();
    let written = theirs.put(edge("follow", 1, 2));
    let id = theirs.get("/v1/admin/export").header("guanxi-position").expect("an id").to_owned();
    let later = Server::start();
    for target in 2..40 {
        later.put(edge("follow", 1, target)).ok();
    }
    later.get(format!("/v1/watch?from={id}")).expect_error(400, "invalid_argument");
    let token = written.ok()["token"].as_str().expect("a token");
    later
        .get(format!("{}?at_least={token}", edge("follow", 1, 2)))
        .expect_error(400, "invalid_argument");
    theirs.get(format!("{}?at_least={token}", edge("follow", 1, 2))).ok();
}

#[test]
fn what_the_log_has_given_back_is_position_expired() {
    let server = server_with(&[
        ("LOG_RETENTION_BYTES", "2097152"),
        ("LOG_SEGMENT_BYTES", "1048576"),
        ("HTTP_STREAM_STALL_TIMEOUT_MS", "600000"),
    ]);
    let mut watcher = Watcher::open(server.address(), "from=earliest");
    let old = watcher.event().id.expect("a heartbeat has an id");
    put_backlog(&server, BACKLOG_BATCHES);
    // It has not read since, and the log goes on without it.
    let newest = Watcher::open(server.address(), "from=now").event().id.expect("an id");
    poll_until("the log to be trimmed", TRIM_DEADLINE, || {
        thread::sleep(Duration::from_millis(200));
        (metric(&server, "guanxi_position_log_first") > BACKLOG_BATCHES * BATCH / 2).then_some(())
    });
    let message = server
        .get(format!("/v1/watch?from={old}"))
        .expect_error(410, "position_expired")
        .to_owned();
    assert!(message.contains("no longer in the log"), "{message}");
    let header = server.request("GET", "/v1/watch").header("Last-Event-ID", &old);
    header.send().expect_error(410, "position_expired");
    let earliest = Watcher::open(server.address(), "from=earliest").record();
    let first: u64 = earliest["source"].as_str().unwrap().parse().unwrap();
    assert!(first > 1, "{earliest}");
    let (records, error) = read_to_error(&mut watcher);
    expect_problem(&error.data, 410, "position_expired");
    assert!(!records.is_empty(), "what was on its way has come");
    assert_eq!(metric(&server, "guanxi_watchers_dropped_total"), 1);
    let mut resumed = Watcher::open(server.address(), &format!("from={newest}"));
    server.put(edge("follow", 1, 2)).expect_change(true, "live");
    assert_eq!(resumed.record()["target"], "2");
}

#[test]
fn what_is_older_than_the_retention_is_position_expired() {
    let server = server_with(&[("LOG_RETENTION_MS", "1000")]);
    let old = Watcher::open(server.address(), "from=earliest").event().id.expect("an id");
    server.put(edge("follow", 1, 2)).expect_change(true, "live");
    assert_eq!(Watcher::open(server.address(), &format!("from={old}")).record()["target"], "2");
    poll_until("the log to be trimmed", TRIM_DEADLINE, || {
        thread::sleep(Duration::from_millis(200));
        let answer = server.request("HEAD", &format!("/v1/watch?from={old}")).send();
        (answer.status == 410).then_some(())
    });
    server.get(format!("/v1/watch?from={old}")).expect_error(410, "position_expired");
    let mut watcher = Watcher::open(server.address(), "from=earliest");
    server.put(edge("follow", 1, 3)).expect_change(true, "live");
    assert_eq!(watcher.record()["target"], "3");
}
