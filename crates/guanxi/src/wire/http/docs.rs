//! The OpenAPI document and a page that shows it.

use std::sync::LazyLock;

use bytes::Bytes;

use super::document::{self, HealthRefusals};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;

const PAGE: &str = include_str!("docs.html");

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document::to_json()));

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "service", operation_id = "openapi",
    responses(
        (
            status = 200, description = "The document.",
            body = Object, content_type = "application/json",
        ),
        HealthRefusals,
    ),
)]
pub async fn openapi(request: HttpRequest) -> HttpAnswered {
    request.query(&[])?;
    reply::text("application/json", DOCUMENT.clone())
}

/// This document for people.
#[utoipa::path(
    get, path = "/docs", tag = "service", operation_id = "docs",
    responses(
        (status = 200, description = "The page.", body = String, content_type = "text/html"),
        HealthRefusals,
    ),
)]
pub async fn docs(request: HttpRequest) -> HttpAnswered {
    request.query(&[])?;
    reply::text("text/html; charset=utf-8", PAGE)
}
