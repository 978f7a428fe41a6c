//! Errors on their way to the caller. A handler returns a `Refusal`; only `Front` knows the
//! request id, so it writes the body, for handlers, router and bounds alike.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use guanxi_api::{Problem, status_of};
use guanxi_model::{Code, Error};

const CONTENT_TYPE: &str = "application/problem+json";
/// When to try again what found no room: the least that the header can say.
const RETRY_AFTER_SECONDS: &str = "1";
/// How the paths of our gRPC methods begin.
const GRPC_PATHS: &str = "/guanxi.v1.";

/// A handler's way to say no.
#[derive(Debug)]
pub struct Refusal(pub Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        answer(self.0)
    }
}

/// The error as an answer that still lacks its body.
#[derive(Debug, Clone)]
struct Unwritten(Error);

pub fn answer(error: Error) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() =
        StatusCode::from_u16(status_of(error.code)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.extensions_mut().insert(Unwritten(error));
    answer
}

pub fn is_unwritten(answer: &Response<Body>) -> bool {
    answer.extensions().get::<Unwritten>().is_some()
}

/// The error of an answer that still lacks its body.
pub fn take(answer: &mut Response<Body>) -> Option<Error> {
    answer.extensions_mut().remove().map(|Unwritten(error)| error)
}

/// Writes the body of an error; returns its code, or none when the answer is no error.
pub fn render(answer: &mut Response<Body>, request_id: &str) -> Option<Code> {
    let error = take(answer)?;
    let body = serde_json::to_vec(&Problem::new(&error, request_id)).unwrap_or_default();
    *answer.body_mut() = Body::from(body);
    let content_type = HeaderValue::from_static(CONTENT_TYPE);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    // The router measured the empty body that stood here before.
    headers.remove(header::CONTENT_LENGTH);
    if error.code == Code::Overloaded {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    }
    Some(error.code)
}

/// What the router says about a path that leads nowhere.
pub async fn not_found(uri: axum::http::Uri) -> Refusal {
    let shown: String = uri.path().chars().take(100).collect();
    if shown.starts_with(GRPC_PATHS) {
        return Refusal(Error::new(
            Code::UnsupportedMediaType,
            format!("{shown} is a gRPC method, with content-type: application/grpc"),
        ));
    }
    Refusal(Error::new(
        Code::NotFound,
        format!("there is nothing at {shown}; /docs describes every call"),
    ))
}

/// What the router says about a method that a path does not have; it adds the Allow header.
pub async fn method_not_allowed(method: axum::http::Method, uri: axum::http::Uri) -> Refusal {
    let shown: String = uri.path().chars().take(100).collect();
    Refusal(Error::new(
        Code::MethodNotAllowed,
        format!("{method} is not possible on {shown}; the Allow header says what is"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_gets_its_status_type_and_body() {
        let error = Error::new(Code::UnknownKind, "there is no kind 'x'");
        let mut answer = answer(error);
        assert_eq!(render(&mut answer, "r"), Some(Code::UnknownKind));
        assert_eq!(answer.status(), 404);
        assert_eq!(answer.headers()["content-type"], CONTENT_TYPE);
        assert_eq!(render(&mut answer, "r"), None, "written once");
    }
}
