//! What operators ask for, copies and the log, has places of its own; whoever does not read, or
//! hardly, holds neither memory nor a place for long.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use guanxi_tests::{
    Cli, Client, Options, Server, Watcher, edge, metric, nodes, poll_until, primary_options,
    requiring_options, standing, start_standby, wait_until_caught_up,
};
use serde_json::{Value, json};

/// Everything here happens within seconds; a busy machine takes longer.
const SOON: Duration = Duration::from_secs(200);
const BATCH: u64 = 1_000;
/// More than the buffers of two sockets hold.
const BATCHES: u64 = 100;
const UNREAD: usize = 100;
/// Writes that a standby confirms while they are open; more than were asked for before.
const CONFIRMED: u64 = 20;
/// What a busy disk may take for one.
const CONFIRMED_WITHIN_MS: u64 = 20_000;
/// What a hundred answers that nobody reads may add to the service's memory, beside what its store
/// does meanwhile. As whole pieces of the log they took five megabytes each.
const UNREAD_BYTES_MAX: u64 = 192 << 20;

/// Edges with all the text that they may carry, such that nothing makes it much smaller.
fn put_much(client: &Client) {
    let mut random = 1_u64;
    let mut text = || {
        let digits = (0..128).map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            char::from(b'0' + (random >> 33) as u8 % 75)
        });
        digits.collect::<String>()
    };
    for batch in 0..BATCHES {
        let changes: Vec<Value> = (0..BATCH)
            .map(|number| {
                let source = 1 + batch * BATCH + number;
                json!({"op": "put", "kind": "like", "source": source, "target": 7, "data": text()})
            })
            .collect();
        let changes = json!({"changes": changes});
        // To put an edge again changes nothing, and a disk that others keep busy is not tested here.
        poll_until("a batch is taken", SOON, || {
            let answer = client.request("POST", "/v1/edges/batch").json(&changes).try_send();
            answer.is_ok_and(|answer| answer.status == 200).then_some(())
        });
    }
}

fn with_settings(settings: &[(&str, &str)]) -> Options {
    let environment =
        settings.iter().map(|(name, value)| (format!("GUANXI_{name}"), (*value).to_owned()));
    Options { environment: environment.collect(), ..primary_options() }
}

/// Asks, and reads no more than the answer's status.
fn ask(address: SocketAddr, path: &str) -> (TcpStream, u16) {
    let mut stream = TcpStream::connect(address).expect("the server accepts connections");
    stream.set_read_timeout(Some(SOON)).expect("a timeout can be set");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").expect("it can be sent");
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).expect("an answer begins");
    let status = std::str::from_utf8(&begin[9..]).ok().and_then(|status| status.parse().ok());
    (stream, status.expect("a status"))
}

#[test]
fn a_hundred_unread_answers_of_the_log_take_little_memory_and_no_place_of_a_standby() {
    let server = Server::start_with(requiring_options(1, CONFIRMED_WITHIN_MS));
    let standby = start_standby(&server);
    put_much(&server);
    let epoch = standing(&server)["epoch"].as_u64().expect("an epoch");
    let path = format!("/v1/admin/log?after={epoch}.0&wait_ms=0");
    let whole = server.get(&path);
    whole.expect_status(200);
    assert!(whole.bytes.len() > 4 << 20, "{} bytes", whole.bytes.len());
    let before = server.resident_bytes();
    let asked: Vec<_> = (0..UNREAD).map(|_| ask(server.address(), &path)).collect();
    let refused = asked.iter().filter(|(_, status)| *status == 503).count();
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < UNREAD_BYTES_MAX, "{} MiB more", grown >> 20);
    assert!((UNREAD - 20..UNREAD).contains(&refused), "{refused} were refused");
    for path in [&path, &format!("{path}&standby=7")] {
        let message = server.get(path).expect_error(503, "overloaded").to_owned();
        assert!(message.contains("try again"), "{message}");
    }
    // Nobody else feels it. Each write is confirmed by the standby, which asks for each anew.
    let [a, _] = nodes();
    for target in 1..=CONFIRMED {
        server.put(edge("follow", a, target)).ok();
    }
    wait_until_caught_up(&server, &standby);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("all.gxb");
    Cli::of(&server).run(&["backup", "--to", file.to_str().expect("UTF-8")]).expect(0);
    // Whoever goes makes room.
    drop(asked);
    poll_until("the log is sent", SOON, || (server.get(&path).status == 200).then_some(()));
    poll_until("all have gone", SOON, || (metric(&server, "guanxi_streams") < 2.0).then_some(()));
}

#[test]
fn operators_find_a_place_beside_callers_who_take_all_of_theirs() {
    let server = Server::start_with(with_settings(&[("HTTP_STREAMS_MAX", "2")]));
    let mut watchers = [(); 2].map(|()| Watcher::open(server.address(), ""));
    for watcher in &mut watchers {
        assert_eq!(watcher.event().name, "heartbeat");
    }
    server.get("/v1/watch").expect_error(503, "overloaded");
    server.get("/v1/admin/export").expect_error(503, "overloaded");
    assert_eq!(server.get("/v1/admin/backup").status, 200);
    let standby = start_standby(&server);
    let [a, b] = nodes();
    server.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&server, &standby);
}

#[test]
fn a_copy_that_is_read_too_slowly_ends() {
    let server = Server::start_with(with_settings(&[
        // Longer than it takes until a slow reader's system asks for more.
        ("HTTP_STREAM_STALL_TIMEOUT_MS", "10000"),
        ("HTTP_STREAM_BYTES_PER_SECOND_MIN", "4000000"),
    ]));
    put_much(&server);
    for (ended, path) in (1..).zip(["/v1/admin/backup", "/v1/admin/export"]) {
        let (mut stream, status) = ask(server.address(), path);
        assert_eq!(status, 200);
        // It never stalls, and would take minutes.
        let mut buffer = [0; 64 << 10];
        poll_until("its place is free", SOON, || {
            let came = stream.read(&mut buffer).unwrap_or(0);
            std::thread::sleep(Duration::from_millis(250));
            let free = metric(&server, "guanxi_streams") == 0.0;
            assert!(came > 0 || free, "it ended, and keeps its place");
            free.then_some(())
        });
        assert_eq!(metric(&server, "guanxi_streams_stalled_total"), f64::from(ended));
    }
    // Whoever reads at once gets all of it.
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("all.gxb");
    Cli::of(&server).run(&["backup", "--to", file.to_str().expect("UTF-8")]).expect(0);
}
