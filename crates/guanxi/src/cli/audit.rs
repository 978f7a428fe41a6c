//! `guanxi audit`: compares everything that follows from the edges with them, and mends it.

use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::interrupt;
use super::output::{Align, Style, Table, shown};
use super::progress::Progress;
use super::{Context, arguments};
use crate::failure::Failure;

const PATH: &str = "/v1/admin/audit";
/// How often a long audit is asked how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Sorts of drift, as the report names them and as a table does.
const SORTS: [(&str, &str); 9] = [
    ("missing_incoming", "missing incoming entries"),
    ("surplus_incoming", "surplus incoming entries"),
    ("missing_outgoing", "missing outgoing entries"),
    ("surplus_outgoing", "surplus outgoing entries"),
    ("missing_expiry", "missing expiries"),
    ("surplus_expiry", "surplus expiries"),
    ("wrong_tallies", "wrong tallies"),
    ("wrong_group_sizes", "wrong group sizes"),
    ("unreadable", "unreadable rows"),
];

const EXAMPLES: &str = "\
Examples:
  guanxi audit                  # exit code 1 when something is wrong
  guanxi audit --kind follow
  guanxi audit --repair         # mends what it finds; what cannot be read is left as it is";

/// Compares lists, tallies, expiries and group sizes with the edges, at one position.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Audit {
    /// Only this kind.
    #[arg(long, value_name = "KIND", value_parser = arguments::name)]
    kind: Option<String>,
    /// Mends what is wrong: through the log like any other write, in a cluster under the locks of
    /// those who write there.
    #[arg(long)]
    repair: bool,
}

impl Audit {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        let server = context.client.server();
        let goes_on = match self.repair {
            true => "the audit, once begun, goes on at the server, and so do its repairs",
            false => "the audit, once begun, goes on at the server",
        };
        let stopped = Failure::failed(format!("stopped waiting: {goes_on}"));
        let look = format!("GET {server}{PATH} shows how far it is, and its report at the end");
        interrupt::end_with(stopped.next(look), context.output.json())?;
        let request = json!({ "kind": self.kind, "repair": self.repair });
        let mut answer = context.client.post(PATH).send_json(&request)?;
        if answer.get("running").is_some() {
            answer = wait(context, answer)?;
        }
        match context.output.json() {
            true => context.output.value(&answer)?,
            false => show(context, &answer)?,
        }
        context.output.flush()?;
        verdict(&answer)
    }
}

/// Asks until the audit has ended; it goes on whether anybody asks or not.
fn wait(context: &mut Context, mut state: Value) -> Result<Value, Failure> {
    let progress = Progress::new(&context.output, "rows compared", None);
    let mut seen = 0;
    while let Some(running) = state.get("running").filter(|running| !running.is_null()) {
        let rows = running["rows"].as_u64().unwrap_or(seen);
        progress.advance(rows.saturating_sub(seen));
        seen = rows;
        thread::sleep(POLL_INTERVAL);
        state = context.client.get(PATH).send()?;
    }
    progress.finish();
    match (state["last"].take(), state["failed"].as_str()) {
        (Value::Null, why) => {
            let why = why.unwrap_or("the server has no report of it");
            Err(Failure::failed(why).next("look into the server's log, then run the audit again"))
        }
        (report, _) => Ok(report),
    }
}

fn show(context: &mut Context, report: &Value) -> Result<(), Failure> {
    let output = &mut context.output;
    let number = |name: &str| shown(&report[name]);
    let clean = report["drift"].as_u64() == Some(0);
    let drift = number("drift");
    let drift = output.paint(if clean { Style::Good } else { Style::Bad }, &drift).into_owned();
    let mut fields = vec![
        ("position", number("position")),
        ("edges", number("edges")),
        ("tallies", number("tallies")),
        ("drift", drift),
    ];
    if report["repair"].as_bool() == Some(true) {
        fields.push(("repaired", number("repaired")));
    }
    output.fields(&fields)?;
    if clean {
        return Ok(());
    }
    let mut table =
        Table::new(&[("kind", Align::Left), ("what", Align::Left), ("number", Align::Right)]);
    for kind in report["kinds"].as_array().into_iter().flatten() {
        let name = match &kind["kind"] {
            Value::Null => "(none)".to_owned(),
            name => shown(name),
        };
        for (field, what) in SORTS {
            if kind[field].as_u64().is_some_and(|count| count > 0) {
                table.row(vec![name.clone(), what.to_owned(), shown(&kind[field])]);
            }
        }
    }
    output.line("")?;
    table.print(output)?;
    output.line("")?;
    for example in report["examples"].as_array().into_iter().flatten() {
        output.line(&shown(example))?;
    }
    Ok(())
}

/// Exit code 1 while something is wrong.
fn verdict(report: &Value) -> Result<(), Failure> {
    let left = report["left"].as_u64().unwrap_or(0);
    if left == 0 {
        return Ok(());
    }
    let count = |name: &str| -> u64 {
        let kinds = report["kinds"].as_array().into_iter().flatten();
        kinds.filter_map(|kind| kind[name].as_u64()).sum()
    };
    let next = match (report["repair"].as_bool(), count("unreadable")) {
        (Some(true), 0) => "run the audit again; if it stays so, the store's disk needs a look",
        (_, 1..) => "rows cannot be read: restore a backup; --repair leaves them as they are",
        _ => "`guanxi audit --repair` mends it",
    };
    Err(Failure::found(format!("drift {left} as of position {}", shown(&report["position"])))
        .next(next))
}
