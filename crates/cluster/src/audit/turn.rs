//! Whose turn it is to mend. The lease of the one audit passes on when its holder says nothing for
//! some seconds, and a holder that was stopped between its look and a repair would add what the next
//! one has added meanwhile. So each audit that begins raises a number, and a repair is committed only
//! while it is still the number of its audit.

use std::time::Instant;

use super::WAIT;
use crate::rows::cell;
use crate::sql::{Database, SqlError};

/// What `facts` calls the number.
const NAME: &str = "audit";
/// Adding two to it is an error on every server; `CommitBy` has another number, to be told apart.
const NEARLY_LARGEST: &str = "18446744073709551614";
const OUT_OF_RANGE: u16 = 1690;

#[derive(Debug, Clone, Copy)]
pub(super) struct MendTurn(u64);

impl MendTurn {
    /// Ends every other one, and waits for a repair of it that is being committed: what is looked at
    /// from now on has that repair.
    pub fn take(database: &Database) -> Result<MendTurn, SqlError> {
        let sets = database.session(Instant::now() + WAIT)?.run(&format!(
            "BEGIN;INSERT INTO facts (name,value) VALUES ('{NAME}',1) \
             ON DUPLICATE KEY UPDATE value=value+1;\
             SELECT value FROM facts WHERE name='{NAME}';COMMIT"
        ))?;
        let row = sets.get(2).and_then(|set| set.rows.first());
        let row = row.ok_or_else(|| SqlError::Refused("an audit has no number".into()))?;
        Ok(MendTurn(cell(row, 0)?))
    }

    /// The last statement before the COMMIT of a repair, in the same text: it fails when the turn is
    /// over, and holds the number until the repair is committed.
    pub fn hold(self) -> String {
        format!(
            "SELECT {NEARLY_LARGEST}+2*(value<>{}) FROM facts WHERE name='{NAME}' FOR UPDATE",
            self.0
        )
    }
}

/// Whether an error says that the turn was over.
pub(super) fn was_over(error: &SqlError) -> bool {
    error.code() == Some(OUT_OF_RANGE) && error.to_string().contains(NEARLY_LARGEST)
}
