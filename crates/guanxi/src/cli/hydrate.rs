//! `guanxi hydrate`: everything that a feed needs about the objects on a viewer's screen.

use std::sync::Arc;

use clap::Args;
use guanxi_api::Id;
use guanxi_api::hydrate::{HydratedObject, HydratedObjects};
use serde_json::{Map, Value, json};

use super::arguments::AtLeast;
use super::output::{Align, OutputTable, printable, shown};
use super::{CommandContext, arguments};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi hydrate 1 --objects 11:77,12 --kinds like,follow --tallies like,view
      # what user 1 sees under post 11 by user 77 and under post 12
  guanxi hydrate 1 --objects 2,3 --object-type user --kinds follow --reverse follow";

/// Shows how a viewer relates to objects and their authors, with the objects' tallies.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HydrateCommand {
    /// The user who looks.
    #[arg(value_parser = arguments::id)]
    viewer: Id,
    /// The objects: ID, or ID:AUTHOR where kinds about the author are asked for.
    #[arg(long, required = true, value_delimiter = ',', value_name = "ID[:AUTHOR],…", value_parser = object)]
    objects: Vec<ObjectArgument>,
    /// Kinds that may relate the viewer to the object or to its author: to the object where the
    /// kind leads to its node type, else to the author, and an object given without one is not
    /// related by those.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", value_parser = arguments::name)]
    kinds: Vec<String>,
    /// Kinds whose incoming tally, or counters whose value, is wanted.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", value_parser = arguments::name)]
    tallies: Vec<String>,
    /// Kinds that may relate the author, or the object if it is a user, to the viewer.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", value_parser = arguments::name)]
    reverse: Vec<String>,
    /// The objects' node type; post unless given.
    #[arg(long, value_name = "TYPE", value_parser = arguments::name)]
    object_type: Option<String>,
    /// The authors' node type; user unless given.
    #[arg(long, value_name = "TYPE", value_parser = arguments::name)]
    author_type: Option<String>,
    #[command(flatten)]
    at_least: AtLeast,
}

#[derive(Debug, Clone)]
struct ObjectArgument {
    id: Id,
    author: Option<Id>,
}

fn object(text: &str) -> Result<ObjectArgument, String> {
    let (id, author) = match text.split_once(':') {
        Some((id, author)) => (id, Some(arguments::id(author)?)),
        None => (text, None),
    };
    Ok(ObjectArgument { id: arguments::id(id)?, author })
}

impl HydrateCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let body = self.body();
        let request = context.client.post("/v1/hydrate").at_least(&self.at_least);
        let answer = request.ask_json::<HydratedObjects>(&body)?;
        if context.output.json() {
            return context.output.value(&answer.raw);
        }
        context.output.note_degraded(answer.means.degraded);
        let mut columns = vec![("id", Align::Left), ("related", Align::Left)];
        let asked_reverse = !self.reverse.is_empty();
        if asked_reverse {
            columns.push(("reverse", Align::Left));
        }
        columns.push(("tallies", Align::Left));
        let mut table = OutputTable::new(&columns);
        for HydratedObject { id, related, pending, reverse, tallies } in &answer.means.objects {
            let pending = words(pending).map(|kind| format!("{kind} (pending)"));
            let mut row = vec![shown(id), or_dash(words(related).chain(pending))];
            if asked_reverse {
                row.push(or_dash(words(reverse.as_deref().unwrap_or_default())));
            }
            let of_kind = |kind: &String| {
                let at = tallies.names.iter().position(|name| **name == **kind);
                format!("{kind} {}", shown(&at.and_then(|at| tallies.values.get(at))))
            };
            row.push(self.tallies.iter().map(of_kind).collect::<Vec<_>>().join(", "));
            table.row(row);
        }
        table.print(&mut context.output)
    }

    fn body(&self) -> Value {
        let objects = self.objects.iter().map(|object| match object.author {
            Some(author) => json!({ "id": object.id, "author": author }),
            None => json!(object.id),
        });
        let mut body = Map::new();
        body.insert("viewer".into(), json!(self.viewer));
        body.insert("objects".into(), objects.collect());
        body.insert("kinds".into(), json!(self.kinds));
        body.insert("tallies".into(), json!(self.tallies));
        if !self.reverse.is_empty() {
            body.insert("reverse".into(), json!(self.reverse));
        }
        let types = [("object_type", &self.object_type), ("author_type", &self.author_type)];
        for (name, given) in types {
            if let Some(given) = given {
                body.insert(name.into(), json!(given));
            }
        }
        Value::Object(body)
    }
}

fn or_dash(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        true => "-".to_owned(),
        false => words.join(" "),
    }
}

fn words(names: &[Arc<str>]) -> impl Iterator<Item = String> {
    names.iter().map(|name| printable(name))
}
