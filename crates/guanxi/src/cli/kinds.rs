//! `guanxi kinds`: the kinds and their rules.

use clap::{Args, Subcommand, ValueEnum};
use guanxi_api::kinds::{KindCreation, KindView, Kinds as KindList, WireOnOverload};
use serde_json::{Map, Value, json};

use super::arguments::AtLeast;
use super::client::{self, Said};
use super::output::{Align, OutputTable, printable};
use super::{CommandContext, arguments};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi kinds list
  guanxi kinds create subscribe --source-type user --target-type channel --outgoing-max 500
  guanxi kinds create share --target-type post --counter
  guanxi kinds set follow --outgoing-max 5000
  guanxi kinds set follow --outgoing-max none
  guanxi kinds set like --on-overload answer_default";

const ADDRESS: &str = "/v1/admin/kinds";

/// Shows the kinds, creates one, or changes its rules.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct KindsCommand {
    #[command(subcommand)]
    action: KindsAction,
}

#[derive(Debug, Subcommand)]
enum KindsAction {
    /// Shows all kinds.
    List(AtLeast),
    Create(Box<Create>),
    Set(SetCommand),
}

/// Creates a kind; what is left out takes the plainest value: every list and tally, no further
/// rule.
#[derive(Debug, Args)]
struct Create {
    /// The new kind's name, such as subscribe.
    #[arg(value_parser = arguments::name)]
    name: String,
    /// The node type of sources, such as user; a counter has none.
    #[arg(long, value_name = "TYPE", value_parser = arguments::name)]
    source_type: Option<String>,
    /// The node type of targets, or of what a counter counts for.
    #[arg(long, value_name = "TYPE", value_parser = arguments::name)]
    target_type: String,
    /// A pure counter instead of edges.
    #[arg(long)]
    counter: bool,
    /// Every delta of the counter must carry an idempotency key.
    #[arg(long)]
    reconciled: bool,
    /// Live edges also count for an owner of this node type.
    #[arg(long, value_name = "TYPE", value_parser = arguments::name)]
    owner_type: Option<String>,
    /// Keeps no list of what a source relates to.
    #[arg(long)]
    no_outgoing_list: bool,
    /// Keeps no list of what relates to a target.
    #[arg(long)]
    no_incoming_list: bool,
    /// Does not count what a source relates to.
    #[arg(long)]
    no_outgoing_tally: bool,
    /// Does not count what relates to a target.
    #[arg(long)]
    no_incoming_tally: bool,
    /// A node may relate to itself.
    #[arg(long)]
    self_allowed: bool,
    /// Edges that one source may have; no limit unless given.
    #[arg(long, value_name = "N")]
    outgoing_max: Option<u32>,
    /// Groups that one source may have.
    #[arg(long, value_name = "N", default_value_t = 0)]
    groups_max: u32,
    /// Targets may ask to approve edges first.
    #[arg(long)]
    approval: bool,
    /// Bytes of text that an edge may carry.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    data_bytes_max: u32,
    /// Kinds whose edges a put of this kind removes and forbids, both ways.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", value_parser = arguments::name)]
    excludes: Vec<String>,
    /// Edges may have an end.
    #[arg(long)]
    expires: bool,
    /// How deep a walk of an incoming list may go; 0 for no bound.
    #[arg(long, value_name = "N", default_value_t = 0)]
    list_depth_max: u64,
    /// What reads of a cluster are told when its database has too much to do.
    #[arg(long, value_name = "RULE", value_enum, default_value_t)]
    on_overload: OnOverloadArgument,
}

/// Changes rules of a kind; those of edges bind new writes only, and what is not given stays.
#[derive(Debug, Args)]
struct SetCommand {
    /// The kind to change.
    #[arg(value_parser = arguments::name)]
    name: String,
    #[command(flatten)]
    rules: RuleArguments,
}

#[derive(Debug, Args)]
struct RuleArguments {
    /// Whether a node may relate to itself.
    #[arg(long, value_name = "true|false")]
    self_allowed: Option<bool>,
    /// Edges that one source may have, or none for no limit.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    outgoing_max: Option<Limit>,
    /// Groups that one source may have.
    #[arg(long, value_name = "N")]
    groups_max: Option<u32>,
    /// Whether targets may ask to approve edges first.
    #[arg(long, value_name = "true|false")]
    approval: Option<bool>,
    /// Bytes of text that an edge may carry.
    #[arg(long, value_name = "BYTES")]
    data_bytes_max: Option<u32>,
    /// Kinds whose edges a put of this kind removes and forbids; an empty text for none.
    #[arg(long, value_name = "KIND,…")]
    excludes: Option<String>,
    /// Whether edges may have an end.
    #[arg(long, value_name = "true|false")]
    expires: Option<bool>,
    /// How deep a walk of an incoming list may go; 0 for no bound.
    #[arg(long, value_name = "N")]
    list_depth_max: Option<u64>,
    /// What reads of a cluster are told when its database has too much to do.
    #[arg(long, value_name = "RULE", value_enum)]
    on_overload: Option<OnOverloadArgument>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
enum OnOverloadArgument {
    /// That they should come again.
    #[default]
    Refuse,
    /// What is known, the rest as not related and 0, marked as degraded.
    AnswerDefault,
}

impl From<OnOverloadArgument> for WireOnOverload {
    fn from(rule: OnOverloadArgument) -> WireOnOverload {
        match rule {
            OnOverloadArgument::Refuse => WireOnOverload::Refuse,
            OnOverloadArgument::AnswerDefault => WireOnOverload::AnswerDefault,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Limit(Option<u32>);

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        number => number
            .parse()
            .map(|number| Limit(Some(number)))
            .map_err(|_| "give a whole number, or none for no limit".to_owned()),
    }
}

impl KindsCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let client = &context.client;
        match self.action {
            KindsAction::List(at_least) => {
                let answer = client.get(ADDRESS).at_least(&at_least).ask::<KindList>()?;
                match context.output.json() {
                    true => context.output.value(&answer.raw),
                    false => table(context, &answer.means.kinds),
                }
            }
            KindsAction::Create(create) => {
                let answer = client.post(ADDRESS).ask_json(&create.body())?;
                show(context, &answer)
            }
            KindsAction::Set(set) => {
                let rules = set.rules.body();
                if rules.is_empty() {
                    return Err(Failure::usage("no rule to change was given")
                        .next("`guanxi kinds set --help` shows the rules"));
                }
                let path = client::path([&"v1", &"admin", &"kinds", &set.name]);
                let answer = client.patch(&path).ask_json(&rules)?;
                show(context, &answer)
            }
        }
    }
}

impl Create {
    fn body(self) -> KindCreation {
        let kept = |dropped: bool| dropped.then_some(false);
        KindCreation {
            name: self.name,
            source_type: self.source_type,
            target_type: self.target_type,
            counter: self.counter,
            reconciled: self.reconciled,
            owner_type: self.owner_type,
            outgoing_list: kept(self.no_outgoing_list),
            incoming_list: kept(self.no_incoming_list),
            outgoing_tally: kept(self.no_outgoing_tally),
            incoming_tally: kept(self.no_incoming_tally),
            self_allowed: self.self_allowed,
            outgoing_max: self.outgoing_max,
            groups_max: self.groups_max,
            approval: self.approval,
            data_bytes_max: self.data_bytes_max,
            excludes: self.excludes,
            expires: self.expires,
            list_depth_max: self.list_depth_max,
            on_overload: self.on_overload.into(),
        }
    }
}

impl RuleArguments {
    fn body(&self) -> Map<String, Value> {
        let excludes = self.excludes.as_deref().map(|text| {
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect::<Vec<_>>()
        });
        let rules = [
            ("self_allowed", self.self_allowed.map(Value::from)),
            ("outgoing_max", self.outgoing_max.map(|limit| json!(limit.0))),
            ("groups_max", self.groups_max.map(Value::from)),
            ("approval", self.approval.map(Value::from)),
            ("data_bytes_max", self.data_bytes_max.map(Value::from)),
            ("excludes", excludes.map(Value::from)),
            ("expires", self.expires.map(Value::from)),
            ("list_depth_max", self.list_depth_max.map(Value::from)),
            ("on_overload", self.on_overload.map(|rule| json!(WireOnOverload::from(rule)))),
        ];
        let given = rules.into_iter().filter_map(|(name, rule)| Some((name.to_owned(), rule?)));
        given.collect()
    }
}

fn table(context: &mut CommandContext, kinds: &[KindView]) -> Result<(), Failure> {
    let mut table = OutputTable::new(&[
        ("kind", Align::Left),
        ("ends", Align::Left),
        ("limit", Align::Right),
        ("groups", Align::Right),
        ("rules", Align::Left),
    ]);
    let or_dash = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    for kind in kinds {
        let limit = or_dash(kind.outgoing_max);
        let groups = or_dash(Some(kind.groups_max).filter(|groups| *groups > 0));
        table.row(vec![printable(&kind.name), ends(kind), limit, groups, rules(kind)]);
    }
    table.print(&mut context.output)
}

fn ends(kind: &KindView) -> String {
    let target = printable(&kind.target_type);
    match &kind.source_type {
        Some(source) => format!("{source} → {target}"),
        None => format!("counter of {target}"),
    }
}

fn rules(kind: &KindView) -> String {
    let flags = [
        ("approval", kind.approval),
        ("expires", kind.expires),
        ("self_allowed", kind.self_allowed),
        ("reconciled", kind.reconciled),
    ];
    let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
    let mut rules: Vec<String> = flags.map(|(flag, _)| flag.to_owned()).collect();
    if let Some(owner) = &kind.owner_type {
        rules.push(format!("owner {owner}"));
    }
    if kind.data_bytes_max > 0 {
        rules.push(format!("data {} bytes", kind.data_bytes_max));
    }
    if kind.list_depth_max > 0 {
        rules.push(format!("depth {}", kind.list_depth_max));
    }
    if kind.on_overload == WireOnOverload::AnswerDefault {
        rules.push("answers default".to_owned());
    }
    if !kind.excludes.is_empty() {
        let excluded: Vec<String> = kind.excludes.iter().map(|name| printable(name)).collect();
        rules.push(format!("excludes {}", excluded.join(" ")));
    }
    rules.join(", ")
}

fn show(context: &mut CommandContext, kind: &Said<KindView>) -> Result<(), Failure> {
    match context.output.json() {
        true => context.output.value(&kind.raw),
        false => table(context, std::slice::from_ref(&kind.means)),
    }
}
