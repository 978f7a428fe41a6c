//! `guanxi import`: sends lines of a file, or of another database, to the server, part by part, and
//! goes on where an earlier run was stopped. What a line means is the server's to say; here it is
//! only cut from its file.

mod file;
mod from;
mod offline;
mod rejects;
mod standing;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use guanxi_api::import::ImportAnswer;
use guanxi_api::line::LineFormat;
use guanxi_model::import::{ImportId, LinesDigest};
use guanxi_model::limits::IMPORT_REJECTS_KEPT_MAX;
use serde_json::{Value, json};

use self::file::{ImportFile, ImportPart, Parted};
use self::from::{FromFlags, PlaceFile, Tried};
use self::offline::OfflineFlags;
use self::rejects::Rejects;
use self::standing::{ImportStanding, StandstillWait};
use super::CommandContext;
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::output::{Output, Style, counted};
use super::progress::ProgressLine;
use crate::failure::{Exit, Failure};

/// How long a part that is under way may take to be answered after Ctrl-C.
const INTERRUPT_GRACE: Duration = Duration::from_secs(30);
const LAST_WORDS: &str = "the server has not answered, and may do the lines of the last part all \
                          the same. Run again under its id, an import goes on where it was";
/// How often Ctrl-C is looked for while lines are waited for.
const INTERRUPT_PAUSE: Duration = Duration::from_millis(100);

/// Imports edges, groups, settings and counters from a file, MySQL or Redis.
///
/// Lines are NDJSON such as {"kind":"follow","source":"1","target":"2"}, or CSV under a header
/// line of the same names; what `guanxi export` writes can be imported. gzip and zstd are
/// recognised. Run again after a stop, it goes on where it was.
///
/// With --data-dir no server is asked: a new data directory is made, many times as fast, for
/// `guanxi serve` to be started with.
///
/// With --from, edges are read from a table or from sorted sets as they are today, and both sides
/// are compared afterwards.
#[derive(Debug, Args)]
pub struct Import {
    /// The file; - is standard input. Several, with --data-dir alone, are read one after the other.
    #[arg(value_name = "FILE", required_unless_present = "from")]
    file: Vec<PathBuf>,
    /// What the lines are; by default what the file's name says, else NDJSON.
    #[arg(long, value_enum)]
    format: Option<FormatArgument>,
    /// Collects the lines that were rejected, each with its error. They can be corrected and
    /// imported again. A run that goes on collects those of the runs before too.
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// Lifts the outgoing limits of kinds up to 10,000 edges.
    #[arg(long)]
    ignore_limits: bool,
    /// Names the import: its place is kept under this name. A name that was used for other lines is
    /// refused.
    /// By default it follows from the file's content, or from the source and the columns given with
    /// --from; standard input keeps its place only with a name.
    #[arg(long, value_name = "ID", value_parser = import_id)]
    id: Option<ImportId>,
    #[command(flatten)]
    offline: OfflineFlags,
    #[command(flatten)]
    from: FromFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArgument {
    Ndjson,
    Csv,
}

impl From<FormatArgument> for LineFormat {
    fn from(format: FormatArgument) -> LineFormat {
        match format {
            FormatArgument::Ndjson => LineFormat::Ndjson,
            FormatArgument::Csv => LineFormat::Csv,
        }
    }
}

fn import_id(text: &str) -> Result<ImportId, String> {
    ImportId::new(text).map_err(|error| error.message)
}

/// Ctrl-C waits for the part that is under way.
fn interrupt() -> Result<Interrupt, Failure> {
    Interrupt::catch(INTERRUPT_GRACE, EXIT_INTERRUPTED, LAST_WORDS)
}

impl Import {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        if let Some(asked) = self.from.asked()? {
            return from::run(&self, &asked, context);
        }
        if let Some(data_dir) = &self.offline.data_dir {
            return offline::run(&self, data_dir, context);
        }
        let interrupt = interrupt()?;
        let [file] = self.file.as_slice() else {
            return Err(Failure::usage("a running service is given one file at a time")
                .next("import them one after the other, or into a new directory with --data-dir"));
        };
        let source = ImportFile::open(file, self.format.map(LineFormat::from))?;
        let id = self.id.clone().or_else(|| source.id());
        let standing = match &id {
            Some(id) => ImportStanding::of(context, id)?,
            None => ImportStanding::default(),
        };
        let mut run = Run {
            import: &self,
            format: source.format(),
            shown: source.shown().to_owned(),
            interrupt: &interrupt,
            rejects: Rejects::open(
                self.rejects.as_deref(),
                Some(file),
                source.format(),
                &standing,
            )?,
            begun_at: standing.lines,
            standing,
            is_first: id.is_some(),
            id,
            waiting: StandstillWait::new(&interrupt),
            new_lines: 0,
            digest: LinesDigest::default(),
            file_is_wrong: false,
            places: None,
        };
        run.announce(context)?;
        let progress = ProgressLine::new(&context.output, "importing", source.bytes());
        let parts = source.read()?;
        let begun = Instant::now();
        let sent = run.send_all(context, &parts, &progress);
        drop(progress);
        run.rejects.finish()?;
        sent.map_err(|failure| run.how_to_go_on(failure))?;
        let took = begun.elapsed();
        match context.output.json() {
            true => context.output.value(&run.summary(took))?,
            false => run.show(&mut context.output, took)?,
        }
        context.output.flush()?;
        run.verdict()
    }
}

struct Run<'a> {
    import: &'a Import,
    id: Option<ImportId>,
    format: LineFormat,
    shown: String,
    interrupt: &'a Interrupt,
    rejects: Rejects,
    begun_at: u64,
    /// Where the import stands, with what came of all lines up to there.
    standing: ImportStanding,
    /// Nothing was sent yet, or it was refused: a run that was killed may have sent lines that the
    /// server has not taken yet.
    is_first: bool,
    waiting: StandstillWait<'a>,
    /// Lines that this run has sent.
    new_lines: u64,
    /// The digest of the lines of the file that were passed over or sent.
    digest: LinesDigest,
    /// What stopped it was found in the file.
    file_is_wrong: bool,
    /// Where in a source that is no file its lines are.
    places: Option<PlaceFile>,
}

impl Run<'_> {
    /// A person should know how to go on before anything can go wrong.
    fn announce(&self, context: &mut CommandContext) -> Result<(), Failure> {
        let (Some(id), false) = (&self.id, context.output.json()) else {
            return Ok(());
        };
        let line = match self.begun_at {
            0 => format!("import {}", id.as_str()),
            lines => format!("import {} goes on after line {lines}", id.as_str()),
        };
        let line = context.output.paint(Style::Faint, &line).into_owned();
        context.output.line(&line)?;
        context.output.flush()
    }

    fn send_all(
        &mut self,
        context: &mut CommandContext,
        parts: &Receiver<Parted>,
        progress: &ProgressLine,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut last = 0;
        while let Some(part) = self.next(parts)? {
            let steps = part.steps;
            last = part.last();
            match self.places {
                None => self.take(context, part)?,
                Some(_) => self.take_of_source(context, &part)?,
            }
            progress.advance(steps);
            let rate = self.new_lines as f64 / begun.elapsed().as_secs_f64();
            progress.say(format!("line {last}, {rate:.0} lines/s"));
        }
        match self.places.is_none() && last < self.standing.lines {
            true => Err(self.other_lines()),
            false => Ok(()),
        }
    }

    /// Sends of a part of the file what is not done yet.
    fn take(&mut self, context: &mut CommandContext, mut part: ImportPart) -> Result<(), Failure> {
        while let Some(rest) = self.pass_over(part)? {
            // One line finds out whether the place is still the same, and once it is taken, what a
            // run that was killed has sent comes too late.
            let first = self.is_first.then(|| rest.first_line());
            let sent = first.as_ref().unwrap_or(&rest);
            match self.send(context, sent) {
                Ok(answer) => self.answered(&answer, sent)?,
                Err(refusal) => {
                    let Some(id) = self.id.clone() else { return Err(refusal) };
                    let stood = self.standing.lines;
                    self.standing = self.waiting.wait(context, &id, stood, refusal)?;
                    self.is_first = true;
                }
            }
            part = rest;
        }
        Ok(())
    }

    /// Passes over the lines that are done, which must be those that the server had, and gives what
    /// is left of the part.
    fn pass_over(&mut self, part: ImportPart) -> Result<Option<ImportPart>, Failure> {
        let ImportStanding { lines, digest, .. } = self.standing;
        if lines < part.after {
            let message = format!("the server has {lines} lines done, and had {}", part.after);
            return Err(Failure::failed(message));
        }
        let done = lines.min(part.last());
        for reject in self.standing.rejects_between(part.after, done) {
            self.rejects.take(reject, &part, self.format)?;
        }
        part.digest(done, &mut self.digest);
        if done == lines && lines > 0 {
            if digest.is_some_and(|digest| digest != self.digest) {
                return Err(self.other_lines());
            }
            self.rejects.passed_over()?;
        }
        Ok((done < part.last()).then(|| part.behind(done)))
    }

    /// To pass over lines that were never done would lose them.
    fn other_lines(&mut self) -> Failure {
        self.file_is_wrong = true;
        file::other_lines(&self.shown, self.standing.lines)
    }

    /// Sends a part of a source that is no file.
    fn take_of_source(
        &mut self,
        context: &CommandContext,
        part: &ImportPart,
    ) -> Result<(), Failure> {
        // Of a run that was killed the server may still be taking lines, and until it has taken
        // one of ours, only what that run has kept tells their places.
        let goes_on = self.is_first;
        match &self.places {
            Some(places) if goes_on => places.note_try(Some(Tried::of(part, &self.standing)))?,
            _ => self.keep_places(part)?,
        }
        let answer = match (self.send(context, part), &self.places) {
            (Ok(answer), _) => answer,
            (Err(refusal), Some(places)) if goes_on && standing::none_taken(&refusal) => {
                places.note_try(None)?;
                return Err(refusal);
            }
            (Err(failure), _) => return Err(failure),
        };
        if goes_on {
            self.keep_places(part)?;
        }
        self.answered(&answer, part)
    }

    /// Takes in what came of lines.
    fn answered(&mut self, answer: &ImportAnswer, part: &ImportPart) -> Result<(), Failure> {
        let before = self.standing.lines;
        self.standing.advance(answer);
        self.new_lines += self.standing.lines - before;
        self.is_first = false;
        self.waiting.over();
        for reject in &answer.rejects {
            self.rejects.take(reject, part, self.format)?;
        }
        // The server names only the first of them again: what comes next stands for lines whose
        // rejects are in their file.
        self.rejects.sync()
    }

    /// The next part; none at the end. A person who types the lines may stop while we wait.
    fn next(&mut self, parts: &Receiver<Parted>) -> Result<Option<ImportPart>, Failure> {
        loop {
            if self.interrupt.is_set() {
                return Err(Failure::failed("stopped"));
            }
            match parts.recv_timeout(INTERRUPT_PAUSE) {
                Ok(part) => {
                    self.file_is_wrong = part.is_err() && self.places.is_none();
                    return part;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed("the reading of the file ended before its end"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn send(&self, context: &CommandContext, part: &ImportPart) -> Result<ImportAnswer, Failure> {
        let content_type = match self.format {
            LineFormat::Ndjson => "application/x-ndjson",
            LineFormat::Csv => "text/csv",
        };
        let request = context
            .client
            .post("/v1/admin/import")
            .query("after", part.after)
            .query_if("id", self.id.as_ref().map(ImportId::as_str))
            .query_if("ignore_limits", self.import.ignore_limits.then_some(true));
        let answer = request.send_stream(content_type, &mut part.body.as_slice())?;
        Ok(answer.said()?.means)
    }

    fn how_to_go_on(&self, failure: Failure) -> Failure {
        let lines = self.standing.lines;
        // A standby takes no line however often it is asked; it has named its primary.
        if failure.code.as_deref() == Some("read_only") {
            return failure.next("import into the primary: name it with --server");
        }
        let says_how = self.file_is_wrong && !failure.next_step().is_empty();
        if says_how || (lines == 0 && failure.exit == Exit::Usage) {
            return failure;
        }
        let (done, are) = (counted(lines, "line"), if lines == 1 { "is" } else { "are" });
        // Of what was sent last, the server may have taken more.
        let message =
            format!("{}; at least {done} of {} {are} done", failure.message(), self.shown);
        let failure = failure.saying(message);
        match &self.id {
            // The file is wrong as it is, so its own name would not come back.
            Some(id) if self.file_is_wrong || failure.exit == Exit::Usage => failure.next(format!(
                "mend the file and go on with --id {}: lines that are done are passed over",
                id.as_str()
            )),
            Some(_)
                if failure.code.as_deref() == Some("conflict")
                    && !failure.next_step().is_empty() =>
            {
                failure
            }
            Some(_) => failure.next("run the same command again: it goes on where it was"),
            None => failure
                .next("it keeps no place: lines that are done would be read again; --id keeps one"),
        }
    }

    /// Where in a source that is no file the lines of a part are.
    fn keep_places(&self, part: &ImportPart) -> Result<(), Failure> {
        let collects = self.import.rejects.is_some();
        self.places.as_ref().map_or(Ok(()), |places| places.keep(part, collects))
    }

    /// A source that is no file was read to its end.
    fn keep_the_end(&self, skipped: u64) -> Result<(), Failure> {
        match &self.places {
            Some(places) => places.keep_the_end(self.standing.lines, skipped),
            None => Ok(()),
        }
    }

    fn summary(&self, took: Duration) -> Value {
        let ImportStanding { lines, accepted, changed, rejected, .. } = self.standing;
        json!({
            "id": self.id.as_ref().map(ImportId::as_str), "lines": lines,
            "new_lines": self.new_lines, "accepted": accepted, "changed": changed,
            "rejected": rejected, "rejects_left_off": self.rejects_left_off(),
            "seconds": took.as_secs_f64(),
        })
    }

    /// Rejected lines that nobody can name any more.
    fn rejects_left_off(&self) -> u64 {
        self.standing.rejected.saturating_sub(self.rejects.named())
    }

    /// Rejected lines are something wrong, whichever run sent them.
    fn verdict(&self) -> Result<(), Failure> {
        let rejected = self.standing.rejected;
        if rejected == 0 {
            return Ok(());
        }
        let were = if rejected == 1 { "was" } else { "were" };
        let mut said = format!("{} {were} rejected", counted(rejected, "line"));
        let left_off = self.rejects_left_off();
        if left_off > 0 {
            said.push_str(&format!(
                ", and {left_off} of them cannot be named: they were sent by earlier runs, of which \
                 the server keeps {IMPORT_REJECTS_KEPT_MAX} rejected lines at most"
            ));
        }
        let failure = Failure::found(said);
        Err(match (&self.import.rejects, &self.places) {
            (Some(file), _) => failure.next(format!(
                "{} has them, each with its error; correct them and import that file",
                file.display()
            )),
            (None, None) if self.id.is_some() => failure.next(
                "to collect such lines, each with its error, run the same command again with \
                 --rejects FILE",
            ),
            (None, _) => failure.next(
                "to collect such lines, each with its error, import once more with --rejects FILE \
                 and another --id",
            ),
        })
    }

    fn show(&self, output: &mut Output, took: Duration) -> Result<(), Failure> {
        let ImportStanding { lines, accepted, changed, .. } = self.standing;
        let new = self.new_lines;
        if new == 0 && lines > 0 {
            let all = match lines {
                1 => "the line was".to_owned(),
                lines => format!("all {lines} lines were"),
            };
            return output.line(&format!(
                "{all} done before; --id with another name imports what is in the file anew"
            ));
        }
        let rate = new as f64 / took.as_secs_f64().max(0.001);
        let of_all = match new < lines {
            true => format!("; of all {lines}"),
            false => String::new(),
        };
        let done = format!(
            "{} in {:.1} s ({rate:.0}/s){of_all}: {accepted} accepted, {} changed",
            counted(new, "line"),
            took.as_secs_f64(),
            counted(changed, "edge")
        );
        let done = output.paint(Style::Good, &done).into_owned();
        output.line(&done)
    }
}
