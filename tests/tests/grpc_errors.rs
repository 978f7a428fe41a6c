//! gRPC that goes wrong: each code with its status and details, and requests that no client would
//! send. Nothing hangs, nothing panics, and the service lives on.

use bytes::{BufMut, Bytes, BytesMut};
use guanxi_tests::grpc::proto::admin_client::AdminClient;
use guanxi_tests::grpc::proto::counters_client::CountersClient;
use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::proto::lists_client::ListsClient;
use guanxi_tests::grpc::proto::nodes_client::NodesClient;
use guanxi_tests::grpc::proto::reads_client::ReadsClient;
use guanxi_tests::grpc::proto::{self, edge_change};
use guanxi_tests::grpc::{
    RawGrpc, RawStatus, assert_refusal, channel, expect_refusal, frame, put_all,
};
use guanxi_tests::{Options, Server, nodes, shared};
use prost_types::Timestamp;
use tonic::Code;

const PUT: &str = "/guanxi.v1.Edges/Put";
const GRPC: (&str, &str) = ("content-type", "application/grpc");

fn put(source: u64, target: u64) -> proto::PutEdgeRequest {
    proto::PutEdgeRequest { kind: "follow".into(), source, target, ..Default::default() }
}

#[track_caller]
fn refused(answer: &RawStatus, code: Code, reason: &str) {
    let status = answer.status.as_ref();
    let status = status.unwrap_or_else(|| panic!("no status: {answer:?}"));
    assert_refusal(status, code, reason);
    assert_eq!(answer.http_status, 200, "gRPC speaks through its status");
    assert_eq!(answer.headers["content-type"], "application/grpc");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_fields_of_an_edge_are_named() {
    let server = shared();
    let mut client = EdgesClient::new(channel(&server));
    let good = put(1, 2);
    let past = Timestamp { seconds: 1_000, nanos: 0 };
    let broken = Timestamp { seconds: i64::MAX, nanos: -1 };
    for (wrong, named) in [
        (put(0, 2), "source: "),
        (put(1, 0), "target: "),
        (proto::PutEdgeRequest { owner: Some(0), ..good.clone() }, "owner: "),
        (proto::PutEdgeRequest { group: Some("a/b".into()), ..good.clone() }, "group: "),
        (proto::PutEdgeRequest { expires_at: Some(past), ..good.clone() }, "expires_at"),
        (proto::PutEdgeRequest { expires_at: Some(broken), ..good.clone() }, "expires_at: nanos"),
        (proto::PutEdgeRequest { clear: vec![7], ..good.clone() }, "clear: 7"),
        (
            proto::PutEdgeRequest { data: Some("x".into()), clear: vec![3], ..good.clone() },
            "data: ",
        ),
        (
            proto::PutEdgeRequest { idempotency_key: Some("a b".into()), ..good.clone() },
            "idempotency_key: ",
        ),
        (
            proto::PutEdgeRequest { idempotency_key: Some(String::new()), ..good.clone() },
            "idempotency_key: ",
        ),
        (proto::PutEdgeRequest { at_least: Some("garbage".into()), ..good.clone() }, "at_least: "),
        (proto::PutEdgeRequest { kind: "view".into(), ..good.clone() }, "kind view is a counter"),
    ] {
        let answer = client.put(wrong).await;
        let status = expect_refusal(answer, Code::InvalidArgument, "invalid_argument");
        assert!(status.message().contains(named), "{} names {named}", status.message());
    }
    server.assert_healthy();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_fields_of_reads_are_named() {
    let server = shared();
    let mut lists = ListsClient::new(channel(&server));
    let good = proto::ListOutgoingRequest { kind: "follow".into(), id: 1, ..Default::default() };
    for (wrong, named) in [
        (proto::ListOutgoingRequest { id: 0, ..good.clone() }, "id: "),
        (proto::ListOutgoingRequest { limit: Some(0), ..good.clone() }, "limit: "),
        (proto::ListOutgoingRequest { limit: Some(1_001), ..good.clone() }, "limit: "),
        (proto::ListOutgoingRequest { page: Some(0), ..good.clone() }, "page: "),
        (proto::ListOutgoingRequest { order: 9, ..good.clone() }, "order: "),
        (proto::ListOutgoingRequest { state: 3, ..good.clone() }, "state: "),
        (proto::ListOutgoingRequest { cursor: Some("x".into()), ..good.clone() }, "cursor"),
        (proto::ListOutgoingRequest { group: Some("..".into()), ..good.clone() }, "group: "),
    ] {
        let answer = lists.outgoing(wrong).await;
        let status = expect_refusal(answer, Code::InvalidArgument, "invalid_argument");
        assert!(status.message().contains(named), "{} names {named}", status.message());
    }
    let mut reads = ReadsClient::new(channel(&server));
    let check = proto::CheckRequest { source: 1, targets: vec![2, 0], ..Default::default() };
    let status =
        expect_refusal(reads.check(check).await, Code::InvalidArgument, "invalid_argument");
    assert!(status.message().starts_with("targets[1]: "), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_has_its_code() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut admin = AdminClient::new(channel(&server));
    let [source, target, third] = nodes();
    for name in ["grpc.few", "grpc.shallow"] {
        let kind = proto::CreateKindRequest {
            name: name.into(),
            source_type: Some("user".into()),
            target_type: "user".into(),
            outgoing_max: Some(1),
            list_depth_max: 1,
            ..Default::default()
        };
        admin.create_kind(kind).await.expect("a kind");
    }
    let of = |kind: &str, source, target| proto::PutEdgeRequest {
        kind: kind.into(),
        ..put(source, target)
    };
    let edge = of("no_such_kind", source, target);
    expect_refusal(edges.put(edge).await, Code::NotFound, "unknown_kind");
    expect_refusal(edges.put(put(source, source)).await, Code::InvalidArgument, "self_relation");
    let grouped = proto::PutEdgeRequest { group: Some("nobody".into()), ..put(source, target) };
    expect_refusal(edges.put(grouped).await, Code::NotFound, "unknown_group");
    let long = proto::PutEdgeRequest { data: Some("x".repeat(129)), ..put(source, target) };
    expect_refusal(edges.put(long).await, Code::ResourceExhausted, "too_large");

    edges.put(of("grpc.few", source, target)).await.expect("the first");
    let second = edges.put(of("grpc.few", source, third)).await;
    expect_refusal(second, Code::FailedPrecondition, "limit_reached");
    edges.put(of("block", source, target)).await.expect("a block");
    let follow = edges.put(put(target, source)).await;
    expect_refusal(follow, Code::FailedPrecondition, "excluded");

    let at_least = put_all(&mut edges, "grpc.shallow", &[(source, third), (target, third)]).await;
    let mut lists = ListsClient::new(channel(&server));
    let list = proto::ListIncomingRequest {
        kind: "grpc.shallow".into(),
        id: third,
        limit: Some(1),
        at_least,
        ..Default::default()
    };
    let next = lists.incoming(list.clone()).await.expect("a page").into_inner().next;
    let deeper = proto::ListIncomingRequest { cursor: next, ..list };
    expect_refusal(lists.incoming(deeper).await, Code::OutOfRange, "depth_exceeded");

    let mut nodes = NodesClient::new(channel(&server));
    let robot = proto::GetNodeRequest { r#type: "robot".into(), id: 1, at_least: None };
    expect_refusal(nodes.get(robot).await, Code::NotFound, "not_found");
    let job = proto::GetJobRequest { job: 1, at_least: None };
    expect_refusal(nodes.get_job(job).await, Code::NotFound, "not_found");
    let mut counters = CountersClient::new(channel(&server));
    let count =
        proto::CountRequest { kind: "follow".into(), id: 1, delta: 1, ..Default::default() };
    expect_refusal(counters.count(count).await, Code::InvalidArgument, "invalid_argument");
    let count =
        |delta| proto::CountRequest { kind: "view".into(), id: third, delta, ..Default::default() };
    let too_far = counters.count(count(i64::MAX)).await;
    expect_refusal(too_far, Code::FailedPrecondition, "limit_reached");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_fits_is_too_large_and_changes_nothing() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let [source] = nodes();
    let changes = |count: u64| {
        let change = |index| proto::EdgeChange {
            op: edge_change::Op::Put.into(),
            kind: "like".into(),
            source,
            target: 1 + index,
            ..Default::default()
        };
        let changes = (0..count).map(change).collect();
        proto::BatchEdgesRequest { changes, ..Default::default() }
    };
    let batch = edges.batch(changes(1_001)).await;
    expect_refusal(batch, Code::ResourceExhausted, "too_large");
    expect_refusal(edges.batch(changes(0)).await, Code::InvalidArgument, "invalid_argument");
    let mut wrong = changes(3);
    wrong.changes[2].source = 0;
    let status =
        expect_refusal(edges.batch(wrong).await, Code::InvalidArgument, "invalid_argument");
    assert!(status.message().starts_with("changes[2].source: "), "{}", status.message());
    let mut reads = ReadsClient::new(channel(&server));
    let tallies = |count| proto::TalliesRequest {
        ids: vec![source; count],
        kinds: vec!["like".into()],
        at_least: None,
    };
    let too_many = reads.tallies(tallies(1_001)).await;
    expect_refusal(too_many, Code::ResourceExhausted, "too_large");
    let answer = reads.tallies(tallies(1_000)).await.expect("as many as fit").into_inner();
    assert_eq!(answer.results[0].tallies["like"].outgoing, Some(0), "nothing was changed");
    let objects = vec![proto::HydrateObject { id: 1, author: None }; 257];
    let hydrate = proto::HydrateRequest { viewer: 1, objects, ..Default::default() };
    let answer = reads.hydrate(hydrate).await;
    expect_refusal(answer, Code::ResourceExhausted, "too_large");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_and_wrong_messages_are_refused() {
    let server = shared();
    let raw = RawGrpc::connect(&server).await;
    let [source, target] = nodes();
    let whole = frame(&put(source, target));
    let huge = |claimed: u32| {
        let mut out = BytesMut::new();
        out.put_u8(0);
        out.put_u32(claimed);
        out
    };
    let mut five_megabytes = huge(5_000_000);
    five_megabytes.put_bytes(7, 5_000_000);
    let mut garbage = huge(4);
    garbage.put_slice(b"\xff\xff\xff\xff");
    let mut compressed = BytesMut::from(&whole[..]);
    compressed[0] = 1;
    let invalid = (Code::InvalidArgument, "invalid_argument");
    let too_large = (Code::ResourceExhausted, "too_large");
    for (what, body, (code, reason)) in [
        ("half a message", whole.slice(..whole.len() - 2), invalid),
        ("half a head", whole.slice(..3), invalid),
        ("no message", Bytes::new(), invalid),
        ("no protobuf", garbage.freeze(), invalid),
        ("compressed in name", compressed.freeze(), invalid),
        ("JSON", Bytes::from_static(b"{\"kind\":\"follow\"}"), invalid),
        ("five megabytes", five_megabytes.freeze(), too_large),
        ("the promise of four gigabytes", huge(u32::MAX).freeze(), too_large),
    ] {
        println!("{what}");
        refused(&raw.send(PUT, &[GRPC], body).await, code, reason);
    }
    let path = guanxi_tests::edge("follow", source, target);
    assert_eq!(server.get(path).ok()["related"], false, "nothing was changed");
    let good = raw.send(PUT, &[GRPC], whole).await;
    assert_eq!(good.status.map(|status| status.code()), Some(Code::Ok), "the connection lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_and_wrong_content() {
    let server = shared();
    let raw = RawGrpc::connect(&server).await;
    let body = || frame(&put(1, 2));
    for path in ["/guanxi.v1.Edges/Paint", "/guanxi.v2.Edges/Put", "/Put", "/"] {
        let answer = raw.send(path, &[GRPC], body()).await;
        refused(&answer, Code::Unimplemented, "method_not_allowed");
    }
    for content_type in ["application/grpc-web", "application/grpc+json", "application/grpcx"] {
        let answer = raw.send(PUT, &[("content-type", content_type)], body()).await;
        refused(&answer, Code::InvalidArgument, "unsupported_media_type");
    }
    let packed = raw.send(PUT, &[GRPC, ("grpc-encoding", "snappy")], body()).await;
    refused(&packed, Code::Unimplemented, "method_not_allowed");
    let read = packed.headers.get("grpc-accept-encoding").expect("it says what is read");
    for name in ["gzip", "zstd"] {
        assert!(read.split(',').any(|known| known.trim() == name), "{name} in {read}");
    }
    let plain = server.request("POST", PUT).bytes("application/json", "{}").send();
    plain.expect_error(415, "unsupported_media_type");
    // gRPC needs HTTP/2 for its trailers; over HTTP/1.1 a refusal is still whole.
    let old = server.request("POST", PUT).bytes("application/grpc", "").send();
    assert_eq!((old.status, old.header("grpc-status")), (200, Some("3")));
    server.assert_healthy();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_honoured() {
    let server = shared();
    let raw = RawGrpc::connect(&server).await;
    let [source, target] = nodes();
    let whole = frame(&put(source, target));
    let with = |timeout: &'static str| [GRPC, ("grpc-timeout", timeout)];
    let late = raw.send(PUT, &with("1n"), whole.clone()).await;
    refused(&late, Code::DeadlineExceeded, "deadline_exceeded");
    let path = guanxi_tests::edge("follow", source, target);
    assert_eq!(server.get(path).ok()["related"], false, "what came too late was not done");
    let began = std::time::Instant::now();
    let stalled = raw.send_part(PUT, &with("300m"), whole.slice(..7), false).await;
    refused(&stalled, Code::DeadlineExceeded, "deadline_exceeded");
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "the caller's time, not ours");
    let wrong = raw.send(PUT, &with("5 years"), whole.clone()).await;
    refused(&wrong, Code::InvalidArgument, "invalid_argument");
    let enough = raw.send(PUT, &with("20S"), whole).await;
    assert_eq!(enough.status.map(|status| status.code()), Some(Code::Ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_and_metrics_are_those_of_http() {
    let server = Server::start();
    let raw = RawGrpc::connect(&server).await;
    let named = [GRPC, ("x-request-id", "my-own-7")];
    let answer = raw.send(PUT, &named, frame(&put(5, 5))).await;
    refused(&answer, Code::InvalidArgument, "self_relation");
    assert_eq!(answer.headers["x-request-id"], "my-own-7");
    let answer = raw.send(PUT, &[GRPC], frame(&put(5, 6))).await;
    assert!(!answer.headers["x-request-id"].is_empty(), "answers have one too");
    let metrics = server.get("/metrics").text;
    for line in [
        r#"guanxi_requests_total{call="put_edge",kind="follow",code="self_relation"} 1"#,
        r#"guanxi_requests_total{call="put_edge",kind="follow",code="ok"} 1"#,
        r#"guanxi_request_seconds_count{call="put_edge",kind="follow"} 2"#,
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_service_says_so_and_stays_healthy() {
    let environment = vec![("GUANXI_HTTP_REQUESTS_IN_FLIGHT_MAX".to_owned(), "1".to_owned())];
    let server = Server::start_with(Options { environment, ..Options::default() });
    let raw = RawGrpc::connect(&server).await;
    let held = RawGrpc::connect(&server).await;
    let half = frame(&put(1, 2)).slice(..7);
    let with = [GRPC, ("grpc-timeout", "5S")];
    // It asks until it has the only place, and then keeps it for as long as it may.
    let holding = tokio::spawn(async move {
        loop {
            let answer = held.send_part(PUT, &with, half.clone(), false).await;
            let code = answer.status.as_ref().map(|status| status.code());
            if code != Some(Code::Unavailable) {
                return answer;
            }
        }
    });
    let began = std::time::Instant::now();
    let refusal = loop {
        let answer = raw.send(PUT, &[GRPC], frame(&put(1, 2))).await;
        let status = answer.status.clone().expect("a status");
        if status.code() != Code::Ok {
            break answer;
        }
        assert!(began.elapsed().as_secs() < 5, "the place is never taken");
    };
    refused(&refusal, Code::Unavailable, "overloaded");
    let health = frame(&tonic_health::pb::HealthCheckRequest::default());
    let health = raw.send("/grpc.health.v1.Health/Check", &[GRPC], health).await;
    assert_eq!(health.status.map(|status| status.code()), Some(Code::Ok));
    refused(&holding.await.expect("an answer"), Code::DeadlineExceeded, "deadline_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_server_is_none_here() {
    let (server, elsewhere) = (Server::start(), Server::start());
    let path = guanxi_tests::edge("follow", 1, 2);
    for _ in 0..20 {
        elsewhere.put(&path).ok();
        elsewhere.delete(&path).ok();
    }
    let token = Some(elsewhere.put(&path).token());
    let mut client = EdgesClient::new(channel(&server));
    let read =
        proto::GetEdgeRequest { kind: "follow".into(), source: 1, target: 2, at_least: token };
    // It is sealed with a secret that is not ours.
    expect_refusal(client.get(read).await, Code::InvalidArgument, "invalid_argument");
}
