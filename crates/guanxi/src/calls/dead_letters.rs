//! Dead letters of a cluster. An embedded service applies what it logs, so it has none.

use std::sync::Arc;

use guanxi_engine::cluster::dead_letters::{
    DeadLetter, DeadLetterError, DeadLetters, LETTERS_PER_PAGE_MAX, Retried,
};
use guanxi_model::{Catalog, Code, Error};

use super::Caller;

/// Letters on one page, unless fewer are asked for.
pub const PAGE_MAX: usize = LETTERS_PER_PAGE_MAX;

/// A page in the order of ids, after one of them.
pub async fn list(
    caller: &Caller<'_>,
    after: Option<u64>,
    items_max: usize,
) -> Result<(Vec<DeadLetter>, Arc<Catalog>), Error> {
    let listed = apart(caller, move |letters| letters.list(after, items_max)).await?;
    Ok((listed.unwrap_or_default(), caller.catalog()))
}

/// A letter and the record as it came.
pub async fn get(
    caller: &Caller<'_>,
    id: u64,
) -> Result<(DeadLetter, Vec<u8>, Arc<Catalog>), Error> {
    let found = apart(caller, move |letters| letters.show(id)).await?;
    let (letter, value) = found.ok_or_else(|| unknown(id))?;
    Ok((letter, value, caller.catalog()))
}

/// Applies what the source says of the letter's edge now.
pub async fn retry(caller: &Caller<'_>, id: u64) -> Result<(Retried, Arc<Catalog>), Error> {
    let retried = apart(caller, move |letters| letters.retry(id)).await?;
    Ok((retried.ok_or_else(|| unknown(id))?, caller.catalog()))
}

pub async fn forget(caller: &Caller<'_>, id: u64) -> Result<(), Error> {
    apart(caller, move |letters| letters.drop(id)).await?.ok_or_else(|| unknown(id))
}

fn unknown(id: u64) -> Error {
    Error::new(Code::NotFound, format!("there is no dead letter {id}"))
}

/// None where there are no letters at all.
async fn apart<T: Send + 'static>(
    caller: &Caller<'_>,
    work: impl FnOnce(&DeadLetters) -> Result<T, DeadLetterError> + Send + 'static,
) -> Result<Option<T>, Error> {
    caller.meet().await?;
    let Some(letters) = caller.app.deployment.dead_letters() else {
        return Ok(None);
    };
    let work = move || work(&letters).map(Some).map_err(refusal);
    caller.app.apart(caller.context.deadline, work).await
}

fn refusal(error: DeadLetterError) -> Error {
    match &error {
        DeadLetterError::Unknown(_) => Error::new(Code::NotFound, error.to_string()),
        DeadLetterError::Unreadable(_) | DeadLetterError::UnknownKind(_) => {
            Error::new(Code::Conflict, error.to_string())
        }
        DeadLetterError::Sql(sql) => {
            tracing::error!(error = %sql, "dead letters could not be read or changed");
            Error::new(Code::Unavailable, "the database did not answer; try again")
        }
    }
}
