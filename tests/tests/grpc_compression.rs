//! Compressed messages over gRPC: both ways and both encodings, bounded by what they unpack to,
//! and left as they are where packing would be no use.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use guanxi_tests::grpc::proto::admin_client::AdminClient;
use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::proto::lists_client::ListsClient;
use guanxi_tests::grpc::proto::{self, edge_change};
use guanxi_tests::grpc::transfer::{export, head_message, import, lines_message};
use guanxi_tests::grpc::{
    RawGrpc, RawStatus, assert_refusal, channel, expect_refusal, frame, get_request, put_request,
};
use guanxi_tests::{Server, edge, node_run, nodes, shared};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::codec::CompressionEncoding::{self, Gzip, Zstd};
use tonic::codegen::tokio_stream;
use tonic::{Code, Status};

const ENCODINGS: [(CompressionEncoding, &str); 2] = [(Gzip, "gzip"), (Zstd, "zstd")];
const GRPC: (&str, &str) = ("content-type", "application/grpc");
const PUT: &str = "/guanxi.v1.Edges/Put";
const BATCH: &str = "/guanxi.v1.Edges/Batch";
/// Calls at once with all the elements that a message has room for.
const MANY: usize = 16;
/// What they may add to the service's memory: their messages, twice, and what else goes on. As
/// elements they took 84 MB each.
const MANY_BYTES_MAX: u64 = 128 << 20;
/// What a message may have when it is unpacked, by default.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

fn batch(source: u64, targets: &[u64]) -> proto::BatchEdgesRequest {
    let change = |target: &u64| proto::EdgeChange {
        op: edge_change::Op::Put.into(),
        kind: "follow".into(),
        source,
        target: *target,
        ..Default::default()
    };
    let changes = targets.iter().map(change).collect();
    proto::BatchEdgesRequest { changes, ..Default::default() }
}

fn outgoing(source: u64) -> proto::ListOutgoingRequest {
    let (kind, limit) = ("follow".into(), Some(1_000));
    proto::ListOutgoingRequest { kind, id: source, limit, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_calls_do_what_plain_ones_do() {
    let server = shared();
    let targets = node_run(500);
    let mut plain = ListsClient::new(channel(&server));
    for (encoding, name) in ENCODINGS {
        let [source] = nodes();
        let mut edges = EdgesClient::new(channel(&server))
            .send_compressed(encoding)
            .accept_compressed(encoding);
        let answer = edges.batch(batch(source, &targets)).await.expect("a batch").into_inner();
        assert_eq!(answer.results.len(), targets.len(), "{name}");
        let mut lists = ListsClient::new(channel(&server)).accept_compressed(encoding);
        let answer = lists.outgoing(outgoing(source)).await.expect("a list");
        assert_eq!(answer.metadata().get("grpc-encoding").expect("it is packed"), name);
        let answer = answer.into_inner();
        assert_eq!(answer.items.len(), targets.len());
        let same = plain.outgoing(outgoing(source)).await.expect("a list");
        assert!(same.metadata().get("grpc-encoding").is_none(), "nobody asked for packing");
        assert_eq!(answer, same.into_inner());
        let refused = edges.get(get_request("nothing", 1, 2)).await;
        expect_refusal(refused, Code::NotFound, "unknown_kind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_and_exports_may_be_compressed() {
    let server = Server::start();
    let line =
        |target: u64| format!("{{\"kind\":\"like\",\"source\":\"1\",\"target\":\"{target}\"}}\n");
    let text: String = (1..=20_000).map(line).collect();
    let mut plain = AdminClient::new(channel(&server));
    for (encoding, name) in ENCODINGS {
        let mut client = AdminClient::new(channel(&server))
            .send_compressed(encoding)
            .accept_compressed(encoding);
        let head = proto::ImportHead { id: Some(name.into()), ..Default::default() };
        let answer = import(&mut client, head, &text, 500_000).await.expect("an import");
        let answer = answer.into_inner();
        assert_eq!((answer.lines, answer.accepted, answer.rejected), (20_000, 20_000, 0));
        let request = proto::ExportRequest::default;
        let answer = client.export(request()).await.expect("an export");
        assert_eq!(answer.metadata().get("grpc-encoding").expect("it is packed"), name);
        drop(answer);
        let (packed, same) =
            (export(&mut client, request()).await, export(&mut plain, request()).await);
        assert_eq!(packed, same);
        assert_eq!(packed.1.lines().count(), 20_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bound_of_a_message_counts_what_it_unpacks_to() {
    let server = shared();
    for (encoding, name) in ENCODINGS {
        let mut client = AdminClient::new(channel(&server)).send_compressed(encoding);
        let lines = |bytes: usize| {
            let head = head_message(proto::ImportHead::default());
            tokio_stream::iter([head, lines_message(vec![b'\n'; bytes])])
        };
        // A few hundred bytes on the wire, and empty lines when unpacked.
        let fits = client.import(lines(MESSAGE_BYTES_MAX - 100)).await.expect("an import");
        let fits = fits.into_inner();
        assert_eq!((fits.lines, fits.rejected), (MESSAGE_BYTES_MAX as u64 - 100, 0), "{name}");
        for bytes in [MESSAGE_BYTES_MAX + 1, 64 << 20] {
            let refused = client.import(lines(bytes)).await;
            let status = expect_refusal(refused, Code::ResourceExhausted, "too_large");
            assert!(status.message().contains("split it"), "{}", status.message());
        }
    }
    server.assert_healthy();
}

/// What the head and the first message of a whole answer say.
fn packed(answer: &RawStatus) -> (Option<&str>, bool) {
    let code = answer.status.as_ref().map(Status::code);
    assert_eq!(code, Some(Code::Ok), "{answer:?}");
    let encoding = answer.headers.get("grpc-encoding").map(String::as_str);
    (encoding, answer.body.first() == Some(&1))
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_packed_and_short_ones_are_not() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let [source] = nodes();
    edges.batch(batch(source, &node_run(500))).await.expect("a batch");
    let raw = RawGrpc::connect(&server).await;
    let mut lengths = HashMap::new();
    for accepted in ["identity", "gzip", "zstd", "snappy, zstd", "snappy"] {
        let headers = [GRPC, ("grpc-accept-encoding", accepted)];
        let long = raw.send("/guanxi.v1.Lists/Outgoing", &headers, frame(&outgoing(source))).await;
        let short =
            raw.send("/guanxi.v1.Edges/Get", &headers, frame(&get_request("follow", 1, 2))).await;
        assert!(!packed(&short).1, "{accepted}: {} bytes", short.body.len());
        let expected = ["gzip", "zstd"].into_iter().find(|name| accepted.contains(name));
        assert_eq!(packed(&long), (expected, expected.is_some()), "{accepted}");
        lengths.insert(accepted, long.body.len());
    }
    for accepted in ["gzip", "zstd"] {
        assert!(lengths[accepted] < lengths["identity"] / 2, "{lengths:?}");
    }
}

/// A message that is said to be packed, with these bytes.
fn packed_frame(bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(1);
    out.put_u32(u32::try_from(bytes.len()).expect("a message of a test is small"));
    out.put_slice(bytes);
    out.freeze()
}

/// Two bytes are one element, which takes a hundred and more when it is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_very_many_elements_is_refused_before_it_is_read() {
    let server = Server::start();
    let elements = (MESSAGE_BYTES_MAX - 1) / 2;
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(2 * elements).expect("a mebibyte"));
    message.put_slice(&[0x0a, 0].repeat(elements));
    let message = message.freeze();
    let raw = Arc::new(RawGrpc::connect(&server).await);
    let before = server.resident_bytes();
    let mut calls = JoinSet::new();
    for _ in 0..MANY {
        let (raw, message) = (raw.clone(), message.clone());
        // The bodies go on, so that whatever was read of them would be kept.
        calls.spawn(async move { raw.send_part(BATCH, &[GRPC], message, false).await });
    }
    for answer in calls.join_all().await {
        let status = answer.status.as_ref().expect("a status");
        assert_refusal(status, Code::InvalidArgument, "invalid_argument");
        assert!(status.message().contains("split it"), "{}", status.message());
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < MANY_BYTES_MAX, "{} MiB more", grown >> 20);
    let many = vec![proto::EdgeChange::default(); elements];
    for (encoding, name) in ENCODINGS {
        let mut edges = EdgesClient::new(channel(&server)).send_compressed(encoding);
        let request = proto::BatchEdgesRequest { changes: many.clone(), ..Default::default() };
        let refused = edges.batch(request).await;
        let status = expect_refusal(refused, Code::InvalidArgument, "invalid_argument");
        assert!(status.message().contains("split it"), "{name}: {}", status.message());
    }
    server.assert_healthy();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_packed_wrongly_is_refused() {
    let server = shared();
    let raw = RawGrpc::connect(&server).await;
    let [source, target] = nodes();
    // A head of zstd that promises a gigabyte, and then nothing.
    let promise = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x40];
    let put = put_request("follow", source, target);
    let encoded = frame(&put).slice(5..);
    for (_, name) in ENCODINGS {
        let headers = [GRPC, ("grpc-encoding", name)];
        for bytes in [&b"not packed at all"[..], &promise, &encoded] {
            let answer = raw.send(PUT, &headers, packed_frame(bytes)).await;
            let status = answer.status.as_ref().expect("a status");
            assert_refusal(status, Code::InvalidArgument, "invalid_argument");
        }
        // Whoever packs messages may leave one as it is.
        let answer = raw.send(PUT, &headers, frame(&put)).await;
        assert_eq!(answer.status.map(|status| status.code()), Some(Code::Ok), "{name}");
    }
    assert_eq!(server.get(edge("follow", source, target)).ok()["related"], true);
    server.assert_healthy();
}

/// More than the budget for bodies has room for messages of the greatest size.
const UNFINISHED: usize = 100;

/// Whoever only begins a packed message has not the room that it might take when it is unpacked.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_packed_messages_keep_nobody_out() {
    let server = Server::start();
    let raw = Arc::new(RawGrpc::connect(&server).await);
    let headers = [GRPC, ("grpc-encoding", "gzip")];
    let prefix = Bytes::from_static(&[1, 0, 0, 0, 200]);
    let mut calls = JoinSet::new();
    let mut streams = Vec::new();
    for at in 0..UNFINISHED {
        // Also where there are many messages.
        let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let path = if at % 2 == 0 { PUT } else { reflection };
        streams.push(raw.begin(path, &headers, prefix.clone()).await);
    }
    // The server has what was sent before on the same connection.
    let answer = raw.send("/guanxi.v1.Edges/Get", &[GRPC], frame(&get_request("follow", 1, 2)));
    assert_eq!(answer.await.status.map(|status| status.code()), Some(Code::Ok));
    for _ in 0..MANY {
        let channel = channel(&server);
        calls.spawn(async move {
            let mut edges = EdgesClient::new(channel).send_compressed(Gzip);
            edges.batch(batch(1, &[2, 3, 4])).await.map(drop)
        });
    }
    for answer in calls.join_all().await {
        answer.expect("a packed call finds room");
    }
    let changes: Vec<_> = node_run(1_000)
        .iter()
        .map(|target| json!({"op": "put", "kind": "like", "source": "1", "target": target}))
        .collect();
    server.client().post_json("/v1/edges/batch", json!({"changes": changes})).ok();
    drop(streams);
}
