//! Suspects before the judge: an incoming row that is not what its outgoing row says counts only
//! if it is still so after a barrier, which is behind every record that could set it right.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use guanxi_core::audit::AuditError;
use guanxi_model::{EdgeKey, EdgeRow};

use super::look::{SqlLook, Suspect, agree};
use super::picture::Picture;
use crate::barrier;

/// How long a barrier may take to pass every shard.
const BARRIER_WAIT: Duration = Duration::from_secs(60);
/// Between looks at whether it has, so that a stop is noticed.
const BARRIER_LOOK: Duration = Duration::from_millis(500);
/// An edge that changes all the time is left after so many barriers: each of its changes sets its
/// incoming row right.
const ROUNDS_MAX: usize = 3;

impl SqlLook<'_> {
    pub(super) fn confirm(&mut self) -> Result<(), AuditError> {
        let mut suspects = std::mem::take(&mut self.suspects);
        for _ in 0..ROUNDS_MAX {
            if suspects.is_empty() {
                break;
            }
            self.pass_barrier()?;
            suspects = self.judge(&suspects)?;
        }
        Ok(())
    }

    fn pass_barrier(&self) -> Result<(), AuditError> {
        let (database, partitions) = (&self.parts.database, self.parts.partitions);
        let until = Instant::now() + BARRIER_WAIT;
        let id = barrier::raise(database, until)?;
        while Instant::now() < until {
            if barrier::wait(database, id, partitions, until.min(Instant::now() + BARRIER_LOOK))? {
                return Ok(());
            }
            if self.is_stopped() {
                return Err(AuditError::Stopped);
            }
        }
        Err(AuditError::Behind { seconds: BARRIER_WAIT.as_secs() })
    }

    /// Notes what is wrong; returns what has changed meanwhile and so is as open as before.
    fn judge(&mut self, suspects: &[Suspect]) -> Result<Vec<Suspect>, AuditError> {
        let edges: Vec<EdgeKey> = suspects.iter().map(|suspect| suspect.edge).collect();
        let parts = self.parts;
        let mut picture = Picture::begin(&parts.database)?;
        let outgoing: HashMap<EdgeKey, EdgeRow> = picture.outgoing(&edges)?.into_iter().collect();
        let incoming: HashMap<EdgeKey, EdgeRow> = picture.incoming(&edges)?.into_iter().collect();
        picture.end()?;
        self.pace(2 * edges.len())?;
        let mut open = Vec::new();
        for Suspect { edge, version } in suspects {
            let (truth, found) = (outgoing.get(edge), incoming.get(edge));
            let now = truth.map(|row| row.version);
            if agree(truth, found) {
                continue;
            }
            if now == *version {
                self.wrong_row(*edge, truth, found);
            } else {
                open.push(Suspect { edge: *edge, version: now });
            }
        }
        Ok(open)
    }
}
