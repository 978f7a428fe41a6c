//! Answers of handlers: a JSON value written once into a buffer, with its headers.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use guanxi_model::{Code, Error};
use serde::Serialize;

/// What a handler returns.
pub type HttpAnswered = Result<Response, Error>;

const JSON: &str = "application/json";
/// Where a write's token stands beside its answer.
const TOKEN: &str = "guanxi-token";
/// Most answers are smaller; larger ones grow.
const BODY_BYTES_TYPICAL: usize = 512;

pub fn ok(value: &impl Serialize) -> HttpAnswered {
    json(StatusCode::OK, value)
}

pub fn json(status: StatusCode, value: &impl Serialize) -> HttpAnswered {
    let mut body = Vec::with_capacity(BODY_BYTES_TYPICAL);
    serde_json::to_writer(&mut body, value).map_err(|error| {
        tracing::error!(%error, "an answer could not be written");
        Error::new(Code::Internal, "the answer could not be written")
    })?;
    let mut answer = text(JSON, body)?;
    *answer.status_mut() = status;
    Ok(answer)
}

/// A write's answer.
pub fn written(status: StatusCode, value: &impl Serialize, token: &str) -> HttpAnswered {
    let mut answer = json(status, value)?;
    if let Ok(token) = HeaderValue::from_str(token) {
        answer.headers_mut().insert(TOKEN, token);
    }
    Ok(answer)
}

pub fn text(content_type: &'static str, body: impl Into<Bytes>) -> HttpAnswered {
    let mut answer = Response::new(Body::from(body.into()));
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(answer)
}
