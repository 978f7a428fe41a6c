//! What a gRPC caller finds without having any file of ours: health, and reflection by which it
//! can call everything.

use std::time::Duration;

use bytes::Buf;
use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::proto::watch_client::WatchClient;
use guanxi_tests::grpc::{
    assert_cut_by_stop, assert_refusal, channel, expect_refusal, get_request, proto,
};
use guanxi_tests::{Server, edge, nodes, shared};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

const SERVICES: [&str; 8] =
    ["Admin", "Counters", "Edges", "Groups", "Lists", "Nodes", "Reads", "Watch"];

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_for_the_whole_and_for_each_service() {
    let server = shared();
    let mut client = HealthClient::new(channel(&server));
    let named = SERVICES.map(|name| format!("guanxi.v1.{name}"));
    for service in named.into_iter().chain([String::new()]) {
        let answer = client.check(HealthCheckRequest { service }).await.expect("its health");
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    }
    let unknown = HealthCheckRequest { service: "guanxi.v1.Robots".into() };
    expect_refusal(client.check(unknown.clone()).await, Code::NotFound, "not_found");
    let mut watched = client.watch(unknown).await.expect("a stream").into_inner();
    let first = watched.message().await.expect("an event").expect("no end");
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_streams_with_a_reason_and_the_process_in_order() {
    let server = Server::start();
    let mut health = HealthClient::new(channel(&server));
    let asked = health.watch(HealthCheckRequest::default()).await;
    let mut health = asked.expect("a stream").into_inner();
    let first = health.message().await.expect("an event").expect("no end");
    assert_eq!(first.status(), ServingStatus::Serving);
    let mut watch = WatchClient::new(channel(&server));
    let mut watch =
        watch.watch(proto::WatchRequest::default()).await.expect("a stream").into_inner();
    watch.message().await.expect("an event").expect("no end");

    let stopped = tokio::task::spawn_blocking(move || server.terminate());
    let ended = async {
        loop {
            if let Err(status) = watch.message().await {
                return status;
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await.expect("an end");
    assert_cut_by_stop(&ended);
    assert_cut_by_stop(&health.message().await.expect_err("health ends too"));
    let stopped = stopped.await.expect("it stops");
    assert!(stopped.status.success(), "{}", stopped.log);
}

/// Asks one question of reflection.
async fn reflected(channel: &Channel, question: MessageRequest) -> Result<MessageResponse, Status> {
    let mut client = ServerReflectionClient::new(channel.clone());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let questions = tonic::codegen::tokio_stream::once(request);
    let mut answers = client.server_reflection_info(questions).await?.into_inner();
    let answer = answers.message().await?.expect("an answer");
    Ok(answer.message_response.expect("with something in it"))
}

/// Everything that reflection tells about a service, file by file.
async fn pool_of(channel: &Channel, service: &str) -> DescriptorPool {
    let mut pool = DescriptorPool::new();
    let mut questions = vec![MessageRequest::FileContainingSymbol(service.to_owned())];
    let mut files = Vec::new();
    while let Some(question) = questions.pop() {
        let answer = reflected(channel, question).await.expect("a file");
        let MessageResponse::FileDescriptorResponse(answer) = answer else {
            panic!("no file: {answer:?}");
        };
        for bytes in answer.file_descriptor_proto {
            let file = prost_types::FileDescriptorProto::decode(&bytes[..]).expect("a file");
            for import in &file.dependency {
                questions.push(MessageRequest::FileByFilename(import.clone()));
            }
            files.push(file);
        }
    }
    pool.add_file_descriptor_protos(files).expect("the files fit together");
    pool
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_is_listed() {
    let server = shared();
    let answer = reflected(&channel(&server), MessageRequest::ListServices(String::new())).await;
    let Ok(MessageResponse::ListServicesResponse(answer)) = answer else {
        panic!("no list: {answer:?}");
    };
    let names: Vec<String> = answer.service.into_iter().map(|service| service.name).collect();
    let ours = SERVICES.map(|name| format!("guanxi.v1.{name}"));
    for name in ours.iter().map(String::as_str).chain(["grpc.health.v1.Health"]) {
        assert!(names.iter().any(|listed| listed == name), "{name} in {names:?}");
    }
    let unknown = MessageRequest::FileContainingSymbol("guanxi.v1.Robots".into());
    let refused = reflected(&channel(&server), unknown).await;
    assert_eq!(refused.expect_err("no such symbol").code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_our_files_can_put_and_get() {
    let server = shared();
    let channel = channel(&server);
    let [source, target] = nodes();
    let pool = pool_of(&channel, "guanxi.v1.Edges").await;
    let edges = pool.get_service_by_name("guanxi.v1.Edges").expect("the service");
    let method =
        |name: &str| edges.methods().find(|method| method.name() == name).expect("the method");
    let call = async |name: &str, fields: &[(&str, Value)]| {
        let method = method(name);
        let mut message = DynamicMessage::new(method.input());
        for (name, value) in fields {
            message.set_field_by_name(name, value.clone());
        }
        let path = format!("/{}/{name}", edges.full_name()).parse().expect("a path");
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.expect("a connection");
        let codec = DynamicCodec { answer: method.output() };
        client.unary(Request::new(message), path, codec).await
    };
    let ends = |kind: &str| {
        [
            ("kind", Value::String(kind.into())),
            ("source", Value::U64(source)),
            ("target", Value::U64(target)),
        ]
    };
    let field = |message: &DynamicMessage, name: &str| {
        message.get_field_by_name(name).expect("the field").into_owned()
    };
    let changed = call("Put", &ends("follow")).await.expect("a put").into_inner();
    assert_eq!(field(&changed, "changed"), Value::Bool(true));
    let read = call("Get", &ends("follow")).await.expect("a get").into_inner();
    assert_eq!(field(&read, "related"), Value::Bool(true));
    assert_eq!(field(&read, "version"), field(&changed, "version"));
    assert_eq!(server.get(edge("follow", source, target)).ok()["related"], true);
    let refused = call("Get", &ends("nothing")).await.expect_err("no such kind");
    assert_refusal(&refused, Code::NotFound, "unknown_kind");
    let comments = edges.parent_file().file_descriptor_proto().source_code_info.is_some();
    assert!(comments, "the comments of the files come along");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_details_of_a_refusal_can_be_read_without_our_files() {
    let server = shared();
    let channel = channel(&server);
    let mut client = EdgesClient::new(channel.clone());
    let refused = client.get(get_request("nothing", 1, 2)).await.expect_err("no such kind");
    // What a client has of a status is a google.rpc.Status, whose details name their own types.
    let status = pool_of(&channel, "google.rpc.Status").await;
    let status = status.get_message_by_name("google.rpc.Status").expect("the message");
    let status = DynamicMessage::decode(status, refused.details()).expect("a status");
    let details = status.get_field_by_name("details").expect("the field").into_owned();
    let details = details.as_list().expect("a list").to_vec();
    let text = |message: &DynamicMessage, name: &str| {
        let field = message.get_field_by_name(name).expect("the field");
        field.as_str().expect("text").to_owned()
    };
    let mut reasons = Vec::new();
    for detail in &details {
        let detail = detail.as_message().expect("a message");
        let name = text(detail, "type_url").rsplit('/').next().expect("a name").to_owned();
        let kind = pool_of(&channel, &name).await;
        let kind = kind.get_message_by_name(&name).expect("the message");
        let value = detail.get_field_by_name("value").expect("the field").into_owned();
        let bytes = value.as_bytes().expect("bytes").clone();
        let message = DynamicMessage::decode(kind, bytes).expect("it can be read");
        if name == "google.rpc.ErrorInfo" {
            reasons.push((text(&message, "domain"), text(&message, "reason")));
        }
    }
    assert_eq!(reasons, [("guanxi".to_owned(), "unknown_kind".to_owned())]);
    for name in ["google.rpc.RetryInfo", "google.rpc.ErrorInfo"] {
        pool_of(&channel, name).await.get_message_by_name(name).expect("reflection knows it");
    }
}

/// Messages that are known only by their descriptors.
struct DynamicCodec {
    answer: MessageDescriptor,
}

impl Codec for DynamicCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = DynamicEncoder;
    type Decoder = DynamicDecoder;

    fn encoder(&mut self) -> DynamicEncoder {
        DynamicEncoder
    }

    fn decoder(&mut self) -> DynamicDecoder {
        DynamicDecoder { answer: self.answer.clone() }
    }
}

struct DynamicEncoder;

impl Encoder for DynamicEncoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(out).map_err(|error| Status::internal(error.to_string()))
    }
}

struct DynamicDecoder {
    answer: MessageDescriptor,
}

impl Decoder for DynamicDecoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let bytes = input.copy_to_bytes(input.remaining());
        let message = DynamicMessage::decode(self.answer.clone(), bytes);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
