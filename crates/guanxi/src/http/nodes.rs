//! A node's settings, and its erasure.

use axum::http::StatusCode;
use guanxi_api::nodes::{JobStarted, NodeChange, NodeSettings};
use guanxi_model::{Answer, Change};

use super::document::{NodePath, NodeReadRefusals, NodeWriteRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::unexpected;

/// Reads a node's settings.
#[utoipa::path(
    get, path = "/v1/nodes/{type}/{id}", tag = "nodes", operation_id = "get_node",
    params(NodePath),
    responses((status = 200, description = "The settings.", body = NodeSettings), NodeReadRefusals),
)]
pub async fn get(call: Call) -> Answered {
    let node = call.node().await?;
    let query = call.query(&[])?;
    call.no_body()?;
    let row = call.caller(&query)?.read(move |reader| reader.node(&node)).await?;
    let private = row.private;
    Reply::ok(&NodeSettings { private })
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
pub async fn put(call: Call) -> Answered {
    let node = call.node().await?;
    let query = call.query(&[])?;
    let NodeChange { private } = call.json()?;
    let change = Change::SetNode { node, private };
    let mut written = call.write(&query, vec![change], None).await?;
    match written.only()? {
        Answer::Node(row) => {
            let private = row.private;
            Ok(Reply::ok(&NodeSettings { private })?.with_token(&written.token))
        }
        other => Err(unexpected(&other).into()),
    }
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
pub async fn erase(call: Call) -> Answered {
    let node = call.node().await?;
    let query = call.query(&[])?;
    call.no_body()?;
    let change = Change::BeginErase { node };
    let mut written = call.write(&query, vec![change], None).await?;
    match written.only()? {
        Answer::Job(job) => {
            let job = job.0.to_string();
            let reply = Reply::json(StatusCode::ACCEPTED, &JobStarted { job })?;
            Ok(reply.with_token(&written.token))
        }
        other => Err(unexpected(&other).into()),
    }
}
