//! Errors on their way to the caller. Only `Front` knows how a request ended, so it writes the body,
//! for handlers, routes and bounds alike.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use guanxi_api::{Problem, status_of};
use guanxi_model::{Code, Error};

const CONTENT_TYPE: &str = "application/problem+json";
/// When to try again what found no room: the least that the header can say.
const RETRY_AFTER_SECONDS: &str = "1";

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
pub fn render(answer: &mut Response<Body>, request_id: &Arc<str>) -> Option<Code> {
    let error = take(answer)?;
    let code = error.code;
    let body = serde_json::to_vec(&Problem::new(error, request_id.clone())).unwrap_or_default();
    *answer.body_mut() = Body::from(body);
    let content_type = HeaderValue::from_static(CONTENT_TYPE);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    if code == Code::Overloaded {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    }
    Some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_gets_its_status_type_and_body() {
        let error = Error::new(Code::UnknownKind, "there is no kind 'x'");
        let mut answer = answer(error);
        assert_eq!(render(&mut answer, &"r".into()), Some(Code::UnknownKind));
        assert_eq!(answer.status(), 404);
        assert_eq!(answer.headers()["content-type"], CONTENT_TYPE);
        assert_eq!(render(&mut answer, &"r".into()), None, "written once");
    }
}
