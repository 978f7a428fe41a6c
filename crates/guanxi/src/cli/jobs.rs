//! `guanxi jobs`: work that takes a while (erasing nodes, building indexes), its progress and its
//! receipts.

use clap::{Args, Subcommand};
use guanxi_api::jobs::{JobView, Jobs as JobsPage, NodeName, ReceiptView};

use super::CommandContext;
use super::arguments::AtLeast;
use super::client::{self, Said};
use super::output::{Align, OutputTable, shown};
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
pub struct JobsCommand {
    #[command(subcommand)]
    action: JobsAction,
}

#[derive(Debug, Subcommand)]
enum JobsAction {
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

impl JobsCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        match self.action {
            JobsAction::List { limit, all, at_least } => {
                let shown = if all { u64::MAX } else { limit.unwrap_or(SHOWN_DEFAULT) };
                list(context, shown, &at_least)
            }
            JobsAction::Show { job, at_least } => {
                let request = context.client.get(&client::path([&"v1", &"jobs", &job]));
                let job = request.at_least(&at_least).ask()?;
                show(context, &job)
            }
        }
    }
}

fn list(context: &mut CommandContext, mut left: u64, at_least: &AtLeast) -> Result<(), Failure> {
    let columns = ["job", "type", "state", "about", "edges_done", "started_at", "finished_at"];
    let mut table = OutputTable::new(&columns.map(|name| (name, Align::Left)));
    let mut cursor: Option<String> = None;
    loop {
        let request = context.client.get("/v1/admin/jobs").query("limit", left.min(PAGE_ITEMS_MAX));
        let request = request.query_if("cursor", cursor.as_deref()).at_least(at_least);
        let page = request.ask::<JobsPage>()?;
        if context.output.json() {
            context.output.items(&page.raw["jobs"])?;
        }
        let JobsPage { jobs, next } = page.means;
        for job in &jobs {
            table.row(fields(job).map(|(_, value)| value).to_vec());
        }
        left = left.saturating_sub(jobs.len() as u64);
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

fn fields(job: &JobView) -> [(&'static str, String); 7] {
    let about = match &job.node {
        Some(node) => named(node),
        None => shown(&job.kind),
    };
    [
        ("job", shown(&job.job)),
        ("type", shown(&job.work)),
        ("state", shown(&job.state)),
        ("about", about),
        ("edges_done", shown(&job.edges_done)),
        ("started_at", shown(&job.started_at)),
        ("finished_at", shown(&job.finished_at)),
    ]
}

/// A node in words.
pub fn named(node: &NodeName) -> String {
    format!("{} {}", shown(&node.node_type), shown(&node.id))
}

/// What an erasure did, beside whose it was.
pub fn receipt_fields(receipt: &ReceiptView) -> [(&'static str, String); 6] {
    [
        ("edges_removed", shown(&receipt.edges_removed)),
        ("groups_removed", shown(&receipt.groups_removed)),
        ("counters_removed", shown(&receipt.counters_removed)),
        ("erased_at", shown(&receipt.erased_at)),
        ("log_forgets_at", shown(&receipt.log_forgets_at)),
        ("backups", shown(&receipt.backups)),
    ]
}

fn show(context: &mut CommandContext, job: &Said<JobView>) -> Result<(), Failure> {
    if context.output.json() {
        return context.output.value(&job.raw);
    }
    let mut shown = fields(&job.means).to_vec();
    shown.extend(job.means.receipt.iter().flat_map(receipt_fields));
    context.output.fields(&shown)
}
