//! `guanxi import --from`: edges as they lie in a table or in sorted sets today become lines of an
//! import, page by page; afterwards both sides are compared.

// Without the readers nothing makes some of what they would find.
#![cfg_attr(not(feature = "cluster"), allow(dead_code))]

mod flags;
mod place;
#[cfg(feature = "cluster")]
mod readers;
#[cfg(not(feature = "cluster"))]
#[path = "from/no_readers.rs"]
mod readers;
mod row;
mod verify;

pub use flags::FromFlags;
pub use place::{PlaceFile, Tried};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use guanxi_api::line::LineFormat;
use guanxi_model::hash::hash128;
use guanxi_model::import::{ImportId, LinesDigest};
use serde_json::{Value, json};

use self::flags::ImportOrder;
use self::place::SourcePlace;
use self::row::SourceRow;
use self::verify::VerifiedImport;
use super::file::{ImportPart, Parted};
use super::rejects::Rejects;
use super::standing::{ImportStanding, StandstillWait};
use super::{Import, Run};
use crate::cli::CommandContext;
use crate::cli::interrupt::Interrupt;
use crate::cli::progress::ProgressLine;
use crate::failure::Failure;

/// Rows of a page: a statement of some milliseconds.
const PAGE_ROWS: usize = 2_000;
/// Lines of a part: what a file of places and a server's answer easily hold.
const PART_LINES_MAX: usize = 10_000;
/// Parts that are read ahead.
const PARTS_AHEAD_MAX: usize = 1;
/// Lines that a dry run shows.
const SHOWN_LINES_MAX: u64 = 10;

/// What a reader gives.
#[derive(Debug)]
enum SourceFinding {
    Edge(SourceRow),
    /// The source says that there is no edge.
    NoEdge,
    /// Nothing but a place.
    Nothing,
}

#[derive(Debug)]
struct SourceItem {
    found: SourceFinding,
    /// From where reading goes on behind it; none where it cannot.
    place: Option<SourcePlace>,
}

/// Which of a node's lists the source has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListSide {
    Outgoing,
    Incoming,
}

/// A node of which the source has edges.
#[derive(Debug)]
struct SourceNode {
    id: u64,
    side: ListSide,
    /// How the source calls it.
    key: String,
}

/// A source, read in bounded pages.
trait SourceReader: Send {
    /// Goes on behind a place; null is the beginning.
    fn go_to(&mut self, place: &SourcePlace) -> Result<(), Failure>;

    /// The next items; none at the end. A page may be empty.
    fn page(&mut self) -> Result<Option<Vec<SourceItem>>, Failure>;

    /// Further nodes, for the way back from the server to the source; none at the end.
    fn nodes(&mut self) -> Result<Option<Vec<SourceNode>>, Failure>;

    /// Which of these the source relates to the node, live or pending.
    fn known(&mut self, node: &SourceNode, others: &[u64]) -> Result<Vec<bool>, Failure>;
}

/// The whole command.
pub fn run(
    import: &Import,
    asked: &ImportOrder,
    context: &mut CommandContext,
) -> Result<(), Failure> {
    if asked.dry_run {
        return dry_run(asked, context);
    }
    let interrupt = super::interrupt()?;
    let mut report = json!({});
    let mut found: Option<Failure> = None;
    if !asked.verify_only {
        let (said, verdict) = import_all(import, asked, context, &interrupt)?;
        report = said;
        found = verdict.err();
    }
    if asked.verify {
        let verified = verify::run(asked, context, &interrupt)?;
        verified.show(&mut context.output)?;
        report["verification"] = json!(verified);
        found = worse(found, &verified);
    }
    if context.output.json() {
        context.output.value(&report)?;
    }
    context.output.flush()?;
    found.map_or(Ok(()), Err)
}

/// Rejected lines are missing afterwards, so both are told at once.
fn worse(found: Option<Failure>, verified: &VerifiedImport) -> Option<Failure> {
    if verified.differences() == 0 {
        return found;
    }
    let differ = format!("{} edges differ from the source", verified.differences());
    Some(match found {
        None => Failure::found(differ).next(
            "what changed meanwhile differs until it is imported too: run again with --id and \
             another name, or look at the differences",
        ),
        Some(found) => {
            let message = format!("{}; {differ}", found.message());
            found.saying(message)
        }
    })
}

/// From the import's place to the end of the source, which is looked for again where the place
/// moves meanwhile: what to report, and what to make of it.
fn import_all(
    import: &Import,
    asked: &ImportOrder,
    context: &mut CommandContext,
    interrupt: &Interrupt,
) -> Result<(Value, Result<(), Failure>), Failure> {
    let id = match &import.id {
        Some(id) => id.clone(),
        None => id_of(asked)?,
    };
    let mut waiting = StandstillWait::new(interrupt);
    loop {
        let standing = ImportStanding::of(context, &id)?;
        let stood = standing.lines;
        let mut reached = stood;
        let refusal = match attempt(import, asked, context, interrupt, &id, standing, &mut reached)
        {
            Ok(done) => return Ok(done),
            Err(refusal) => refusal,
        };
        if reached > stood {
            waiting.over();
        }
        waiting.wait(context, &id, reached, refusal)?;
    }
}

fn attempt(
    import: &Import,
    asked: &ImportOrder,
    context: &mut CommandContext,
    interrupt: &Interrupt,
    id: &ImportId,
    standing: ImportStanding,
    reached: &mut u64,
) -> Result<(Value, Result<(), Failure>), Failure> {
    let mut reader = readers::open(asked)?;
    let begun_at = standing.lines;
    let places = PlaceFile::new(asked.place.as_deref(), id, &asked.named());
    let begin = places.begin(begun_at, standing.digest)?;
    let format = LineFormat::Ndjson;
    let mut rejects = Rejects::open(import.rejects.as_deref(), None, format, &standing)?;
    let sent = places.sent()?;
    for reject in &standing.rejects {
        rejects.take(reject, &sent, format)?;
    }
    rejects.passed_over()?;
    let mut run = Run {
        import,
        id: Some(id.clone()),
        format,
        shown: asked.shown(),
        interrupt,
        rejects,
        begun_at,
        standing,
        is_first: begin.ahead,
        waiting: StandstillWait::new(interrupt),
        new_lines: 0,
        digest: LinesDigest::default(),
        file_is_wrong: false,
        places: Some(places),
    };
    run.announce(context)?;
    let skipped = Arc::new(AtomicU64::new(begin.skipped));
    let begun = Instant::now();
    if let Some(place) = begin.place {
        reader.go_to(&place)?;
        let progress = ProgressLine::new(&context.output, "importing", None);
        // One line only finds out whether the place is still the same.
        let first_max = if begin.ahead { 1 } else { PART_LINES_MAX };
        let part = ImportPart::of_lines(begun_at, place, begin.skipped);
        let parts = read(reader, asked.kind.clone(), part, first_max, skipped.clone())?;
        let sent = run.send_all(context, &parts, &progress);
        drop(progress);
        *reached = run.standing.lines;
        run.rejects.finish()?;
        let kept = sent.and_then(|()| run.keep_the_end(skipped.load(Ordering::Relaxed)));
        kept.map_err(|failure| run.how_to_go_on(failure))?;
    }
    let took = begun.elapsed();
    let mut said = run.summary(took);
    let skipped = skipped.load(Ordering::Relaxed);
    said["skipped"] = json!(skipped);
    if !context.output.json() {
        run.show(&mut context.output, took)?;
        if skipped > 0 {
            context.output.line(&format!("{skipped} rows say that there is no edge"))?;
        }
        context.output.flush()?;
    }
    Ok((said, run.verdict()))
}

/// The same for the same source and mapping.
fn id_of(asked: &ImportOrder) -> Result<ImportId, Failure> {
    let id = ImportId::new(&format!("from-{:032x}", hash128(asked.named().as_bytes())));
    id.map_err(|error| Failure::failed(error.message))
}

/// Reads the source from where a part begins, in a thread of its own.
fn read(
    reader: Box<dyn SourceReader>,
    kind: String,
    part: ImportPart,
    lines_max: usize,
    skipped: Arc<AtomicU64>,
) -> Result<Receiver<Parted>, Failure> {
    let (parts, receiver) = sync_channel(PARTS_AHEAD_MAX);
    let cutting = PageCutting { reader, kind, part, lines_max, skipped, parts };
    let thread = std::thread::Builder::new().name("guanxi-read".into());
    thread
        .spawn(move || cutting.run())
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
    Ok(receiver)
}

/// Cuts pages into parts.
struct PageCutting {
    reader: Box<dyn SourceReader>,
    kind: String,
    part: ImportPart,
    /// Lines that the part may have.
    lines_max: usize,
    /// Rows that became no line, of all runs.
    skipped: Arc<AtomicU64>,
    parts: SyncSender<Parted>,
}

impl PageCutting {
    fn run(mut self) {
        let end = match self.read() {
            Ok(true) => Ok(None),
            // Nobody listens any more.
            Ok(false) => return,
            Err(failure) => Err(failure),
        };
        let _gone = self.parts.send(end);
    }

    /// Whether all of it was taken.
    fn read(&mut self) -> Result<bool, Failure> {
        loop {
            let page = match self.reader.page() {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(self.send()),
                Err(failure) => {
                    // What was read before is as good as any.
                    self.send();
                    return Err(failure);
                }
            };
            for SourceItem { found, place } in page {
                match found {
                    SourceFinding::Edge(row) => self.part.push(&row.line(&self.kind), row.label),
                    SourceFinding::NoEdge => {
                        self.skipped.fetch_add(1, Ordering::Relaxed);
                    }
                    SourceFinding::Nothing => {}
                }
                if let Some(place) = place {
                    self.part.mark(place, self.skipped.load(Ordering::Relaxed));
                }
                if self.part.lines() >= self.lines_max && !self.send() {
                    return Ok(false);
                }
            }
        }
    }

    /// Whether somebody took it.
    fn send(&mut self) -> bool {
        if self.part.lines() == 0 {
            return true;
        }
        self.lines_max = PART_LINES_MAX;
        let next = self.part.next();
        let part = std::mem::replace(&mut self.part, next);
        self.parts.send(Ok(Some(part))).is_ok()
    }
}

/// Reads all of the source, sends nothing, and shows what it would send first.
fn dry_run(asked: &ImportOrder, context: &mut CommandContext) -> Result<(), Failure> {
    let mut reader = readers::open(asked)?;
    let progress = ProgressLine::new(&context.output, "reading", None);
    let (mut lines, mut skipped, mut wrong) = (0_u64, 0_u64, 0_u64);
    let mut shown: Vec<String> = Vec::new();
    while let Some(page) = reader.page()? {
        for SourceItem { found, place: _ } in &page {
            let SourceFinding::Edge(row) = found else {
                skipped += u64::from(matches!(found, SourceFinding::NoEdge));
                continue;
            };
            lines += 1;
            wrong += u64::from(row.ends().is_none() || row.state.is_err());
            if lines <= SHOWN_LINES_MAX {
                shown.push(String::from_utf8_lossy(&row.line(&asked.kind)).into_owned());
            }
        }
        progress.advance(page.len() as u64);
    }
    progress.finish();
    if context.output.json() {
        let first: Vec<Value> =
            shown.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        return context.output.value(&json!({
            "dry_run": true, "lines": lines, "skipped": skipped, "wrong": wrong, "first": first,
        }));
    }
    for line in &shown {
        context.output.line(line)?;
    }
    context.output.line(&format!(
        "{lines} lines would be sent; {wrong} of them have no two ids and a known status; \
         {skipped} rows say that there is no edge. Nothing was sent"
    ))
}
