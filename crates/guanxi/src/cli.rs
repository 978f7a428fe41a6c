//! The command line: the tree of commands, and how each is started. One file per command in
//! `cli/`; the service's own command is `serve.rs`.
//!
//! To add a command: a file `cli/<command>.rs` with a `#[derive(Args)]` struct and
//! `pub fn run(self, context: &mut Context) -> Result<(), Failure>`, then a line in `Command` and
//! one in `dispatch`. `context.client` speaks to the server, `context.output` to the user (a
//! table, or JSON with `--json`); an error is a `Failure` that says what to do next, and decides
//! the exit code. Work that must end well on Ctrl-C asks `interrupt`.

mod arguments;
mod audit;
mod backup;
pub mod client;
mod completions;
mod compression;
mod dead_letters;
mod demo;
mod doctor;
mod edge;
mod export;
mod groups;
mod hot;
mod hydrate;
mod import;
pub mod interrupt;
mod jobs;
mod kinds;
#[cfg(not(feature = "cluster"))]
mod lacking;
mod list;
mod man;
#[cfg(feature = "cluster")]
mod migrate;
#[cfg(feature = "cluster")]
mod moving;
mod nodes;
pub mod output;
mod progress;
mod promote;
mod restore;
mod tally;
mod unfinished;
mod watch;

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};

use self::client::Client;
use self::output::Output;
use crate::failure::Failure;
use crate::serve::{self, Serve};

#[derive(Debug, Parser)]
#[command(
    name = "guanxi",
    version,
    long_version = LONG_VERSION,
    about = "Guanxi, a relation service: who follows, likes, saves and blocks whom or what",
    after_help = EXIT_CODES,
    max_term_width = 100
)]
pub struct CommandLine {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What is in the program.
const LONG_VERSION: &str = match (cfg!(feature = "cluster"), cfg!(feature = "kafka-tls")) {
    (false, _) => concat!(env!("CARGO_PKG_VERSION"), "\nserves: embedded"),
    (true, false) => concat!(env!("CARGO_PKG_VERSION"), "\nserves: embedded, cluster"),
    (true, true) => {
        concat!(env!("CARGO_PKG_VERSION"), "\nserves: embedded, cluster (TLS and logins for Kafka)")
    }
};

const EXIT_CODES: &str = "\
A key in the environment variable GUANXI_KEY is sent along.

Exit codes: 0 done; 1 refused by a rule, or something wrong was found; 2 wrong usage; 3 it failed, \
was stopped, or the server could not be reached.";

/// What every client command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// The server to ask, by default that of GUANXI_SERVER or http://127.0.0.1:7420.
    #[arg(long, value_name = "URL", global = true, help_heading = CLIENT_OPTIONS)]
    pub server: Option<String>,
    /// Prints JSON: one value, or one line per item of a list or a stream.
    #[arg(long, global = true, help_heading = CLIENT_OPTIONS)]
    pub json: bool,
}

const CLIENT_OPTIONS: &str = "Options of client commands";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Serve),
    #[cfg(feature = "cluster")]
    Migrate(migrate::Migrate),
    #[cfg(feature = "cluster")]
    Move(moving::MoveCommand),
    #[cfg(not(feature = "cluster"))]
    #[command(name = "migrate", alias = "move", hide = true)]
    Lacking(lacking::LackingCommand),
    Put(edge::PutCommand),
    Delete(edge::Delete),
    Get(edge::Get),
    Approve(edge::Approve),
    Decline(edge::Decline),
    List(list::ListCommand),
    Tally(tally::Tally),
    Hydrate(hydrate::HydrateCommand),
    Watch(watch::WatchCommand),
    Groups(groups::GroupsCommand),
    Kinds(kinds::KindsCommand),
    Nodes(nodes::Nodes),
    Jobs(jobs::JobsCommand),
    Import(Box<import::Import>),
    Export(export::ExportCommand),
    Demo(demo::Demo),
    Audit(audit::AuditCommand),
    DeadLetters(dead_letters::DeadLettersCommand),
    Hot(hot::HotCommand),
    Filters(hot::FiltersCommand),
    Promote(promote::Promote),
    Doctor(doctor::Doctor),
    Backup(backup::BackupCommand),
    Restore(restore::Restore),
    Completions(completions::Completions),
    Man(man::Man),
}

/// What a command works with.
pub struct CommandContext {
    pub client: Client,
    pub output: Output,
}

/// Whether a command line that cannot be read asks for JSON.
pub fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    // What comes after it is no option.
    words.take_while(|word| word != "--").any(|word| word == "--json")
}

/// A command line that cannot be read, as every other failure is told.
pub fn misused(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let message = paragraphs.next().unwrap_or_default().trim();
    let rest = paragraphs.collect::<Vec<_>>().join("\n");
    let failure = Failure::usage(message.strip_prefix("error: ").unwrap_or(message));
    match rest.trim() {
        "" => failure,
        next => failure.next(next),
    }
}

pub fn run(command_line: CommandLine) -> Result<(), Failure> {
    let CommandLine { global, command } = command_line;
    if let Command::Serve(flags) = command {
        if global.server.is_some() || global.json {
            return Err(Failure::usage("--server and --json belong to the client commands")
                .next("`guanxi serve --help` shows what serve takes"));
        }
        return serve::serve(flags);
    }
    let client = Client::new(&client::server_of(global.server)?)?;
    let mut context = CommandContext { client, output: Output::new(global.json) };
    dispatch(command, &mut context)?;
    context.output.flush()
}

fn dispatch(command: Command, context: &mut CommandContext) -> Result<(), Failure> {
    match command {
        Command::Serve(flags) => serve::serve(flags),
        #[cfg(feature = "cluster")]
        Command::Migrate(migrate) => migrate.run(context),
        #[cfg(feature = "cluster")]
        Command::Move(moving) => moving.run(context),
        #[cfg(not(feature = "cluster"))]
        Command::Lacking(command) => command.run(),
        Command::Put(put) => put.run(context),
        Command::Delete(delete) => delete.run(context),
        Command::Get(get) => get.run(context),
        Command::Approve(approve) => approve.run(context),
        Command::Decline(decline) => decline.run(context),
        Command::List(list) => list.run(context),
        Command::Tally(tally) => tally.run(context),
        Command::Hydrate(hydrate) => hydrate.run(context),
        Command::Watch(watch) => watch.run(context),
        Command::Groups(groups) => groups.run(context),
        Command::Kinds(kinds) => kinds.run(context),
        Command::Nodes(nodes) => nodes.run(context),
        Command::Jobs(jobs) => jobs.run(context),
        Command::Import(import) => import.run(context),
        Command::Export(export) => export.run(context),
        Command::Demo(demo) => demo.run(context),
        Command::Audit(audit) => audit.run(context),
        Command::DeadLetters(letters) => letters.run(context),
        Command::Hot(hot) => hot.run(context),
        Command::Filters(filters) => filters.run(context),
        Command::Promote(promote) => promote.run(context),
        Command::Doctor(doctor) => doctor.run(context),
        Command::Backup(backup) => backup.run(context),
        Command::Restore(restore) => restore.run(context),
        Command::Completions(completions) => completions.run(context),
        Command::Man(man) => man.run(context),
    }
}
