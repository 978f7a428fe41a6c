//! Imports: where one stands, kept in the same commit as its lines. A chunk of lines that was
//! committed already, or that does not follow the last one, is refused as a whole; so what a user
//! removed after its line was read never comes back. What came of all lines is kept with the place,
//! so that whoever goes on after a stop can tell it of the whole file.

use std::sync::Arc;

use crate::answer::{Answer, EdgeAnswer};
use crate::error::{Code, Error};
use crate::hash::hash128;
use crate::limits::{
    IMPORT_ID_BYTES_MAX, IMPORT_REASON_CHARS_MAX, IMPORT_REASONS_KEPT_BYTES_MAX,
    IMPORT_REJECTS_KEPT_MAX,
};
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

    pub fn to_text(self) -> String {
        format!("{:032x}", self.0)
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

/// A line that was not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLine {
    /// Counted from 1.
    pub line: u64,
    pub code: Code,
    pub reason: Box<str>,
}

impl RejectedLine {
    /// A reason may repeat the line, so it is cut.
    pub fn new(line: u64, error: &Error) -> RejectedLine {
        let Error { code, message, .. } = error;
        let reason = match message.char_indices().nth(IMPORT_REASON_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &message[..end]).into(),
            None => message.as_str().into(),
        };
        RejectedLine { line, code: *code, reason }
    }
}

/// Where an import stands, and what came of the lines before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportRow {
    /// Lines that are done, taken or rejected.
    pub lines: u64,
    /// Those of them that were taken.
    pub accepted: u64,
    /// Edges that were new or became different.
    pub changed: u64,
    /// Lines that were rejected.
    pub rejected: u64,
    /// The first of them, as many as are kept.
    pub rejects: Arc<Vec<RejectedLine>>,
    /// The commit time of the last line.
    pub at: Millis,
    /// The digest of all lines.
    pub digest: LinesDigest,
}

impl ImportRow {
    /// Rejected lines that are not kept.
    pub fn rejects_left_off(&self) -> u64 {
        self.rejected - self.rejects.len() as u64
    }

    /// Keeps what still has room. What is kept has no gap: behind the first that has none, nothing
    /// is kept.
    fn keep(&mut self, rejected: Vec<RejectedLine>) {
        let mut bytes: usize = self.rejects.iter().map(|reject| reject.reason.len()).sum();
        let room = IMPORT_REJECTS_KEPT_MAX - self.rejects.len().min(IMPORT_REJECTS_KEPT_MAX);
        let whole = self.rejects_left_off() == 0;
        self.rejected += rejected.len() as u64;
        let kept = rejected.into_iter().take(if whole { room } else { 0 }).take_while(|reject| {
            bytes += reject.reason.len();
            bytes <= IMPORT_REASONS_KEPT_BYTES_MAX
        });
        let mut kept = kept.peekable();
        if kept.peek().is_some() {
            Arc::make_mut(&mut self.rejects).extend(kept);
        }
    }
}

/// A chunk of an import's lines, as they were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportLines {
    /// Lines before the chunk.
    pub before: u64,
    /// Lines up to and with the chunk.
    pub after: u64,
    /// The line of each change.
    pub of_changes: Vec<u64>,
    /// Lines that became no change because they could not be read.
    pub unreadable: Vec<RejectedLine>,
    /// The digest of the chunk's lines alone.
    pub digest: LinesDigest,
}

/// What came of a chunk's lines.
#[derive(Debug, PartialEq, Eq)]
pub struct LinesDone {
    pub accepted: u64,
    pub changed: u64,
    /// In the order of the lines.
    pub rejected: Vec<RejectedLine>,
}

impl ImportLines {
    /// What came of them, by the answers to their changes.
    pub fn done(&self, answers: &[Result<Answer, Error>]) -> LinesDone {
        let (mut accepted, mut changed) = (0, 0);
        let mut rejected = self.unreadable.clone();
        for (line, answer) in self.of_changes.iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    let is_change =
                        matches!(answer, Answer::Edge(EdgeAnswer { changed: true, .. }));
                    accepted += 1;
                    changed += u64::from(is_change);
                }
                Err(error) => rejected.push(RejectedLine::new(*line, error)),
            }
        }
        rejected.sort_by_key(|reject| reject.line);
        LinesDone { accepted, changed, rejected }
    }
}

/// A chunk of lines that is to follow an import's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportStep {
    pub id: ImportId,
    pub lines: ImportLines,
}

impl ImportStep {
    /// Refuses a chunk that does not begin where the import stands.
    pub fn check(&self, standing: &ImportRow) -> Result<(), Error> {
        let ImportLines { before, after, .. } = self.lines;
        if before == standing.lines && after >= before {
            return Ok(());
        }
        Err(Error::new(
            Code::Conflict,
            format!(
                "import {} has {} lines done, and these come after line {before}; go on after \
                 line {}",
                self.id.as_str(),
                standing.lines,
                standing.lines
            ),
        ))
    }

    /// Where the import stands after the chunk, whose changes were answered so.
    pub fn done(
        &self,
        standing: &ImportRow,
        answers: &[Result<Answer, Error>],
        now: Millis,
    ) -> ImportRow {
        let ImportLines { before, after, digest, .. } = &self.lines;
        let LinesDone { accepted, changed, rejected } = self.lines.done(answers);
        let mut row = ImportRow {
            lines: *after,
            accepted: standing.accepted + accepted,
            changed: standing.changed + changed,
            at: now,
            digest: standing.digest.then(*digest, after - before),
            ..standing.clone()
        };
        row.keep(rejected);
        row
    }
}
