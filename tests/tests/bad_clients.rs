//! Clients that misbehave below HTTP: garbage, endless headers and bodies, slowness, and ten
//! thousand connections that say nothing. The service answers with a 4xx or closes, and lives.

use std::thread;
use std::time::{Duration, Instant};

use guanxi_tests::{
    Options, RawAnswer, RawConnection, Server, edge, nodes, poll_until, raise_open_files_limit,
    shared,
};
use serde_json::Value;

const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Ten times the patience that the test's server is given.
const SLOWNESS_DEADLINE: Duration = Duration::from_secs(20);
const IDLE_CONNECTIONS: u64 = 10_000;
/// A connection that finds no place in the queue is tried again a second later by the system.
const OPENING_DEADLINE: Duration = Duration::from_secs(300);
/// What ten thousand idle connections may cost, and growth beyond it when they come again.
const IDLE_BYTES_MAX: u64 = 512 << 20;

/// A refusal is a 4xx, one of two honest 5xx of the HTTP library, or a closed connection.
#[track_caller]
fn assert_refused(what: &str, answer: &RawAnswer) {
    match answer.status() {
        Some(status) => assert!(
            (400..500).contains(&status) || status == 501 || status == 505,
            "{what}: {}",
            answer.text
        ),
        None => assert!(answer.closed && answer.text.is_empty(), "{what}: {answer:?}"),
    }
}

#[test]
fn garbage_is_refused() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let put = |rest: &str| format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\n{rest}").into_bytes();
    let noise: Vec<u8> =
        (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("noise", noise),
        ("zeros", vec![0; 1024]),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(20)),
        ("a lone method", b"GET\r\n\r\n".to_vec()),
        ("no target", b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("an unknown version", b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n".to_vec()),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec()),
        (
            "a space in the path",
            b"GET /v1/edges/fol low/1/2 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        ),
        ("a header without a name", put(": v\r\n\r\n")),
        ("a control byte in a header", put("A: b\x01c\x00\r\n\r\n")),
        ("a negative length", put("Content-Length: -1\r\n\r\n")),
        ("a length of letters", put("Content-Length: ten\r\n\r\n")),
        ("two lengths", put("Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x")),
        ("a length past 2^64", put("Content-Length: 99999999999999999999999\r\n\r\n")),
        (
            "a bad chunk",
            put(
                "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
            ),
        ),
        (
            "a chunk past 2^64",
            put(
                "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}",
            ),
        ),
        (
            "an unknown coding",
            put("Transfer-Encoding: gzip, wat\r\nContent-Type: application/json\r\n\r\n{}"),
        ),
        (
            "a path of 100 kB",
            format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(100_000))
                .into_bytes(),
        ),
        (
            "a thousand headers",
            put(&format!("{}\r\n", (0..1000).map(|n| format!("h{n}: v\r\n")).collect::<String>())),
        ),
    ];
    for (what, bytes) in cases {
        let mut connection = RawConnection::open(server.address());
        connection.send(&bytes);
        connection.finish_sending();
        assert_refused(what, &connection.read_to_end(ANSWER_DEADLINE));
        server.assert_healthy();
    }
    assert_eq!(server.get(&path).ok()["related"], false, "garbage wrote an edge");
}

#[test]
fn a_ten_megabyte_header_is_refused() {
    let server = shared();
    let before = server.resident_bytes();
    let line = vec![b'a'; 1 << 20];
    for head in ["GET /healthz HTTP/1.1\r\nHost: localhost\r\nBig: ", "GET /"] {
        let mut connection = RawConnection::open(server.address());
        let mut taken = connection.send(head);
        for _ in 0..10 {
            taken = taken && connection.send(&line);
        }
        connection.send(" \r\n\r\n");
        assert_refused(head, &connection.read_to_end(ANSWER_DEADLINE));
    }
    server.assert_healthy();
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "a header cost {grown} bytes");
}

#[test]
fn an_endless_body_is_refused() {
    let server = shared();
    let heads = [
        ("announced", "Content-Length: 1073741824\r\n\r\n", None),
        ("chunked", "Transfer-Encoding: chunked\r\n\r\n", Some("100000\r\n")),
    ];
    let before = server.resident_bytes();
    for (what, head, chunk) in heads {
        let mut connection = RawConnection::open(server.address());
        connection.send(format!(
            "POST /v1/edges/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}"
        ));
        let mebibyte = vec![b' '; 1 << 20];
        let mut sent = 0;
        while sent < 256 {
            if let Some(chunk) = chunk
                && !connection.send(chunk)
            {
                break;
            }
            if !connection.send(&mebibyte) || (chunk.is_some() && !connection.send("\r\n")) {
                break;
            }
            sent += 1;
        }
        assert!(sent < 256, "{what}: 256 MiB were taken");
        assert_too_large(what, &connection.read_to_end(ANSWER_DEADLINE));
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 128 << 20, "two bodies cost {grown} bytes");
    server.assert_healthy();
}

/// The answer is the contract's own, or lost because the connection was closed on a sender.
#[track_caller]
fn assert_too_large(what: &str, answer: &RawAnswer) {
    assert_refused(what, answer);
    if let Some(status) = answer.status() {
        assert_eq!(status, 413, "{what}: {}", answer.text);
        let body = answer.text.split("\r\n\r\n").nth(1).unwrap_or_default();
        let body: Value = serde_json::from_str(body).expect("problem+json");
        assert_eq!(body["code"], "too_large", "{what}: {body}");
    }
}

#[test]
fn a_whole_body_past_the_bound_is_refused() {
    let server = shared();
    // Whole and valid, but far larger than any batch needs to be.
    let body = format!("{{\"changes\":[{}]}}", " ".repeat(9 << 20));
    let mut connection = RawConnection::open(server.address());
    connection.send(format!(
        "POST /v1/edges/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    connection.send(body);
    assert_too_large("nine mebibytes", &connection.read_answer(ANSWER_DEADLINE));
    server.assert_healthy();
}

#[test]
fn slow_clients_are_let_go() {
    let patience = |setting: &str| (format!("GUANXI_HTTP_{setting}_TIMEOUT_MS"), "1500".to_owned());
    let server = Server::start_with(Options {
        environment: ["HEADER", "BODY", "IDLE"].map(patience).to_vec(),
        ..Options::default()
    });
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let typed = "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n";
    let beginnings = [
        ("silence", String::new(), ""),
        ("a slow request line", String::new(), "G"),
        ("slow headers", format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nA: "), "a"),
        ("a slow body", format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\n{typed}"), " "),
        ("no body", format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\n{typed}"), ""),
        ("a slow HTTP/2 opening", "PRI * HTTP/2.0\r\n".to_owned(), ""),
        ("an HTTP/2 client that says no more", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), ""),
    ];
    thread::scope(|scope| {
        for (what, head, drip) in beginnings {
            let address = server.address();
            scope.spawn(move || {
                let mut connection = RawConnection::open(address);
                connection.send(head);
                let begun = Instant::now();
                // Drips a byte twice a second, until the server has had enough.
                loop {
                    connection.send(drip);
                    let answer = connection.read_to_end(Duration::from_millis(500));
                    let allowed = matches!(answer.status(), None | Some(400 | 408 | 504));
                    assert!(allowed, "{what}: {}", answer.text);
                    if answer.closed || answer.status().is_some() {
                        return;
                    }
                    assert!(
                        begun.elapsed() < SLOWNESS_DEADLINE,
                        "{what}: held for {SLOWNESS_DEADLINE:?}"
                    );
                }
            });
        }
        // Meanwhile the others are served.
        for _ in 0..20 {
            server.assert_healthy();
        }
    });
    assert_eq!(server.get(&path).ok()["related"], false);
}

#[test]
fn a_client_that_leaves_early_changes_nothing_else() {
    let server = shared();
    let [source, target] = nodes();
    for _ in 0..200 {
        let mut connection = RawConnection::open(server.address());
        connection.send(format!(
            "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            edge("follow", source, target)
        ));
        drop(connection);
        let mut connection = RawConnection::open(server.address());
        connection.send("POST /v1/check HTTP/1.1\r\nContent-Length: 50\r\n\r\n{");
    }
    server.assert_healthy();
}

#[test]
fn ten_thousand_idle_connections_starve_nobody() {
    let open_files = raise_open_files_limit();
    let count = IDLE_CONNECTIONS.min(open_files.saturating_sub(500));
    if count < IDLE_CONNECTIONS {
        eprintln!("only {count} idle connections: this process may open {open_files} files");
    }
    let server = Server::start();
    server.assert_healthy();
    let [source, target] = nodes();
    let mut peaks = Vec::new();
    for round in 0..2 {
        let mut held = Vec::new();
        let opening = Instant::now();
        for number in 0..count {
            assert!(opening.elapsed() < OPENING_DEADLINE, "{} were accepted", held.len());
            // A server may refuse some; it may not fall over.
            if let Ok(mut connection) = RawConnection::try_open(server.address()) {
                if number % 2 == 1 {
                    connection.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHalf: ");
                }
                held.push(connection);
            }
        }
        // New clients, on new connections, still get their answers.
        let begun = Instant::now();
        poll_until("a new client is served", Duration::from_secs(30), || {
            let fresh = guanxi_tests::Client::new(server.address());
            let put = fresh.request("PUT", &edge("follow", source, target + round)).try_send();
            put.ok().filter(|answer| answer.status == 200)
        });
        println!("round {round}: {} held, served after {:?}", held.len(), begun.elapsed());
        peaks.push(server.resident_bytes());
        drop(held);
        poll_until("they are forgotten", Duration::from_secs(30), || {
            let fresh = guanxi_tests::Client::new(server.address());
            fresh.request("GET", "/healthz").try_send().ok().filter(|answer| answer.status == 200)
        });
    }
    println!("resident bytes with them open: {peaks:?}");
    assert!(peaks[0] < IDLE_BYTES_MAX, "{} bytes for idle connections", peaks[0]);
    assert!(peaks[1] < peaks[0] + (peaks[0] / 2), "memory grows with each wave: {peaks:?}");
}
