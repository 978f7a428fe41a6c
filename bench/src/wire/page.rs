//! The page docs/benchmarks.md and its plots, from what runs kept. Figures stand nowhere else: a
//! sentence about them is made from them.

mod growing;
mod tables;
mod wins;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::report::{Growth, Whole};

/// Files of figures, below the page's folder.
pub const WHOLE: &str = "whole.json";
pub const GROWTH: &str = "growth.json";
const FOLDER: &str = "benchmarks";
const PAGE: &str = "benchmarks.md";

#[derive(clap::Args)]
pub struct Arguments {
    /// Where the page and its figures are.
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
}

/// A part of the page, with the plots that it shows.
#[derive(Default)]
struct Part {
    text: String,
    plots: Vec<(&'static str, String)>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    write(&arguments.docs)
}

pub fn keep(docs: &Path, name: &str, figures: &impl Serialize) -> anyhow::Result<()> {
    let folder = docs.join(FOLDER);
    fs::create_dir_all(&folder)?;
    let mut text = serde_json::to_string_pretty(figures)?;
    text.push('\n');
    Ok(fs::write(folder.join(name), text)?)
}

/// Writes the page from all figures that there are.
pub fn write(docs: &Path) -> anyhow::Result<()> {
    let mut parts = vec![Part { text: HEAD.to_owned(), plots: Vec::new() }];
    if let Some(whole) = kept::<Whole>(docs, WHOLE)? {
        parts.extend([tables::part(&whole), wins::part(&whole)]);
    }
    if let Some(growth) = kept::<Growth>(docs, GROWTH)? {
        parts.push(growing::part(&growth));
    }
    parts.push(Part { text: TAIL.to_owned(), plots: Vec::new() });
    for (name, plot) in parts.iter().flat_map(|part| &part.plots) {
        fs::write(docs.join(FOLDER).join(name), plot)?;
    }
    let texts: Vec<&str> = parts.iter().map(|part| part.text.trim()).collect();
    fs::write(docs.join(PAGE), format!("{}\n", texts.join("\n\n")))?;
    println!("wrote {}", docs.join(PAGE).display());
    Ok(())
}

fn kept<F: DeserializeOwned>(docs: &Path, name: &str) -> anyhow::Result<Option<F>> {
    let path = docs.join(FOLDER).join(name);
    if !path.exists() {
        return Ok(None);
    }
    let figures = serde_json::from_slice(&fs::read(&path)?);
    let why = || format!("{} is of another version: measure again, or remove it", path.display());
    Ok(Some(figures.with_context(why)?))
}

/// A server's name as people write it.
fn shown(server: &str) -> &str {
    match server {
        "redis" => "Redis",
        "mariadb" => "MariaDB",
        "guanxi-http" => "Guanxi, HTTP",
        "guanxi-grpc" => "Guanxi, gRPC",
        "guanxi-resp" => "Guanxi, RESP",
        "guanxi" => "Guanxi",
        other => other,
    }
}

fn colour(server: &str) -> &'static str {
    match server {
        "redis" => "#b3452c",
        "mariadb" => "#9a8f7a",
        "guanxi-grpc" => "#7fb0d8",
        "guanxi-resp" => "#12436d",
        _ => "#2f7fb8",
    }
}

fn picture(name: &str, says: &str) -> String {
    format!("![{says}]({FOLDER}/{name})\n\n")
}

const HEAD: &str = "# Benchmarks

Guanxi beside what teams use for this today: Redis with sorted sets and packed tallies, and MariaDB with indexed tables. This page is written by `make bench` from what it measured; the figures themselves are in [benchmarks/](benchmarks).

## How it is measured

- Every server has the same graph: users who follow users, and like and favor posts, drawn by popularity (Zipf); ids of 19 digits; both directions of every edge; four tallies for each post.
- One generator asks all of them. It has one thread, speaks HTTP/1.1, gRPC, RESP and MySQL's text protocol by hand, sends bytes that were made before, and looks only for the end of an answer. Client, servers and disk share the machine.
- The servers take turns within each round, with the same questions, so that noise meets all. A ratio is that of two servers in the same round; a figure is the median of the rounds, with the lowest and the highest.
- What is compared first is the **processor time of the server for each request**, all its threads, user and system, from the kernel's accounts. Rates and latencies depend on how the generator and the server share the cores.
- Before a work is measured, answers of every server are compared with the graph; a wrong one ends the run.
- Every acknowledged write is on disk: Redis with `appendfsync always`, MariaDB with `innodb_flush_log_at_trx_commit=1`, Guanxi as always.
- Redis: one process with its default of one thread; a sorted set by time of each user's edges and of each target's, a string of 32 bytes with a post's four tallies, a Lua script for a follow with Guanxi's rules (no block either way, at most 2,000). Its log is not rewritten while it is measured. What is several commands is one pipeline.
- MariaDB: a table of each kind with an index for either direction, rows of tallies, a procedure for a follow with the same rules and tallies; 3 GB of buffer pool; one message for each question.
- Guanxi: the program as it is, with its defaults.

The works: **hydrate** is a feed's question, one viewer and 6 objects, related by 3 kinds (18 checks, of which 1 % are positive) and 4 tallies each; **related** the same without tallies; **checks** the 18 as single pairs; **check** one follow, 1 % positive; **check-hit** one like that is there; **tallies** four of six posts; **newest** the newest 20 followers of somebody popular, **newest-celebrity** of the most popular one; **hydrate64** 64 hydrates in one call (a pipeline over RESP); **follow64** and **follow256** durable follows of anybody with so many callers, **celebrity64** and **celebrity256** all of one; **mixed** 99 hydrates to a follow; **empty** PING, or GET /healthz.
";

const TAIL: &str = "## Repeat it

    make bench          # all of it; about an hour, 25 GB of disk and 12 GB of memory
    make bench-quick    # within two minutes: a small graph and one short round, whose figures say little
    make bench-growth   # 1, 5 and 25 million edges

`GUANXI_BIN` names another binary. `scripts/bench.sh wire --help` measures chosen works at chosen servers, and `--keep DIR` spares the next run the loading.
";
