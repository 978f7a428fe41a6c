//! The `guanxi` executable: one binary that is the service and its client. This file only reads
//! the command line; `cli` says what each command is, `serve` runs the service. It is a library for
//! the sake of its build alone: a library is compiled while the engine's code is still generated, a
//! binary only afterwards.

mod cli;
mod config;
mod failure;
mod follow;
mod serve;
mod server;
mod service;
mod telemetry;
mod wire;

use std::process::ExitCode;

use clap::Parser;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::cli::CommandLine;

/// What is said of everything that only a build with the cluster has.
#[cfg(not(feature = "cluster"))]
const LACKS_CLUSTER: &str = "this program is the embedded service alone: `make build` makes the \
                             whole one (target/quick/guanxi), and so does `cargo build --release \
                             -p guanxi`; the container has it, too";

/// What others may not do with any file or folder that a command makes.
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// What the executable does.
pub fn main() -> ExitCode {
    // Data, backups and exports hold who follows and blocks whom.
    umask(OTHERS);
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        // Help and versions are answers.
        Err(error) if error.use_stderr() && cli::asks_for_json(std::env::args_os()) => {
            return cli::misused(&error).report(true);
        }
        Err(error) => error.exit(),
    };
    let json = command_line.global.json;
    match cli::run(command_line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}
