//! `guanxi hot` and `guanxi filters`: what is read most, and what the existence filter is.

use clap::Args;
use serde_json::Value;

use super::Context;
use super::output::{Align, Table, shown};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi hot
  guanxi hot --limit 5 --json          # one line per key";

/// Shows what is read most, over all instances of a cluster.
///
/// A cluster keeps the answers about its hottest keys in every process (pinned).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Hot {
    /// How many keys to show.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    limit: Option<u64>,
}

impl Hot {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        let answer = context.client.get("/v1/admin/hot").query_if("limit", self.limit).send()?;
        let items = answer["items"].as_array().map_or(&[][..], Vec::as_slice);
        if context.output.json() {
            return items.iter().try_for_each(|item| context.output.value(item));
        }
        let columns = [
            ("what", Align::Left),
            ("of", Align::Left),
            ("id", Align::Left),
            ("per_second", Align::Right),
            ("pinned", Align::Left),
        ];
        let mut table = Table::new(&columns);
        for item in items {
            let of = if item["kind"].is_null() { &item["type"] } else { &item["kind"] };
            let cells = [&item["what"], of, &item["id"], &item["per_second"], &item["pinned"]];
            table.row(cells.map(shown).to_vec());
        }
        table.print(&mut context.output)
    }
}

/// Shows the existence filter of a cluster as the asked instance sees it.
///
/// An embedded service, and a cluster without Redis, has none.
#[derive(Debug, Args)]
pub struct Filters {}

impl Filters {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        let answer = context.client.get("/v1/admin/filters").send()?;
        let filters = answer["filters"].as_array().map_or(&[][..], Vec::as_slice);
        if context.output.json() {
            return filters.iter().try_for_each(|filter| context.output.value(filter));
        }
        if filters.is_empty() {
            return context.output.line("there is no filter: it belongs to a cluster with Redis");
        }
        filters.iter().try_for_each(|filter| show(context, filter))
    }
}

fn show(context: &mut Context, filter: &Value) -> Result<(), Failure> {
    let plain = ["phase", "generation", "believed", "shards", "bytes", "edges_nominal"];
    let mut fields: Vec<_> = plain.map(|name| (name, shown(&filter[name]))).to_vec();
    let answers = ["surely_not", "maybe", "unknown"];
    fields.extend(answers.map(|name| (name, shown(&filter["answers"][name]))));
    let redis = &filter["redis"];
    fields.push(("redis", shown(&redis["address"])));
    fields.extend(["connected", "unanswered", "refused"].map(|name| (name, shown(&redis[name]))));
    context.output.fields(&fields)
}
