//! Dead letters of the service `Admin`.

use guanxi_api::proto::{
    self, DropDeadLetterRequest, DroppedDeadLetter, GetDeadLetterRequest, ListDeadLettersAnswer,
    ListDeadLettersRequest, RetriedDeadLetter, RetryDeadLetterRequest,
};
use guanxi_engine::cluster::dead_letters::DeadLetter;
use guanxi_model::{Catalog, EdgeKey, Error};

use super::Call;
use crate::calls::{dead_letters, in_range};

pub async fn list(
    call: Call,
    request: ListDeadLettersRequest,
) -> Result<ListDeadLettersAnswer, Error> {
    let max = dead_letters::PAGE_MAX as u64;
    let limit = request.limit.map_or(max, u64::from);
    let limit = in_range("limit", Some(limit), &(1..=max))? as usize;
    let (letters, catalog) = dead_letters::list(&call.caller(&None), request.after, limit).await?;
    let next = letters.last().filter(|_| letters.len() == limit).map(|last| last.id);
    let letters = letters.iter().map(|letter| message(letter, None, &catalog));
    Ok(ListDeadLettersAnswer { dead_letters: letters.collect(), next })
}

pub async fn get(call: Call, request: GetDeadLetterRequest) -> Result<proto::DeadLetter, Error> {
    let (letter, value, catalog) = dead_letters::get(&call.caller(&None), request.id).await?;
    Ok(message(&letter, Some(value), &catalog))
}

pub async fn retry(
    call: Call,
    request: RetryDeadLetterRequest,
) -> Result<RetriedDeadLetter, Error> {
    let (retried, catalog) = dead_letters::retry(&call.caller(&None), request.id).await?;
    Ok(RetriedDeadLetter {
        kind: kind_name(&retried.edge, &catalog),
        source: retried.edge.source.0,
        target: retried.edge.target.0,
        changed: retried.changed,
    })
}

pub async fn forget(
    call: Call,
    request: DropDeadLetterRequest,
) -> Result<DroppedDeadLetter, Error> {
    dead_letters::forget(&call.caller(&None), request.id).await?;
    Ok(DroppedDeadLetter {})
}

fn kind_name(edge: &EdgeKey, catalog: &Catalog) -> Option<String> {
    catalog.kind(edge.tenant, edge.kind).map(|kind| kind.name.as_str().to_owned())
}

fn message(letter: &DeadLetter, value: Option<Vec<u8>>, catalog: &Catalog) -> proto::DeadLetter {
    let edge = letter.edge.as_ref();
    proto::DeadLetter {
        id: letter.id,
        topic: letter.topic.clone(),
        partition: letter.partition,
        position: letter.position,
        kind: edge.and_then(|edge| kind_name(edge, catalog)),
        source: edge.map(|edge| edge.source.0),
        target: edge.map(|edge| edge.target.0),
        at: Some(proto::timestamp(letter.at)),
        cause: letter.cause.clone(),
        value: value.map(Into::into),
    }
}
