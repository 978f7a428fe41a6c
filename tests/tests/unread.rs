//! Answers that nobody reads, and requests that nobody ends: what the service keeps of them is
//! bounded, and whoever reads slowly but reads gets all of it.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use guanxi_tests::grpc::{RawGrpc, assert_refusal, frame, get_request, proto};
use guanxi_tests::{
    Options, RawConnection, Server, edge, edge_call, node_run, nodes, poll_until, shared,
};
use h2::client::{Builder, SendRequest};
use serde_json::{Value, json};
use tokio::net::TcpStream;

const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
const GRPC: (&str, &str) = ("content-type", "application/grpc");
/// What a page of so many edges with data takes is a quarter of a megabyte.
const PAGE_ITEMS: usize = 1_000;

/// A source with a long page of edges; returns the page's path.
fn long_page(server: &Server) -> String {
    let [source] = nodes();
    let change = |target: &u64| {
        json!({"op": "put", "kind": "follow", "source": source, "target": target,
            "data": "d".repeat(100)})
    };
    let changes: Vec<Value> = node_run(PAGE_ITEMS).iter().map(change).collect();
    server.client().post_json("/v1/edges/batch", json!({"changes": changes})).ok();
    format!("{}?limit={PAGE_ITEMS}", edge_call("follow", source, "outgoing"))
}

/// A connection whose reader gives each stream a window of so many bytes.
async fn connect(server: &Server, window: u32) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.address()).await.expect("it accepts");
    let (sender, connection) =
        Builder::new().initial_window_size(window).handshake(stream).await.expect("it greets");
    tokio::spawn(connection);
    sender
}

async fn ask(sender: &SendRequest<Bytes>, path: &str) -> http::Response<h2::RecvStream> {
    send(sender, http::Method::GET, path, Bytes::new()).await
}

async fn send(
    sender: &SendRequest<Bytes>,
    method: http::Method,
    path: &str,
    body: Bytes,
) -> http::Response<h2::RecvStream> {
    let request = http::Request::builder().method(method).uri(format!("http://localhost{path}"));
    let request = request.header("content-type", "application/json").body(()).expect("a head");
    let mut sender = sender.clone().ready().await.expect("it lives");
    let (answer, mut stream) =
        sender.send_request(request, body.is_empty()).expect("it can be sent");
    if !body.is_empty() {
        // It may be refused before it is read.
        let _ = stream.send_data(body, true);
    }
    let answer = tokio::time::timeout(ANSWER_DEADLINE, answer).await.expect("an answer in time");
    answer.expect("an answer")
}

/// What all answers may take together in the test's server: the least that may be set.
const BUDGET_BYTES: u64 = 8 << 20;
/// Beside it: what is not counted of each answer, connections, and what was freed and is kept.
const BESIDE_BYTES: u64 = 64 << 20;
const CONNECTIONS: usize = 8;
/// All of them would be 200 MB.
const ANSWERS_EACH: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_share_a_budget_and_end() {
    let server = Server::start_with(Options {
        environment: vec![
            ("GUANXI_HTTP_ANSWERS_BYTES_MAX".to_owned(), BUDGET_BYTES.to_string()),
            ("GUANXI_HTTP_WRITE_TIMEOUT_MS".to_owned(), "15000".to_owned()),
        ],
        ..Options::default()
    });
    let page = long_page(&server);
    server.get(&page).ok();
    let before = server.resident_bytes();
    let (mut connections, mut held, mut refused) = (Vec::new(), Vec::new(), 0);
    for _ in 0..CONNECTIONS {
        // One byte is all that a reader needs to give to be handed an answer.
        let connection = connect(&server, 1).await;
        for _ in 0..ANSWERS_EACH {
            let answer = ask(&connection, &page).await;
            refused += usize::from(answer.status() == 503);
            held.push(answer);
        }
        connections.push(connection);
    }
    let grown = server.resident_bytes().saturating_sub(before);
    println!("{} unread answers took {grown} bytes, {refused} were refused", held.len());
    assert!(refused > held.len() / 2, "{refused} refused");
    assert!(grown < BUDGET_BYTES + BESIDE_BYTES, "{grown} bytes for unread answers");
    server.get("/healthz").ok();
    poll_until("those who do not read are closed, and others find room", ANSWER_DEADLINE, || {
        Some(server.get(&page)).filter(|answer| answer.status == 200)
    });
    for connection in connections {
        let ended = tokio::time::timeout(ANSWER_DEADLINE, async {
            while connection.clone().ready().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        ended.await.expect("a connection with an unread answer is closed");
    }
}

/// A server with the least budget for answers, whose connections outlast a test's unread answers.
fn server_with_little_room() -> Server {
    Server::start_with(Options {
        environment: vec![
            ("GUANXI_HTTP_ANSWERS_BYTES_MAX".to_owned(), BUDGET_BYTES.to_string()),
            ("GUANXI_HTTP_WRITE_TIMEOUT_MS".to_owned(), "60000".to_owned()),
        ],
        ..Options::default()
    })
}

/// As many answers to this request that nobody reads; returns them, those that were refused, and how
/// much memory they took.
async fn leave_unread(
    server: &Server,
    path: &str,
    body: &Bytes,
) -> (Vec<http::Response<h2::RecvStream>>, Vec<http::Response<h2::RecvStream>>, u64) {
    let before = server.resident_bytes();
    let (mut held, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let connection = connect(server, 1).await;
        for _ in 0..ANSWERS_EACH {
            let answer = send(&connection, http::Method::POST, path, body.clone()).await;
            match answer.status().as_u16() {
                503 => refused.push(answer),
                _ => held.push(answer),
            }
        }
    }
    let grown = server.resident_bytes().saturating_sub(before);
    println!("{} unread answers, {} refused, took {grown} bytes", held.len(), refused.len());
    (held, refused, grown)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_batches_were_told_and_nobody_reads_keeps_further_ones_out() {
    let server = server_with_little_room();
    let wrong = json!({"op": "put", "kind": "no", "source": "1", "target": "2"});
    let batch = json!({"changes": vec![wrong; 1_000]});
    let told = server.client().post_json("/v1/edges/batch", batch.clone()).ok().to_string();
    assert!(told.len() > 150_000, "{} bytes", told.len());
    let (held, refused, grown) =
        leave_unread(&server, "/v1/edges/batch", &batch.to_string().into()).await;
    // The last one that is taken may go beyond the budget.
    assert!(held.len() <= 1 + BUDGET_BYTES as usize / (told.len() - 16_384), "{} held", held.len());
    assert!(refused.len() > held.len());
    assert!(grown < BUDGET_BYTES + BESIDE_BYTES, "{grown} bytes for unread answers");
    let [source, target] = nodes();
    let good =
        json!({"changes": [{"op": "put", "kind": "follow", "source": source, "target": target}]});
    let answer = server.client().post_json("/v1/edges/batch", good.clone());
    answer.expect_error(503, "overloaded");
    assert_eq!(answer.body["outcome"], "none");
    assert_eq!(server.get(edge("follow", source, target)).ok()["related"], false);
    // A write that is told in short goes on, and a batch when somebody has read.
    server.put(edge("follow", source, target)).ok();
    drop(held);
    poll_until("a batch finds room", ANSWER_DEADLINE, || {
        let answer = server.client().post_json("/v1/edges/batch", good.clone());
        (answer.status == 200).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_repeats_no_more_than_people_read() {
    let server = server_with_little_room();
    // Whole it would be a megabyte, and three and a half where JSON escapes it.
    for unit in ["x", "\\u0001"] {
        let name = unit.repeat(1_000_000 / unit.len());
        let body = Bytes::from(format!("{{\"{name}\":1}}"));
        let client = server.client();
        let request = client.request("POST", "/v1/hydrate");
        let answer = request.bytes("application/json", body.clone()).send();
        let message = answer.expect_error(400, "invalid_argument");
        assert!(message.len() <= 1_000, "{} bytes", message.len());
        assert!(message.starts_with("the body") && message.ends_with('…'), "{message}");
        let (held, refused, grown) = leave_unread(&server, "/v1/hydrate", &body).await;
        assert!(refused.is_empty() && held.len() == CONNECTIONS * ANSWERS_EACH);
        assert!(grown < BESIDE_BYTES, "{grown} bytes for unread errors");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_reads_in_small_steps_gets_all() {
    let server = shared();
    let page = long_page(&server);
    let whole = server.get(&page).ok().clone();
    for window in [1_000, 16_384, 65_535] {
        let connection = connect(&server, window).await;
        let mut body = ask(&connection, &page).await.into_body();
        let mut read = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece.expect("it comes to its end");
            body.flow_control().release_capacity(piece.len()).expect("it was held");
            read.extend_from_slice(&piece);
        }
        let read: Value = serde_json::from_slice(&read).expect("a whole answer");
        assert_eq!(read, whole, "with a window of {window}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_one_message_does_not_wait_for_its_bodys_end() {
    let server = shared();
    let raw = RawGrpc::connect(&server).await;
    let [source, target] = nodes();
    let get = frame(&get_request("follow", source, target));
    let answer = raw.send_part("/guanxi.v1.Edges/Get", &[GRPC], get.clone(), false).await;
    assert_eq!(answer.status.expect("a status").code(), tonic::Code::Ok);
    // What follows the message is nobody's.
    let twice = [get.clone(), get].concat();
    let answer = raw.send_part("/guanxi.v1.Edges/Get", &[GRPC], twice, false).await;
    assert_eq!(answer.status.expect("a status").code(), tonic::Code::Ok);
    // Two bytes on the wire are an object of 24 in memory; it goes as soon as it is refused.
    let objects = vec![proto::HydrateObject::default(); 400_000];
    let many = proto::HydrateManyRequest {
        requests: vec![proto::HydrateRequest { objects, ..Default::default() }],
        ..Default::default()
    };
    let answer = raw.send_part("/guanxi.v1.Reads/HydrateMany", &[GRPC], frame(&many), false).await;
    assert!(answer.status.expect("a status").code() != tonic::Code::DeadlineExceeded);
}

/// More than the imports that run at once.
const IMPORTS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn an_import_has_its_place_before_its_head_is_read() {
    let server = Server::start_with(Options {
        environment: vec![("GUANXI_HTTP_BODY_TIMEOUT_MS".to_owned(), "5000".to_owned())],
        ..Options::default()
    });
    let mut message = vec![0, 0, 15, 255, 255];
    message.resize(1_000_000, b' ');
    let message = Bytes::from(message);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..IMPORTS {
        let (connection, message) = (RawGrpc::connect(&server).await, message.clone());
        calls.spawn(async move {
            connection.send_part("/guanxi.v1.Admin/Import", &[GRPC], message, false).await
        });
    }
    let mut refused = 0;
    for answer in calls.join_all().await {
        let status = answer.status.expect("a status");
        match status.code() {
            tonic::Code::DeadlineExceeded => {}
            _ => {
                assert_refusal(&status, tonic::Code::Unavailable, "overloaded");
                refused += 1;
            }
        }
    }
    assert!((1..IMPORTS).contains(&refused), "{refused} of {IMPORTS}");
}

#[test]
fn what_machines_ask_is_answered_without_its_body() {
    let server = shared();
    for path in ["/healthz", "/readyz", "/metrics"] {
        let mut connection = RawConnection::open(server.address());
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16384\r\n");
        connection.send(format!("{head}\r\n{}", " ".repeat(1_000)));
        let begun = Instant::now();
        assert_eq!(connection.read_answer(ANSWER_DEADLINE).status(), Some(200), "{path}");
        // A body that is waited for ends with http.body_timeout_ms.
        assert!(begun.elapsed() < Duration::from_secs(8), "{path} waited for a body");
    }
}

/// Two megabytes a second.
const STEP: Duration = Duration::from_millis(125);
const STEP_BYTES: usize = 256 * 1024;
const THIRTY_MEGABYTES: usize = 30_000_000;

#[test]
fn a_refusal_reaches_a_client_on_a_slow_way() {
    let server = shared();
    let mut connection = RawConnection::open(server.address());
    connection.send(format!(
        "POST /v1/edges/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {THIRTY_MEGABYTES}\r\n\r\n"
    ));
    let mut left = THIRTY_MEGABYTES;
    while left > 0 {
        let bytes = left.min(STEP_BYTES);
        assert!(connection.send(vec![b' '; bytes]), "it must be let to send all; {left} are left");
        left -= bytes;
        thread::sleep(STEP);
    }
    assert_eq!(connection.read_answer(ANSWER_DEADLINE).status(), Some(413));
}
