//! `guanxi hot` and `guanxi filters`: what is read most, and what the existence filter is.

use clap::Args;
use guanxi_api::filters::{Filter, Filters as FilterList};
use guanxi_api::hot::HotKeys;

use super::CommandContext;
use super::output::{Align, OutputTable, shown};
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
pub struct HotCommand {
    /// How many keys to show.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    limit: Option<u64>,
}

impl HotCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let answer = context.client.get("/v1/admin/hot").query_if("limit", self.limit);
        let answer = answer.ask::<HotKeys>()?;
        if context.output.json() {
            return context.output.items(&answer.raw["items"]);
        }
        let columns = [
            ("what", Align::Left),
            ("of", Align::Left),
            ("id", Align::Left),
            ("per_second", Align::Right),
            ("pinned", Align::Left),
        ];
        let mut table = OutputTable::new(&columns);
        for item in &answer.means.items {
            table.row(vec![
                shown(&item.what),
                shown(&item.kind.as_ref().or(item.node_type.as_ref())),
                shown(&item.id),
                shown(&item.per_second),
                shown(&item.pinned),
            ]);
        }
        table.print(&mut context.output)
    }
}

/// Shows the existence filter of a cluster as the asked instance sees it.
///
/// An embedded service, and a cluster without Redis, has none.
#[derive(Debug, Args)]
pub struct FiltersCommand {}

impl FiltersCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let answer = context.client.get("/v1/admin/filters").ask::<FilterList>()?;
        if context.output.json() {
            return context.output.items(&answer.raw["filters"]);
        }
        let filters = answer.means.filters;
        if filters.is_empty() {
            return context.output.line("there is no filter: it belongs to a cluster with Redis");
        }
        filters.iter().try_for_each(|filter| show(context, filter))
    }
}

fn show(context: &mut CommandContext, filter: &Filter) -> Result<(), Failure> {
    let Filter { answers, redis, .. } = filter;
    let redis = redis.as_ref();
    context.output.fields(&[
        ("phase", shown(&filter.phase)),
        ("generation", shown(&filter.generation)),
        ("believed", shown(&filter.believed)),
        ("shards", shown(&filter.shards)),
        ("bytes", shown(&filter.bytes)),
        ("edges_nominal", shown(&filter.edges_nominal)),
        ("surely_not", shown(&answers.surely_not)),
        ("maybe", shown(&answers.maybe)),
        ("unknown", shown(&answers.unknown)),
        ("redis", shown(&redis.map(|redis| &redis.address))),
        ("connected", shown(&redis.map(|redis| redis.connected))),
        ("unanswered", shown(&redis.map(|redis| redis.unanswered))),
        ("refused", shown(&redis.map(|redis| redis.refused))),
    ])
}
