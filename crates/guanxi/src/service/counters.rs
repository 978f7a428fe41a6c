//! Pure counters: one delta, or many.

use std::sync::Arc;

use guanxi_api::counters::{Count, CountBatch, Counted};
use guanxi_api::edges::Results;
use guanxi_model::{Answer, Change, Error, change};

use super::edges::bounded;
use super::{Caller, key, unexpected};

/// Adds to a counter.
pub async fn count(caller: Caller, request: Count<'_>) -> Result<Counted, Error> {
    let change = count_change(&caller, &request).await?;
    let (answer, token) = caller.write_one(change).await?;
    shown(&caller, &answer, token)
}

/// What `count` wants done, for whoever gives it to the deployment with others.
pub async fn count_change(caller: &Caller, request: &Count<'_>) -> Result<Change, Error> {
    let kind = caller.kind(&request.kind).await?;
    let key = key("key", request.request.key.as_deref())?;
    kind.require_counter()?;
    let (tenant, kind, id, delta) = (caller.tenant, kind.id, request.id.0, request.request.delta);
    Ok(Change::Count(change::CounterDelta { tenant, kind, id, delta, key }))
}

/// Adds to many in order, each on its own.
pub async fn batch(caller: Caller, request: CountBatch<'_>) -> Result<Results<Counted>, Error> {
    bounded(request.changes.len())?;
    let changes = request.changes;
    let names: Vec<&str> = changes.iter().map(|change| change.kind.as_str()).collect();
    let kinds = caller.kind_of_each(&names).await?;
    let mut wanted = Vec::with_capacity(changes.len());
    for (change, kind) in changes.into_iter().zip(kinds) {
        // Each has a key of its own, so what is not known keeps nobody from the rest.
        let key = key("key", change.key.as_deref())?;
        wanted.push(kind.map(|kind| {
            let (kind, id, delta) = (kind.id, change.id.0, change.delta);
            Change::Count(change::CounterDelta { tenant: caller.tenant, kind, id, delta, key })
        }));
    }
    caller.write_each(wanted, |answer, token| shown(&caller, &answer, token)).await
}

/// What a counter has now, by the engine's answer.
pub fn shown(caller: &Caller, answer: &Answer, token: Arc<str>) -> Result<Counted, Error> {
    match answer {
        Answer::Counter { value } => {
            let value = caller.app.deployment.knows_counters().then_some(*value);
            Ok(Counted { accepted: true, value, token })
        }
        other => Err(unexpected(other)),
    }
}
