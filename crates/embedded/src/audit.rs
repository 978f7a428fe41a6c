//! Audits: edge rows are held against everything that follows from them (index entries, tallies,
//! group sizes), and what differs is reported and, on demand, mended.
//!
//! This file owns the embedded deployment's auditor.

mod exact;
mod groups;
mod pass;
mod run;
mod sketch;

use std::sync::Arc;

use guanxi_core::audit::board::Board;
use guanxi_core::audit::{AuditError, AuditQuery, AuditSettings, AuditVerdict, AuditWatch};
use guanxi_model::{Code, Error};

pub(crate) use self::pass::{AuditPass, Overtaken};
use crate::background::Workbench;

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
        self.board.begin(query, AuditWatch::new(self.bench.signal.clone()), move |watch| {
            run::run(&auditor.bench, watch, query)
        })
    }

    /// A look at everything in one picture, for the scrubber.
    pub fn look(&self) -> Result<AuditVerdict, AuditError> {
        let look = run::look(
            self.bench.store.as_ref(),
            &AuditWatch::new(self.bench.signal.clone()),
            None,
        )?;
        let (drift, position) = (look.findings.drift(), look.applied.position);
        Ok(AuditVerdict { drift, position, at: self.board.now() })
    }
}
