//! Dead letters: records of a cluster's log that could not be applied.

use serde::Serialize;
use utoipa::ToSchema;

use crate::id::Id;
use crate::time::Time;

/// Letters, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetters<'a> {
    pub dead_letters: Vec<DeadLetterView<'a>>,
    /// The `cursor` of the next page; null at the end.
    #[schema(required)]
    pub next: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeadLetter)]
pub struct DeadLetterView<'a> {
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub id: String,
    /// Where in the log the record stands.
    pub topic: &'a str,
    pub partition: u32,
    pub position: u64,
    /// The edge that it is about, where that could be read.
    #[schema(required)]
    pub kind: Option<&'a str>,
    #[schema(required)]
    pub source: Option<Id>,
    #[schema(required)]
    pub target: Option<Id>,
    /// When it was given up.
    pub at: Time,
    /// Why.
    pub cause: &'a str,
    /// The record as it came, where one letter is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What a retry did: it applied what the source says of the edge now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Retried<'a> {
    #[schema(required)]
    pub kind: Option<&'a str>,
    pub source: Id,
    pub target: Id,
    /// Whether the target's side differed from it.
    pub changed: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Dropped {
    pub dropped: bool,
}
