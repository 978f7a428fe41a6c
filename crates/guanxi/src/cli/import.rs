//! `guanxi import`: sends lines of a file, or of another database, to the server, part by part, and
//! goes on where an earlier run was stopped. What a line means is the server's to say; here it is
//! only cut from its file.

mod file;
mod from;
mod rejects;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use guanxi_api::line::LineFormat;
use guanxi_model::import::{ImportId, LinesDigest};
use serde_json::{Value, json};

use self::file::{Done, Part, Parted, Source};
use self::from::{FromFlags, PlaceFile};
use self::rejects::Rejects;
use super::Context;
use super::client::path;
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::output::{Output, Style, counted};
use super::progress::Progress;
use crate::failure::{Exit, Failure};

/// How long a part that is under way may take to be answered after Ctrl-C.
const INTERRUPT_GRACE: Duration = Duration::from_secs(30);
const LAST_WORDS: &str = "the server has not answered, and may do the lines of the last part all \
                          the same. Run again under its id, an import goes on where it was";
/// How often an import whose place moves on meanwhile looks for it again, and after which pause.
const PLACE_TRIES_MAX: usize = 20;
const PLACE_PAUSE: Duration = Duration::from_millis(500);
/// How often Ctrl-C is looked for while lines are waited for.
const INTERRUPT_PAUSE: Duration = Duration::from_millis(100);

/// Imports edges, groups, settings and counters from a file, MySQL or Redis.
///
/// Lines are NDJSON such as {"kind":"follow","source":"1","target":"2"}, or CSV under a header
/// line of the same names; what `guanxi export` writes can be imported. gzip and zstd are
/// recognised. Run again after a stop, it goes on where it was.
///
/// With --from, edges are read from a table or from sorted sets as they are today, and both sides
/// are compared afterwards.
#[derive(Debug, Args)]
pub struct Import {
    /// The file; - is standard input.
    #[arg(value_name = "FILE", required_unless_present = "from")]
    file: Option<PathBuf>,
    /// What the lines are; by default what the file's name says, else NDJSON.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Collects the lines that were rejected, each with its error. They can be corrected and
    /// imported again.
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
    from: FromFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Ndjson,
    Csv,
}

impl From<Format> for LineFormat {
    fn from(format: Format) -> LineFormat {
        match format {
            Format::Ndjson => LineFormat::Ndjson,
            Format::Csv => LineFormat::Csv,
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

/// The server may still be at work on what a run that was killed has sent: then the place moves on
/// meanwhile, and is looked for again.
fn until_it_stands_still<T>(
    interrupt: &Interrupt,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut tries = 0;
    loop {
        let done = attempt();
        tries += 1;
        let elsewhere =
            done.as_ref().is_err_and(|failure| failure.code.as_deref() == Some("conflict"));
        if !elsewhere || tries == PLACE_TRIES_MAX || interrupt.is_set() {
            return done;
        }
        std::thread::sleep(PLACE_PAUSE);
    }
}

impl Import {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        if let Some(asked) = self.from.asked()? {
            return from::run(&self, &asked, context);
        }
        let interrupt = interrupt()?;
        until_it_stands_still(&interrupt, || self.attempt(context, &interrupt))
    }

    /// From the import's place to the end of the file.
    fn attempt(&self, context: &mut Context, interrupt: &Interrupt) -> Result<(), Failure> {
        let file = self.file.as_deref().unwrap_or(Path::new("-"));
        let source = Source::open(file, self.format.map(LineFormat::from))?;
        let id = self.id.clone().or_else(|| source.id());
        let place = match &id {
            Some(id) => place(context, id)?,
            None => Place::default(),
        };
        let begun_at = place.done.lines;
        let mut run = Run {
            import: self,
            id,
            format: source.format(),
            shown: source.shown().to_owned(),
            interrupt,
            rejects: Rejects::open(self.rejects.as_deref(), Some(file), begun_at > 0)?,
            begun_at,
            rejected_before: place.rejected,
            file_is_wrong: false,
            places: None,
            sent: Sent { lines: begun_at, ..Sent::default() },
        };
        run.announce(context)?;
        let progress = Progress::new(&context.output, "importing", source.bytes());
        let parts = source.read(place.done)?;
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

/// What came of the parts so far.
#[derive(Debug, Default)]
struct Sent {
    /// Lines that are done, with those of earlier runs.
    lines: u64,
    accepted: u64,
    changed: u64,
    rejected: u64,
}

struct Run<'a> {
    import: &'a Import,
    id: Option<ImportId>,
    format: LineFormat,
    shown: String,
    interrupt: &'a Interrupt,
    rejects: Rejects,
    begun_at: u64,
    /// Lines that earlier runs had rejected.
    rejected_before: u64,
    /// What stopped it was found in the file.
    file_is_wrong: bool,
    /// Where in a source that is no file its lines are.
    places: Option<PlaceFile>,
    sent: Sent,
}

impl Run<'_> {
    /// A person should know how to go on before anything can go wrong.
    fn announce(&self, context: &mut Context) -> Result<(), Failure> {
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
        context: &Context,
        parts: &Receiver<Parted>,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        while let Some(part) = self.next(parts)? {
            // Of a run that was killed the server may still be taking lines, and until it has taken
            // one of ours, only what that run has kept tells their places.
            let goes_on = self.begun_at > 0 && self.sent.lines == self.begun_at;
            if !goes_on {
                self.keep_places(&part)?;
            }
            let answer = self.send(context, &part)?;
            if goes_on {
                self.keep_places(&part)?;
            }
            let number = |name: &str| answer[name].as_u64().unwrap_or(0);
            self.sent.lines = number("lines");
            self.sent.accepted += number("accepted");
            self.sent.changed += number("changed");
            self.sent.rejected += number("rejected");
            for reject in answer["rejects"].as_array().into_iter().flatten() {
                self.rejects.take(reject, &part, self.format)?;
            }
            progress.advance(part.steps);
            let rate = (self.sent.lines - self.begun_at) as f64 / begun.elapsed().as_secs_f64();
            progress.say(format!("line {}, {rate:.0} lines/s", self.sent.lines));
        }
        Ok(())
    }

    /// The next part; none at the end. A person who types the lines may stop while we wait.
    fn next(&mut self, parts: &Receiver<Parted>) -> Result<Option<Part>, Failure> {
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

    fn send(&self, context: &Context, part: &Part) -> Result<Value, Failure> {
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
        request.send_stream(content_type, &mut part.body.as_slice())?.value()
    }

    fn how_to_go_on(&self, failure: Failure) -> Failure {
        let Sent { lines, .. } = self.sent;
        // A standby takes no line however often it is asked; it has named its primary.
        if failure.code.as_deref() == Some("read_only") {
            return failure.next("import into the primary: name it with --server");
        }
        let says_how = self.file_is_wrong && !failure.next_step().is_empty();
        if says_how || (lines == 0 && failure.exit == Exit::Usage) {
            return failure;
        }
        let (done, are) = (counted(lines, "line"), if lines == 1 { "is" } else { "are" });
        let message = format!("{}; {done} of {} {are} done", failure.message(), self.shown);
        let failure = failure.saying(message);
        match &self.id {
            // The file is wrong as it is, so its own name would not come back.
            Some(id) if self.file_is_wrong || failure.exit == Exit::Usage => failure.next(format!(
                "mend the file and go on with --id {}: lines that are done are passed over",
                id.as_str()
            )),
            Some(_) => failure.next("run the same command again: it goes on where it was"),
            None => failure
                .next("it keeps no place: lines that are done would be read again; --id keeps one"),
        }
    }

    /// Where in a source that is no file the lines of a part are.
    fn keep_places(&self, part: &Part) -> Result<(), Failure> {
        self.places.as_ref().map_or(Ok(()), |places| places.keep(&part.places, part.last(), false))
    }

    /// A source that is no file was read to its end.
    fn keep_the_end(&self) -> Result<(), Failure> {
        match &self.places {
            Some(places) => places.keep(&[(self.sent.lines, Value::Null)], self.sent.lines, true),
            None => Ok(()),
        }
    }

    /// Lines of this run.
    fn new_lines(&self) -> u64 {
        self.sent.lines - self.begun_at
    }

    fn summary(&self, took: Duration) -> Value {
        let Sent { lines, accepted, changed, rejected } = self.sent;
        json!({
            "id": self.id.as_ref().map(ImportId::as_str), "lines": lines,
            "new_lines": self.new_lines(), "accepted": accepted, "changed": changed,
            "rejected": rejected, "seconds": took.as_secs_f64(),
        })
    }

    /// Rejected lines are something wrong.
    fn verdict(&self) -> Result<(), Failure> {
        let (rejected, new) = (self.sent.rejected, self.new_lines());
        if rejected == 0 && new == 0 && self.rejected_before > 0 {
            let message = format!("{} of its lines had been rejected", self.rejected_before);
            return Err(Failure::found(message).next(
                "--id with another name and --rejects FILE imports them anew and collects those",
            ));
        }
        if rejected == 0 {
            return Ok(());
        }
        let were = if rejected == 1 { "was" } else { "were" };
        let failure = Failure::found(format!("{} {were} rejected", counted(rejected, "line")));
        Err(match &self.import.rejects {
            Some(file) => failure.next(format!(
                "{} has them, each with its error; correct them and import that file",
                file.display()
            )),
            None => failure.next(
                "to collect such lines, each with its error, import once more with --rejects FILE \
                 and another --id",
            ),
        })
    }

    fn show(&self, output: &mut Output, took: Duration) -> Result<(), Failure> {
        let Sent { lines, accepted, changed, .. } = self.sent;
        let new = self.new_lines();
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
        let done = format!(
            "{} in {:.1} s ({rate:.0}/s): {accepted} accepted, {} changed",
            counted(new, "line"),
            took.as_secs_f64(),
            counted(changed, "edge")
        );
        let done = output.paint(Style::Good, &done).into_owned();
        output.line(&done)
    }
}

/// Where the import stands.
#[derive(Debug)]
struct Place {
    done: Done,
    rejected: u64,
}

impl Default for Place {
    /// Where an import begins.
    fn default() -> Place {
        Place { done: Done { lines: 0, digest: None }, rejected: 0 }
    }
}

fn place(context: &Context, id: &ImportId) -> Result<Place, Failure> {
    let asked = context.client.get(&path([&"v1", &"admin", &"import", &id.as_str()])).send();
    match asked {
        Ok(place) => {
            let number = |name: &str| place[name].as_u64().unwrap_or(0);
            let digest = place["digest"].as_str();
            let digest = digest.and_then(|text| u128::from_str_radix(text, 16).ok());
            let done = Done { lines: number("lines"), digest: digest.map(LinesDigest) };
            Ok(Place { done, rejected: number("rejected") })
        }
        Err(failure) if failure.code.as_deref() == Some("not_found") => Ok(Place::default()),
        Err(failure) => Err(failure),
    }
}
