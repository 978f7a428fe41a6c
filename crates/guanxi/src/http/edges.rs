//! Single edges: put, delete, get, approve, decline; and batches of them.

use guanxi_api::edges::{
    BatchAnswer, BatchRequest, ChangeResult, Changed, Edge, PutBody, Results, Reverse, VersionText,
};
use guanxi_api::{Id, Problem, Time};
use guanxi_model::{Answer, Change};

use super::document::{
    BatchRefusals, EdgePath, EdgeReadRefusals, EdgeWriteRefusals, Keyed, Strict,
};
use super::extract::Call;
use super::query::Query;
use super::reply::{Answered, Reply};
use crate::calls::{Reading, edges, unexpected};

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
pub async fn put(call: Call) -> Answered {
    let (_, edge) = call.edge().await?;
    let query = call.query(&["strict"])?;
    let strict = query.flag("strict")?;
    let body: PutBody = call.optional_json()?;
    let change = Change::Put(body.into_put(edge, strict));
    changed(&call, &query, change).await
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
pub async fn delete(call: Call) -> Answered {
    let (_, edge) = call.edge().await?;
    let query = call.query(&["strict"])?;
    let strict = query.flag("strict")?;
    call.no_body()?;
    let change = Change::Delete { edge, strict };
    changed(&call, &query, change).await
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
pub async fn get(call: Call) -> Answered {
    let (kind, edge) = call.edge().await?;
    let query = call.query(&[])?;
    call.no_body()?;
    let Reading { answer: found, degraded } =
        edges::get(&call.caller(&query)?, &kind, &edge).await?;
    let row = found.row.as_ref();
    Reply::ok(&Edge {
        related: found.related(),
        state: row.map(|row| row.state.into()),
        since: row.map(|row| Time(row.since)),
        group: found.group.as_ref().map(|name| name.as_str()),
        owner: row.and_then(|row| row.owner).map(Id),
        data: row.and_then(|row| row.data.as_deref()),
        version: row.map(|row| VersionText(row.version.0)),
        expires_at: row.and_then(|row| row.expires_at).map(Time),
        mutual: found.mutual(),
        reverse: found.reverse.as_ref().map(|back| Reverse {
            related: edges::is_live(back.as_ref()),
            state: back.as_ref().map(|row| row.state.into()),
            since: back.as_ref().map(|row| Time(row.since)),
        }),
        degraded,
    })
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
pub async fn approve(call: Call) -> Answered {
    let (_, edge) = call.edge().await?;
    let query = call.query(&[])?;
    call.no_body()?;
    changed(&call, &query, Change::Approve { edge }).await
}

/// Declines a pending edge, which removes it.
#[utoipa::path(
    post, path = "/v1/edges/{kind}/{source}/{target}/decline", tag = "edges",
    operation_id = "decline_edge",
    params(EdgePath, Keyed),
    responses((status = 200, description = "There is no edge.", body = Changed), EdgeWriteRefusals),
)]
pub async fn decline(call: Call) -> Answered {
    let (_, edge) = call.edge().await?;
    let query = call.query(&[])?;
    call.no_body()?;
    changed(&call, &query, Change::Decline { edge }).await
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
pub async fn batch(call: Call) -> Answered {
    let query = call.query(&[])?;
    let BatchRequest { changes } = call.json()?;
    let written = edges::batch(&call.caller(&query)?, changes, call.key()?).await?;
    let request_id = &call.context.request_id;
    let mut results = Vec::with_capacity(written.answers.len());
    for answer in &written.answers {
        results.push(match answer {
            Ok(Answer::Edge(answer)) => ChangeResult::Done(Changed::new(answer, &written.token)),
            Ok(other) => return Err(unexpected(other).into()),
            Err(error) => ChangeResult::Refused { error: Problem::new(error, request_id) },
        });
    }
    Ok(Reply::ok(&Results { results })?.with_token(&written.token))
}

async fn changed(call: &Call, query: &Query<'_>, change: Change) -> Answered {
    let (answer, token) = edges::change(&call.caller(query)?, change, call.key()?).await?;
    Ok(Reply::ok(&Changed::new(&answer, &token))?.with_token(&token))
}
