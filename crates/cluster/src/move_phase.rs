//! What the tables say of a move that fills them: no instance opens them before it is done. The
//! move itself knows both deployments, so it lives in a crate of its own.

use std::time::{Duration, Instant};

use super::rows::cell;
use super::sql::{Database, SqlError};

const WAIT: Duration = Duration::from_secs(30);

/// What `facts` calls how far a move is.
pub const PHASE: &str = "move.phase";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The tables are being emptied, for a load from the beginning.
    Clearing = 1,
    Loading = 2,
    Following = 3,
    Done = 4,
    /// The move has said that it begins, and looks whether it may: nothing here is its own yet.
    Claiming = 5,
}

impl Phase {
    /// As it stands in `facts`.
    pub fn of(value: u64) -> Result<Phase, SqlError> {
        let all = [Phase::Clearing, Phase::Loading, Phase::Following, Phase::Done, Phase::Claiming];
        let phase = all.into_iter().find(|phase| *phase as u64 == value);
        phase.ok_or_else(|| {
            SqlError::Refused("a newer release has begun a move into these tables".into())
        })
    }
}

/// Whether a move into these tables has begun and not ended.
pub(crate) fn is_unfinished(database: &Database) -> Result<bool, SqlError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    let rows = session.rows(&format!("SELECT value FROM facts WHERE name='{PHASE}'"))?;
    let phase = rows.first().map(|row| Phase::of(cell(row, 0)?)).transpose()?;
    Ok(!matches!(phase, None | Some(Phase::Done)))
}
