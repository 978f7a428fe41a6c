//! Errors on their way to a gRPC caller: the status that fits, and in its details what a problem
//! over HTTP has. Only `Front` knows how a call ended, so it writes them all here.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use guanxi_api::{Problem, grpc_status_of};
use guanxi_model::{Code, Error};
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

use crate::wire::http::problem;

const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
const DOMAIN: &str = "guanxi";
/// When to try again what may succeed later: a few batches on, soon enough for a person who waits.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The same where a job is in the way, which takes seconds.
const RETRY_DELAY_JOB: Duration = Duration::from_secs(1);
/// How much of a wrong path an error repeats.
const SHOWN_CHARS_MAX: usize = 100;

/// A method's way to say no; the status still lacks its details.
pub fn refusal(error: Error) -> Status {
    let mut status = Status::new(grpc_status_of(&error), "");
    status.set_source(Arc::new(error));
    status
}

/// What the router says about a method that nobody has.
pub async fn no_such_method(uri: Uri) -> Response {
    let shown: String = uri.path().chars().take(SHOWN_CHARS_MAX).collect();
    problem::answer(unknown_method(&shown))
}

fn unknown_method(name: &str) -> Error {
    let hint = "server reflection lists those there are";
    Error::new(Code::MethodNotAllowed, format!("there is no method {name}; {hint}"))
}

/// The whole status of an error.
pub fn written(error: &Error, request_id: &Arc<str>) -> Status {
    let problem = Problem::new(error.clone(), request_id.clone());
    let Problem { code, message, retryable, outcome, .. } = problem;
    let facts = [
        ("retryable", retryable.to_string()),
        ("outcome", outcome.into_owned()),
        ("request_id", request_id.as_ref().to_owned()),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value));
    let mut details = ErrorDetails::with_error_info(code, DOMAIN, facts);
    if retryable {
        details.set_retry_info(Some(match error.code {
            Code::Conflict => RETRY_DELAY_JOB,
            _ => RETRY_DELAY,
        }));
    }
    Status::with_error_details(grpc_status_of(error), message, details)
}

/// Writes the status of an answer that is an error; returns its code, or none when it is no error.
pub fn render(answer: &mut Response<Body>, request_id: &Arc<str>) -> Option<Code> {
    let error = match problem::take(answer) {
        Some(error) => error,
        None => error_of(status_of(answer)?),
    };
    let accepted = answer.headers_mut().remove(ACCEPT_ENCODING);
    *answer = written(&error, request_id).into_http();
    // Whoever packed its message in a way that is not read here learns which ways are.
    if let Some(accepted) = accepted {
        answer.headers_mut().insert(ACCEPT_ENCODING, accepted);
    }
    Some(error.code)
}

/// The status of an answer that is one; the library leaves some of its own in the head alone.
fn status_of(answer: &mut Response<Body>) -> Option<Status> {
    let left = answer.extensions_mut().remove::<Status>();
    let status = left.or_else(|| Status::from_header_map(answer.headers()))?;
    Some(status).filter(|status| status.code() != tonic::Code::Ok)
}

/// The error behind a status: a method's own, or what the library says about a request that never
/// reached one.
pub fn error_of(status: Status) -> Error {
    if let Some(error) = status.source().and_then(|source| source.downcast_ref::<Error>()) {
        return error.clone();
    }
    let said = status.message();
    match status.code() {
        tonic::Code::Unimplemented if said.is_empty() => unknown_method("of this name"),
        tonic::Code::Unimplemented => Error::new(Code::MethodNotAllowed, said),
        tonic::Code::NotFound => Error::new(Code::NotFound, said),
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => {
            Error::new(Code::TooLarge, format!("the message is too large ({said}); split it"))
        }
        // The library calls a message that it cannot read an internal error; the caller made it.
        _ => Error::invalid(format!("the message could not be read: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_what_a_problem_has() {
        let error = Error::new(Code::Overloaded, "full").outcome_unknown();
        let mut answer = problem::answer(error);
        assert_eq!(render(&mut answer, &"r-1".into()), Some(Code::Overloaded));
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "full"));
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("overloaded", DOMAIN));
        assert_eq!(info.metadata["retryable"], "true");
        assert_eq!(info.metadata["outcome"], "unknown");
        assert_eq!(info.metadata["request_id"], "r-1");
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(RETRY_DELAY));
    }

    #[test]
    fn what_never_reached_a_method_is_of_the_closed_list_too() {
        for (status, code) in [
            (Status::internal("failed to decode"), Code::InvalidArgument),
            (Status::out_of_range("too large"), Code::TooLarge),
            (Status::unimplemented(""), Code::MethodNotAllowed),
            (refusal(Error::new(Code::Excluded, "a block stands")), Code::Excluded),
        ] {
            let mut answer = status.into_http();
            assert_eq!(render(&mut answer, &"r".into()), Some(code));
        }
        let mut answer = Response::default();
        assert_eq!(render(&mut answer, &"r".into()), None);
        answer.headers_mut().insert("grpc-status", "12".parse().unwrap());
        assert_eq!(
            render(&mut answer, &"r".into()),
            Some(Code::MethodNotAllowed),
            "in the head alone"
        );
    }
}
