//! Pure counters: one delta, or many.

use guanxi_api::counters::CountChange;
use guanxi_model::change::Count;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{Answer, Change, Error, Kind};

use super::edges::bounded;
use super::{Caller, WriteAnswer, key, unexpected};

/// Adds to a counter; its value after that where it is known, and the token.
pub async fn count(
    caller: &Caller<'_>,
    kind: &Kind,
    id: u64,
    delta: i64,
    key: Option<IdempotencyKey>,
) -> Result<(Option<i64>, String), Error> {
    kind.require_counter()?;
    let change = Change::Count(Count { tenant: caller.tenant, kind: kind.id, id, delta, key });
    match caller.write_one(change, None).await? {
        (Answer::Counter { value }, token) => Ok((caller.app.deployment.counted(value), token)),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Adds to many in order, each on its own.
pub async fn batch(
    caller: &Caller<'_>,
    changes: Vec<CountChange<'_>>,
) -> Result<WriteAnswer, Error> {
    bounded(changes.len())?;
    let names: Vec<&str> = changes.iter().map(|change| change.kind.as_str()).collect();
    // Each has a key of its own, so what is not known keeps nobody from the rest.
    let kinds = caller.kind_of_each(&names, None).await?;
    let mut wanted = Vec::with_capacity(changes.len());
    for (change, kind) in changes.into_iter().zip(kinds) {
        let key = key("key", change.key.as_deref())?;
        wanted.push(kind.map(|kind| {
            let (kind, id, delta) = (kind.id, change.id.0, change.delta);
            Change::Count(Count { tenant: caller.tenant, kind, id, delta, key })
        }));
    }
    caller.write_each(wanted, None).await
}
