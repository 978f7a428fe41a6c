//! Imports: where one stands, kept in the same commit as its lines. A chunk of lines that was
//! committed already, or that does not follow the last one, is refused as a whole; so what a user
//! removed after its line was read never comes back.

use crate::error::{Code, Error};
use crate::hash::hash128;
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

/// Tells lines from other lines. It follows from each of them and from their order, not from how
/// they were cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinesDigest(pub u128);

impl LinesDigest {
    /// What a digest is multiplied by for each line that follows; odd, so that nothing is lost.
    const STEP: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

    /// Takes one more line. Blanks around it do not count: they mean nothing, and may be lost on
    /// the way.
    pub fn take(&mut self, line: &[u8]) {
        self.0 = self.0.wrapping_mul(Self::STEP).wrapping_add(hash128(line.trim_ascii()));
    }

    /// The digest of these lines and so many later ones.
    pub fn then(self, later: LinesDigest, mut lines: u64) -> LinesDigest {
        let (mut power, mut square) = (1_u128, Self::STEP);
        while lines > 0 {
            if lines & 1 == 1 {
                power = power.wrapping_mul(square);
            }
            square = square.wrapping_mul(square);
            lines >>= 1;
        }
        LinesDigest(self.0.wrapping_mul(power).wrapping_add(later.0))
    }
}

/// Where an import stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportRow {
    /// Lines that are done, taken or rejected.
    pub lines: u64,
    /// Those of them that were rejected.
    pub rejected: u64,
    /// The commit time of the last of them.
    pub at: Millis,
    /// The digest of all of them. An import that began when none was kept has none.
    pub digest: Option<LinesDigest>,
}

impl Default for ImportRow {
    /// Where an import begins.
    fn default() -> ImportRow {
        let digest = Some(LinesDigest::default());
        ImportRow { lines: 0, rejected: 0, at: Millis(0), digest }
    }
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
    /// The digest of the chunk's lines alone.
    pub digest: LinesDigest,
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
        let lines = self.after - self.before;
        let digest = standing.digest.map(|before| before.then(self.digest, lines));
        ImportRow { lines: self.after, rejected, at: now, digest }
    }
}
