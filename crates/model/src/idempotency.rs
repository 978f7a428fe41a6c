//! Idempotency keys: the same key with the same request gets the same answer once more, with
//! another request a conflict. Of a request that was refused whole nothing is stored, and what was
//! refused for a cause that goes by itself is decided anew when the request comes again.

use crate::answer::Answer;
use crate::change::{Change, request_hash};
use crate::error::{Code, Error};
use crate::limits::{IDEMPOTENCY_KEY_BYTES_MAX, IDEMPOTENCY_TTL_MS};
use crate::time::Millis;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(Box<str>);

impl IdempotencyKey {
    pub fn new(key: &str) -> Result<IdempotencyKey, Error> {
        if key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "an idempotency key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes, this one has {}",
                key.len()
            )));
        }
        Ok(IdempotencyKey(key.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One answer per change of the request that used the key.
pub type Answers = Vec<Result<Answer, Error>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// Hash of the request.
    pub request: u128,
    /// When the key was first used; its 24 hours begin here.
    pub at: Millis,
    pub answers: Answers,
}

/// The stored answers when this request was done before; an error when the key was used for
/// another one; none when the key is free (again).
pub fn replay(
    row: Option<IdempotencyRow>,
    key: &IdempotencyKey,
    request: u128,
    now: Millis,
) -> Result<Option<Answers>, Error> {
    match row.filter(|row| row.at.saturating_add(IDEMPOTENCY_TTL_MS) > now) {
        None => Ok(None),
        Some(row) if row.request == request => Ok(Some(row.answers)),
        Some(_) => Err(Error::new(
            Code::KeyConflict,
            format!(
                "idempotency key '{}' was used for another request in the last 24 hours; use a \
                 new key for a new request",
                key.as_str()
            ),
        )),
    }
}

/// Decides the changes of a request under its key. What was answered before is not decided again,
/// unless it was refused for what goes by itself. Gives all answers, and the row to keep if anything
/// was done; the inner error is a key that was used for another request.
pub fn decide_once<E>(
    row: Option<IdempotencyRow>,
    key: &IdempotencyKey,
    changes: &[Change],
    now: Millis,
    mut decide: impl FnMut(&Change) -> Result<Result<Answer, Error>, E>,
) -> Result<Result<(Answers, Option<IdempotencyRow>), Error>, E> {
    let request = request_hash(changes);
    // What is decided anew does not make the key last longer. A time ahead stands for one that is
    // not known here.
    let first_at = row.as_ref().map_or(now, |row| row.at.min(now));
    let (mut before, at) = match replay(row, key, request, now) {
        Ok(Some(answers)) => (answers.into_iter(), first_at),
        Ok(None) => (Vec::new().into_iter(), now),
        Err(conflict) => return Ok(Err(conflict)),
    };
    let mut answers = Vec::with_capacity(changes.len());
    let mut was_done = false;
    for change in changes {
        let lasts = |answer: &Result<_, Error>| !matches!(answer, Err(error) if error.retryable);
        answers.push(match before.next().filter(lasts) {
            Some(answer) => answer,
            None => {
                let answer = decide(change)?;
                was_done |= answer.is_ok();
                answer
            }
        });
    }
    let row = was_done.then(|| IdempotencyRow { request, at, answers: answers.clone() });
    Ok(Ok((answers, row)))
}
