//! What an import answers: how far it came, and which lines it rejected.

use guanxi_model::{Code, Error};
use serde::Serialize;
use utoipa::ToSchema;

use crate::time::Time;

/// Rejected lines that one answer names; the rest of them are counted.
pub const REJECTS_MAX: usize = 50_000;

/// How much of the reason a rejected line is named with: a reason may repeat the line, and all the
/// answer's lines are in memory together.
const REASON_CHARS_MAX: usize = 500;

/// Where a call may begin: what a JSON number carries exactly, and more than any file has.
pub const IMPORT_LINES_MAX: u64 = (1 << 53) - 1;

/// What one call did.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportAnswer<'a> {
    /// The import's id; null for one that keeps no place.
    #[schema(required)]
    pub id: Option<&'a str>,
    /// Lines that are done, with those before this call.
    pub lines: u64,
    /// Lines of this call that were taken.
    pub accepted: u64,
    /// Edges of this call that were new or became different.
    pub changed: u64,
    /// Lines of this call that were rejected.
    pub rejected: u64,
    /// The rejected lines, at most 50,000 of them.
    pub rejects: Vec<Reject>,
    /// Rejected lines that are not named.
    pub rejects_left_off: u64,
    /// Present it to a read that must show everything that was taken.
    #[schema(min_length = 1)]
    pub token: &'a str,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reject {
    /// Counted from 1. The header line of CSV counts.
    #[schema(minimum = 1)]
    pub line: u64,
    pub error: RejectError,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RejectError {
    #[serde(serialize_with = "by_name")]
    #[schema(value_type = String)]
    pub code: Code,
    pub message: String,
}

impl Reject {
    pub fn new(line: u64, error: Error) -> Reject {
        let mut message = error.message;
        if let Some((end, _)) = message.char_indices().nth(REASON_CHARS_MAX) {
            message.truncate(end);
            message.push('…');
        }
        Reject { line, error: RejectError { code: error.code, message } }
    }
}

fn by_name<S: serde::Serializer>(code: &Code, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.name())
}

/// Where an import stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportPlace<'a> {
    pub id: &'a str,
    /// Lines that are done: go on after them.
    pub lines: u64,
    /// Those of them that were rejected.
    pub rejected: u64,
    /// When the last of them was committed.
    pub at: Time,
    /// Tells the lines that are done from others; null for an import that began without one.
    #[schema(required, pattern = "^[0-9a-f]{32}$")]
    pub digest: Option<String>,
}
