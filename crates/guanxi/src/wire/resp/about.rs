//! What the service says of itself to clients of Redis: HELLO, INFO, COMMAND and a line about a
//! client. Its calls are those of the table.

use std::fmt::Write;

use super::answer::{AnswerWriter, Protocol};
use super::arguments::{Refused, is, shown, wrong_count};
use super::client::{Client, OWN_COMMANDS, REDIS_VERSION};
use super::command::Command;
use super::front::RespFront;
use crate::service::table::{self, CallEntry};

/// A call has its name and at least what it is about.
const CALL_ARITY: i64 = -4;
/// A hydrate may have its kinds and objects in any order.
const SHORT_CALLS: [(&str, i64); 2] = [("GX.HYDRATE", -2), ("GX.TALLY", -3)];

fn role(front: &RespFront) -> &'static str {
    let is_standby = front.app().engine.as_ref().is_some_and(|engine| engine.is_standby());
    if is_standby { "replica" } else { "master" }
}

/// The fields that clients look for.
pub fn hello(client: &Client, front: &RespFront, out: &mut AnswerWriter) {
    out.map(7);
    out.text("server");
    out.text("guanxi");
    out.text("version");
    out.text(REDIS_VERSION);
    out.text("proto");
    out.integer(protocol_number(out.protocol));
    out.text("id");
    out.integer(i64::try_from(client.number).unwrap_or(i64::MAX));
    out.text("mode");
    out.text("standalone");
    out.text("role");
    out.text(role(front));
    out.text("modules");
    out.array(0);
}

fn protocol_number(protocol: Protocol) -> i64 {
    match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    }
}

/// All of it, whichever section is asked for: it is short.
pub fn info(front: &RespFront, out: &mut AnswerWriter) {
    let (seconds, role) = (front.uptime().as_secs(), role(front));
    let role = if role == "replica" { "slave" } else { role };
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let connections = front.app().metrics.connections.get();
    out.text(&format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nguanxi_version:{version}\r\n\
         redis_mode:standalone\r\nprocess_id:{process}\r\nuptime_in_seconds:{seconds}\r\n\
         \r\n# Clients\r\nconnected_clients:{connections}\r\n\
         \r\n# Persistence\r\nloading:0\r\nasync_loading:0\r\n\
         \r\n# Replication\r\nrole:{role}\r\n\
         \r\n# Cluster\r\ncluster_enabled:0\r\n"
    ));
}

pub fn client_line(client: &Client, protocol: Protocol) -> String {
    let mut line = String::new();
    let Client { number, name, library, library_version, .. } = client;
    let protocol = protocol_number(protocol);
    let _written = writeln!(
        line,
        "id={number} name={name} db=0 resp={protocol} lib-name={library} lib-ver={library_version}"
    );
    line
}

/// A command's name and how many arguments it has.
type Described = (&'static str, i64, Option<&'static CallEntry>);

fn all() -> impl Iterator<Item = Described> {
    let own = OWN_COMMANDS.iter().map(|(name, _, arity)| (*name, *arity, None));
    let calls = table::resp_commands().map(|(name, entry)| {
        let short = SHORT_CALLS.iter().find(|(known, _)| *known == name);
        (name, short.map_or(CALL_ARITY, |(_, arity)| *arity), Some(entry))
    });
    own.chain(calls)
}

fn named(name: &[u8]) -> Option<Described> {
    all().find(|(known, ..)| is(name, known))
}

/// `COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …]]`
pub fn commands(command: Command<'_>, out: &mut AnswerWriter) -> Result<(), Refused> {
    let what = command.get(1).unwrap_or(b"INFO");
    let names: Vec<&[u8]> = command.iter().skip(2).collect();
    if is(what, "COUNT") || is(what, "LIST") {
        if !names.is_empty() {
            let what = shown(what).to_lowercase();
            return Err(wrong_count(format!("command|{what}").as_bytes()));
        }
        let count = all().count();
        if is(what, "COUNT") {
            out.integer(i64::try_from(count).unwrap_or(i64::MAX));
            return Ok(());
        }
        out.array(count);
        all().for_each(|(name, ..)| out.text(&name.to_ascii_lowercase()));
    } else if is(what, "INFO") {
        let asked: Vec<Option<Described>> = match names.is_empty() {
            true => all().map(Some).collect(),
            false => names.iter().map(|name| named(name)).collect(),
        };
        out.array(asked.len());
        for described in asked {
            out.maybe(described, describe);
        }
    } else if is(what, "DOCS") {
        let asked: Vec<Described> = match names.is_empty() {
            true => all().collect(),
            false => names.iter().filter_map(|name| named(name)).collect(),
        };
        out.map(asked.len());
        for described in asked {
            document(out, described);
        }
    } else {
        let what = shown(what);
        let text = format!("ERR unknown subcommand '{what}'. Try COMMAND HELP.");
        return Err(Refused::Redis(text));
    }
    Ok(())
}

/// Name, arity, flags, where keys stand (nowhere: no client sends a call elsewhere because of its
/// ids), and four lists that are empty.
fn describe(out: &mut AnswerWriter, (name, arity, entry): Described) {
    let flag = match entry {
        Some(entry) if entry.writes => "write",
        Some(_) => "readonly",
        None => "fast",
    };
    out.array(10);
    out.text(&name.to_ascii_lowercase());
    out.integer(arity);
    out.array(1);
    out.simple(flag);
    for _ in 0..3 {
        out.integer(0);
    }
    for _ in 0..4 {
        out.array(0);
    }
}

fn document(out: &mut AnswerWriter, (name, _, entry): Described) {
    out.text(&name.to_ascii_lowercase());
    out.map(2);
    out.text("summary");
    out.text(entry.map_or("Of the connection.", |entry| entry.name));
    out.text("group");
    out.text(if entry.is_some() { "module" } else { "connection" });
}
