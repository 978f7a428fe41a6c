//! `guanxi tally`: the numbers of nodes.

use clap::Args;
use guanxi_api::Id;
use serde_json::{Map, Value, json};

use super::arguments::AtLeast;
use super::output::{Align, Table, shown};
use super::{Context, arguments};
use crate::failure::Failure;

/// What one call may ask for.
const IDS_PER_CALL_MAX: usize = 1_000;
/// Every number that a kind may keep, in the order in which they are shown.
const NUMBERS: [&str; 6] =
    ["outgoing", "incoming", "pending_outgoing", "pending_incoming", "owned", "value"];

const EXAMPLES: &str = "\
Examples:
  guanxi tally follow 1 2 3
  guanxi tally like 11           # likes of post 11, likes by user 11, likes of what user 11 owns
  guanxi tally view 11           # a counter";

/// Shows how many edges nodes have, or what a counter stands at.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Tally {
    /// A kind of edges or a counter.
    #[arg(value_parser = arguments::name)]
    kind: String,
    /// The nodes: an id is the source in 'outgoing', the target in 'incoming', the owner in
    /// 'owned'.
    #[arg(required = true, value_parser = arguments::id, value_name = "ID")]
    ids: Vec<Id>,
    #[command(flatten)]
    at_least: AtLeast,
}

impl Tally {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        let mut results = Vec::new();
        let mut whole = Map::new();
        for ids in self.ids.chunks(IDS_PER_CALL_MAX) {
            let body = json!({ "ids": ids, "kinds": [self.kind] });
            let mut answer =
                context.client.post("/v1/tallies").at_least(&self.at_least).send_json(&body)?;
            if let Value::Array(page) = answer["results"].take() {
                results.extend(page);
            }
            if answer["degraded"] == true {
                whole.insert("degraded".into(), true.into());
            }
        }
        if context.output.json() {
            whole.insert("results".into(), results.into());
            return context.output.value(&whole);
        }
        context.output.note_degraded(&Value::Object(whole));
        let first = results.first().map(|result| &result["tallies"][&self.kind]);
        let kept = NUMBERS.into_iter();
        let kept: Vec<&str> =
            kept.filter(|name| first.is_some_and(|first| !first[name].is_null())).collect();
        let columns = kept.iter().map(|name| (*name, Align::Right));
        let columns: Vec<_> = std::iter::once(("id", Align::Left)).chain(columns).collect();
        let mut table = Table::new(&columns);
        for result in &results {
            let tally = &result["tallies"][&self.kind];
            let numbers = kept.iter().map(|name| shown(&tally[*name]));
            table.row(std::iter::once(shown(&result["id"])).chain(numbers).collect());
        }
        table.print(&mut context.output)
    }
}
