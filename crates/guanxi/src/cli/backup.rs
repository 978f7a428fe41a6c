//! `guanxi backup`: takes a backup of a running server into a file, or checks one. The file gets
//! its name only when all of it is there, has been read back, and is on the disk.

use std::fs;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use guanxi_api::Time;
use guanxi_embedded::archive::ArchiveBase;
use guanxi_embedded::restore::{self, RestoreError, VerifiedArchive};
use serde_json::json;

use super::CommandContext;
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::progress::ProgressLine;
use super::unfinished::{FilePurpose, UnfinishedFile};
use crate::failure::Failure;
use crate::service::backup::place_text;

/// How long the unfinished file may take to be removed after Ctrl-C.
const GRACE: Duration = Duration::from_secs(5);
const PURPOSE: FilePurpose = FilePurpose { name: "backup", nothing: "no backup was made" };
/// What is read and written at once.
const COPY_BYTES: usize = 256 << 10;

const EXAMPLES: &str = "\
Examples:
  guanxi backup --to monday.gxb
  guanxi backup --to tuesday.gxb --since monday.gxb    # only what is new since then
  guanxi backup --verify tuesday.gxb
  guanxi restore --from monday.gxb --from tuesday.gxb --data-dir ./data";

/// Takes a backup of a running server, or checks one.
///
/// The server goes on meanwhile; the backup is consistent at one position of its log. The file is
/// compressed and every byte of it is under a checksum.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BackupCommand {
    /// The file to make; it must not exist yet.
    #[arg(long, value_name = "FILE", required_unless_present = "verify")]
    to: Option<PathBuf>,
    /// Takes only what came after this backup, which the new one then continues.
    #[arg(long, value_name = "PREVIOUS", requires = "to")]
    since: Option<PathBuf>,
    /// Reads this backup to its end and checks all of it; no server is asked.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["to", "since"])]
    verify: Option<PathBuf>,
}

impl BackupCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        match (self.to, self.verify) {
            (Some(to), _) => take(context, &to, self.since.as_deref()),
            (None, Some(file)) => {
                let unchecked = "the backup was not checked to its end";
                let interrupt = Interrupt::catch(GRACE, EXIT_INTERRUPTED, unchecked)?;
                let verified = verified(context, &file, &interrupt)?;
                show(context, &file, &verified)
            }
            (None, None) => Err(Failure::usage("neither --to nor --verify is given")),
        }
    }
}

fn take(context: &mut CommandContext, to: &Path, since: Option<&Path>) -> Result<(), Failure> {
    if to == Path::new("-") {
        return Err(Failure::usage("a backup is read back before it counts, so it needs a file")
            .next(
                "give --to the name of a file (./- for one that is called -), and pass that on",
            ));
    }
    let taken = to.try_exists().map_err(|error| PURPOSE.cannot("look at", to, &error))?;
    if taken {
        return Err(Failure::usage(format!("{} exists already", to.display()))
            .next("choose another name; a backup is never written over"));
    }
    let interrupt = Interrupt::catch(GRACE, EXIT_INTERRUPTED, PURPOSE.nothing)?;
    let previous = since.map(|since| verified(context, since, &interrupt)).transpose()?;
    let part = UnfinishedFile::begin(to, PURPOSE)?;
    fetch(context, &part, previous.as_ref(), &interrupt)?;
    let made = check(context, part.path(), previous.as_ref(), &interrupt)?;
    part.finish()?;
    show(context, to, &made)
}

/// Writes what the server sends.
fn fetch(
    context: &CommandContext,
    part: &UnfinishedFile,
    previous: Option<&VerifiedArchive>,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut file = part.file();
    let after = previous.map(|previous| {
        let end = previous.trailer.end;
        place_text(end.epoch, end.position)
    });
    let request = context.client.get("/v1/admin/backup").query_if("after", after);
    let answer = request.send_for_stream().map_err(|failure| match failure.code.as_deref() {
        Some("position_expired") => failure.next("leave --since out: that takes a full backup"),
        _ => failure,
    })?;
    let mut body = answer.into_reader();
    let progress = ProgressLine::new(&context.output, "bytes", None);
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        if interrupt.is_set() {
            return Err(stopped("no backup was made"));
        }
        let read = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let server = context.client.server();
                return Err(Failure::failed(format!("{server} broke off the backup: {error}"))
                    .next("no backup was made; the server's log says why. Try again"));
            }
        };
        file.write_all(&buffer[..read]).map_err(|error| part.cannot_write(&error))?;
        progress.advance(read as u64);
    }
    file.sync_all().map_err(|error| part.cannot_write(&error))
}

/// Reads back what was written.
fn check(
    context: &CommandContext,
    part: &Path,
    previous: Option<&VerifiedArchive>,
    interrupt: &Interrupt,
) -> Result<VerifiedArchive, Failure> {
    let made = verified(context, part, interrupt)?;
    if let Some(previous) = previous {
        restore::fits(previous, &made).map_err(|error| {
            Failure::found(error.to_string())
                .next("leave --since out, or name the server that the previous backup is of")
        })?;
    }
    Ok(made)
}

fn verified(
    context: &CommandContext,
    path: &Path,
    interrupt: &Interrupt,
) -> Result<VerifiedArchive, Failure> {
    let total = fs::metadata(path).map_or(0, |about| about.len());
    let progress = ProgressLine::new(&context.output, "bytes checked", Some(total));
    let mut shown = 0;
    let verified = restore::verify(path, &mut |read, _| {
        progress.advance(read - shown);
        shown = read;
        match interrupt.is_set() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    verified.map_err(|error| match error {
        RestoreError::Stopped => stopped("the backup was not checked to its end"),
        error => Failure::file(error.to_string()),
    })
}

fn show(
    context: &mut CommandContext,
    path: &Path,
    verified: &VerifiedArchive,
) -> Result<(), Failure> {
    let VerifiedArchive { header, trailer, bytes, .. } = verified;
    let after = match header.base {
        ArchiveBase::Rows(_) => None,
        ArchiveBase::After(place) => Some(place.position.0),
    };
    let (position, time) = (trailer.end.position.0, Time(trailer.end.commit));
    let from = match header.base {
        ArchiveBase::Rows(applied) => applied.position.0,
        ArchiveBase::After(place) => place.position.0,
    };
    let output = &mut context.output;
    if output.json() {
        return output.value(&json!({
            "file": path.display().to_string(),
            "bytes": bytes,
            "full": after.is_none(),
            "from_position": from,
            "position": position,
            "time": time,
            "created": Time(header.created),
            "rows": trailer.rows,
            "records": trailer.records,
        }));
    }
    let holds = match after {
        None => format!("everything, restorable to any batch from position {from} to its end"),
        Some(after) => format!("what came after position {after}"),
    };
    output.line(&format!("{}: whole, every checksum is right", path.display()))?;
    output.fields(&[
        ("holds", holds),
        ("ends at", format!("position {position}, {time}")),
        ("rows", trailer.rows.to_string()),
        ("records", trailer.records.to_string()),
        ("bytes", bytes.to_string()),
    ])
}

/// What Ctrl-C left.
pub fn stopped(what: &str) -> Failure {
    Failure::failed(format!("stopped by Ctrl-C: {what}"))
}
