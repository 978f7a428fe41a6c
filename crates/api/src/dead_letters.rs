//! Dead letters: records of a cluster's log that could not be applied.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::id::Id;
use crate::time::Time;

/// Letters on one page, unless fewer are asked for.
pub const LETTERS_MAX: usize = 200;

#[derive(Debug, Default)]
pub struct ListDeadLetters {
    pub limit: Option<usize>,
    /// The last letter of the page before.
    pub after: Option<u64>,
}

/// Letters, the oldest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetters {
    pub dead_letters: Vec<DeadLetterView>,
    /// The `cursor` of the next page; null at the end.
    #[schema(required, value_type = Option<String>)]
    pub next: Option<Id>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeadLetter)]
pub struct DeadLetterView {
    #[schema(value_type = String, pattern = "^[0-9]{1,20}$")]
    pub id: Id,
    /// Where in the log the record stands.
    pub topic: String,
    pub partition: u32,
    pub position: u64,
    /// The edge that it is about, where that could be read.
    #[schema(required, value_type = Option<String>)]
    pub kind: Option<Arc<str>>,
    #[schema(required)]
    pub source: Option<Id>,
    #[schema(required)]
    pub target: Option<Id>,
    /// When it was given up.
    pub at: Time,
    /// Why.
    pub cause: String,
    /// The record as it came, where one letter is shown.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_text",
        deserialize_with = "of_text"
    )]
    #[schema(value_type = Option<String>)]
    pub value: Option<Vec<u8>>,
}

/// What a retry did: it applied what the source says of the edge now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Retried {
    #[schema(required, value_type = Option<String>)]
    pub kind: Option<Arc<str>>,
    pub source: Id,
    pub target: Id,
    /// Whether the target's side differed from it.
    pub changed: bool,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Dropped {
    pub dropped: bool,
}

/// What is no text of it is replaced: JSON has no other way to show it.
fn as_text<S: Serializer>(value: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(value.as_deref().unwrap_or_default()))
}

fn of_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    String::deserialize(deserializer).map(|text| Some(text.into_bytes()))
}
