//! Imports: where one stands, kept in the same commit as its lines. A chunk of lines that was
//! committed already, or that does not follow the last one, is refused as a whole; so what a user
//! removed after its line was read never comes back.

use crate::error::{Code, Error};
use crate::limits::IMPORT_ID_BYTES_MAX;
use crate::time::Millis;

/// Names an import; chosen by whoever runs it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImportId(Box<str>);

impl ImportId {
    pub fn new(id: &str) -> Result<ImportId, Error> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let dots = id == "." || id == "..";
        if id.is_empty() || id.len() > IMPORT_ID_BYTES_MAX || !id.bytes().all(plain) || dots {
            return Err(Error::invalid(format!(
                "an import's id has 1 to {IMPORT_ID_BYTES_MAX} letters, digits, '-', '_' or '.', \
                 and is neither '.' nor '..'"
            )));
        }
        Ok(ImportId(id.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where an import stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportRow {
    /// Lines that are done, taken or rejected.
    pub lines: u64,
    /// Those of them that were rejected.
    pub rejected: u64,
    /// The commit time of the last of them.
    pub at: Millis,
}

/// A chunk of an import's lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportStep {
    pub id: ImportId,
    /// Lines before the chunk.
    pub before: u64,
    /// Lines up to and with the chunk.
    pub after: u64,
    /// Lines of the chunk that became no change because they could not be read.
    pub unreadable: u64,
}

impl ImportStep {
    /// Refuses a chunk that does not begin where the import stands.
    pub fn check(&self, standing: &ImportRow) -> Result<(), Error> {
        if self.before == standing.lines && self.after >= self.before {
            return Ok(());
        }
        Err(Error::new(
            Code::Conflict,
            format!(
                "import {} has {} lines done, and these come after line {}; go on after line {}",
                self.id.as_str(),
                standing.lines,
                self.before,
                standing.lines
            ),
        ))
    }

    /// Where the import stands after the chunk, of whose changes so many were refused.
    pub fn done(&self, standing: &ImportRow, refused: u64, now: Millis) -> ImportRow {
        let rejected = standing.rejected + self.unreadable + refused;
        ImportRow { lines: self.after, rejected, at: now }
    }
}
