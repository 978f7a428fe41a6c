//! `guanxi promote`: a standby becomes the primary.

use clap::Args;
use guanxi_api::standby::Promotion;

use super::CommandContext;
use super::output::Style;
use crate::failure::Failure;

const EXAMPLES: &str = "\
Example:
  guanxi promote --server http://10.0.0.2:7420

Stop the old primary first, or see to it that nobody can reach it: two primaries would take \
different writes. The old one can follow the new one afterwards, with `guanxi serve --follow`, \
as long as it has nothing that the new one lacks.";

/// Makes a standby the primary: it ends following and takes writes.
///
/// Prints the last position that it has, how old that is, and the epoch that begins after it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Promote {}

impl Promote {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let promoted = context.client.post("/v1/admin/promote").ask::<Promotion>()?;
        if context.output.json() {
            return context.output.value(&promoted.raw);
        }
        let Promotion { position, epoch, committed_at, age_ms } = promoted.means;
        let done = format!("{} is the primary now", context.client.server());
        let done = context.output.paint(Style::Good, &done).into_owned();
        context.output.line(&done)?;
        let committed = match committed_at {
            Some(time) => format!("{time}, {} ago", age(age_ms)),
            None => "never: it has no record".to_owned(),
        };
        context.output.fields(&[
            ("last position", position.to_string()),
            ("committed", committed),
            ("new epoch", epoch.to_string()),
        ])
    }
}

fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..600_000 => format!("{} s", ms / 1_000),
        _ => format!("{} min", ms / 60_000),
    }
}
