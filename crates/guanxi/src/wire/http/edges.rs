//! Single edges: put, delete, get, approve, decline; and batches of them.

use axum::http::StatusCode;
use guanxi_api::edges::{BatchAnswer, BatchRequest, Changed, DeleteEdge, Edge, PutBody, PutEdge};
use guanxi_model::Error;

use super::document::{
    BatchRefusals, EdgePath, EdgeReadRefusals, EdgeWriteRefusals, Keyed, Strict,
};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::edges;

/// Relates a source to a target.
///
/// Idempotent: `changed` is false when the edge stood already as asked. With `strict` a standing
/// edge is refused.
#[utoipa::path(
    put, path = "/v1/edges/{kind}/{source}/{target}", tag = "edges", operation_id = "put_edge",
    params(EdgePath, Strict, Keyed),
    request_body(content = PutBody, content_type = "application/json"),
    responses((status = 200, description = "The edge stands.", body = Changed), EdgeWriteRefusals),
)]
pub async fn put(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["strict"])?;
    let strict = query.flag("strict")?;
    let put = PutEdge { edge: request.edge()?, strict, fields: request.optional_json()? };
    changed(edges::put(request.keyed_caller(&query).await?, put).await)
}

/// Removes an edge.
///
/// Idempotent: `changed` is false when there was none. With `strict` that is refused. A pending
/// edge is withdrawn.
#[utoipa::path(
    delete, path = "/v1/edges/{kind}/{source}/{target}", tag = "edges",
    operation_id = "delete_edge",
    params(EdgePath, Strict, Keyed),
    responses((status = 200, description = "There is no edge.", body = Changed), EdgeWriteRefusals),
)]
pub async fn delete(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["strict"])?;
    let delete = DeleteEdge { edge: request.edge()?, strict: query.flag("strict")? };
    request.no_body()?;
    changed(edges::delete(request.keyed_caller(&query).await?, delete).await)
}

/// Says what stands between a source and a target.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{source}/{target}", tag = "edges", operation_id = "get_edge",
    params(EdgePath),
    responses(
        (status = 200, description = "The edge, or that there is none.", body = Edge),
        EdgeReadRefusals,
    ),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let edge = request.edge()?;
    request.no_body()?;
    reply::ok(&edges::get(request.caller(&query).await?, edge).await?)
}

/// Approves a pending edge.
///
/// Approving a live edge changes nothing.
#[utoipa::path(
    post, path = "/v1/edges/{kind}/{source}/{target}/approve", tag = "edges",
    operation_id = "approve_edge",
    params(EdgePath, Keyed),
    responses((status = 200, description = "The edge is live.", body = Changed), EdgeWriteRefusals),
)]
pub async fn approve(request: HttpRequest) -> HttpAnswered {
    let (query, edge) = (request.query(&[])?, request.edge()?);
    request.no_body()?;
    changed(edges::approve(request.keyed_caller(&query).await?, edge).await)
}

/// Declines a pending edge, which removes it.
#[utoipa::path(
    post, path = "/v1/edges/{kind}/{source}/{target}/decline", tag = "edges",
    operation_id = "decline_edge",
    params(EdgePath, Keyed),
    responses((status = 200, description = "There is no edge.", body = Changed), EdgeWriteRefusals),
)]
pub async fn decline(request: HttpRequest) -> HttpAnswered {
    let (query, edge) = (request.query(&[])?, request.edge()?);
    request.no_body()?;
    changed(edges::decline(request.keyed_caller(&query).await?, edge).await)
}

/// Makes many changes in order, each decided on its own.
#[utoipa::path(
    post, path = "/v1/edges/batch", tag = "edges", operation_id = "batch_edges",
    params(Keyed),
    request_body(content = BatchRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each change.", body = BatchAnswer),
        BatchRefusals,
    ),
)]
pub async fn batch(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let batch: BatchRequest<'_> = request.json()?;
    let answer = edges::batch(request.keyed_caller(&query).await?, batch).await?;
    reply::written(StatusCode::OK, &answer, &answer.token)
}

fn changed(changed: Result<Changed, Error>) -> HttpAnswered {
    let changed = changed?;
    reply::written(StatusCode::OK, &changed, &changed.token)
}
