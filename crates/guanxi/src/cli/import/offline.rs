//! `guanxi import FILE... --data-dir DIR`: a new data directory from files, without a service. What
//! is done with the lines is the engine's (`embedded/src/ingest.rs`); here files are read, and a
//! person is told.

mod reading;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use guanxi_api::import::Reject;
use guanxi_api::line::LineFormat;
use guanxi_embedded::Settings;
use guanxi_embedded::directory::{Directory, DirectoryError};
use guanxi_embedded::disk::RealDisk;
use guanxi_embedded::ingest::{
    DecidedIngest, FILES_MAX, Ingest, IngestError, IngestStep, Landed, LinesDecided,
    MEMORY_BYTES_DEFAULT,
};
use guanxi_embedded::transfer::LandingError;
use guanxi_model::change::KindSpec;
use serde_json::json;

use self::reading::{FilesRead, Reading, RejectedLines};
use super::Import;
use super::file::ImportFile;
use super::rejects::Rejects;
use crate::cli::CommandContext;
use crate::cli::backup::stopped;
use crate::cli::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::cli::output::{Output, Style, counted};
use crate::cli::progress::ProgressLine;
use crate::config;
use crate::failure::Failure;

/// How long what was begun may take to be removed after Ctrl-C.
const GRACE: Duration = Duration::from_secs(20);
const UNFINISHED: &str =
    "the directory, if it was begun, is marked as unfinished; the same command begins it anew";
const MEMORY_MB_MIN: u64 = 1;

#[derive(Debug, Args)]
#[command(next_help_heading = "Options with --data-dir")]
pub struct OfflineFlags {
    /// Makes this data directory, a new or empty one, instead of asking a server. One whose import
    /// was cut off is begun anew.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from", "id"])]
    pub data_dir: Option<PathBuf>,
    /// The settings of the service that will use it: its kinds are made, and its region gives the
    /// versions.
    #[arg(long, value_name = "FILE", requires = "data_dir")]
    config: Option<PathBuf>,
    /// What may be kept in memory; what is more is sorted in files within DIR. Half of it again
    /// may be used around that.
    #[arg(
        long,
        value_name = "MB",
        requires = "data_dir",
        default_value_t = MEMORY_BYTES_DEFAULT as u64 >> 20,
        value_parser = clap::value_parser!(u64).range(MEMORY_MB_MIN..=1 << 20)
    )]
    memory_mb: u64,
}

pub fn run(import: &Import, data_dir: &Path, context: &mut CommandContext) -> Result<(), Failure> {
    let begun = Instant::now();
    let interrupt = Interrupt::catch(GRACE, EXIT_INTERRUPTED, UNFINISHED)?;
    let files = open_files(import)?;
    let format = files.first().map_or(LineFormat::Ndjson, ImportFile::format);
    let (settings, kinds) = settings(import, data_dir)?;
    // Before anything else is made or read.
    Directory::may_land(&RealDisk, data_dir)
        .map_err(|error| failure(IngestError::Landing(error.into())))?;
    let mut rejects = Rejects::open_whole(import.rejects.as_deref(), &import.file, format)?;
    if rejects.is_collecting() {
        refuse_read_once(&files)?;
    }
    let memory_bytes = usize::try_from(import.offline.memory_mb << 20).unwrap_or(usize::MAX);
    let ingest = Ingest::begin(&settings, kinds, memory_bytes).map_err(failure)?;
    let reading = Reading {
        files,
        ingest: &ingest,
        ignore_limits: import.ignore_limits,
        interrupt: &interrupt,
        collects: rejects.is_collecting(),
    };
    let FilesRead { sinks, lines, headers } = reading.run(&context.output)?;
    let mut bars = Bars { output: &context.output, interrupt: &interrupt, shown: None };
    let decided = ingest.decide(sinks, &mut |step, done, all| bars.tell(step, done, all));
    let mut decided = decided.map_err(failure)?;
    drop(bars.shown.take());
    let done = decided.done();
    take_rejects(import, &mut decided, &mut rejects, headers)?;
    let landed =
        decided.land(&mut |step, done, all| bars.tell(step, done, all)).map_err(failure)?;
    drop(bars);
    rejects.passed_over()?;
    let made = Made { data_dir, lines, done, landed, seconds: begun.elapsed().as_secs_f64() };
    made.show(&mut context.output)?;
    context.output.flush()?;
    verdict(import, done.rejected)
}

fn open_files(import: &Import) -> Result<Vec<ImportFile>, Failure> {
    if import.file.len() > FILES_MAX {
        return Err(Failure::usage(format!("more than {FILES_MAX} files are given"))
            .next("join some of them"));
    }
    let format = import.format.map(LineFormat::from);
    let opened = import.file.iter().map(|file| ImportFile::open_unnamed(file, format));
    let files = opened.collect::<Result<Vec<_>, _>>()?;
    let first = files.first().map(ImportFile::format);
    if files.iter().any(|file| Some(file.format()) != first) {
        return Err(Failure::usage("some of the files are CSV and others NDJSON")
            .next("import those of one format; the others go into the service when it runs"));
    }
    Ok(files)
}

/// Rejected lines are looked up in their files in the end.
fn refuse_read_once(files: &[ImportFile]) -> Result<(), Failure> {
    match files.iter().find(|file| file.bytes().is_none()) {
        None => Ok(()),
        Some(file) => {
            let message = format!(
                "rejected lines are looked up in the end, and {} can be read only once",
                file.shown()
            );
            Err(Failure::usage(message).next("write it to a file first, or leave --rejects out"))
        }
    }
}

fn settings(import: &Import, data_dir: &Path) -> Result<(Settings, Vec<KindSpec>), Failure> {
    let file = import.offline.config.as_deref();
    let wrong = |error: config::ConfigError| Failure::usage(error.to_string());
    let config = config::load(file, std::env::vars_os()).map_err(wrong)?.config;
    let kinds = config.kinds.iter().map(|kind| {
        let spec = kind.clone().into_spec();
        spec.map_err(|error| Failure::usage(format!("kind {}: {}", kind.name, error.message)))
    });
    let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
    let region = config.region().map_err(wrong)?;
    Ok((Settings { region, ..Settings::new(data_dir) }, kinds))
}

/// Shows rejected lines, and collects them from their files.
fn take_rejects(
    import: &Import,
    decided: &mut DecidedIngest,
    rejects: &mut Rejects,
    headers: Vec<Vec<u8>>,
) -> Result<(), Failure> {
    let format = import.format.map(LineFormat::from);
    let mut lines = RejectedLines::new(&import.file, format, headers, rejects.is_collecting());
    while let Some((place, line)) = decided.next_reject().map_err(failure)? {
        let (part, format) = lines.find(place)?;
        rejects.take(&Reject::from(line), &part, format)?;
    }
    rejects.sync()
}

/// A bar for each step.
struct Bars<'a> {
    output: &'a Output,
    interrupt: &'a Interrupt,
    shown: Option<(IngestStep, ProgressLine, u64)>,
}

impl Bars<'_> {
    fn tell(&mut self, step: IngestStep, done: u64, all: u64) -> ControlFlow<()> {
        if self.shown.as_ref().is_none_or(|(shown, ..)| *shown != step) {
            let what = match step {
                IngestStep::Deciding => "deciding lines",
                IngestStep::Writing => "writing rows",
            };
            self.shown = Some((step, ProgressLine::new(self.output, what, Some(all)), 0));
        }
        if let Some((_, bar, told)) = &mut self.shown {
            bar.advance(done - *told);
            *told = done;
        }
        match self.interrupt.is_set() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// What was made, for who asked.
struct Made<'a> {
    data_dir: &'a Path,
    lines: u64,
    done: LinesDecided,
    landed: Landed,
    seconds: f64,
}

impl Made<'_> {
    fn show(&self, output: &mut Output) -> Result<(), Failure> {
        let Made { lines, seconds, .. } = *self;
        let LinesDecided { accepted, changed, rejected } = self.done;
        let Landed { applied, rows, spilled_bytes } = self.landed;
        let directory = self.data_dir.display();
        if output.json() {
            return output.value(&json!({
                "data_dir": directory.to_string(), "lines": lines, "accepted": accepted,
                "changed": changed, "rejected": rejected, "position": applied.position.0,
                "epoch": applied.epoch.0, "rows": rows, "spilled_bytes": spilled_bytes,
                "seconds": seconds,
            }));
        }
        let rate = lines as f64 / seconds.max(0.001);
        let done = format!(
            "{} in {seconds:.1} s ({rate:.0}/s): {accepted} accepted, {} changed",
            counted(lines, "line"),
            counted(changed, "edge")
        );
        let done = output.paint(Style::Good, &done).into_owned();
        output.line(&done)?;
        output.line(&format!("start it with `guanxi serve --data-dir {directory}`"))
    }
}

/// Rejected lines are something wrong; the others stand.
fn verdict(import: &Import, rejected: u64) -> Result<(), Failure> {
    if rejected == 0 {
        return Ok(());
    }
    let were = if rejected == 1 { "was" } else { "were" };
    let found = Failure::found(format!(
        "{} {were} rejected; the directory has all others",
        counted(rejected, "line")
    ));
    Err(match &import.rejects {
        Some(file) => found.next(format!(
            "{} has them, each with its error; correct them and import that file when the service \
             runs",
            file.display()
        )),
        None => found.next(
            "to collect such lines, each with its error, import once more with --rejects FILE and \
             another --data-dir",
        ),
    })
}

fn failure(error: IngestError) -> Failure {
    match error {
        IngestError::Stopped => stopped("nothing was imported").next(UNFINISHED),
        IngestError::Landing(LandingError::Directory(error)) => match error {
            DirectoryError::Occupied { .. } => Failure::usage(error.to_string())
                .next("into a service that has data, import while it runs: leave --data-dir out"),
            DirectoryError::Foreign { .. } | DirectoryError::NotADirectory { .. } => {
                Failure::usage(error.to_string())
            }
            error => Failure::failed(error.to_string()),
        },
        IngestError::Kind(_) => Failure::usage(error.to_string()).next("mend the settings"),
        IngestError::TooManySettings(_) => {
            Failure::usage(error.to_string()).next("see --memory-mb")
        }
        IngestError::SourceTooLarge { .. } => Failure::found(error.to_string()).next(UNFINISHED),
        IngestError::Full => {
            Failure::failed(error.to_string()).next(format!("make room; {UNFINISHED}"))
        }
        IngestError::Landing(_) | IngestError::Store(_) | IngestError::Spill(_) => {
            Failure::failed(error.to_string()).next(UNFINISHED)
        }
    }
}
