//! `guanxi export`: writes everything, or one kind, to a file or to stdout. A file appears under
//! its name only when it is whole.

use std::fs;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::CommandContext;
use super::arguments::{AtLeast, name};
use super::compression::{CompressedWriter, Compression};
use super::import::FormatArgument;
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::output::{Output, counted};
use super::progress::ProgressLine;
use super::unfinished::{FilePurpose, UnfinishedFile};
use crate::failure::Failure;

/// How long the unfinished file may take to be removed after Ctrl-C.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
const PURPOSE: FilePurpose = FilePurpose { name: "export", nothing: "nothing was exported" };
/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 256 * 1024;

/// Writes all edges, groups, settings and counters, as they stand at one moment.
///
/// `guanxi import` reads what it writes. The position that it tells is an event id: `guanxi watch
/// --from` it shows every change since.
#[derive(Debug, Args)]
pub struct ExportCommand {
    /// Only edges and groups, or the counter, of this kind.
    #[arg(long, value_parser = name)]
    kind: Option<String>,
    /// The file, by default stdout. A name that ends in .gz or .zst is compressed.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replaces the file if it is there already, when the export is whole.
    #[arg(long, requires = "out")]
    force: bool,
    /// By default what the file's name says, else NDJSON.
    #[arg(long, value_enum)]
    format: Option<FormatArgument>,
    #[command(flatten)]
    at_least: AtLeast,
}

impl ExportCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let to_stdout = self.out.as_deref().is_none_or(|out| out == Path::new("-"));
        let file = self.out.as_deref().filter(|_| !to_stdout);
        // Before the server does anything for it.
        let part = match file {
            Some(out) => {
                refuse_taken(out, self.force)?;
                Some(UnfinishedFile::begin(out, PURPOSE)?)
            }
            None => None,
        };
        let interrupt = Interrupt::catch(INTERRUPT_GRACE, EXIT_INTERRUPTED, PURPOSE.nothing)?;
        let format = match self.format() {
            FormatArgument::Ndjson => "ndjson",
            FormatArgument::Csv => "csv",
        };
        let request = context.client.get("/v1/admin/export").query("format", format);
        let request = request.query_if("kind", self.kind.as_deref()).at_least(&self.at_least);
        let answer = request.send_for_stream()?;
        let position = answer.header("guanxi-position").unwrap_or_default().to_owned();
        let mut content = answer.into_reader();
        let progress = match to_stdout {
            true => None,
            false => Some(ProgressLine::new(&context.output, "exporting", None)),
        };
        let lines = match (&self.out, part) {
            (Some(out), Some(part)) => {
                let compression = Compression::of_name(out);
                write_file(part, compression, &mut content, &interrupt, progress.as_ref())?
            }
            _ => {
                let out = context.output.raw();
                let lines = copy(&mut content, out, &interrupt, None)
                    .map_err(|error| error.into_failure(|error| Failure::output(&error)))?;
                out.flush().map_err(|error| Failure::output(&error))?;
                lines
            }
        };
        drop(progress);
        self.summarize(&mut context.output, to_stdout, lines, &position)
    }

    fn format(&self) -> FormatArgument {
        let named = self.out.as_deref().map(|out| match Compression::of_name(out) {
            Compression::None => out.to_owned(),
            _ => out.with_extension(""),
        });
        let csv = named.is_some_and(|out| out.extension().is_some_and(|end| end == "csv"));
        self.format.unwrap_or(if csv { FormatArgument::Csv } else { FormatArgument::Ndjson })
    }

    fn summarize(
        &self,
        output: &mut Output,
        to_stdout: bool,
        lines: u64,
        position: &str,
    ) -> Result<(), Failure> {
        let file = self.out.as_ref().filter(|_| !to_stdout).map(|out| out.display().to_string());
        let counted = counted(lines, "line");
        let said = match (output.json(), &file) {
            (true, file) => {
                json!({ "file": file, "lines": lines, "position": position }).to_string()
            }
            (false, Some(file)) => format!("{counted} in {file}, true at position {position}"),
            (false, None) => format!("{counted}, true at position {position}"),
        };
        match to_stdout {
            // The lines have stdout for themselves.
            true => {
                eprintln!("{said}");
                Ok(())
            }
            false => output.line(&said),
        }
    }
}

/// What stopped a copy.
enum Stopped {
    Interrupted,
    Read(io::Error),
    Write(io::Error),
}

impl Stopped {
    fn into_failure(self, write: impl FnOnce(io::Error) -> Failure) -> Failure {
        match self {
            Stopped::Interrupted => Failure::failed("stopped; nothing was kept"),
            Stopped::Read(error) => {
                Failure::failed(format!("the export broke off before its end: {error}"))
                    .next("run the command again; the server's log says why it ended")
            }
            Stopped::Write(error) => write(error),
        }
    }
}

/// A file that is there may be the only copy of something.
fn refuse_taken(out: &Path, force: bool) -> Result<(), Failure> {
    let shown = out.display();
    match fs::metadata(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(PURPOSE.cannot("look at", out, &error)),
        Ok(about) if !about.is_file() => Err(Failure::usage(format!("{shown} is no file"))
            .next("name a file, or leave --out off to write to stdout")),
        Ok(_) if force => Ok(()),
        Ok(_) => Err(Failure::usage(format!("{shown} exists already"))
            .next("choose another name, or replace it with --force")),
    }
}

/// Writes a file beside its place, and moves it there when it is whole and on disk.
fn write_file(
    part: UnfinishedFile,
    compression: Compression,
    content: &mut impl BufRead,
    interrupt: &Interrupt,
    progress: Option<&ProgressLine>,
) -> Result<u64, Failure> {
    let written = (|| {
        let writer = BufWriter::with_capacity(WRITE_BYTES, part.file());
        let mut writer = CompressedWriter::new(writer, compression).map_err(Stopped::Write)?;
        let lines = copy(content, &mut writer, interrupt, progress)?;
        let mut writer = writer.finish().map_err(Stopped::Write)?;
        writer.flush().map_err(Stopped::Write)?;
        Ok(lines)
    })();
    let lines = written
        .map_err(|stopped: Stopped| stopped.into_failure(|error| part.cannot_write(&error)))?;
    part.finish()?;
    Ok(lines)
}

/// Copies everything; returns the number of lines.
fn copy(
    content: &mut impl BufRead,
    out: &mut (impl Write + ?Sized),
    interrupt: &Interrupt,
    progress: Option<&ProgressLine>,
) -> Result<u64, Stopped> {
    let mut lines = 0;
    loop {
        if interrupt.is_set() {
            return Err(Stopped::Interrupted);
        }
        let bytes = content.fill_buf().map_err(Stopped::Read)?;
        if bytes.is_empty() {
            return Ok(lines);
        }
        out.write_all(bytes).map_err(Stopped::Write)?;
        let new = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        lines += new;
        if let Some(progress) = progress {
            progress.advance(new);
        }
        let count = bytes.len();
        content.consume(count);
    }
}
