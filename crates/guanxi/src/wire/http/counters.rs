//! Pure counters: one delta, or many.

use axum::http::StatusCode;
use guanxi_api::counters::{Count, CountBatch, CountBatchAnswer, CountRequest, Counted};

use super::document::{CountBatchRefusals, CountRefusals, CounterPath};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::counters;

/// Adds to a counter.
#[utoipa::path(
    post, path = "/v1/counters/{kind}/{id}", tag = "counters", operation_id = "count",
    params(CounterPath),
    request_body(content = CountRequest, content_type = "application/json"),
    responses((status = 200, description = "It counts.", body = Counted), CountRefusals),
)]
pub async fn count(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let count =
        Count { kind: request.name("kind"), id: request.id("id")?, request: request.json()? };
    let counted = counters::count(request.unkeyed_caller(&query).await?, count).await?;
    reply::written(StatusCode::OK, &counted, &counted.token)
}

/// Adds to many counters in order, each on its own.
#[utoipa::path(
    post, path = "/v1/counters/batch", tag = "counters", operation_id = "batch_counters",
    request_body(content = CountBatch, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each change.", body = CountBatchAnswer),
        CountBatchRefusals,
    ),
)]
pub async fn batch(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let batch: CountBatch<'_> = request.json()?;
    let answer = counters::batch(request.unkeyed_caller(&query).await?, batch).await?;
    reply::written(StatusCode::OK, &answer, &answer.token)
}
