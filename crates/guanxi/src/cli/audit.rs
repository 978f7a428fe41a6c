//! `guanxi audit`: compares everything that follows from the edges with them, and mends it.

use std::thread;
use std::time::Duration;

use clap::Args;
use guanxi_api::audit::{KindDrift, ReportView, StateView};
use serde_json::json;

use super::client::Said;
use super::interrupt;
use super::output::{Align, OutputTable, Style, printable};
use super::progress::ProgressLine;
use super::{CommandContext, arguments};
use crate::failure::Failure;

const PATH: &str = "/v1/admin/audit";
/// How often a long audit is asked how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const EXAMPLES: &str = "\
Examples:
  guanxi audit                  # exit code 1 when something is wrong
  guanxi audit --kind follow
  guanxi audit --repair         # mends what it finds; what cannot be read is left as it is";

/// Compares lists, tallies, expiries and group sizes with the edges, at one position.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AuditCommand {
    /// Only this kind.
    #[arg(long, value_name = "KIND", value_parser = arguments::name)]
    kind: Option<String>,
    /// Mends what is wrong: through the log like any other write, in a cluster under the locks of
    /// those who write there.
    #[arg(long)]
    repair: bool,
}

impl AuditCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let server = context.client.server();
        let goes_on = match self.repair {
            true => "the audit, once begun, goes on at the server, and so do its repairs",
            false => "the audit, once begun, goes on at the server",
        };
        let stopped = Failure::failed(format!("stopped waiting: {goes_on}"));
        let look = format!("GET {server}{PATH} shows how far it is, and its report at the end");
        interrupt::end_with(stopped.next(look), context.output.json())?;
        let request = json!({ "kind": self.kind, "repair": self.repair });
        let answer = context.client.post(PATH).send_json(&request)?;
        let report = match answer.get("running") {
            Some(_) => wait(context, context.client.means(answer)?)?,
            None => context.client.means(answer)?,
        };
        match context.output.json() {
            true => context.output.value(&report.raw)?,
            false => show(context, &report.means)?,
        }
        context.output.flush()?;
        verdict(&report.means)
    }
}

/// Asks until the audit has ended; it goes on whether anybody asks or not.
fn wait(context: &CommandContext, mut state: Said<StateView>) -> Result<Said<ReportView>, Failure> {
    let progress = ProgressLine::new(&context.output, "rows compared", None);
    let mut seen = 0;
    while let Some(running) = &state.means.running {
        progress.advance(running.rows.saturating_sub(seen));
        seen = running.rows;
        thread::sleep(POLL_INTERVAL);
        state = context.client.get(PATH).ask()?;
    }
    progress.finish();
    let StateView { last, failed, .. } = state.means;
    match last {
        Some(means) => Ok(Said { raw: state.raw["last"].take(), means }),
        None => {
            let why = failed.unwrap_or_else(|| "the server has no report of it".to_owned());
            Err(Failure::failed(why).next("look into the server's log, then run the audit again"))
        }
    }
}

fn show(context: &mut CommandContext, report: &ReportView) -> Result<(), Failure> {
    let output = &mut context.output;
    let clean = report.drift == 0;
    let style = if clean { Style::Good } else { Style::Bad };
    let drift = output.paint(style, &report.drift.to_string()).into_owned();
    let mut fields = vec![
        ("position", report.position.to_string()),
        ("edges", report.edges.to_string()),
        ("tallies", report.tallies.to_string()),
        ("drift", drift),
    ];
    if report.repair {
        fields.push(("repaired", report.repaired.to_string()));
    }
    output.fields(&fields)?;
    if clean {
        return Ok(());
    }
    let mut table =
        OutputTable::new(&[("kind", Align::Left), ("what", Align::Left), ("number", Align::Right)]);
    for kind in &report.kinds {
        let name = kind.kind.as_deref().map_or_else(|| "(none)".to_owned(), printable);
        for (what, count) in sorts(kind).into_iter().filter(|(_, count)| *count > 0) {
            table.row(vec![name.clone(), what.to_owned(), count.to_string()]);
        }
    }
    output.line("")?;
    table.print(output)?;
    output.line("")?;
    report.examples.iter().try_for_each(|example| output.line(&printable(example)))
}

/// Sorts of drift, as people call them.
fn sorts(kind: &KindDrift) -> [(&'static str, u64); 9] {
    [
        ("missing incoming entries", kind.missing_incoming),
        ("surplus incoming entries", kind.surplus_incoming),
        ("missing outgoing entries", kind.missing_outgoing),
        ("surplus outgoing entries", kind.surplus_outgoing),
        ("missing expiries", kind.missing_expiry),
        ("surplus expiries", kind.surplus_expiry),
        ("wrong tallies", kind.wrong_tallies),
        ("wrong group sizes", kind.wrong_group_sizes),
        ("unreadable rows", kind.unreadable),
    ]
}

/// Exit code 1 while something is wrong.
fn verdict(report: &ReportView) -> Result<(), Failure> {
    let ReportView { left, position, repair, kinds, .. } = report;
    if *left == 0 {
        return Ok(());
    }
    let unreadable: u64 = kinds.iter().map(|kind| kind.unreadable).sum();
    let next = match (repair, unreadable) {
        (true, 0) => "run the audit again; if it stays so, the store's disk needs a look",
        (_, 1..) => "rows cannot be read: restore a backup; --repair leaves them as they are",
        _ => "`guanxi audit --repair` mends it",
    };
    Err(Failure::found(format!("drift {left} as of position {position}")).next(next))
}
