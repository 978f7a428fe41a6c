//! Batch checks.

use guanxi_api::WireState;
use guanxi_api::check::{
    CheckAnswer, CheckPairs, CheckRequest, CheckTargets, Checks, PairChecked, TargetChecked,
};
use guanxi_model::State;

use super::document::ReadRefusals;
use super::extract::Call;
use super::query::Query;
use super::reply::{Answered, Reply};
use crate::calls::{check, names};

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
    let CheckTargets { source, targets, kinds, reverse } = request;
    let caller = call.caller(query)?;
    let (kinds, checked) = check::targets(&caller, source, &targets, &kinds, reverse).await?;
    let results = targets.iter().zip(&checked.answer).map(|(target, checked)| TargetChecked {
        target: *target,
        related: names(&checked.related, &kinds),
        pending: names(&checked.pending, &kinds),
        reverse: reverse.then(|| names(&checked.reverse, &kinds)),
    });
    Reply::ok(&Checks { results: results.collect(), degraded: checked.degraded })
}

async fn pairs(call: &Call, query: &Query<'_>, request: CheckPairs<'_>) -> Answered {
    let states = check::pairs(&call.caller(query)?, &request.pairs).await?;
    let results = states.answer.into_iter().map(|state| PairChecked {
        related: state == Some(State::Live),
        state: state.map(WireState::from),
    });
    Reply::ok(&Checks { results: results.collect(), degraded: states.degraded })
}
