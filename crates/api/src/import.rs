//! What an import answers: how far it came, and which lines it rejected.

use std::borrow::Cow;
use std::sync::Arc;

use guanxi_model::import::RejectedLine;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// Rejected lines that one answer names; the rest of them are counted.
pub const REJECTS_MAX: usize = 50_000;

/// Where a call may begin: what a JSON number carries exactly, and more than any file has.
pub const IMPORT_LINES_MAX: u64 = (1 << 53) - 1;

/// What one call did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportAnswer {
    /// The import's id; null for one that keeps no place.
    #[schema(required)]
    pub id: Option<String>,
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
    #[schema(value_type = String, min_length = 1)]
    pub token: Arc<str>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reject {
    /// Counted from 1. The header line of CSV counts.
    #[schema(minimum = 1)]
    pub line: u64,
    pub error: RejectError,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RejectError {
    // A client reads codes, too, that it does not know.
    #[schema(value_type = String)]
    pub code: Cow<'static, str>,
    pub message: String,
}

impl From<RejectedLine> for Reject {
    fn from(rejected: RejectedLine) -> Reject {
        let RejectedLine { line, code, reason } = rejected;
        Reject { line, error: RejectError { code: code.name().into(), message: reason.into() } }
    }
}

/// Where an import stands, and what came of the lines before.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportPlace {
    pub id: String,
    /// Lines that are done: go on after them.
    pub lines: u64,
    /// Those of them that were taken.
    pub accepted: u64,
    /// Edges that were new or became different.
    pub changed: u64,
    /// Lines that were rejected.
    pub rejected: u64,
    /// The first of them: 10,000, or fewer where their reasons are long.
    pub rejects: Vec<Reject>,
    /// Rejected lines that are not named.
    pub rejects_left_off: u64,
    /// When the last of the lines was committed.
    pub at: Time,
    /// Tells the lines that are done from others.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub digest: String,
}
