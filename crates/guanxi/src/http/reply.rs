//! Answers of handlers: a JSON value written once into a buffer, with its headers.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use guanxi_model::{Code, Error};
use serde::Serialize;

use super::problem::Refusal;

/// What a handler returns.
pub type Answered = Result<Reply, Refusal>;

const JSON: &str = "application/json";
/// Most answers are smaller; larger ones grow.
const BODY_BYTES_TYPICAL: usize = 512;

#[derive(Debug)]
pub struct Reply {
    status: StatusCode,
    content_type: &'static str,
    token: Option<HeaderValue>,
    body: Bytes,
}

impl Reply {
    pub fn ok(value: &impl Serialize) -> Answered {
        Reply::json(StatusCode::OK, value)
    }

    pub fn json(status: StatusCode, value: &impl Serialize) -> Answered {
        let mut body = Vec::with_capacity(BODY_BYTES_TYPICAL);
        serde_json::to_writer(&mut body, value).map_err(|error| {
            tracing::error!(%error, "an answer could not be written");
            Error::new(Code::Internal, "the answer could not be written")
        })?;
        Ok(Reply { status, content_type: JSON, token: None, body: Bytes::from(body) })
    }

    pub fn text(content_type: &'static str, body: impl Into<Bytes>) -> Reply {
        Reply { status: StatusCode::OK, content_type, token: None, body: body.into() }
    }

    /// A write's token also stands in the header guanxi-token.
    pub fn with_token(mut self, token: &str) -> Reply {
        self.token = HeaderValue::from_str(token).ok();
        self
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut answer = Response::new(Body::from(self.body));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        let content_type = HeaderValue::from_static(self.content_type);
        headers.insert(header::CONTENT_TYPE, content_type);
        if let Some(token) = self.token {
            headers.insert("guanxi-token", token);
        }
        answer
    }
}
