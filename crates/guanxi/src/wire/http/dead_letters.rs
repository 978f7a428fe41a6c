//! Dead letters over HTTP: records of a cluster's log that could not be applied.

use guanxi_api::dead_letters::{
    DeadLetterView, DeadLetters, Dropped, LETTERS_MAX, ListDeadLetters, Retried,
};

use super::document::AdminReadRefusals;
use super::document::{DeadLettersListed, LetterChangeRefusals, LetterPath, NodeReadRefusals};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::dead_letters;

/// Lists dead letters, the oldest first. An embedded service has none.
#[utoipa::path(
    get, path = "/v1/admin/dead-letters", tag = "admin", operation_id = "list_dead_letters",
    params(DeadLettersListed),
    responses((status = 200, description = "The letters.", body = DeadLetters), AdminReadRefusals),
)]
pub async fn list(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit", "cursor"])?;
    request.no_body()?;
    let limit = query.number("limit", 1..=LETTERS_MAX as u64)?.map(|limit| limit as usize);
    let after = query.number("cursor", 0..=u64::MAX)?;
    let list = ListDeadLetters { limit, after };
    reply::ok(&dead_letters::list(request.caller(&query).await?, list).await?)
}

/// Shows a dead letter with the record as it came.
#[utoipa::path(
    get, path = "/v1/admin/dead-letters/{letter}", tag = "admin",
    operation_id = "get_dead_letter",
    params(LetterPath),
    responses((status = 200, description = "The letter.", body = DeadLetterView), NodeReadRefusals),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    let letter = request.id("letter")?;
    reply::ok(&dead_letters::get(request.caller(&query).await?, letter).await?)
}

/// Applies what the source says of the letter's edge now, and removes the letter.
#[utoipa::path(
    post, path = "/v1/admin/dead-letters/{letter}/retry", tag = "admin",
    operation_id = "retry_dead_letter",
    params(LetterPath),
    responses((status = 200, description = "It is applied.", body = Retried), LetterChangeRefusals),
)]
pub async fn retry(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    let letter = request.id("letter")?;
    reply::ok(&dead_letters::retry(request.caller(&query).await?, letter).await?)
}

/// Forgets a dead letter; its record is not applied.
#[utoipa::path(
    delete, path = "/v1/admin/dead-letters/{letter}", tag = "admin",
    operation_id = "drop_dead_letter",
    params(LetterPath),
    responses((status = 200, description = "It is gone.", body = Dropped), LetterChangeRefusals),
)]
pub async fn forget(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    let letter = request.id("letter")?;
    reply::ok(&dead_letters::forget(request.caller(&query).await?, letter).await?)
}
