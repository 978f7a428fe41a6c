//! Dead letters of a cluster. An embedded service applies what it logs, so it has none.

use guanxi_api::dead_letters::{
    DeadLetterView, DeadLetters, Dropped, LETTERS_MAX, ListDeadLetters, Retried,
};
use guanxi_api::{Id, Time};
use guanxi_core::deployment::{self, Letter};
use guanxi_model::{Catalog, Code, Error};

use super::{Caller, kind_name};

/// A page in the order of ids.
pub async fn list(caller: Caller, request: ListDeadLetters) -> Result<DeadLetters, Error> {
    let items_max = request.limit.unwrap_or(LETTERS_MAX);
    let listed = apart(&caller, move |letters| letters.list(request.after, items_max)).await?;
    let (letters, catalog) = (listed.unwrap_or_default(), caller.catalog());
    let next = letters.last().filter(|_| letters.len() == items_max).map(|last| Id(last.id));
    let letters = letters.into_iter().map(|letter| view(letter, None, &catalog));
    Ok(DeadLetters { dead_letters: letters.collect(), next })
}

/// A letter and the record as it came.
pub async fn get(caller: Caller, id: Id) -> Result<DeadLetterView, Error> {
    let found = apart(&caller, move |letters| letters.show(id.0)).await?;
    let (letter, value) = found.ok_or_else(|| unknown(id))?;
    Ok(view(letter, Some(value), &caller.catalog()))
}

/// Applies what the source says of the letter's edge now.
pub async fn retry(caller: Caller, id: Id) -> Result<Retried, Error> {
    let retried = apart(&caller, move |letters| letters.retry(id.0)).await?;
    let deployment::RetriedLetter { edge, changed } = retried.ok_or_else(|| unknown(id))?;
    Ok(Retried {
        kind: kind_name(&caller.catalog(), edge.tenant, edge.kind),
        source: Id(edge.source.0),
        target: Id(edge.target.0),
        changed,
    })
}

/// Forgets a letter; its record is not applied.
pub async fn forget(caller: Caller, id: Id) -> Result<Dropped, Error> {
    let dropped = apart(&caller, move |letters| letters.forget(id.0)).await?;
    dropped.map(|()| Dropped { dropped: true }).ok_or_else(|| unknown(id))
}

fn view(letter: Letter, value: Option<Vec<u8>>, catalog: &Catalog) -> DeadLetterView {
    let edge = letter.edge.as_ref();
    DeadLetterView {
        id: Id(letter.id),
        partition: letter.partition,
        position: letter.position,
        kind: edge.and_then(|edge| kind_name(catalog, edge.tenant, edge.kind)),
        source: edge.map(|edge| Id(edge.source.0)),
        target: edge.map(|edge| Id(edge.target.0)),
        at: Time(letter.at),
        topic: letter.topic,
        cause: letter.cause,
        value,
    }
}

fn unknown(Id(id): Id) -> Error {
    Error::new(Code::NotFound, format!("there is no dead letter {id}"))
}

/// None where there are no letters at all.
async fn apart<T: Send + 'static>(
    caller: &Caller,
    work: impl FnOnce(&dyn deployment::DeadLetterStore) -> Result<T, Error> + Send + 'static,
) -> Result<Option<T>, Error> {
    caller.meet().await?;
    let Some(letters) = caller.app.deployment.dead_letters() else {
        return Ok(None);
    };
    let work = move || work(&*letters).map(Some);
    caller.app.apart_for_operators(caller.context.deadline, work).await
}
