//! `guanxi list`: the edges of one node, page after page.

use clap::{Args, ValueEnum};
use guanxi_api::Id;
use guanxi_api::lists::{self, Item, OwnFields};

use super::arguments::AtLeast;
use super::client::{self, Said};
use super::output::{Align, OutputTable, Style, shown};
use super::{CommandContext, arguments};
use crate::failure::Failure;

/// What one call may return.
const PAGE_ITEMS_MAX: u64 = 1_000;

const EXAMPLES: &str = "\
Examples:
  guanxi list follow 1 outgoing                  # whom user 1 follows, newest first
  guanxi list follow 1 incoming --limit 100
  guanxi list follow 1 mutual --all --json       # one line per item
  guanxi list follow 1 outgoing --group friends
  guanxi list follow 1 incoming --state pending  # who waits for an approval
  guanxi list follow 2 incoming --at-least TOKEN # with that write, on any instance of a cluster";

/// Lists the edges of a node.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ListCommand {
    /// Such as follow, like, favorite or block.
    #[arg(value_parser = arguments::name)]
    kind: String,
    /// The node whose list it is.
    #[arg(value_parser = arguments::id)]
    id: Id,
    /// outgoing: whom it relates to; incoming: who relates to it; mutual: both.
    direction: DirectionArgument,
    /// How many to show; with --all, how many to fetch at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Shows the whole list.
    #[arg(long)]
    all: bool,
    /// By the time since when edges stand; newest unless given.
    #[arg(long)]
    order: Option<OrderArgument>,
    /// Only this group of the source; an empty name means what is in no group.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// live unless given; pending: what waits for an approval.
    #[arg(long)]
    state: Option<StateArgument>,
    /// Walks in a stable order of its own instead of by time, as deep as the list is.
    #[arg(long, conflicts_with_all = ["order", "group", "state"])]
    scan: bool,
    #[command(flatten)]
    at_least: AtLeast,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DirectionArgument {
    Outgoing,
    Incoming,
    Mutual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderArgument {
    Newest,
    Oldest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StateArgument {
    Live,
    Pending,
}

impl ListCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let mut left = match self.all {
            true => u64::MAX,
            false => self.limit.unwrap_or(20),
        };
        let page_items = match (self.all, self.limit) {
            (true, None) => PAGE_ITEMS_MAX,
            (true, Some(limit)) | (false, Some(limit)) => limit.min(PAGE_ITEMS_MAX),
            (false, None) => left,
        };
        let mut cursor: Option<String> = None;
        let mut table = None;
        let mut count: u64 = 0;
        let total = loop {
            let page = self.page(context, left.min(page_items), cursor.as_deref())?;
            let lists::List { items, total, next } = page.means;
            match context.output.json() {
                true => context.output.items(&page.raw["items"])?,
                false => show(context, &items, &mut table)?,
            }
            count += items.len() as u64;
            left = left.saturating_sub(items.len() as u64);
            if left == 0 || next.is_none() {
                break total.and_then(|total| u64::try_from(total).ok());
            }
            if next == cursor {
                return Err(Failure::failed(
                    "the server gave the same page twice; the list is not \
                                            complete",
                )
                .next("`guanxi doctor` shows how the server does"));
            }
            cursor = next;
        };
        summarize(context, count, total)
    }

    fn page(
        &self,
        context: &CommandContext,
        limit: u64,
        cursor: Option<&str>,
    ) -> Result<Said<lists::List>, Failure> {
        let direction = word(self.direction);
        let mut path = client::path([&"v1", &"edges", &self.kind, &self.id.0, &direction]);
        if self.scan {
            path.push_str("/scan");
        }
        let request = context.client.get(&path).query("limit", limit);
        let request = request.query_if("order", self.order.map(word));
        let request = request.query_if("group", self.group.as_deref());
        let request = request.query_if("state", self.state.map(word));
        request.query_if("cursor", cursor).at_least(&self.at_least).ask()
    }
}

/// A value of an argument as the wire has it, which is as the user typed it.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

const COLUMNS: [&str; 3] = ["id", "state", "since"];
/// What the source keeps for itself.
const OWN_COLUMNS: [&str; 4] = ["group", "owner", "data", "expires_at"];

/// Prints a page; the first item decides which columns the list has.
fn show(
    context: &mut CommandContext,
    items: &[Item],
    table: &mut Option<OutputTable>,
) -> Result<(), Failure> {
    let Some(first) = items.first() else {
        return Ok(());
    };
    let table = table.get_or_insert_with(|| {
        let own = OWN_COLUMNS.iter().filter(|_| first.own.is_some());
        let aligned: Vec<_> = COLUMNS.iter().chain(own).map(|name| (*name, Align::Left)).collect();
        OutputTable::new(&aligned)
    });
    for Item { id, state, since, own, .. } in items {
        let mut cells = vec![shown(id), shown(state), shown(since)];
        if let Some(OwnFields { group, owner, data, expires_at }) = own {
            cells.extend([shown(group), shown(owner), shown(data), shown(expires_at)]);
        }
        table.row(cells);
    }
    table.print(&mut context.output)
}

fn summarize(context: &mut CommandContext, count: u64, total: Option<u64>) -> Result<(), Failure> {
    if context.output.json() {
        return Ok(());
    }
    let said = match (count, total) {
        (0, _) => "none".to_owned(),
        (count, Some(total)) if count < total => {
            format!("{count} of {total}; --all shows the rest")
        }
        (count, _) => format!("{count} in all"),
    };
    let said = context.output.paint(Style::Faint, &said).into_owned();
    context.output.line(&said)
}
