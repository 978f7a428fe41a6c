//! `guanxi tally`: the numbers of nodes.

use clap::Args;
use guanxi_api::Id;
use guanxi_api::tallies::{KindTallies, TalliesAnswer, TalliesOf};
use serde_json::{Map, Value, json};

use super::arguments::AtLeast;
use super::output::{Align, OutputTable, shown};
use super::{CommandContext, arguments};
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
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let (mut raw, mut results, mut degraded) = (Vec::new(), Vec::new(), false);
        for ids in self.ids.chunks(IDS_PER_CALL_MAX) {
            let body = json!({ "ids": ids, "kinds": [self.kind] });
            let request = context.client.post("/v1/tallies").at_least(&self.at_least);
            let mut answer = request.ask_json::<TalliesAnswer>(&body)?;
            if let Value::Array(page) = answer.raw["results"].take() {
                raw.extend(page);
            }
            results.extend(answer.means.results);
            degraded |= answer.means.degraded;
        }
        if context.output.json() {
            let mut whole = Map::new();
            if degraded {
                whole.insert("degraded".into(), true.into());
            }
            whole.insert("results".into(), raw.into());
            return context.output.value(&whole);
        }
        context.output.note_degraded(degraded);
        let rows = results.iter().map(|TalliesOf { id, tallies }| {
            let of_kind = tallies.0.iter().find(|(kind, _)| **kind == *self.kind);
            (shown(id), of_kind.map_or([None; 6], |(_, tallies)| numbers(tallies)))
        });
        let rows: Vec<(String, [Option<i64>; 6])> = rows.collect();
        let first = rows.first().map_or([None; 6], |(_, numbers)| *numbers);
        let kept = (0..NUMBERS.len()).filter(|at| first[*at].is_some());
        let kept: Vec<usize> = kept.collect();
        let columns = kept.iter().map(|at| (NUMBERS[*at], Align::Right));
        let columns: Vec<_> = std::iter::once(("id", Align::Left)).chain(columns).collect();
        let mut table = OutputTable::new(&columns);
        for (id, numbers) in rows {
            let numbers = kept.iter().map(|at| shown(&numbers[*at]));
            table.row(std::iter::once(id).chain(numbers).collect());
        }
        table.print(&mut context.output)
    }
}

/// In the order of their names.
pub fn numbers(tallies: &KindTallies) -> [Option<i64>; 6] {
    let KindTallies { outgoing, incoming, pending_outgoing, pending_incoming, owned, value } =
        *tallies;
    [outgoing, incoming, pending_outgoing, pending_incoming, owned, value]
}
