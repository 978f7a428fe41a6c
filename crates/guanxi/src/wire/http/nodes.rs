//! A node's settings, and its erasure.

use axum::http::StatusCode;
use guanxi_api::nodes::{JobStarted, NodeChange, NodeChanged, NodeSettings, PutNode};

use super::document::{NodePath, NodeReadRefusals, NodeWriteRefusals};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::nodes;

/// Reads a node's settings.
#[utoipa::path(
    get, path = "/v1/nodes/{type}/{id}", tag = "nodes", operation_id = "get_node",
    params(NodePath),
    responses((status = 200, description = "The settings.", body = NodeSettings), NodeReadRefusals),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let (query, node) = (request.query(&[])?, request.node()?);
    request.no_body()?;
    reply::ok(&nodes::get(request.caller(&query).await?, node).await?)
}

/// Changes a node's settings.
#[utoipa::path(
    put, path = "/v1/nodes/{type}/{id}", tag = "nodes", operation_id = "put_node",
    params(NodePath),
    request_body(content = NodeChange, content_type = "application/json"),
    responses(
        (status = 200, description = "The settings.", body = NodeSettings),
        NodeWriteRefusals,
    ),
)]
pub async fn put(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let put = PutNode { node: request.node()?, change: request.json()? };
    let changed = nodes::put(request.unkeyed_caller(&query).await?, put).await?;
    let NodeChanged { settings, token } = changed;
    reply::written(StatusCode::OK, &settings, &token)
}

/// Erases all edges of a node, both ways, with its groups, counters and settings.
///
/// The answer names a job; while it runs, puts that touch the node get `conflict`.
#[utoipa::path(
    delete, path = "/v1/nodes/{type}/{id}", tag = "nodes", operation_id = "erase_node",
    params(NodePath),
    responses(
        (status = 202, description = "The job that erases it.", body = JobStarted),
        NodeWriteRefusals,
    ),
)]
pub async fn erase(request: HttpRequest) -> HttpAnswered {
    let (query, node) = (request.query(&[])?, request.node()?);
    request.no_body()?;
    let started = nodes::erase(request.unkeyed_caller(&query).await?, node).await?;
    reply::written(StatusCode::ACCEPTED, &started, &started.token)
}
