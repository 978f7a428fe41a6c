//! `guanxi put`, `delete`, `approve`, `decline` and `get`: one edge.

use clap::Args;
use guanxi_api::edges::{self, Changed};
use guanxi_api::{Id, Time, WireState};
use serde_json::{Map, Value, json};

use super::arguments::AtLeast;
use super::client::{self, Said};
use super::output::{Style, shown};
use super::{CommandContext, arguments};
use crate::failure::Failure;

const PUT_EXAMPLES: &str = "\
Examples:
  guanxi put follow 1 2
  guanxi put follow 1 2 --group friends
  guanxi put like 1 11 --owner 77        # user 1 likes post 11, which user 77 wrote
  guanxi put block 2 1";
const DELETE_EXAMPLES: &str = "\
Examples:
  guanxi delete follow 1 2
  guanxi delete follow 1 2 --strict      # exits with 1 when there is no such edge";
const GET_EXAMPLES: &str = "\
Examples:
  guanxi get follow 1 2
  guanxi get follow 1 2 --json | jq .related";

/// Which edge.
#[derive(Debug, Args)]
struct EdgeArguments {
    /// Such as follow, like, favorite or block.
    #[arg(value_parser = arguments::name)]
    kind: String,
    /// The id of the node that relates.
    #[arg(value_parser = arguments::id)]
    source: Id,
    /// The id of the node that is related to.
    #[arg(value_parser = arguments::id)]
    target: Id,
}

impl EdgeArguments {
    fn path(&self) -> String {
        client::path([&"v1", &"edges", &self.kind, &self.source.0, &self.target.0])
    }

    fn named(&self) -> String {
        format!("{} {} → {}", self.kind, self.source.0, self.target.0)
    }
}

/// Relates source to target.
///
/// An edge that stands already stays as it is, but for what the flags change.
#[derive(Debug, Args)]
#[command(after_help = PUT_EXAMPLES)]
pub struct PutCommand {
    #[command(flatten)]
    edge: EdgeArguments,
    /// The source's group to put it into.
    #[arg(long, value_name = "NAME", value_parser = arguments::group)]
    group: Option<String>,
    /// The node whose 'owned' tally the edge counts for, such as a post's author.
    #[arg(long, value_name = "ID", value_parser = arguments::id)]
    owner: Option<Id>,
    /// A short text that stays with the edge.
    #[arg(long, value_name = "TEXT")]
    data: Option<String>,
    /// Makes the edge wait for the target's approval.
    #[arg(long)]
    approval: bool,
    /// When the edge ends by itself, such as 2027-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = arguments::time)]
    expires_at: Option<Time>,
    /// Refuses when the edge stands already.
    #[arg(long)]
    strict: bool,
}

impl PutCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let mut fields = Map::new();
        let mut given = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        given("group", self.group.map(Value::from));
        given("owner", self.owner.map(|owner| json!(owner)));
        given("data", self.data.map(Value::from));
        given("approval", self.approval.then_some(json!(true)));
        given("expires_at", self.expires_at.map(|time| json!(time)));
        let request = context.client.put(&self.edge.path());
        let request = request.query_if("strict", self.strict.then_some("true"));
        let answer = request.ask_json(&fields)?;
        show_change(context, &self.edge, &answer)
    }
}

/// Ends the relation of source to target.
#[derive(Debug, Args)]
#[command(after_help = DELETE_EXAMPLES)]
pub struct Delete {
    #[command(flatten)]
    edge: EdgeArguments,
    /// Refuses when there is no such edge.
    #[arg(long)]
    strict: bool,
}

impl Delete {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let request = context.client.delete(&self.edge.path());
        let answer = request.query_if("strict", self.strict.then_some("true")).ask()?;
        show_change(context, &self.edge, &answer)
    }
}

/// Approves an edge that waits for the target's word.
#[derive(Debug, Args)]
pub struct Approve {
    #[command(flatten)]
    edge: EdgeArguments,
}

impl Approve {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let path = format!("{}/approve", self.edge.path());
        let answer = context.client.post(&path).ask()?;
        show_change(context, &self.edge, &answer)
    }
}

/// Declines an edge that waits for the target's word.
#[derive(Debug, Args)]
pub struct Decline {
    #[command(flatten)]
    edge: EdgeArguments,
}

impl Decline {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let path = format!("{}/decline", self.edge.path());
        let answer = context.client.post(&path).ask()?;
        show_change(context, &self.edge, &answer)
    }
}

fn show_change(
    context: &mut CommandContext,
    edge: &EdgeArguments,
    answer: &Said<Changed>,
) -> Result<(), Failure> {
    let output = &mut context.output;
    if output.json() {
        return output.value(&answer.raw);
    }
    let Changed { changed, state, .. } = &answer.means;
    let said = match (changed, state) {
        (true, state) => output.paint(Style::Good, &shown(state)).into_owned(),
        (false, WireState::Removed) => "there was no such edge; nothing changed".to_owned(),
        (false, state) => format!("{} already; nothing changed", shown(state)),
    };
    output.line(&format!("{}: {said}", edge.named()))
}

/// Shows one edge, and whether the other end relates back.
#[derive(Debug, Args)]
#[command(after_help = GET_EXAMPLES)]
pub struct Get {
    #[command(flatten)]
    edge: EdgeArguments,
    #[command(flatten)]
    at_least: AtLeast,
}

impl Get {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let request = context.client.get(&self.edge.path()).at_least(&self.at_least);
        let answer = request.ask::<edges::Edge>()?;
        let output = &mut context.output;
        if output.json() {
            return output.value(&answer.raw);
        }
        let edge = &answer.means;
        output.note_degraded(edge.degraded);
        let related = match (edge.related, edge.state) {
            (true, _) => output.paint(Style::Good, "related").into_owned(),
            (_, Some(WireState::Pending)) => output.paint(Style::Warning, "pending").into_owned(),
            _ => "not related".to_owned(),
        };
        output.line(&format!("{}: {related}", self.edge.named()))?;
        let reverse = edge.reverse.map(|reverse| match reverse.related {
            true => "related too".to_owned(),
            false => "not related".to_owned(),
        });
        let fields = [
            ("since", edge.since.as_ref().map(shown)),
            ("group", edge.group.as_ref().map(shown)),
            ("owner", edge.owner.as_ref().map(shown)),
            ("data", edge.data.as_ref().map(shown)),
            ("expires_at", edge.expires_at.as_ref().map(shown)),
            ("version", edge.version.as_ref().map(shown)),
            ("reverse", reverse),
        ];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        output.fields(&given.collect::<Vec<_>>())
    }
}
