//! `guanxi jobs`: work that takes a while (erasing nodes, building indexes), its progress and its
//! receipts.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::arguments::AtLeast;
use super::output::{Align, Table, shown};
use super::{Context, client};
use crate::failure::Failure;

/// What one call may return.
const PAGE_ITEMS_MAX: u64 = 1_000;
/// How many jobs are shown unless more are asked for.
const SHOWN_DEFAULT: u64 = 20;

const EXAMPLES: &str = "\
Examples:
  guanxi jobs list
  guanxi jobs list --all --json        # one line per job
  guanxi jobs show 1882018069608398848";

/// Shows jobs: erasures of nodes and indexes that are built.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Jobs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows the newest jobs, running and done.
    List {
        /// How many to show.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
        /// Shows all of them.
        #[arg(long, conflicts_with = "limit")]
        all: bool,
        #[command(flatten)]
        at_least: AtLeast,
    },
    /// Shows one job, with its receipt when it is done.
    Show {
        /// The job's number.
        job: u64,
        #[command(flatten)]
        at_least: AtLeast,
    },
}

impl Jobs {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        match self.action {
            Action::List { limit, all, at_least } => {
                let shown = if all { u64::MAX } else { limit.unwrap_or(SHOWN_DEFAULT) };
                list(context, shown, &at_least)
            }
            Action::Show { job, at_least } => {
                let request = context.client.get(&client::path([&"v1", &"jobs", &job]));
                let answer = request.at_least(&at_least).send()?;
                show(context, &answer)
            }
        }
    }
}

fn list(context: &mut Context, mut left: u64, at_least: &AtLeast) -> Result<(), Failure> {
    let columns = ["job", "type", "state", "about", "edges_done", "started_at", "finished_at"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    let mut cursor: Option<String> = None;
    loop {
        let request = context.client.get("/v1/admin/jobs").query("limit", left.min(PAGE_ITEMS_MAX));
        let page = request.query_if("cursor", cursor.as_deref()).at_least(at_least).send()?;
        let jobs = page["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        for job in jobs {
            if context.output.json() {
                context.output.value(job)?;
                continue;
            }
            let cell = |name: &&str| match *name {
                "about" => about(job),
                name => shown(&job[name]),
            };
            table.row(columns.iter().map(cell).collect());
        }
        left = left.saturating_sub(jobs.len() as u64);
        let next = page["next"].as_str().map(str::to_owned);
        if left == 0 || next.is_none() || next == cursor {
            break;
        }
        cursor = next;
    }
    match context.output.json() {
        true => Ok(()),
        false => table.print(&mut context.output),
    }
}

/// The node or the kind that a job works on.
fn about(job: &Value) -> String {
    match node(&job["node"]) {
        Some(node) => node,
        None => shown(&job["kind"]),
    }
}

fn node(value: &Value) -> Option<String> {
    let node_type = value["type"].as_str()?;
    Some(format!("{node_type} {}", shown(&value["id"])))
}

fn show(context: &mut Context, job: &Value) -> Result<(), Failure> {
    if context.output.json() {
        return context.output.value(job);
    }
    let plain = ["job", "type", "state", "edges_done", "started_at", "finished_at"];
    let mut fields: Vec<(&str, String)> =
        plain.iter().map(|name| (*name, shown(&job[*name]))).collect();
    fields.insert(3, ("about", about(job)));
    let receipt = job["receipt"].as_object().into_iter().flatten();
    let receipt = receipt.filter(|(name, _)| name.as_str() != "node");
    fields.extend(receipt.map(|(name, value)| (name.as_str(), shown(value))));
    context.output.fields(&fields)
}
