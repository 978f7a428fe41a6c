//! `guanxi dead-letters`: records of a cluster's log that could not be applied.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::Context;
use super::client::path;
use super::output::{Align, Table, shown};
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
pub struct DeadLetters {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists all letters, the oldest first.
    List,
    /// Shows a letter with the record as it came.
    Show { id: u64 },
    /// Applies what stands now, and removes the letter.
    Retry { id: u64 },
    /// Forgets a letter; its record is not applied.
    Drop { id: u64 },
}

impl DeadLetters {
    pub fn run(self, context: &mut Context) -> Result<(), Failure> {
        match self.action {
            Action::List => list(context),
            Action::Show { id } => {
                let letter = context.client.get(&of(id)).send()?;
                if context.output.json() {
                    return context.output.value(&letter);
                }
                let fields = ["id", "topic", "partition", "position", "kind", "source", "target"];
                let fields = fields.into_iter().chain(["at", "cause", "value"]);
                let fields: Vec<_> = fields.map(|name| (name, shown(&letter[name]))).collect();
                context.output.fields(&fields)
            }
            Action::Retry { id } => {
                let retried = context.client.post(&format!("{}/retry", of(id))).send()?;
                if context.output.json() {
                    return context.output.value(&retried);
                }
                let [kind, source, target] =
                    ["kind", "source", "target"].map(|name| shown(&retried[name]));
                let done = match retried["changed"].as_bool() {
                    Some(true) => "the target's side is as the source says now",
                    _ => "the target's side was as the source says already",
                };
                context.output.line(&format!("{kind} {source} {target}: {done}"))
            }
            Action::Drop { id } => {
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

fn list(context: &mut Context) -> Result<(), Failure> {
    let columns = ["id", "at", "kind", "source", "target", "cause"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    let mut cursor: Option<String> = None;
    loop {
        let request = context.client.get("/v1/admin/dead-letters");
        let page = request.query_if("cursor", cursor.as_deref()).send()?;
        for letter in page["dead_letters"].as_array().into_iter().flatten() {
            match context.output.json() {
                true => context.output.value(letter)?,
                false => table.row(columns.iter().map(|name| shown(&letter[*name])).collect()),
            }
        }
        match &page["next"] {
            Value::String(next) => cursor = Some(next.clone()),
            _ => break,
        }
    }
    match context.output.json() {
        true => Ok(()),
        false => table.print(&mut context.output),
    }
}
