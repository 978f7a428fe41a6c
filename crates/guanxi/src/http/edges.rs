//! Single edges: put, delete, get, approve, decline; and batches of them.

use axum::http::StatusCode;
use guanxi_api::edges::{
    BatchAnswer, BatchRequest, ChangeResult, Changed, Edge, PutBody, Results, Reverse, VersionText,
};
use guanxi_api::{Id, Problem, Time};
use guanxi_model::limits::REQUEST_CHANGES_MAX;
use guanxi_model::{Answer, Change, Code, EdgeKey, Error, SourceId, State, TargetId};

use super::document::{
    BatchRefusals, EdgePath, EdgeReadRefusals, EdgeWriteRefusals, Keyed, Strict,
};
use super::extract::{Call, WriteAnswer, unexpected};
use super::reply::{Answered, Reply};

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
    let (_, edge) = call.edge()?;
    let query = call.query(&["strict"])?;
    let strict = query.flag("strict")?;
    let body: PutBody = call.optional_json()?;
    let change = Change::Put(body.into_put(edge, strict));
    let written = call.write(&query, vec![change], call.key()?).await?;
    changed(written)
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
    let (_, edge) = call.edge()?;
    let query = call.query(&["strict"])?;
    let strict = query.flag("strict")?;
    call.no_body()?;
    let change = Change::Delete { edge, strict };
    let written = call.write(&query, vec![change], call.key()?).await?;
    changed(written)
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
    let (kind, edge) = call.edge()?;
    let query = call.query(&[])?;
    call.no_body()?;
    kind.require_edges()?;
    let reader = call.reader(&query).await?;
    let row = reader.edge(&edge)?;
    let group = match &row {
        Some(row) => reader.group_name(&edge, row)?,
        None => None,
    };
    let back = match kind.same_type() {
        true => Some(reader.edge(&edge.reversed())?),
        false => None,
    };
    let related = row.as_ref().is_some_and(|row| row.is_live());
    let reverse = back.as_ref().map(|back| Reverse {
        related: back.as_ref().is_some_and(|row| row.is_live()),
        state: back.as_ref().map(|row| row.state.into()),
        since: back.as_ref().map(|row| Time(row.since)),
    });
    let row = row.as_ref();
    Reply::ok(&Edge {
        related,
        state: row.map(|row| row.state.into()),
        since: row.map(|row| Time(row.since)),
        group: group.as_ref().map(|name| name.as_str()),
        owner: row.and_then(|row| row.owner).map(Id),
        data: row.and_then(|row| row.data.as_deref()),
        version: row.map(|row| VersionText(row.version.0)),
        expires_at: row.and_then(|row| row.expires_at).map(Time),
        mutual: reverse.map(|reverse| related && reverse.related),
        reverse,
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
    let (_, edge) = call.edge()?;
    let query = call.query(&[])?;
    call.no_body()?;
    let written = call.write(&query, vec![Change::Approve { edge }], call.key()?).await?;
    changed(written)
}

/// Declines a pending edge, which removes it.
#[utoipa::path(
    post, path = "/v1/edges/{kind}/{source}/{target}/decline", tag = "edges",
    operation_id = "decline_edge",
    params(EdgePath, Keyed),
    responses((status = 200, description = "There is no edge.", body = Changed), EdgeWriteRefusals),
)]
pub async fn decline(call: Call) -> Answered {
    let (_, edge) = call.edge()?;
    let query = call.query(&[])?;
    call.no_body()?;
    let written = call.write(&query, vec![Change::Decline { edge }], call.key()?).await?;
    changed(written)
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
    bounded(changes.len())?;
    let catalog = call.app.engine.catalog();
    let mut wanted = Vec::with_capacity(changes.len());
    for (index, change) in changes.into_iter().enumerate() {
        change.check(index)?;
        let kind = catalog.named(call.tenant(), change.kind.as_str());
        wanted.push(kind.map(|kind| {
            let edge = EdgeKey {
                tenant: call.tenant(),
                kind: kind.id,
                source: SourceId(change.source.0),
                target: TargetId(change.target.0),
            };
            change.into_change(edge)
        }));
    }
    let written = call.write_each(&query, wanted, call.key()?).await?;
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

/// A batch has at least one change and not too many.
pub fn bounded(changes: usize) -> Result<(), Error> {
    match changes {
        0 => Err(Error::invalid("changes: there must be at least one")),
        1..=REQUEST_CHANGES_MAX => Ok(()),
        _ => Err(Error::new(
            Code::TooLarge,
            format!("changes: there are {changes}, at most {REQUEST_CHANGES_MAX} fit one request"),
        )),
    }
}

fn changed(mut written: WriteAnswer) -> Answered {
    match written.only()? {
        Answer::Edge(answer) => {
            debug_assert!(answer.since.is_some() || answer.state == State::Removed);
            let changed = Changed::new(&answer, &written.token);
            Ok(Reply::json(StatusCode::OK, &changed)?.with_token(&written.token))
        }
        other => Err(unexpected(&other).into()),
    }
}
