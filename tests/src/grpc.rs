//! gRPC as callers have it: a client made from the proto files alone, the shape of a refusal, and
//! below that a connection that can send what no client would.

mod raw;
pub mod transfer;

use std::collections::BTreeSet;
use std::time::Duration;

use prost_types::Timestamp;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use self::proto::edges_client::EdgesClient;
use crate::answer::CLOSED_LIST;
use crate::server::Server;
use crate::waiting::rfc3339;

pub use raw::{RawGrpc, RawStatus, frame};

/// The messages and clients that the proto files make.
#[allow(clippy::all, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("guanxi.v1");
}

/// Far above what any call takes on a busy machine.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that is made when it is first needed.
pub fn channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(server.url()).expect("the address is a URI");
    endpoint.timeout(CALL_TIMEOUT).connect_lazy()
}

pub fn put_request(kind: &str, source: u64, target: u64) -> proto::PutEdgeRequest {
    proto::PutEdgeRequest { kind: kind.into(), source, target, ..Default::default() }
}

pub fn get_request(kind: &str, source: u64, target: u64) -> proto::GetEdgeRequest {
    proto::GetEdgeRequest { kind: kind.into(), source, target, at_least: None }
}

/// The token stands for all of them.
pub async fn put_all(
    client: &mut EdgesClient<Channel>,
    kind: &str,
    edges: &[(u64, u64)],
) -> Option<String> {
    put_more(client, None, kind, edges).await
}

/// After other writes, for which the token then stands, too.
pub async fn put_more(
    client: &mut EdgesClient<Channel>,
    mut token: Option<String>,
    kind: &str,
    edges: &[(u64, u64)],
) -> Option<String> {
    for (source, target) in edges {
        let put = proto::PutEdgeRequest { at_least: token, ..put_request(kind, *source, *target) };
        token = Some(client.put(put).await.expect("a put").into_inner().token);
    }
    token
}

/// A time as HTTP writes it.
#[track_caller]
pub fn rfc3339_of(time: Option<Timestamp>) -> String {
    let time = time.expect("a time");
    let seconds = u64::try_from(time.seconds).expect("times stand after 1970");
    let nanos = u64::try_from(time.nanos).expect("nanos are not negative");
    rfc3339(seconds * 1_000 + nanos / 1_000_000)
}

/// The status of a refused call, whose details must have the contract's whole shape.
#[track_caller]
pub fn expect_refusal<T: std::fmt::Debug>(
    answer: Result<Response<T>, Status>,
    code: Code,
    reason: &str,
) -> Status {
    let status = match answer {
        Ok(answer) => panic!("expected {reason}, got {answer:?}"),
        Err(status) => status,
    };
    assert_refusal(&status, code, reason);
    status
}

/// A stream that the service's stop cut: its reader hears so, or finds the connection broken. Both
/// are legal, as the last words may still be on their way when the process ends.
#[track_caller]
pub fn assert_cut_by_stop(status: &Status) {
    if let Some(information) = status.get_error_details().error_info() {
        assert_eq!(
            (information.reason.as_str(), status.code()),
            ("unavailable", Code::Unavailable)
        );
        assert_eq!(information.metadata["retryable"], "true");
        return;
    }
    let broken = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
    assert!(broken.contains(&status.code()), "{status:?}");
    assert!(std::error::Error::source(status).is_some(), "not of the connection: {status:?}");
}

#[track_caller]
pub fn assert_refusal(status: &Status, code: Code, reason: &str) {
    let details = status.get_error_details();
    let Some(information) = details.error_info() else {
        panic!("{status:?} has no ErrorInfo");
    };
    assert_eq!((information.reason.as_str(), status.code()), (reason, code), "{status:?}");
    assert_eq!(information.domain, "guanxi");
    assert!(CLOSED_LIST.iter().any(|(_, known)| *known == reason), "{reason} is not on the list");
    assert!(!status.message().is_empty(), "a refusal says what happened");
    let facts = &information.metadata;
    let names: BTreeSet<&str> = facts.keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["outcome", "request_id", "retryable"]));
    assert!(["none", "unknown"].contains(&facts["outcome"].as_str()), "{facts:?}");
    let retryable = facts["retryable"] == "true";
    assert_eq!(facts["retryable"], retryable.to_string());
    assert_eq!(details.retry_info().is_some(), retryable, "retry info where it makes sense");
    let header = status.metadata().get("x-request-id").map(|id| id.to_str().unwrap_or_default());
    assert_eq!(header, Some(facts["request_id"].as_str()), "one id in both places");
}
