//! Audits, as both deployments speak of them: what is asked for and reported, what can be found,
//! and the board where callers see how far one is. Who looks for drift, and how, is each
//! deployment's own affair.

pub mod board;
mod findings;
mod watch;

pub use findings::{AuditFinding, Drift, Findings, KindFindings, OfKind};
pub use watch::{AuditWatch, STRIDE_ROWS};

use guanxi_model::{Code, Error, Millis, Position};

use crate::snapshot::StoreError;

#[derive(Debug, Clone, Copy)]
pub struct AuditSettings {
    /// Rows that the scrubber reads in a second, on average; 0 turns it off.
    pub scrub_rows_per_second: u64,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        AuditSettings { scrub_rows_per_second: 5_000 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditQuery {
    /// One kind of a tenant, or all of all.
    pub kind: Option<OfKind>,
    pub repair: bool,
}

/// What an audit found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// Where everything was compared, the last time.
    pub position: Position,
    /// What was wrong at first.
    pub findings: Findings,
    pub repaired: u64,
    /// What is wrong still.
    pub left: u64,
}

/// The last word on everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditVerdict {
    pub drift: u64,
    pub position: Position,
    pub at: Millis,
}

/// An audit that somebody asked for.
#[derive(Debug, Clone)]
pub struct AuditRun {
    pub number: u64,
    pub query: AuditQuery,
    pub begun: Millis,
    pub rows: u64,
    /// None while it runs.
    pub ended: Option<AuditEnd>,
}

#[derive(Debug, Clone)]
pub struct AuditEnd {
    pub at: Millis,
    pub result: Result<AuditReport, Error>,
}

/// How the scrubber fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scrubbing {
    pub rows_per_second: u64,
    /// Passes that have ended.
    pub passes: u64,
    /// Rows that the present pass has read.
    pub rows: u64,
}

#[derive(Debug, Clone)]
pub struct AuditState {
    pub verdict: Option<AuditVerdict>,
    pub scrubbing: Scrubbing,
    /// The last one that was asked for.
    pub run: Option<AuditRun>,
}

/// Why an audit has no result.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the database said, as its driver's crate puts it.
    #[error(transparent)]
    Database(Box<dyn std::error::Error + Send + Sync>),
    #[error("the service is stopping")]
    Stopped,
    #[error("it met an error of the program, which the service's log has")]
    Panicked,
    #[error("another instance runs an audit; there is one at a time")]
    Elsewhere,
    #[error("repairs are not taken, because writes are refused here")]
    Refused,
    #[error(
        "the log's records have not reached the target side for {seconds} s; see to the relay and the appliers, then audit again"
    )]
    Behind { seconds: u64 },
}

impl AuditError {
    /// The same for callers, who see no driver's words.
    fn into_error(self) -> Error {
        match self {
            AuditError::Elsewhere => Error::new(Code::Conflict, self.to_string()),
            AuditError::Database(_) => {
                let message = "the database did not answer the audit as it should; try again";
                Error::new(Code::Unavailable, message)
            }
            other => Error::new(Code::Unavailable, format!("the audit came to no end: {other}")),
        }
    }
}
