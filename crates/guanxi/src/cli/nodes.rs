//! `guanxi nodes`: a node's settings, and its erasure.

use std::thread;
use std::time::{Duration, Instant};

use clap::{ArgAction, Args, Subcommand};
use guanxi_api::Id;
use guanxi_api::jobs::{JobState, JobView};
use guanxi_api::nodes::{JobStarted, NodeSettings};
use serde_json::json;

use super::arguments::AtLeast;
use super::client::{self, Said};
use super::output::shown;
use super::progress::ProgressLine;
use super::{CommandContext, arguments, jobs};
use crate::failure::Failure;

/// How often a job is asked for its progress.
const JOB_INTERVAL: Duration = Duration::from_millis(100);
/// Whoever waits longer is told what for.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// A node with millions of edges takes minutes; whoever waits longer asks for the job again.
const JOB_WAIT_MAX: Duration = Duration::from_secs(3_600);

const EXAMPLES: &str = "\
Examples:
  guanxi nodes get user 1
  guanxi nodes set user 1 --private true    # new followers wait for an approval
  guanxi nodes erase user 1                 # removes all edges of user 1, both ways";

/// Shows and changes the settings of a node, or erases it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Nodes {
    #[command(subcommand)]
    action: NodesAction,
}

#[derive(Debug, Args)]
struct NodeArguments {
    /// The node's type, such as user or post.
    #[arg(value_name = "TYPE", value_parser = arguments::name)]
    node_type: String,
    /// The node's id.
    #[arg(value_parser = arguments::id)]
    id: Id,
}

#[derive(Debug, Subcommand)]
enum NodesAction {
    /// Shows the settings.
    Get {
        #[command(flatten)]
        node: NodeArguments,
        #[command(flatten)]
        at_least: AtLeast,
    },
    /// Changes a setting.
    Set {
        #[command(flatten)]
        node: NodeArguments,
        /// Whether new incoming edges of kinds with approval wait for the node's word.
        #[arg(long, value_name = "true|false", action = ArgAction::Set)]
        private: bool,
    },
    /// Removes all edges of a node, both ways, its groups, settings and counters; waits until it
    /// is done and shows the receipt.
    Erase {
        #[command(flatten)]
        node: NodeArguments,
        /// Does not wait; the job goes on.
        #[arg(long)]
        no_wait: bool,
    },
}

impl Nodes {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let client = &context.client;
        match self.action {
            NodesAction::Get { node, at_least } => {
                let settings = client.get(&node.path()).at_least(&at_least).ask()?;
                show(context, &settings)
            }
            NodesAction::Set { node, private } => {
                let change = json!({ "private": private });
                let settings = client.put(&node.path()).ask_json(&change)?;
                show(context, &settings)
            }
            NodesAction::Erase { node, no_wait } => {
                let started = client.delete(&node.path()).ask::<JobStarted>()?;
                let job = shown(&started.means.job);
                match (no_wait, context.output.json()) {
                    (false, _) => wait(context, &node, &job),
                    (true, true) => context.output.value(&started.raw),
                    (true, false) => context.output.fields(&[("job", job)]),
                }
            }
        }
    }
}

impl NodeArguments {
    fn path(&self) -> String {
        client::path([&"v1", &"nodes", &self.node_type, &self.id.0])
    }
}

fn wait(context: &mut CommandContext, node: &NodeArguments, job: &str) -> Result<(), Failure> {
    let path = client::path([&"v1", &"jobs", &job]);
    let begun = Instant::now();
    let what = format!("erasing {} {}, edges removed", node.node_type, node.id.0);
    let progress = ProgressLine::new(&context.output, &what, None);
    let (mut removed, mut told) = (0, context.output.json());
    loop {
        let answer = context.client.get(&path).ask::<JobView>()?;
        if answer.means.state == JobState::Done {
            progress.finish();
            let mut fields = Vec::new();
            if let Some(receipt) = &answer.means.receipt {
                fields.push(("node", jobs::named(&receipt.node)));
                fields.extend(jobs::receipt_fields(receipt));
            }
            return match context.output.json() {
                true => context.output.value(&answer.raw),
                false => context.output.fields(&fields),
            };
        }
        let so_far = answer.means.edges_done;
        progress.advance(so_far.saturating_sub(removed));
        removed = so_far;
        if !told && begun.elapsed() > SILENCE_MAX {
            told = true;
            progress.line(&format!(
                "job {job} removes the edges, then waits: in a cluster for about 15 s, \
                 until no writes that began before it can still commit and the log has caught up"
            ));
        }
        if begun.elapsed() > JOB_WAIT_MAX {
            return Err(Failure::failed(format!("job {job} is not done yet; it goes on"))
                .next(format!("the same command, or GET {path}, shows how far it is")));
        }
        thread::sleep(JOB_INTERVAL);
    }
}

fn show(context: &mut CommandContext, settings: &Said<NodeSettings>) -> Result<(), Failure> {
    match context.output.json() {
        true => context.output.value(&settings.raw),
        false => context.output.fields(&[("private", shown(&settings.means.private))]),
    }
}
