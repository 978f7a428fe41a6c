//! Idempotency keys: the same key with the same request gets the same answer once more, with
//! another request a conflict. Refusals are not stored.

use crate::answer::Answer;
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
    /// The commit time of its frame.
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
