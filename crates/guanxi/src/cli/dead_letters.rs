//! `guanxi dead-letters`: records of a cluster's log that could not be applied.

use clap::{Args, Subcommand};
use guanxi_api::Id;
use guanxi_api::dead_letters::{self, DeadLetterView, Retried};

use super::CommandContext;
use super::client::path;
use super::output::{Align, OutputTable, shown};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi dead-letters list
  guanxi dead-letters show 1872345678901
  guanxi dead-letters retry 1872345678901";

/// Looks after records of a cluster's log that could not be applied.
///
/// A retry applies what the source says of the letter's edge now, never the old record.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DeadLettersCommand {
    #[command(subcommand)]
    action: DeadLettersAction,
}

#[derive(Debug, Subcommand)]
enum DeadLettersAction {
    /// Lists all letters, the oldest first.
    List,
    /// Shows a letter with the record as it came.
    Show { id: u64 },
    /// Applies what stands now, and removes the letter.
    Retry { id: u64 },
    /// Forgets a letter; its record is not applied.
    Drop { id: u64 },
}

impl DeadLettersCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        match self.action {
            DeadLettersAction::List => list(context),
            DeadLettersAction::Show { id } => {
                let letter = context.client.get(&of(id)).ask::<DeadLetterView>()?;
                if context.output.json() {
                    return context.output.value(&letter.raw);
                }
                let DeadLetterView { topic, partition, position, value, .. } = &letter.means;
                let value = value.as_deref().map(String::from_utf8_lossy);
                let [id, at, kind, source, target, cause] = columns(&letter.means);
                context.output.fields(&[
                    id,
                    ("topic", shown(topic)),
                    ("partition", shown(partition)),
                    ("position", shown(position)),
                    kind,
                    source,
                    target,
                    at,
                    cause,
                    ("value", shown(&value)),
                ])
            }
            DeadLettersAction::Retry { id } => {
                let retried = context.client.post(&format!("{}/retry", of(id)));
                let retried = retried.ask::<Retried>()?;
                if context.output.json() {
                    return context.output.value(&retried.raw);
                }
                let Retried { kind, source, target, changed } = &retried.means;
                let [kind, source, target] = [shown(kind), shown(source), shown(target)];
                let done = match changed {
                    true => "the target's side is as the source says now",
                    false => "the target's side was as the source says already",
                };
                context.output.line(&format!("{kind} {source} {target}: {done}"))
            }
            DeadLettersAction::Drop { id } => {
                let dropped = context.client.delete(&of(id)).send()?;
                if context.output.json() {
                    return context.output.value(&dropped);
                }
                context.output.line(&format!("dropped dead letter {id}"))
            }
        }
    }
}

fn of(id: u64) -> String {
    path([&"v1", &"admin", &"dead-letters", &id])
}

fn columns(letter: &DeadLetterView) -> [(&'static str, String); 6] {
    [
        ("id", shown(&letter.id)),
        ("at", shown(&letter.at)),
        ("kind", shown(&letter.kind)),
        ("source", shown(&letter.source)),
        ("target", shown(&letter.target)),
        ("cause", shown(&letter.cause)),
    ]
}

fn list(context: &mut CommandContext) -> Result<(), Failure> {
    let names = ["id", "at", "kind", "source", "target", "cause"];
    let mut table = OutputTable::new(&names.map(|name| (name, Align::Left)));
    let mut cursor: Option<Id> = None;
    loop {
        let request = context.client.get("/v1/admin/dead-letters");
        let request = request.query_if("cursor", cursor.map(|id| id.0));
        let page = request.ask::<dead_letters::DeadLetters>()?;
        if context.output.json() {
            context.output.items(&page.raw["dead_letters"])?;
        }
        for letter in &page.means.dead_letters {
            table.row(columns(letter).map(|(_, value)| value).to_vec());
        }
        cursor = page.means.next;
        if cursor.is_none() {
            break;
        }
    }
    match context.output.json() {
        true => Ok(()),
        false => table.print(&mut context.output),
    }
}
