//! The command line: the tree of commands, and how each is started. One file per command in
//! `cli/`; the service's own command is `serve.rs`.
//!
//! To add a command: a file `cli/<command>.rs` with a `#[derive(Args)]` struct and
//! `pub fn run(self, context: &mut Context) -> Result<(), Failure>`, then a line in `Command` and
//! one in `dispatch`. `context.client` speaks to the server, `context.output` to the user (a
//! table, or JSON with `--json`); an error is a `Failure` that says what to do next, and decides
//! the exit code. Work that must end well on Ctrl-C asks `interrupt`.

mod arguments;
pub mod client;
mod edge;
pub mod interrupt;
pub mod output;

use clap::{Args, Parser, Subcommand};

use self::client::Client;
use self::output::Output;
use crate::failure::Failure;
use crate::serve::{self, Serve};

#[derive(Debug, Parser)]
#[command(
    name = "guanxi",
    version,
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

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 refused by a rule, or something wrong was found; 2 wrong usage; 3 it failed \
or the server could not be reached.";

/// What every client command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// The server to ask; else the environment variable GUANXI_SERVER, else
    /// http://127.0.0.1:7420. A key in GUANXI_KEY is sent along.
    #[arg(long, value_name = "URL", global = true)]
    pub server: Option<String>,
    /// Prints JSON: one value, or one line per item.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Serve),
    Put(edge::Put),
    Delete(edge::Delete),
    Get(edge::Get),
}

/// What a command works with.
pub struct Context {
    pub client: Client,
    pub output: Output,
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
    let mut context = Context { client, output: Output::new(global.json) };
    dispatch(command, &mut context)?;
    context.output.flush()
}

fn dispatch(command: Command, context: &mut Context) -> Result<(), Failure> {
    match command {
        Command::Serve(flags) => serve::serve(flags),
        Command::Put(put) => put.run(context),
        Command::Delete(delete) => delete.run(context),
        Command::Get(get) => get.run(context),
    }
}
