//! What the service does before any call: whose requests it takes, how much of their bodies, and
//! how a refusal reaches whoever is still sending. Web pages in a real browser are in `browser.rs`.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use guanxi_tests::grpc::{RawGrpc, frame, proto};
use guanxi_tests::{Options, RawAnswer, RawConnection, Server, edge, nodes, poll_until, shared};
use serde_json::{Value, json};
use tonic_types::StatusExt;

const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
const JSON: &str = "Content-Type: application/json\r\n";

/// The problem of an answer that is one.
#[track_caller]
fn problem(what: &str, answer: &RawAnswer) -> Value {
    let body = answer.text.split("\r\n\r\n").nth(1).unwrap_or_default();
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{what}: {answer:?}"))
}

/// Sends one request with these lines behind its first, and reads its answer.
fn ask(server: &Server, first: &str, lines: &str) -> RawAnswer {
    let mut connection = RawConnection::open(server.address());
    connection.send(format!("{first} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"));
    // To the end, as the answer to HEAD announces what it does not have.
    connection.read_to_end(ANSWER_DEADLINE)
}

#[track_caller]
fn assert_problem(what: &str, answer: &RawAnswer, status: u16, code: &str) {
    assert_eq!(answer.status(), Some(status), "{what}: {answer:?}");
    assert_eq!(problem(what, answer)["code"], code, "{what}");
    assert!(!answer.text.to_ascii_lowercase().contains("access-control-"), "{what}: {answer:?}");
}

#[tokio::test]
async fn a_late_read_changed_nothing_whoever_asks() {
    let server = Server::start_with(Options {
        environment: vec![("GUANXI_HTTP_REQUEST_TIMEOUT_MS".to_owned(), "300".to_owned())],
        ..Options::default()
    });
    for (path, outcome) in [
        ("/v1/hydrate", "none"),
        ("/v1/check", "none"),
        ("/v1/tallies", "none"),
        ("/v1/edges/batch", "unknown"),
    ] {
        let lines = format!("Host: localhost\r\n{JSON}Content-Length: 100\r\n");
        let answer = ask(&server, &format!("POST {path}"), &lines);
        assert_problem(path, &answer, 504, "deadline_exceeded");
        assert_eq!(problem(path, &answer)["outcome"], outcome, "{path}");
    }
    let half = frame(&proto::HydrateRequest::default()).slice(..3);
    let connection = RawGrpc::connect(&server).await;
    for (path, outcome) in
        [("/guanxi.v1.Reads/Hydrate", "none"), ("/guanxi.v1.Edges/Batch", "unknown")]
    {
        let headers = [("content-type", "application/grpc")];
        let answer = connection.send_part(path, &headers, half.clone(), false).await;
        let status = answer.status.expect("a status");
        let details = status.get_error_details();
        let facts = &details.error_info().expect("its details").metadata;
        assert_eq!(facts["outcome"], outcome, "{path}: {status:?}");
    }
}

#[test]
fn a_request_calls_the_service_by_a_name_of_its_own() {
    let server = Server::start_with(Options {
        environment: vec![("GUANXI_HTTP_NAMES".to_owned(), "guanxi.example, 10.9.8.7".to_owned())],
        ..Options::default()
    });
    let port = server.address().port();
    for host in [
        "127.0.0.1",
        &format!("127.0.0.1:{port}"),
        "127.8.9.10:1",
        "[::1]:7420",
        "[::ffff:127.0.0.1]",
        "localhost",
        &format!("LocalHost:{port}"),
        "guanxi.example",
        "Guanxi.Example:80",
        "10.9.8.7:7420",
        // A name with the dot that says that it is whole.
        "localhost.",
        "guanxi.example.:80",
    ] {
        let answer = ask(&server, "GET /v1/edges/follow/1/2", &format!("Host: {host}\r\n"));
        assert_eq!(answer.status(), Some(200), "{host}: {answer:?}");
    }
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil-guanxi.example",
        "sub.guanxi.example",
        "guanxi.example..",
        "localhost..",
        ".",
        "evil.example.",
        "10.9.8.8",
        "128.0.0.1",
        "[::2]",
        "evil@127.0.0.1",
        "127.0.0.1:evil",
        "[::1]evil",
        "",
        "*",
    ] {
        for path in ["/v1/edges/follow/1/2", "/v1/admin/export", "/docs", "/healthz", "/nothing"] {
            let what = format!("{host} {path}");
            let answer = ask(&server, &format!("GET {path}"), &format!("Host: {host}\r\n"));
            assert_problem(&what, &answer, 403, "forbidden");
        }
    }
    let whole = ask(&server, "GET http://evil.example/v1/admin/jobs", "Host: localhost\r\n");
    assert_problem("the name in the target", &whole, 403, "forbidden");
    let none = ask(&server, "GET /v1/admin/jobs", "");
    assert_problem("no host", &none, 400, "invalid_argument");
    // HTTP/1.0, which no browser speaks, has no Host; if it does, it counts.
    for (lines, status) in [("", 200), ("Host: guanxi.example\r\n", 200), ("Host: evil\r\n", 403)] {
        let mut connection = RawConnection::open(server.address());
        connection.send(format!("GET /v1/admin/jobs HTTP/1.0\r\n{lines}\r\n"));
        let answer = connection.read_answer(ANSWER_DEADLINE);
        assert_eq!(answer.status(), Some(status), "{lines}: {answer:?}");
    }
    let two = ask(&server, "GET /v1/admin/jobs", "Host: localhost\r\nHost: evil.example\r\n");
    assert_problem("two hosts", &two, 400, "invalid_argument");
}

#[tokio::test]
async fn grpc_callers_name_the_service_too() {
    let server = shared();
    let connection = RawGrpc::connect(&server).await;
    let headers = [("content-type", "application/grpc"), ("host", "evil.example")];
    let message = frame(&proto::GetEdgeRequest::default());
    let answer = connection.send("/guanxi.v1.Edges/Get", &headers, message).await;
    let status = answer.status.expect("a status");
    assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status:?}");
}

#[test]
fn where_it_listens_for_others_any_address_is_a_name() {
    let open = |names: &str| {
        Server::start_with(Options {
            listen: Some("0.0.0.0:0".to_owned()),
            arguments: vec!["--allow-unauthenticated".to_owned()],
            environment: vec![("GUANXI_HTTP_NAMES".to_owned(), names.to_owned())],
            ..Options::default()
        })
    };
    let (closed, any) = (open(""), open("*"));
    let status = |server: &Server, host: &str| {
        let address = format!("127.0.0.1:{}", server.address().port());
        let mut connection = RawConnection::open(address.parse().expect("an address"));
        connection.send(format!("GET /v1/admin/jobs HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        connection.read_answer(ANSWER_DEADLINE).status()
    };
    // An address may have been translated on the way.
    for host in ["localhost:7420", "0.0.0.0:7420", "10.9.8.8", "203.0.113.5:80", "[2001:db8::1]:1"]
    {
        assert_eq!(status(&closed, host), Some(200), "{host}");
    }
    for host in ["evil.example", "10.9.8.8.evil.example", "10.9.8.8.", "10.9.8", "[2001:db8::1"] {
        assert_eq!(status(&closed, host), Some(403), "{host}");
    }
    assert_eq!(status(&any, "any.example"), Some(200));
    let foreign =
        ask(&any, "GET /v1/admin/jobs", "Host: a.example\r\nOrigin: http://b.example\r\n");
    assert_problem("any name, yet another origin", &foreign, 403, "forbidden");
}

#[test]
fn pages_of_other_origins_are_refused() {
    let server = shared();
    let [source, target] = nodes();
    let (path, port) = (edge("follow", source, target), server.address().port());
    let host = format!("Host: 127.0.0.1:{port}\r\n");
    let own = format!("Origin: http://127.0.0.1:{port}\r\n");
    let own_upper = format!("Origin: HTTP://127.0.0.1:{port}\r\n");
    let same = "Sec-Fetch-Site: same-origin\r\n";
    for lines in ["", &own, &own_upper, same, "Sec-Fetch-Site: none\r\n", &format!("{own}{same}")] {
        let answer = ask(&server, &format!("PUT {path}"), &format!("{host}{lines}"));
        assert_eq!(answer.status(), Some(200), "{lines}: {answer:?}");
        let answer = ask(&server, &format!("DELETE {path}"), &format!("{host}{lines}"));
        assert_eq!(answer.status(), Some(200), "{lines}: {answer:?}");
    }
    for lines in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: \r\n",
        &format!("Origin: http://localhost:{port}\r\n"),
        &format!("Origin: https://127.0.0.1:{port}\r\n"),
        "Origin: http://127.0.0.1:1\r\n",
        "Origin: http://127.0.0.1\r\n",
        &format!("{own}Origin: http://evil.example\r\n"),
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: Same-Origin, cross-site\r\n",
        &format!("{own}Sec-Fetch-Site: cross-site\r\n"),
    ] {
        for method in ["PUT", "GET", "HEAD", "DELETE", "OPTIONS", "POST"] {
            let answer = ask(&server, &format!("{method} {path}"), &format!("{host}{lines}"));
            assert_eq!(answer.status(), Some(403), "{method} {lines}: {answer:?}");
            let shown = answer.text.to_ascii_lowercase();
            assert!(!shown.contains("access-control-"), "{method} {lines}: {answer:?}");
        }
        for path in ["/docs", "/openapi.json", "/healthz", "/metrics", "/nothing"] {
            let answer = ask(&server, &format!("GET {path}"), &format!("{host}{lines}"));
            assert_problem(&format!("{path} {lines}"), &answer, 403, "forbidden");
        }
    }
    assert_eq!(server.get(&path).ok()["related"], false);
    // Even one of the own origin is permitted nothing beyond it.
    let asked = format!("{host}{own}Access-Control-Request-Method: PUT\r\n");
    let answer = ask(&server, &format!("OPTIONS {path}"), &asked);
    assert_problem("a question of the own origin", &answer, 405, "method_not_allowed");
}

/// From the service's own description, so that a new call is among them.
#[test]
fn a_change_says_what_no_page_may_say_unasked() {
    let server = shared();
    let document = server.get("/openapi.json");
    let mut tried = 0;
    for (path, methods) in document.ok()["paths"].as_object().expect("paths") {
        let Some(name) = methods["post"]["operationId"].as_str() else {
            continue;
        };
        // These ask; their JSON needs its type all the same.
        let asks = ["check", "tallies", "hydrate"].contains(&name);
        let path = path.replace("{kind}", "follow").replace("{source}", "1");
        let path = path.replace("{target}", "2").replace("{letter}", "1").replace("{id}", "3");
        for types in [
            "",
            "Content-Type: text/plain\r\n",
            "Content-Type: TEXT/Plain;charset=application/json\r\n",
            "Content-Type: application/x-www-form-urlencoded\r\n",
            "Content-Type: multipart/form-data; boundary=x\r\n",
            "Content-Type: \r\n",
            "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
        ] {
            for body in ["", "{}"] {
                if asks && body.is_empty() {
                    continue;
                }
                let length = body.len();
                let mut connection = RawConnection::open(server.address());
                connection.send(format!(
                    "POST {path} HTTP/1.1\r\nHost: localhost\r\n{types}Content-Length: {length}\
                     \r\n\r\n{body}"
                ));
                let answer = connection.read_answer(ANSWER_DEADLINE);
                let what = format!("{path} {types:?} {body:?}");
                let both = types.matches("Content-Type").count() == 2;
                if asks && both {
                    continue;
                }
                assert_problem(&what, &answer, 415, "unsupported_media_type");
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

const THIRTY_MEGABYTES: usize = 30_000_000;

#[test]
fn a_refusal_reaches_a_client_that_sends_all_before_it_reads() {
    let server = shared();
    let body = vec![b' '; THIRTY_MEGABYTES];
    let post = |path: &str| format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n");
    let chunk = format!("{THIRTY_MEGABYTES:x}\r\n");
    for (what, head, status, code) in [
        ("announced", format!("{}{JSON}", post("/v1/edges/batch")), 413, "too_large"),
        ("chunked", format!("{}{JSON}", post("/v1/edges/batch")), 413, "too_large"),
        ("announced", format!("{}{JSON}", post("/nothing")), 404, "not_found"),
        ("chunked", post("/v1/edges/batch"), 415, "unsupported_media_type"),
        ("announced", format!("{}Origin: null\r\n", post("/v1/edges/batch")), 403, "forbidden"),
    ] {
        let mut connection = RawConnection::open(server.address());
        let sent = match what {
            "announced" => {
                connection.send(format!("{head}Content-Length: {THIRTY_MEGABYTES}\r\n\r\n"))
                    && connection.send(&body)
            }
            _ => {
                connection.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}"))
                    && connection.send(&body)
                    && connection.send("\r\n0\r\n\r\n")
            }
        };
        assert!(sent, "{what} {code}: it must be let to send all");
        let answer = connection.read_answer(ANSWER_DEADLINE);
        assert_problem(what, &answer, status, code);
        // Nothing is left of the body, so the connection is as good as before.
        connection.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(connection.read_answer(ANSWER_DEADLINE).status(), Some(200), "{what} {code}");
    }
    server.assert_healthy();
}

#[test]
fn a_client_that_asks_before_it_sends_is_not_invited() {
    let server = shared();
    let mut connection = RawConnection::open(server.address());
    connection.send(format!(
        "POST /v1/edges/batch HTTP/1.1\r\nHost: localhost\r\n{JSON}Expect: 100-continue\r\n\
         Content-Length: {THIRTY_MEGABYTES}\r\n\r\n"
    ));
    let answer = connection.read_answer(ANSWER_DEADLINE);
    assert_problem("at once, and without 100", &answer, 413, "too_large");
    assert!(answer.text.to_ascii_lowercase().contains("connection: close"), "{answer:?}");
    // Some do not wait for long, and send before they read.
    for _ in 0..5 {
        let mut connection = RawConnection::open(server.address());
        let sent = connection.send(format!(
            "POST /v1/edges/batch HTTP/1.1\r\nHost: localhost\r\n{JSON}Expect: 100-continue\r\n\
             Content-Length: {THIRTY_MEGABYTES}\r\n\r\n"
        )) && connection.send(vec![b' '; THIRTY_MEGABYTES]);
        assert!(sent, "it must be let to send all");
        let answer = connection.read_to_end(ANSWER_DEADLINE);
        assert_problem("it sent all uninvited", &answer, 413, "too_large");
        assert!(answer.closed, "{answer:?}");
    }
}

#[tokio::test]
async fn a_refusal_reaches_an_http2_client_that_sends_all_before_it_reads() {
    let server = shared();
    let stream = tokio::net::TcpStream::connect(server.address()).await.expect("it accepts");
    let (sender, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    let request = http::Request::post("http://localhost/v1/edges/batch")
        .header("content-type", "application/json")
        .body(())
        .expect("a head");
    let mut sender = sender.ready().await.expect("it lives");
    let (answer, mut sending) = sender.send_request(request, false).expect("it can be sent");
    let sent = async {
        let mut left = THIRTY_MEGABYTES;
        while left > 0 {
            sending.reserve_capacity(left);
            let room = std::future::poll_fn(|context| sending.poll_capacity(context)).await;
            let room = room.expect("the stream is open").expect("it may send").min(left);
            left -= room;
            sending.send_data(Bytes::from(vec![b' '; room]), left == 0).expect("it is taken");
        }
    };
    tokio::time::timeout(ANSWER_DEADLINE, sent).await.expect("all can be sent");
    let answer = tokio::time::timeout(ANSWER_DEADLINE, answer).await.expect("an answer in time");
    let (head, mut body) = answer.expect("an answer").into_parts();
    assert_eq!(head.status, 413);
    let mut read = Vec::new();
    while let Some(piece) = body.data().await {
        read.extend_from_slice(&piece.expect("it can be read"));
    }
    let problem: Value = serde_json::from_slice(&read).expect("a problem");
    assert_eq!(problem["code"], "too_large");
}

/// What the bodies of all requests may take together in the test's server.
const BUDGET_BYTES: u64 = 16 << 20;
/// Beside it: buffers of the connections, and what a growing buffer leaves behind; on a crowded machine
/// the allocator keeps more of that for a while. All that is sent would take more than twice this.
const BESIDE_BYTES: u64 = 72 << 20;
const UNFINISHED: usize = 200;

fn server_with_small_budget() -> Server {
    let environment = [
        ("GUANXI_HTTP_BODIES_BYTES_MAX", BUDGET_BYTES),
        ("GUANXI_HTTP_BODY_TIMEOUT_MS", 20_000),
        ("GUANXI_HTTP_REQUEST_TIMEOUT_MS", 20_000),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_string())).into();
    Server::start_with(Options { environment, ..Options::default() })
}

#[test]
fn unfinished_bodies_share_a_budget() {
    let server = server_with_small_budget();
    let [source, target] = nodes();
    server.put(edge("follow", source, target)).ok();
    let large = |server: &Server| {
        let change = json!({"op": "put", "kind": "follow", "source": source, "target": target});
        let spaces = " ".repeat(700_000);
        let body = format!("{{\"changes\":[{change}]{spaces}}}");
        server.request("POST", "/v1/edges/batch").bytes("application/json", body).send()
    };
    large(&server).ok();
    let before = server.resident_bytes();
    let length = 1 << 20;
    let mut held = Vec::new();
    for _ in 0..UNFINISHED {
        let mut connection = RawConnection::open(server.address());
        let head = format!(
            "POST /v1/edges/batch HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {length}\r\n"
        );
        connection.send(format!("{head}\r\n"));
        connection.send(vec![b' '; length - 1]);
        held.push(connection);
    }
    let refused = poll_until("a large body finds no room", ANSWER_DEADLINE, || {
        Some(large(&server)).filter(|answer| answer.status != 200)
    });
    assert!(refused.expect_error(503, "overloaded").contains("try again"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    let grown = server.resident_bytes().saturating_sub(before);
    println!("{UNFINISHED} unfinished bodies took {grown} bytes");
    assert!(grown < BUDGET_BYTES + BESIDE_BYTES, "{grown} bytes for unfinished bodies");
    // Short bodies are not in anybody's way, and nobody in theirs.
    let body = json!({"data": "x"});
    server.put_json(edge("follow", source, target), body.clone()).ok();
    let mut refusals = [false; UNFINISHED];
    poll_until("most are refused", ANSWER_DEADLINE, || {
        for (connection, refused) in held.iter_mut().zip(&mut refusals) {
            *refused |= connection.read_answer(Duration::from_millis(1)).status() == Some(503);
        }
        (refusals.iter().filter(|refused| **refused).count() > UNFINISHED / 2).then_some(())
    });
    drop(held);
    poll_until("there is room again", ANSWER_DEADLINE, || {
        Some(large(&server)).filter(|answer| answer.status == 200)
    });
}

#[test]
fn messages_share_the_budget_of_bodies() {
    let server = server_with_small_budget();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut message = vec![0, 0, 15, 255, 255];
    message.resize(1_000_000, b' ');
    let message = Bytes::from(message);
    // Each on a connection of its own, as one has but one window for all that is under way.
    runtime.block_on(async {
        let mut held = Vec::new();
        for _ in 0..40 {
            let connection = RawGrpc::connect(&server).await;
            let message = message.clone();
            held.push(tokio::spawn(async move {
                let headers = [("content-type", "application/grpc")];
                connection.send_part("/guanxi.v1.Edges/Batch", &headers, message, false).await
            }));
        }
        let mut refused = 0;
        for answer in held {
            let status = answer.await.expect("an answer").status.expect("a status");
            refused += usize::from(status.code() == tonic::Code::Unavailable);
        }
        assert!((10..40).contains(&refused), "{refused} of 40");
    });
}

/// The window in which an import must bring something, as the test's server has it.
const IMPORT_WINDOW: Duration = Duration::from_millis(2_000);

#[test]
fn an_import_that_drips_loses_its_place() {
    let patience = IMPORT_WINDOW.as_millis().to_string();
    let server = Server::start_with(Options {
        environment: vec![("GUANXI_HTTP_BODY_TIMEOUT_MS".to_owned(), patience)],
        ..Options::default()
    });
    let begun = Instant::now();
    let drips = thread::scope(|scope| {
        let dripping = (0..8).map(|_| {
            scope.spawn(|| {
                let mut connection = RawConnection::open(server.address());
                connection.send(
                    "POST /v1/admin/import HTTP/1.1\r\nHost: localhost\r\n\
                     Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n",
                );
                loop {
                    connection.send(" ");
                    let answer = connection.read_answer(IMPORT_WINDOW / 8);
                    if answer.status().is_some() || answer.closed {
                        return answer;
                    }
                    assert!(begun.elapsed() < IMPORT_WINDOW * 15, "it holds its place for ever");
                }
            })
        });
        let dripping: Vec<_> = dripping.collect();
        dripping.into_iter().map(|drip| drip.join().expect("a drip")).collect::<Vec<_>>()
    });
    for answer in drips {
        assert_problem("a drip", &answer, 504, "deadline_exceeded");
        assert!(answer.text.contains("too slowly"), "{answer:?}");
    }
    let line = "{\"kind\":\"follow\",\"source\":\"1\",\"target\":\"2\"}\n";
    let import = server.request("POST", "/v1/admin/import").bytes("application/x-ndjson", line);
    assert_eq!(import.send().ok()["accepted"], 1);
}

/// A sender whose lines are few but whose pauses are short is no drip.
#[test]
fn an_import_that_is_short_of_lines_now_and_then_goes_on() {
    let patience = IMPORT_WINDOW.as_millis().to_string();
    let server = Server::start_with(Options {
        environment: vec![("GUANXI_HTTP_BODY_TIMEOUT_MS".to_owned(), patience)],
        ..Options::default()
    });
    let [source] = nodes();
    let mut connection = RawConnection::open(server.address());
    connection.send(
        "POST /v1/admin/import HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    // More bytes than a window asks for, in each of several windows.
    for round in 0..24_u64 {
        let line = |target: u64| {
            let source = source + round;
            format!("{{\"kind\":\"follow\",\"source\":\"{source}\",\"target\":\"{target}\"}}\n")
        };
        let lines: String = (1..=500).map(|n| line(source + round * 1_000 + n)).collect();
        assert!(connection.send(format!("{:x}\r\n{lines}\r\n", lines.len())));
        thread::sleep(IMPORT_WINDOW / 8);
    }
    connection.send("0\r\n\r\n");
    let answer = connection.read_answer(ANSWER_DEADLINE);
    assert_eq!(answer.status(), Some(200), "{answer:?}");
    assert_eq!(problem("an answer", &answer)["accepted"], 12_000);
}
