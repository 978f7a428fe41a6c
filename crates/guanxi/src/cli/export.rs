//! `guanxi export`: writes everything, or one kind, to a file or to stdout. A file appears under
//! its name only when it is whole.

use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::Context;
use super::arguments::name;
use super::compression::{Compression, Writer};
use super::import::Format;
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::output::Output;
use super::progress::Progress;
use crate::failure::Failure;

/// How long the unfinished file may take to be removed after Ctrl-C.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 256 * 1024;

/// Writes all edges, groups, settings and counters, as they stand at one moment.
///
/// `guanxi import` reads what it writes. The position that it tells is an event id: `guanxi watch
/// --from` it shows every change since.
#[derive(Debug, Args)]
pub struct Export {
    /// Only edges and groups, or the counter, of this kind.
    #[arg(long, value_parser = name)]
    kind: Option<String>,
    /// The file, by default stdout. A name that ends in .gz or .zst is compressed.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// By default what the file's name says, else NDJSON.
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl Export {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        let interrupt = Interrupt::catch(INTERRUPT_GRACE, EXIT_INTERRUPTED)?;
        let format = match self.format() {
            Format::Ndjson => "ndjson",
            Format::Csv => "csv",
        };
        let request = context.client.get("/v1/admin/export").query("format", format);
        let answer = request.query_if("kind", self.kind.as_deref()).send_for_stream()?;
        let position = answer.header("guanxi-position").unwrap_or_default().to_owned();
        let mut content = answer.into_reader();
        let to_stdout = self.out.as_deref().is_none_or(|out| out == Path::new("-"));
        let progress = match to_stdout {
            true => None,
            false => Some(Progress::new(&context.output, "exporting", None)),
        };
        let lines = match (&self.out, to_stdout) {
            (Some(out), false) => write_file(out, &mut content, &interrupt, progress.as_ref())?,
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

    fn format(&self) -> Format {
        let named = self.out.as_deref().map(|out| match Compression::of_name(out) {
            Compression::None => out.to_owned(),
            _ => out.with_extension(""),
        });
        let csv = named.is_some_and(|out| out.extension().is_some_and(|end| end == "csv"));
        self.format.unwrap_or(if csv { Format::Csv } else { Format::Ndjson })
    }

    fn summarize(
        &self,
        output: &mut Output,
        to_stdout: bool,
        lines: u64,
        position: &str,
    ) -> Result<(), Failure> {
        let file = self.out.as_ref().filter(|_| !to_stdout).map(|out| out.display().to_string());
        let said = match (output.json(), &file) {
            (true, file) => {
                json!({ "file": file, "lines": lines, "position": position }).to_string()
            }
            (false, Some(file)) => format!("{lines} lines in {file}, true at position {position}"),
            (false, None) => format!("{lines} lines, true at position {position}"),
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

/// Writes a file beside its place, and moves it there when it is whole and on disk.
fn write_file(
    out: &Path,
    content: &mut impl BufRead,
    interrupt: &Interrupt,
    progress: Option<&Progress>,
) -> Result<u64, Failure> {
    let unfinished = unfinished_name(out)?;
    let failed = |error: io::Error| {
        let next = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "the disk is full: make room, or write elsewhere"
            }
            _ => "choose a place that can be written to",
        };
        Failure::failed(format!("cannot write {}: {error}", out.display())).next(next)
    };
    let written = (|| {
        let file = File::create(&unfinished).map_err(Stopped::Write)?;
        let writer = BufWriter::with_capacity(WRITE_BYTES, file);
        let mut writer = Writer::new(writer, Compression::of_name(out)).map_err(Stopped::Write)?;
        let lines = copy(content, &mut writer, interrupt, progress)?;
        let writer = writer.finish().map_err(Stopped::Write)?;
        let file = writer.into_inner().map_err(|error| Stopped::Write(error.into_error()))?;
        file.sync_all().map_err(Stopped::Write)?;
        fs::rename(&unfinished, out).map_err(Stopped::Write)?;
        Ok(lines)
    })();
    written.map_err(|stopped: Stopped| {
        // It may not be there yet; then there is nothing to remove.
        let _absent = fs::remove_file(&unfinished);
        stopped.into_failure(failed)
    })
}

fn unfinished_name(out: &Path) -> Result<PathBuf, Failure> {
    let name = out
        .file_name()
        .ok_or_else(|| Failure::usage(format!("{} is no name of a file", out.display())))?;
    let mut unfinished = name.to_owned();
    unfinished.push(format!(".unfinished-{}", std::process::id()));
    Ok(out.with_file_name(unfinished))
}

/// Copies everything; returns the number of lines.
fn copy(
    content: &mut impl BufRead,
    out: &mut (impl Write + ?Sized),
    interrupt: &Interrupt,
    progress: Option<&Progress>,
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
