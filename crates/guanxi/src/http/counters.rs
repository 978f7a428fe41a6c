//! Pure counters: one delta, or many.

use guanxi_api::Problem;
use guanxi_api::counters::{CountBatch, CountBatchAnswer, CountRequest, Counted};
use guanxi_api::edges::{ChangeResult, Results};
use guanxi_model::Answer;

use super::document::{CountBatchRefusals, CountRefusals, CounterPath};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::{counters, key, unexpected};

/// Adds to a counter.
#[utoipa::path(
    post, path = "/v1/counters/{kind}/{id}", tag = "counters", operation_id = "count",
    params(CounterPath),
    request_body(content = CountRequest, content_type = "application/json"),
    responses((status = 200, description = "It counts.", body = Counted), CountRefusals),
)]
pub async fn count(call: Call) -> Answered {
    let kind = call.kind().await?;
    let id = call.id("id")?;
    let query = call.query(&[])?;
    let request: CountRequest = call.json()?;
    call.no_key()?;
    let key = key("key", request.key.as_deref())?;
    let caller = call.caller(&query)?;
    let (value, token) = counters::count(&caller, &kind, id, request.delta, key).await?;
    Ok(Reply::ok(&counted(value, &token))?.with_token(&token))
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
pub async fn batch(call: Call) -> Answered {
    let query = call.query(&[])?;
    let CountBatch { changes } = call.json()?;
    call.no_key()?;
    let written = counters::batch(&call.caller(&query)?, changes).await?;
    let request_id = &call.context.request_id;
    let mut results = Vec::with_capacity(written.answers.len());
    for answer in &written.answers {
        results.push(match answer {
            Ok(Answer::Counter { value }) => {
                let value = call.app.deployment.counted(*value);
                ChangeResult::Done(counted(value, &written.token))
            }
            Ok(other) => return Err(unexpected(other).into()),
            Err(error) => ChangeResult::Refused { error: Problem::new(error, request_id) },
        });
    }
    Ok(Reply::ok(&Results { results })?.with_token(&written.token))
}

fn counted(value: Option<i64>, token: &str) -> Counted<'_> {
    Counted { accepted: true, value, token }
}
