//! The service `Counters`.

use guanxi_api::counters::CountChange;
use guanxi_api::proto::counters_server::Counters;
use guanxi_api::proto::{
    BatchCountersAnswer, BatchCountersRequest, CountRequest, Counted, CounterResult, counter_result,
};
use guanxi_api::{Id, Name};
use guanxi_model::{Answer, Error};
use tonic::Request;

use super::{Answered, Call, Services};
use crate::calls::{counters, edges, key, unexpected};

#[tonic::async_trait]
impl Counters for Services {
    async fn count(&self, request: Request<CountRequest>) -> Answered<Counted> {
        self.answer(request, count).await
    }

    async fn batch(&self, request: Request<BatchCountersRequest>) -> Answered<BatchCountersAnswer> {
        self.answer(request, batch).await
    }
}

async fn count(call: Call, request: CountRequest) -> Result<Counted, Error> {
    let kind = call.kind(&request.kind).await?;
    let id = Id::from_number(request.id, "id")?.0;
    let key = key("key", request.key.as_deref())?;
    let caller = call.caller(&request.at_least);
    let (value, token) = counters::count(&caller, &kind, id, request.delta, key).await?;
    Ok(counted(value, &token))
}

async fn batch(call: Call, request: BatchCountersRequest) -> Result<BatchCountersAnswer, Error> {
    edges::bounded(request.changes.len())?;
    let mut changes = Vec::with_capacity(request.changes.len());
    for (index, change) in request.changes.iter().enumerate() {
        changes.push(CountChange {
            kind: Name::from(change.kind.as_str()),
            id: Id::from_number(change.id, &format!("changes[{index}].id"))?,
            delta: change.delta,
            key: change.key.as_deref().map(Into::into),
        });
    }
    let written = counters::batch(&call.caller(&request.at_least), changes).await?;
    let mut results = Vec::with_capacity(written.answers.len());
    for answer in &written.answers {
        let result = match answer {
            Ok(Answer::Counter { value }) => {
                let value = call.app.deployment.counted(*value);
                counter_result::Result::Counted(counted(value, &written.token))
            }
            Ok(other) => return Err(unexpected(other)),
            Err(error) => counter_result::Result::Error(call.problem(error)),
        };
        results.push(CounterResult { result: Some(result) });
    }
    Ok(BatchCountersAnswer { results, token: written.token })
}

fn counted(value: Option<i64>, token: &str) -> Counted {
    Counted { accepted: true, value, token: token.to_owned() }
}
