//! Dead letters over HTTP: records of a cluster's log that could not be applied.

use guanxi_api::dead_letters::{DeadLetterView, DeadLetters, Dropped, Retried};
use guanxi_api::{Id, Time};
use guanxi_engine::cluster::dead_letters::DeadLetter;
use guanxi_model::{Catalog, EdgeKey, Error};

use super::document::AdminReadRefusals;
use super::document::{DeadLettersListed, LetterChangeRefusals, LetterPath, NodeReadRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::dead_letters;

/// Lists dead letters, the oldest first. An embedded service has none.
#[utoipa::path(
    get, path = "/v1/admin/dead-letters", tag = "admin", operation_id = "list_dead_letters",
    params(DeadLettersListed),
    responses((status = 200, description = "The letters.", body = DeadLetters), AdminReadRefusals),
)]
pub async fn list(call: Call) -> Answered {
    let query = call.query(&["limit", "cursor"])?;
    call.no_body()?;
    let max = dead_letters::PAGE_MAX as u64;
    let limit = query.number("limit", 1..=max)?.unwrap_or(max) as usize;
    let after = query.number("cursor", 0..=u64::MAX)?;
    let (letters, catalog) = dead_letters::list(&call.caller(&query)?, after, limit).await?;
    let next = letters.last().filter(|_| letters.len() == limit).map(|last| last.id.to_string());
    let letters = letters.iter().map(|letter| view(letter, None, &catalog));
    Reply::ok(&DeadLetters { dead_letters: letters.collect(), next })
}

/// Shows a dead letter with the record as it came.
#[utoipa::path(
    get, path = "/v1/admin/dead-letters/{letter}", tag = "admin",
    operation_id = "get_dead_letter",
    params(LetterPath),
    responses((status = 200, description = "The letter.", body = DeadLetterView), NodeReadRefusals),
)]
pub async fn get(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    let (letter, value, catalog) = dead_letters::get(&call.caller(&query)?, id(&call)?).await?;
    let value = String::from_utf8_lossy(&value).into_owned();
    Reply::ok(&view(&letter, Some(value), &catalog))
}

/// Applies what the source says of the letter's edge now, and removes the letter.
#[utoipa::path(
    post, path = "/v1/admin/dead-letters/{letter}/retry", tag = "admin",
    operation_id = "retry_dead_letter",
    params(LetterPath),
    responses((status = 200, description = "It is applied.", body = Retried), LetterChangeRefusals),
)]
pub async fn retry(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    let (retried, catalog) = dead_letters::retry(&call.caller(&query)?, id(&call)?).await?;
    Reply::ok(&Retried {
        kind: kind_name(&retried.edge, &catalog),
        source: Id(retried.edge.source.0),
        target: Id(retried.edge.target.0),
        changed: retried.changed,
    })
}

/// Forgets a dead letter; its record is not applied.
#[utoipa::path(
    delete, path = "/v1/admin/dead-letters/{letter}", tag = "admin",
    operation_id = "drop_dead_letter",
    params(LetterPath),
    responses((status = 200, description = "It is gone.", body = Dropped), LetterChangeRefusals),
)]
pub async fn forget(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    dead_letters::forget(&call.caller(&query)?, id(&call)?).await?;
    Reply::ok(&Dropped { dropped: true })
}

fn id(call: &Call) -> Result<u64, Error> {
    call.id("letter")
}

fn kind_name<'a>(edge: &EdgeKey, catalog: &'a Catalog) -> Option<&'a str> {
    catalog.kind(edge.tenant, edge.kind).map(|kind| kind.name.as_str())
}

fn view<'a>(
    letter: &'a DeadLetter,
    value: Option<String>,
    catalog: &'a Catalog,
) -> DeadLetterView<'a> {
    let edge = letter.edge.as_ref();
    DeadLetterView {
        id: letter.id.to_string(),
        topic: &letter.topic,
        partition: letter.partition,
        position: letter.position,
        kind: edge.and_then(|edge| kind_name(edge, catalog)),
        source: edge.map(|edge| Id(edge.source.0)),
        target: edge.map(|edge| Id(edge.target.0)),
        at: Time(letter.at),
        cause: &letter.cause,
        value,
    }
}
