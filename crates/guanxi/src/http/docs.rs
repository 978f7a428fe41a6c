//! The OpenAPI document and a page that shows it.

use super::document::HealthRefusals;
use super::extract::Call;
use super::reply::{Answered, Reply};

const PAGE: &str = include_str!("docs.html");

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
pub async fn openapi(call: Call) -> Answered {
    call.query(&[])?;
    Ok(Reply::text("application/json", call.app.document.clone()))
}

/// This document for people.
#[utoipa::path(
    get, path = "/docs", tag = "service", operation_id = "docs",
    responses(
        (status = 200, description = "The page.", body = String, content_type = "text/html"),
        HealthRefusals,
    ),
)]
pub async fn docs(call: Call) -> Answered {
    call.query(&[])?;
    Ok(Reply::text("text/html; charset=utf-8", PAGE))
}
