//! Streams of bytes as bodies of answers.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

use crate::service::streams::Items;
use crate::wire::Streamed;

/// An answer whose body is this stream of bytes.
pub fn reply(content_type: &'static str, headers: HeaderMap, items: Items<Bytes>) -> Response {
    let mut answer = Response::new(Body::from_stream(items));
    *answer.headers_mut() = headers;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer.extensions_mut().insert(Streamed);
    answer
}
