//! Pure counters: one delta, or many.

use std::borrow::Cow;

use guanxi_api::Problem;
use guanxi_api::counters::{CountBatch, CountBatchAnswer, CountRequest, Counted};
use guanxi_api::edges::{ChangeResult, Results};
use guanxi_model::change::Count;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{Answer, Change, Error};

use super::document::{BatchRefusals, CountRefusals, CounterPath};
use super::edges::bounded;
use super::extract::{Call, unexpected};
use super::reply::{Answered, Reply};

/// Adds to a counter.
#[utoipa::path(
    post, path = "/v1/counters/{kind}/{id}", tag = "counters", operation_id = "count",
    params(CounterPath),
    request_body(content = CountRequest, content_type = "application/json"),
    responses((status = 200, description = "It counts.", body = Counted), CountRefusals),
)]
pub async fn count(call: Call) -> Answered {
    let kind = call.kind()?;
    let id = call.id("id")?;
    let query = call.query(&[])?;
    let request: CountRequest = call.json()?;
    kind.require_counter()?;
    let change = Change::Count(Count {
        tenant: call.tenant(),
        kind: kind.id,
        id,
        delta: request.delta,
        key: key(request.key)?,
    });
    let mut written = call.write(&query, vec![change], None).await?;
    match written.only()? {
        Answer::Counter { value } => {
            let counted = counted(value, &written.token);
            Ok(Reply::ok(&counted)?.with_token(&written.token))
        }
        other => Err(unexpected(&other).into()),
    }
}

/// Adds to many counters in order, each on its own.
#[utoipa::path(
    post, path = "/v1/counters/batch", tag = "counters", operation_id = "batch_counters",
    request_body(content = CountBatch, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each change.", body = CountBatchAnswer),
        BatchRefusals,
    ),
)]
pub async fn batch(call: Call) -> Answered {
    let query = call.query(&[])?;
    let CountBatch { changes } = call.json()?;
    bounded(changes.len())?;
    let catalog = call.app.engine.catalog();
    let mut wanted = Vec::with_capacity(changes.len());
    for change in changes {
        let key = key(change.key)?;
        let kind = catalog.named(call.tenant(), change.kind.as_str());
        wanted.push(kind.map(|kind| {
            Change::Count(Count {
                tenant: call.tenant(),
                kind: kind.id,
                id: change.id.0,
                delta: change.delta,
                key,
            })
        }));
    }
    let written = call.write_each(&query, wanted, None).await?;
    let request_id = &call.context.request_id;
    let mut results = Vec::with_capacity(written.answers.len());
    for answer in &written.answers {
        results.push(match answer {
            Ok(Answer::Counter { value }) => ChangeResult::Done(counted(*value, &written.token)),
            Ok(other) => return Err(unexpected(other).into()),
            Err(error) => ChangeResult::Refused { error: Problem::new(error, request_id) },
        });
    }
    Ok(Reply::ok(&Results { results })?.with_token(&written.token))
}

fn counted(value: i64, token: &str) -> Counted<'_> {
    Counted { accepted: true, value: Some(value), token }
}

fn key(text: Option<Cow<'_, str>>) -> Result<Option<IdempotencyKey>, Error> {
    let Some(text) = text else {
        return Ok(None);
    };
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::invalid("key: it has 1 to 64 visible ASCII characters"));
    }
    let key = IdempotencyKey::new(&text);
    key.map(Some).map_err(|error| Error::invalid(format!("key: {}", error.message)))
}
