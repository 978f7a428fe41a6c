//! Batch checks.

use std::sync::Arc;

use guanxi_api::check::{
    CheckAnswer, CheckPairs, CheckRequest, CheckTargets, PairChecked, TargetChecked,
};
use guanxi_api::edges::Results;
use guanxi_model::limits::REQUEST_CHECKS_MAX;
use guanxi_model::{EdgeKey, Error, Kind, KindId, SourceId, TargetId};

use super::document::ReadRefusals;
use super::extract::Call;
use super::query::Query;
use super::reply::{Answered, Reply};
use super::tallies::{kinds_named, too_many};

/// Checks one source against many targets, or any pairs.
#[utoipa::path(
    post, path = "/v1/check", tag = "reads", operation_id = "check",
    request_body(content = CheckRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each target or pair.", body = CheckAnswer),
        ReadRefusals,
    ),
)]
pub async fn check(call: Call) -> Answered {
    let query = call.query(&[])?;
    match call.json()? {
        CheckRequest::Targets(request) => targets(&call, &query, request).await,
        CheckRequest::Pairs(request) => pairs(&call, &query, request).await,
    }
}

async fn targets(call: &Call, query: &Query<'_>, request: CheckTargets<'_>) -> Answered {
    let kinds = kinds_named(call, "kinds", &request.kinds, REQUEST_CHECKS_MAX)?;
    let ways = 1 + usize::from(request.reverse);
    bounded(request.targets.len() * request.kinds.len() * ways)?;
    for kind in &kinds {
        kind.require_edges()?;
    }
    let reader = call.reader(query).await?;
    let ids: Vec<TargetId> = request.targets.iter().map(|id| TargetId(id.0)).collect();
    let source = SourceId(request.source.0);
    let checked = reader.check(call.tenant(), source, &ids, &kinds, request.reverse)?;
    let results = request.targets.iter().zip(&checked);
    let results = results.map(|(target, checked)| TargetChecked {
        target: *target,
        related: names(&checked.related, &kinds),
        pending: names(&checked.pending, &kinds),
        reverse: request.reverse.then(|| names(&checked.reverse, &kinds)),
    });
    Reply::ok(&Results { results: results.collect() })
}

async fn pairs(call: &Call, query: &Query<'_>, request: CheckPairs<'_>) -> Answered {
    bounded(request.pairs.len())?;
    let catalog = call.app.engine.catalog();
    let mut edges = Vec::with_capacity(request.pairs.len());
    for pair in &request.pairs {
        let kind = catalog.named(call.tenant(), pair.kind.as_str())?;
        kind.require_edges()?;
        edges.push(EdgeKey {
            tenant: call.tenant(),
            kind: kind.id,
            source: SourceId(pair.source.0),
            target: TargetId(pair.target.0),
        });
    }
    let reader = call.reader(query).await?;
    let mut results = Vec::with_capacity(edges.len());
    for edge in &edges {
        let row = reader.edge(edge)?;
        results.push(PairChecked {
            related: row.as_ref().is_some_and(|row| row.is_live()),
            state: row.map(|row| row.state.into()),
        });
    }
    Reply::ok(&Results { results })
}

/// Names of kinds that the request itself named.
pub fn names<'a>(ids: &[KindId], kinds: &'a [Arc<Kind>]) -> Vec<&'a str> {
    let find = |id: &KindId| kinds.iter().find(|kind| kind.id == *id);
    ids.iter().filter_map(|id| find(id).map(|kind| kind.name.as_str())).collect()
}

fn bounded(checks: usize) -> Result<(), Error> {
    match checks <= REQUEST_CHECKS_MAX {
        true => Ok(()),
        false => Err(too_many("checks", checks, REQUEST_CHECKS_MAX)),
    }
}
