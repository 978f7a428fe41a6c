//! Counters, between messages and what JSON has for them.

use guanxi_model::Error;

use super::{
    BatchCountersAnswer, BatchCountersRequest, CountRequest, Counted, CounterResult, Problem,
    counter_result, owned,
};
use crate::counters::{self, Count, CountBatch, CountChange};
use crate::edges::{ChangeResult, Results};
use crate::id::Id;
use crate::name::Name;

impl TryFrom<CountRequest> for Count<'static> {
    type Error = Error;

    fn try_from(request: CountRequest) -> Result<Self, Error> {
        let (delta, key) = (request.delta, request.key.map(Into::into));
        Ok(Count {
            kind: Name::from(request.kind),
            id: Id::from_number(request.id, "id")?,
            request: counters::CountRequest { delta, key },
        })
    }
}

impl TryFrom<BatchCountersRequest> for CountBatch<'static> {
    type Error = Error;

    fn try_from(request: BatchCountersRequest) -> Result<Self, Error> {
        let mut changes = Vec::with_capacity(request.changes.len());
        for (index, change) in request.changes.into_iter().enumerate() {
            changes.push(CountChange {
                kind: Name::from(change.kind),
                id: Id::from_number(change.id, &format!("changes[{index}].id"))?,
                delta: change.delta,
                key: change.key.map(Into::into),
            });
        }
        Ok(CountBatch { changes })
    }
}

impl From<counters::Counted> for Counted {
    fn from(counted: counters::Counted) -> Counted {
        let counters::Counted { accepted, value, token } = counted;
        Counted { accepted, value, token: owned(token) }
    }
}

impl From<Results<counters::Counted>> for BatchCountersAnswer {
    fn from(answer: Results<counters::Counted>) -> BatchCountersAnswer {
        let results = answer.results.into_iter().map(|result| match result {
            ChangeResult::Done(counted) => counter_result::Result::Counted(counted.into()),
            ChangeResult::Refused { error } => counter_result::Result::Error(Problem::from(error)),
        });
        BatchCountersAnswer {
            results: results.map(|result| CounterResult { result: Some(result) }).collect(),
            token: owned(answer.token),
        }
    }
}
