//! Measures Guanxi on this machine. Each subcommand prints what it did and what it found.

mod cluster;
mod commit;
mod memory;
mod processor;
mod results;
mod scrub;
mod startup;
mod wire;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Measures Guanxi on this machine")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Durable puts in process, after a load: rate, latency, the longest stall.
    Commit(commit::Arguments),
    /// What the scrubber costs durable puts: the same with it and without it, by turns.
    Scrub(scrub::Arguments),
    /// The cluster's puts on real servers, held against seven statements by hand.
    Cluster(cluster::Arguments),
    /// Reads through the cluster's memory on real servers, held against the embedded service.
    Memory(memory::Arguments),
    /// Start-up after a clean stop and after kill -9, on the directory of an earlier run.
    Startup(startup::Arguments),
    /// Works over the wire, beside Redis and MariaDB, on the same graph in turns.
    Wire(wire::beside::Arguments),
    /// All works at all servers, memory, disk, starts; writes the page docs/benchmarks.md.
    Whole(wire::whole::Arguments),
    /// Guanxi at several sizes; writes its part of the page.
    Growth(wire::growth::Arguments),
    /// Writes the page anew from what earlier runs kept.
    Page(wire::page::Arguments),
    /// Writes until it is killed; `startup` runs it.
    #[command(hide = true)]
    WriteUntilKilled(startup::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Commit(arguments) => commit::run(&arguments),
        Bench::Scrub(arguments) => scrub::run(&arguments),
        Bench::Cluster(arguments) => cluster::run(&arguments),
        Bench::Memory(arguments) => memory::run(&arguments),
        Bench::Startup(arguments) => startup::run(&arguments),
        Bench::Wire(arguments) => wire::beside::run(&arguments),
        Bench::Whole(arguments) => wire::whole::run(arguments),
        Bench::Growth(arguments) => wire::growth::run(&arguments),
        Bench::Page(arguments) => wire::page::run(&arguments),
        Bench::WriteUntilKilled(arguments) => startup::write_until_killed(&arguments),
    }
}
