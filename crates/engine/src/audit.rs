//! Audits: edge rows are held against everything that follows from them (index entries, tallies,
//! group sizes), and what differs is reported and, on demand, mended.
//!
//! This file owns the types of a report and the embedded deployment's auditor; `board` has what
//! callers see of audits in either deployment.

pub(crate) mod board;
mod exact;
mod findings;
mod groups;
mod pass;
mod run;
mod sketch;

pub use findings::{Drift, Findings, KindFindings, OfKind};

use std::sync::Arc;

use guanxi_model::{Code, Error, Millis, Position};

use self::board::Board;
pub(crate) use self::findings::Finding;
pub(crate) use self::pass::{Overtaken, Pass};
pub(crate) use self::run::Watch;
use crate::background::Workbench;
use crate::cluster::sql::SqlError;
use crate::store::StoreError;

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
pub struct Verdict {
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
    pub verdict: Option<Verdict>,
    pub scrubbing: Scrubbing,
    /// The last one that was asked for.
    pub run: Option<AuditRun>,
}

/// Why an audit has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuditError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Sql(#[from] SqlError),
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
            AuditError::Sql(_) => {
                let message = "the database did not answer the audit as it should; try again";
                Error::new(Code::Unavailable, message)
            }
            other => Error::new(Code::Unavailable, format!("the audit came to no end: {other}")),
        }
    }
}

pub(crate) struct Auditor {
    pub bench: Workbench,
    pub board: Arc<Board>,
}

impl Auditor {
    pub fn new(bench: Workbench, settings: AuditSettings) -> Auditor {
        let board = Arc::new(Board::new(bench.clock.clone(), settings));
        Auditor { bench, board }
    }

    /// Begins an audit and returns its number. There is one at a time.
    pub fn begin(self: &Arc<Auditor>, query: AuditQuery) -> Result<u64, Error> {
        if query.repair && !self.bench.takes_writes() {
            let message =
                "a standby takes no writes; where its store differs, make it anew from its primary";
            return Err(Error::new(Code::ReadOnly, message));
        }
        let auditor = self.clone();
        self.board.begin(query, Watch::new(self.bench.signal.clone()), move |watch| {
            run::run(&auditor.bench, watch, query)
        })
    }

    /// A look at everything in one picture, for the scrubber.
    pub fn look(&self) -> Result<Verdict, AuditError> {
        let look =
            run::look(self.bench.store.as_ref(), &Watch::new(self.bench.signal.clone()), None)?;
        let (drift, position) = (look.findings.drift(), look.applied.position);
        Ok(Verdict { drift, position, at: self.board.now() })
    }
}
