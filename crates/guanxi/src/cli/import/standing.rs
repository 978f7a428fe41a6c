//! Where the server says that an import stands, and what came of the lines before. Of a run that
//! was killed, or of a part whose answer was lost, it may still be taking lines: those are waited
//! for.

use std::thread::sleep;
use std::time::{Duration, Instant};

use guanxi_api::import::{ImportAnswer, ImportPlace, REJECTS_MAX, Reject};
use guanxi_model::import::{ImportId, LinesDigest};

use super::super::client::path;
use super::super::interrupt::Interrupt;
use super::super::output::Style;
use crate::cli::CommandContext;
use crate::failure::Failure;

/// How long lines of another run are waited for, again and again: more than a busy server needs for
/// one part.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// A place that did not move for so long is taken to stand still. If it moves all the same, the
/// server refuses what comes next, and it is waited for again.
const STILL: Duration = Duration::from_millis(500);
/// How often the place is looked at meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How far the place can move by what a run that was killed has sent: one part.
const AHEAD_LINES_MAX: u64 = REJECTS_MAX as u64;

/// Where an import stands, with what came of its lines.
#[derive(Debug, Default)]
pub struct ImportStanding {
    pub lines: u64,
    pub accepted: u64,
    pub changed: u64,
    pub rejected: u64,
    /// The rejected lines that the server has kept, ascending.
    pub rejects: Vec<Reject>,
    /// None where nobody has told it.
    pub digest: Option<LinesDigest>,
}

impl ImportStanding {
    /// Asks the server; an import that it does not know has not begun.
    pub fn of(context: &CommandContext, id: &ImportId) -> Result<ImportStanding, Failure> {
        let path = path([&"v1", &"admin", &"import", &id.as_str()]);
        let place = match context.client.get(&path).ask::<ImportPlace>() {
            Ok(place) => place.means,
            Err(failure) if failure.code.as_deref() == Some("not_found") => {
                let digest = Some(LinesDigest::default());
                return Ok(ImportStanding { digest, ..ImportStanding::default() });
            }
            Err(failure) => return Err(failure),
        };
        Ok(ImportStanding {
            lines: place.lines,
            accepted: place.accepted,
            changed: place.changed,
            rejected: place.rejected,
            rejects: place.rejects,
            digest: u128::from_str_radix(&place.digest, 16).ok().map(LinesDigest),
        })
    }

    /// Takes in what the server answered to more lines.
    pub fn advance(&mut self, answer: &ImportAnswer) {
        self.lines = answer.lines;
        self.accepted += answer.accepted;
        self.changed += answer.changed;
        self.rejected += answer.rejected;
        self.digest = None;
    }

    /// Whether a line may be one of its rejected ones, with this said of it.
    pub fn may_have_rejected(&self, line: u64, said: &str) -> bool {
        match self.rejects.binary_search_by_key(&line, |reject| reject.line) {
            Ok(at) => said.contains(&format!(": {}: ", self.rejects[at].error.code)),
            // Not all are kept, and what is has no gap.
            Err(at) => {
                let left_off = self.rejected > self.rejects.len() as u64;
                left_off && at == self.rejects.len() && line <= self.lines
            }
        }
    }

    /// The kept rejects among the lines from behind one up to another.
    pub fn rejects_between(&self, after: u64, upto: u64) -> &[Reject] {
        let begin = self.rejects.partition_point(|reject| reject.line <= after);
        let end = self.rejects.partition_point(|reject| reject.line <= upto);
        &self.rejects[begin..end]
    }
}

/// Whether none of the lines was taken, and they may be later.
pub fn none_taken(refusal: &Failure) -> bool {
    matches!(refusal.code.as_deref(), Some("conflict" | "overloaded"))
}

fn why_to_wait(refusal: &Failure) -> Option<&'static str> {
    match refusal.code.as_deref() {
        Some("conflict") => Some("the server is still taking lines that an earlier run has sent"),
        Some("overloaded") => Some("the server has too much to do"),
        // So it is when this command was stopped for a while and is continued.
        Some("deadline_exceeded") => Some("the server got the lines too late"),
        None if refusal.unanswered => Some("the server's answer was lost"),
        _ => None,
    }
}

/// The wait for a place to stand still.
pub struct StandstillWait<'a> {
    interrupt: &'a Interrupt,
    /// Since when, and where the import stood then.
    begun: Option<(Instant, u64)>,
}

impl StandstillWait<'_> {
    pub fn new(interrupt: &Interrupt) -> StandstillWait<'_> {
        StandstillWait { interrupt, begun: None }
    }

    /// Lines were taken, so whatever was waited for is over.
    pub fn over(&mut self) {
        self.begun = None;
    }

    /// After what passes: waits until the import stands still, and tells where. Whatever else it was
    /// is given back.
    pub fn wait(
        &mut self,
        context: &mut CommandContext,
        id: &ImportId,
        stood: u64,
        refusal: Failure,
    ) -> Result<ImportStanding, Failure> {
        let Some(why) = why_to_wait(&refusal) else { return Err(refusal) };
        if self.begun.is_none() && !context.output.json() {
            let wait = WAIT_MAX.as_secs();
            let line = format!("{why}; waiting until it stands still, at most {wait} s");
            let line = context.output.paint(Style::Faint, &line).into_owned();
            context.output.line(&line)?;
            context.output.flush()?;
        }
        let (since, first) = *self.begun.get_or_insert((Instant::now(), stood));
        let mut standing = ImportStanding::of(context, id)?;
        let mut still_since = Instant::now();
        while still_since.elapsed() < STILL {
            if standing.lines > first + AHEAD_LINES_MAX {
                return Err(refusal.saying("another run of this import is under way").next(
                    "wait for its end, or stop it; run once more, this one goes on where it was",
                ));
            }
            if since.elapsed() > WAIT_MAX {
                return Err(refusal);
            }
            if self.interrupt.is_set() {
                return Err(Failure::failed("stopped"));
            }
            sleep(LOOK_PAUSE);
            let next = ImportStanding::of(context, id)?;
            if next.lines != standing.lines {
                still_since = Instant::now();
            }
            standing = next;
        }
        Ok(standing)
    }
}
