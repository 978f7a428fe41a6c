//! `guanxi restore`: makes a data directory from backups. No server is asked; the directory is
//! there for `guanxi serve` when this has ended well, and refused by it until then.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use guanxi_api::Time;
use guanxi_embedded::Settings;
use guanxi_embedded::directory::DirectoryError;
use guanxi_embedded::restore::{self, RestoreError, Target};
use guanxi_embedded::transfer::LandingError;
use guanxi_model::Position;
use serde_json::json;

use super::CommandContext;
use super::arguments;
use super::backup::stopped;
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::progress::ProgressLine;
use crate::failure::Failure;

/// How long the unfinished store may take to be removed after Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);
const UNFINISHED: &str =
    "the directory, if it was begun, is marked as unfinished; restore begins it anew";

const EXAMPLES: &str = "\
Examples:
  guanxi restore --from monday.gxb --data-dir ./data
  guanxi restore --from monday.gxb --from tuesday.gxb --data-dir ./data \\
      --to-time 2026-06-02T09:59:00Z";

/// Makes a data directory from a backup and those that continue it.
///
/// All archives are read and checked before anything is made. A restore that was cut off leaves a
/// directory that `guanxi serve` refuses; the same command begins it anew. The restored service
/// begins a new epoch: tokens and event ids of the old one are good up to the restored position.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Restore {
    /// A full backup; then, with --from again, those that continue it, in order.
    #[arg(long, value_name = "FILE", required = true)]
    from: Vec<PathBuf>,
    /// The directory to make: a new or empty one.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Goes no further than the last batch that ends at or before this position.
    #[arg(long, value_name = "N", conflicts_with = "to_time")]
    to_position: Option<u64>,
    /// Goes no further than the last batch of this time, such as 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = arguments::time)]
    to_time: Option<Time>,
}

impl Restore {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let target = match (self.to_position, self.to_time) {
            (Some(position), _) => Target::Position(Position(position)),
            (None, Some(time)) => Target::Time(time.0),
            (None, None) => Target::End,
        };
        let interrupt = Interrupt::catch(GRACE, EXIT_INTERRUPTED, UNFINISHED)?;
        let settings = Settings::new(&self.data_dir);
        let mut progress = None;
        let mut shown = 0;
        let output = &context.output;
        let restored = restore::restore(&settings, &self.from, target, &mut |read, total| {
            let bar = progress
                .get_or_insert_with(|| ProgressLine::new(output, "bytes read twice", Some(total)));
            bar.advance(read - shown);
            shown = read;
            match interrupt.is_set() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        drop(progress);
        let restored = restored.map_err(failure)?;
        let (position, time) = (restored.applied.position.0, Time(restored.applied.commit));
        let directory = self.data_dir.display();
        let output = &mut context.output;
        if output.json() {
            return output.value(&json!({
                "data_dir": directory.to_string(),
                "position": position,
                "time": time,
                "epoch": restored.epoch.0,
                "rows": restored.rows,
                "records": restored.records,
            }));
        }
        output.line(&format!("restored {directory}"))?;
        output.fields(&[
            ("position", position.to_string()),
            ("time", time.to_string()),
            ("epoch", format!("{}, which begins here", restored.epoch.0)),
            ("rows", restored.rows.to_string()),
            ("records", format!("{} applied on top of the rows", restored.records)),
        ])?;
        output.line(&format!("start it with `guanxi serve --data-dir {directory}`"))
    }
}

fn failure(error: RestoreError) -> Failure {
    match error {
        RestoreError::Stopped => stopped("nothing was restored").next(UNFINISHED),
        RestoreError::Open { .. } => {
            Failure::file(error.to_string()).next("give files that are there and may be read")
        }
        RestoreError::TooEarly { path, begins } => Failure::found(format!(
            "the rows of {} are of {}, later than --to-time",
            path.display(),
            Time(begins)
        ))
        .next("restore from an older full backup"),
        RestoreError::TooLate { path, ends } => Failure::found(format!(
            "{} was ended at {}, before --to-time",
            path.display(),
            Time(ends)
        ))
        .next("add the backup that continues it, or leave --to-time out"),
        RestoreError::Archive { .. } => {
            Failure::file(error.to_string()).next("nothing was restored")
        }
        RestoreError::Unfit(what) => Failure::found(what),
        RestoreError::Landing(LandingError::Directory(error)) => match error {
            DirectoryError::Occupied { .. }
            | DirectoryError::Foreign { .. }
            | DirectoryError::NotADirectory { .. } => Failure::usage(error.to_string()),
            error => Failure::failed(error.to_string()),
        },
        RestoreError::Landing(error) => Failure::failed(error.to_string()).next(
            "nothing was restored; the directory is marked as unfinished, and the same command \
             begins it anew",
        ),
    }
}
