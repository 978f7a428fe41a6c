//! `guanxi groups`: the named folders of one source's edges.

use clap::{Args, Subcommand};
use guanxi_api::Id;
use guanxi_api::groups::{GroupView, Groups as GroupList};
use serde_json::json;

use super::arguments::AtLeast;
use super::client::{self, Said};
use super::output::{Align, OutputTable, printable};
use super::{CommandContext, arguments};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi groups create follow 1 friends
  guanxi groups add follow 1 friends 2
  guanxi groups rename follow 1 friends 朋友
  guanxi groups list follow 1";

/// Shows and changes the groups of a source.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GroupsCommand {
    #[command(subcommand)]
    action: GroupsAction,
}

/// Whose groups.
#[derive(Debug, Args)]
struct Owner {
    /// A kind with groups, such as follow.
    #[arg(value_parser = arguments::name)]
    kind: String,
    /// The node whose groups they are.
    #[arg(value_parser = arguments::id)]
    source: Id,
}

#[derive(Debug, Args)]
struct GroupArguments {
    #[command(flatten)]
    owner: Owner,
    /// The group's name.
    #[arg(value_parser = arguments::group)]
    group: String,
}

#[derive(Debug, Subcommand)]
enum GroupsAction {
    /// Shows the groups in the order of their creation.
    List {
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        at_least: AtLeast,
    },
    /// Makes an empty group.
    Create(GroupArguments),
    /// Gives a group another name; its members stay.
    Rename {
        #[command(flatten)]
        group: GroupArguments,
        /// The name that it gets.
        #[arg(value_parser = arguments::group)]
        new_name: String,
    },
    /// Deletes a group; its members stay related, in no group.
    Delete(GroupArguments),
    /// Moves an edge that stands into a group.
    Add {
        #[command(flatten)]
        group: GroupArguments,
        /// The node that the source relates to.
        #[arg(value_parser = arguments::id)]
        target: Id,
    },
    /// Takes an edge out of a group; it stays related.
    Remove {
        #[command(flatten)]
        group: GroupArguments,
        /// The node that the source relates to.
        #[arg(value_parser = arguments::id)]
        target: Id,
    },
}

impl GroupsCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let client = &context.client;
        let answer = match &self.action {
            GroupsAction::List { owner, at_least } => return list(context, owner, at_least),
            GroupsAction::Create(group) => {
                client.post(&group.owner.path()).ask_json(&json!({ "name": group.group }))?
            }
            GroupsAction::Rename { group, new_name } => {
                client.patch(&group.path()).ask_json(&json!({ "name": new_name }))?
            }
            GroupsAction::Delete(group) => {
                let answer = client.delete(&group.path()).ask()?;
                return show(context, &answer, "deleted; its members are in no group now: it had");
            }
            GroupsAction::Add { group, target } => client.put(&group.member(target)).ask()?,
            GroupsAction::Remove { group, target } => client.delete(&group.member(target)).ask()?,
        };
        show(context, &answer, "has")
    }
}

impl Owner {
    fn path(&self) -> String {
        client::path([&"v1", &"groups", &self.kind, &self.source.0])
    }
}

impl GroupArguments {
    fn path(&self) -> String {
        let Owner { kind, source } = &self.owner;
        client::path([&"v1", &"groups", kind, &source.0, &self.group])
    }

    fn member(&self, target: &Id) -> String {
        format!("{}/members/{}", self.path(), target.0)
    }
}

fn list(context: &mut CommandContext, owner: &Owner, at_least: &AtLeast) -> Result<(), Failure> {
    let answer = context.client.get(&owner.path()).at_least(at_least).ask::<GroupList>()?;
    if context.output.json() {
        return context.output.value(&answer.raw);
    }
    let groups = answer.means.groups;
    if groups.is_empty() {
        return context.output.line("no groups; `guanxi groups create` makes one");
    }
    let mut table = OutputTable::new(&[("group", Align::Left), ("size", Align::Right)]);
    for group in &groups {
        table.row(vec![printable(group.name.0.as_str()), group.size.to_string()]);
    }
    table.print(&mut context.output)
}

fn show(context: &mut CommandContext, group: &Said<GroupView>, has: &str) -> Result<(), Failure> {
    let output = &mut context.output;
    if output.json() {
        return output.value(&group.raw);
    }
    let GroupView { name, size } = &group.means;
    let members = match size {
        1 => "1 member".to_owned(),
        _ => format!("{size} members"),
    };
    output.line(&format!("group {} {has} {members}", printable(name.0.as_str())))
}
