//! The service `Edges`.

use guanxi_api::proto::edges_server::Edges;
use guanxi_api::proto::{
    ApproveEdgeRequest, BatchEdgesAnswer, BatchEdgesRequest, ChangedEdge, DeclineEdgeRequest,
    DeleteEdgeRequest, Edge, EdgeResult, GetEdgeRequest, PutEdgeRequest, ReverseEdge, State,
    edge_result, timestamp,
};
use guanxi_model::{Answer, Change, EdgeRow, Error};
use tonic::Request;

use super::{Answered, Call, Services};
use crate::calls::{Reading, edges, key, unexpected};

#[tonic::async_trait]
impl Edges for Services {
    async fn put(&self, request: Request<PutEdgeRequest>) -> Answered<ChangedEdge> {
        self.answer(request, put).await
    }

    async fn delete(&self, request: Request<DeleteEdgeRequest>) -> Answered<ChangedEdge> {
        self.answer(request, delete).await
    }

    async fn get(&self, request: Request<GetEdgeRequest>) -> Answered<Edge> {
        self.answer(request, get).await
    }

    async fn approve(&self, request: Request<ApproveEdgeRequest>) -> Answered<ChangedEdge> {
        self.answer(request, approve).await
    }

    async fn decline(&self, request: Request<DeclineEdgeRequest>) -> Answered<ChangedEdge> {
        self.answer(request, decline).await
    }

    async fn batch(&self, request: Request<BatchEdgesRequest>) -> Answered<BatchEdgesAnswer> {
        self.answer(request, batch).await
    }
}

async fn put(call: Call, mut request: PutEdgeRequest) -> Result<ChangedEdge, Error> {
    let (_, edge) = call.edge(&request.kind, request.source, request.target).await?;
    let (key, at_least) = (request.idempotency_key.take(), request.at_least.take());
    let strict = request.strict;
    let change = Change::Put(request.into_body()?.into_put(edge, strict));
    changed(&call, change, &key, &at_least).await
}

async fn delete(call: Call, request: DeleteEdgeRequest) -> Result<ChangedEdge, Error> {
    let (_, edge) = call.edge(&request.kind, request.source, request.target).await?;
    let change = Change::Delete { edge, strict: request.strict };
    changed(&call, change, &request.idempotency_key, &request.at_least).await
}

async fn approve(call: Call, request: ApproveEdgeRequest) -> Result<ChangedEdge, Error> {
    let (_, edge) = call.edge(&request.kind, request.source, request.target).await?;
    let change = Change::Approve { edge };
    changed(&call, change, &request.idempotency_key, &request.at_least).await
}

async fn decline(call: Call, request: DeclineEdgeRequest) -> Result<ChangedEdge, Error> {
    let (_, edge) = call.edge(&request.kind, request.source, request.target).await?;
    let change = Change::Decline { edge };
    changed(&call, change, &request.idempotency_key, &request.at_least).await
}

async fn changed(
    call: &Call,
    change: Change,
    key: &Option<String>,
    at_least: &Option<String>,
) -> Result<ChangedEdge, Error> {
    let key = self::key("idempotency_key", key.as_deref())?;
    let (answer, token) = edges::change(&call.caller(at_least), change, key).await?;
    Ok(ChangedEdge::new(&answer, &token))
}

async fn get(call: Call, request: GetEdgeRequest) -> Result<Edge, Error> {
    let (kind, edge) = call.edge(&request.kind, request.source, request.target).await?;
    let Reading { answer: found, degraded } =
        edges::get(&call.caller(&request.at_least), &kind, &edge).await?;
    let state = |row: &EdgeRow| State::from(row.state).into();
    let row = found.row.as_ref();
    Ok(Edge {
        related: found.related(),
        state: row.map(state),
        since: row.map(|row| timestamp(row.since)),
        group: found.group.as_ref().map(|name| name.as_str().to_owned()),
        owner: row.and_then(|row| row.owner),
        data: row.and_then(|row| row.data.as_deref()).map(str::to_owned),
        version: row.map(|row| row.version.0),
        expires_at: row.and_then(|row| row.expires_at).map(timestamp),
        mutual: found.mutual(),
        reverse: found.reverse.as_ref().map(|back| ReverseEdge {
            related: edges::is_live(back.as_ref()),
            state: back.as_ref().map(state),
            since: back.as_ref().map(|row| timestamp(row.since)),
        }),
        degraded,
    })
}

async fn batch(call: Call, request: BatchEdgesRequest) -> Result<BatchEdgesAnswer, Error> {
    let key = key("idempotency_key", request.idempotency_key.as_deref())?;
    edges::bounded(request.changes.len())?;
    let changes = request.changes.into_iter().enumerate();
    let changes = changes.map(|(index, change)| change.into_change(index));
    let changes = changes.collect::<Result<Vec<_>, Error>>()?;
    let written = edges::batch(&call.caller(&request.at_least), changes, key).await?;
    let mut results = Vec::with_capacity(written.answers.len());
    for answer in &written.answers {
        let result = match answer {
            Ok(Answer::Edge(answer)) => {
                edge_result::Result::Changed(ChangedEdge::new(answer, &written.token))
            }
            Ok(other) => return Err(unexpected(other)),
            Err(error) => edge_result::Result::Error(call.problem(error)),
        };
        results.push(EdgeResult { result: Some(result) });
    }
    Ok(BatchEdgesAnswer { results, token: written.token })
}
