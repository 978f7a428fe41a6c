//! What nobody should send over RESP, and those who send or read too slowly: each is told, or cut
//! off; nothing is changed by it, and the others are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use guanxi_tests::resp::{RespClient, Value, command, options, start_with, words};
use guanxi_tests::{Options, Server, metric, node_run, poll_until, run_to_exit};
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);

/// How many edges there are, by an export.
fn edges(server: &Server) -> usize {
    server.get("/v1/admin/export").text.lines().filter(|line| line.contains("\"target\"")).count()
}

/// A few edges that stand before a test does its worst.
fn with_edges(server: &Server, count: usize) -> usize {
    let mut client = RespClient::open(server.resp_address());
    for target in 0..count {
        client.ask(&format!("GX.PUT follow 1 {}", target + 2)).field("state");
    }
    edges(server)
}

#[test]
fn it_is_off_unless_asked_for_and_stays_on_loopback_unless_told() {
    let server = Server::start();
    assert!(!server.log().contains("RESP"), "{}", server.log());
    let refused = |flag: &str, address: &str| {
        let directory = tempfile::tempdir().unwrap();
        let arguments = ["serve", "--listen", "127.0.0.1:0", flag, address];
        let ended = run_to_exit(&arguments, directory.path());
        assert_eq!(ended.status.code(), Some(2));
        String::from_utf8(ended.stderr).unwrap()
    };
    assert!(refused("--resp", "0.0.0.0:0").contains("--allow-unauthenticated"));
    assert!(refused("--resp", "nowhere").contains("--resp"));
    let mut options = options();
    options.environment = vec![("GUANXI_RESP_LISTEN".into(), "127.0.0.1:0".into())];
    options.arguments.clear();
    let server = Server::start_with(options);
    assert_eq!(RespClient::open(server.resp_address()).ask("PING"), Value::Simple("PONG".into()));
    let taken = server.resp_address().to_string();
    let mut other = guanxi_tests::resp::options();
    other.arguments = vec!["--resp".into(), taken];
    let failure = Server::try_start_with(other).err().expect("the address is taken");
    assert!(failure.contains("choose another address with --resp"), "{failure}");
}

#[test]
fn what_is_no_command_is_told_and_cut_off() {
    let server = Server::start_with(options());
    let before = with_edges(&server, 3);
    let put = words("GX.PUT follow 1 99");
    for (sent, told) in [
        (&b"*x\r\n"[..], "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*5000\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
        (b"*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (
            b"*1\r\n$4\r\nPINGPONG\r\n",
            "-ERR Protocol error: an argument is not as long as announced\r\n",
        ),
        (b"PING \"a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        (
            b"*2\r\n$4\r\nECHO\r\n$9999999\r\n",
            "-TOO_LARGE a command has at most 1048576 bytes; send less at once\r\n",
        ),
    ] {
        let mut client = RespClient::open(server.resp_address());
        client.send(sent);
        // What comes behind it is not read as commands.
        client.send(&put);
        assert_eq!(client.read_to_end(), told);
    }
    let mut client = RespClient::open(server.resp_address());
    client.send("x".repeat(70_000));
    assert_eq!(client.read_to_end(), "-ERR Protocol error: too big inline request\r\n");
    assert_eq!(edges(&server), before);
}

/// What a web page can make a browser send to this port: it is cut off at the first line, without a
/// word, whatever stands behind it.
#[test]
fn requests_of_http_are_cut_off_and_do_nothing() {
    let server = Server::start_with(options());
    let before = with_edges(&server, 3);
    let body = "GX.PUT follow 1 99\r\nGX.DEL follow 1 2\r\n";
    let length = body.len();
    for head in [
        format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"),
        format!("GET /?{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(5_000)),
        "PUT /GX.PUT HTTP/1.1\r\n\r\n".to_owned(),
        "Host: 127.0.0.1\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let mut client = RespClient::open(server.resp_address());
        client.send(format!("{head}{body}"));
        assert_eq!(client.read_to_end(), "", "{head}");
    }
    assert_eq!(edges(&server), before);
}

#[test]
fn a_flood_of_garbage_changes_nothing() {
    let server = Server::start_with(options());
    let before = with_edges(&server, 5);
    let mut random = fastrand::Rng::with_seed(7_421);
    let begun = Instant::now();
    let pieces: [&[u8]; 12] = [
        b"*3\r\n",
        b"$6\r\n",
        b"GX.PUT",
        b"\r\n",
        b"follow",
        b"*-1\r\n",
        b"$0\r\n\r\n",
        b"\0",
        b"\xff",
        b"1 2 3",
        b"\n",
        b"GX.CHECK follow 1 2\r\n",
    ];
    for _ in 0..300 {
        let mut client = RespClient::open(server.resp_address());
        let count = random.usize(1..60);
        let bytes: Vec<u8> = (0..count)
            .flat_map(|_| match random.u8(..4) {
                0 => (0..random.usize(..40)).map(|_| random.u8(..)).collect(),
                _ => random.choice(pieces).unwrap().to_vec(),
            })
            .collect();
        client.send(&bytes);
        client.finish_sending();
        client.read_to_end();
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(edges(&server), before);
    assert_eq!(RespClient::open(server.resp_address()).ask("PING"), Value::Simple("PONG".into()));
}

#[test]
fn half_commands_and_idle_connections_end() {
    let server = start_with(&[
        ("GUANXI_HTTP_HEADER_TIMEOUT_MS", "700"),
        ("GUANXI_RESP_IDLE_TIMEOUT_MS", "1500"),
    ]);
    let address = server.resp_address();
    let mut half = RespClient::open(address);
    half.send(b"*2\r\n$4\r\nECHO\r\n$5\r\nhe");
    let mut behind = RespClient::open(address);
    behind.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n$50\r\nhe");
    assert_eq!(behind.read(), Value::Simple("PONG".into()));
    let mut idle = RespClient::open(address);
    assert_eq!(idle.ask("PING"), Value::Simple("PONG".into()));
    // Whoever sends a byte now and then has no more time for the whole.
    let mut dripping = TcpStream::connect(address).unwrap();
    let (begun, mut open) = (Instant::now(), true);
    while open && begun.elapsed() < SOON {
        open = dripping.write_all(b"x").is_ok();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!open && begun.elapsed() < Duration::from_secs(5), "after {:?}", begun.elapsed());
    let begun = Instant::now();
    assert_eq!(half.try_read(), None);
    assert_eq!(behind.try_read(), None);
    assert_eq!(idle.try_read(), None);
    assert!(begun.elapsed() < SOON);
    assert!(metric(&server, "guanxi_connections_closed_total") >= 4.0);
    // Who asks now and then is neither.
    let mut busy = RespClient::open(address);
    for _ in 0..30 {
        assert_eq!(busy.ask("PING"), Value::Simple("PONG".into()));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Answers that nobody reads stop their connection's commands, take bounded memory, and end it.
#[test]
fn whoever_does_not_read_is_not_answered_for_ever() {
    let server = start_with(&[("GUANXI_HTTP_WRITE_TIMEOUT_MS", "1500")]);
    let address = server.resp_address();
    let mut loader = RespClient::open(address);
    for chunk in node_run(1_000).chunks(500) {
        let puts = chunk.iter().map(|source| words(&format!("GX.PUT follow {source} 1")));
        loader.send(puts.flatten().collect::<Vec<u8>>());
        chunk.iter().for_each(|_| drop(loader.read()));
    }
    let before = server.resident_bytes();
    let list = words("GX.LIST follow 1 INCOMING LIMIT 1000").repeat(2_000);
    let mut deaf: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for stream in &mut deaf {
        stream.set_nonblocking(true).unwrap();
        let _as_much_as_fits = stream.write(&list);
    }
    let mut other = RespClient::open(address);
    let begun = Instant::now();
    for stream in &mut deaf {
        poll_until("a connection that nobody reads ends", SOON, || {
            assert_eq!(other.ask("PING"), Value::Simple("PONG".into()));
            match stream.write(b"\r\n") {
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Some(()),
                _ => None,
            }
        });
    }
    assert!(begun.elapsed() > Duration::from_millis(1_000), "they had their time");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 96 << 20, "it grew by {grown} bytes");
    // Whoever reads slowly, but reads, gets all of it.
    let mut slow = TcpStream::connect(address).unwrap();
    slow.set_read_timeout(Some(SOON)).unwrap();
    slow.write_all(&words("GX.LIST follow 1 INCOMING LIMIT 1000").repeat(40)).unwrap();
    slow.write_all(&words("QUIT")).unwrap();
    let mut read = Vec::new();
    let mut piece = [0; 64 * 1024];
    loop {
        match slow.read(&mut piece).unwrap() {
            0 => break,
            count => read.extend_from_slice(&piece[..count]),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(read.ends_with(b"+OK\r\n"));
    assert_eq!(String::from_utf8(read).unwrap().matches("items").count(), 40);
}

#[test]
fn long_answers_that_nobody_has_read_have_a_bound_together() {
    // The least that the setting takes: ten unread pages of everything a source has fill it.
    let server = start_with(&[
        ("GUANXI_HTTP_ANSWERS_BYTES_MAX", "8388608"),
        ("GUANXI_HTTP_BODIES_BYTES_MAX", "1048576"),
    ]);
    let address = server.resp_address();
    let data = "d".repeat(128);
    server
        .post_json(
            "/v1/admin/kinds",
            json!({
                "name": "note", "source_type": "user", "target_type": "post",
                "outgoing_max": null, "data_bytes_max": 128,
            }),
        )
        .expect_status(201);
    let mut loader = RespClient::open(address);
    let targets = node_run(1_000);
    for chunk in targets.chunks(500) {
        let puts = chunk.iter().map(|target| words(&format!("GX.PUT note 1 {target} DATA {data}")));
        loader.send(puts.flatten().collect::<Vec<u8>>());
        chunk.iter().for_each(|_| drop(loader.read()));
    }
    let list = words("GX.LIST note 1 OUTGOING LIMIT 1000").repeat(200);
    let deaf: Vec<RespClient> = (0..60)
        .map(|_| {
            let mut client = RespClient::open(address);
            client.send(&list);
            client
        })
        .collect();
    let refused = "guanxi_requests_total{call=\"list_outgoing\",kind=\"note\",code=\"overloaded\"}";
    poll_until("a list finds no room", SOON, || {
        server.get("/metrics").text.contains(refused).then_some(())
    });
    // Short answers and writes are told all the same.
    assert_eq!(loader.ask("GX.CHECK note 1 1").items().len(), 1);
    assert_eq!(loader.ask("GX.PUT note 1 7").field("state"), &Value::text("live"));
    drop(deaf);
    poll_until("there is room again", SOON, || {
        match loader.ask("GX.LIST note 1 OUTGOING LIMIT 1000") {
            Value::Error(_) => None,
            _ => Some(()),
        }
    });
}

#[test]
fn its_connections_count_with_all_others() {
    let server = start_with(&[("GUANXI_HTTP_CONNECTIONS_MAX", "4")]);
    let mut clients: Vec<RespClient> =
        (0..4).map(|_| RespClient::open(server.resp_address())).collect();
    for client in &mut clients {
        assert_eq!(client.ask("PING"), Value::Simple("PONG".into()));
    }
    // The longest idle one makes room for a newcomer of the other protocol.
    server.get("/healthz").ok();
    assert_eq!(clients[0].try_read(), None);
    assert_eq!(clients[3].ask("PING"), Value::Simple("PONG".into()));
}

#[test]
fn a_stop_answers_what_has_come() {
    let server = Server::start_with(options());
    let mut client = RespClient::open(server.resp_address());
    let mut idle = RespClient::open(server.resp_address());
    idle.ask("PING");
    let targets = node_run(200);
    let puts = targets.iter().map(|target| words(&format!("GX.PUT like 1 {target}")));
    client.send(puts.flatten().collect::<Vec<u8>>());
    assert_eq!(client.read().field("state"), &Value::text("live"));
    server.send_terminate();
    let mut told = 1;
    while let Some(answer) = client.try_read() {
        assert_eq!(answer.field("state"), &Value::text("live"));
        told += 1;
    }
    assert_eq!(idle.try_read(), None);
    let stopped = server.terminate();
    assert!(stopped.status.success(), "{}", stopped.log);
    let server = stopped.restart();
    let mut client = RespClient::open(server.resp_address());
    let done = |targets: &[u64]| {
        let ids: Vec<String> = targets.iter().map(u64::to_string).collect();
        words(&format!("GX.CHECK like 1 {}", ids.join(" ")))
    };
    client.send(done(&targets[..told]));
    assert!(client.read().items().iter().all(|state| *state == Value::Integer(1)), "told {told}");
}

/// A client of 4,096 arguments, and what a call takes of them.
#[test]
fn long_commands_are_bounded_by_the_call() {
    let server = Server::start_with(Options::clone(&options()));
    let mut client = RespClient::open(server.resp_address());
    let check = |count: u64| {
        let targets = (1..=count).map(|id| id.to_string());
        let start = ["GX.CHECK", "like", "1"].map(str::to_owned);
        command(&start.into_iter().chain(targets).collect::<Vec<_>>())
    };
    client.send(check(1_000));
    assert_eq!(client.read().items().len(), 1_000);
    client.send(check(1_001));
    client.read().expect_error("TOO_LARGE checks: there are 1001, at most 1000 fit one request");
    let long = "x".repeat(900_000);
    assert_eq!(client.ask_with(&["ECHO", &long]), Value::text(&long));
    client.send(check(4_094));
    assert!(client.read_to_end().starts_with("-ERR Protocol error: invalid multibulk length"));
}
