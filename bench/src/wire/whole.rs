//! The whole comparison: every work at every server in turns, what holding the graph takes, latency
//! at half of the peak, starts; kept as a file, from which the page is written.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum as _;

use crate::wire::graph::Graph;
use crate::wire::machine::{self, disk_bytes, resident_bytes};
use crate::wire::measuring::Measuring;
use crate::wire::page;
use crate::wire::question::Work;
use crate::wire::report::{Held, Machine, OpenRow, Spread, StartRow, Whole};
use crate::wire::stage::{Place, Program, Stage, Who};
use crate::wire::starts;
use crate::wire::table::{self, Table};
use crate::wire::truth::Truth;
use crate::wire::{aims, imports};

/// What a short run leaves out says little more than what it has.
const QUICK_WORKS: [Work; 9] = [
    Work::Hydrate,
    Work::Checks,
    Work::Check,
    Work::Tallies,
    Work::Newest,
    Work::Hydrate64,
    Work::Follow256,
    Work::Celebrity256,
    Work::Empty,
];
/// Of the rate that the closed loop reached.
const OPEN_SHARE: f64 = 0.5;

#[derive(clap::Args)]
pub struct Arguments {
    /// Edges of each kind: follow, like and favorite.
    #[arg(long, default_value_t = 5_000_000)]
    edges: u64,
    #[arg(long, default_value_t = 500_000)]
    users: u32,
    #[command(flatten)]
    measuring: Measuring,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Within two minutes: a small graph, one short round, the main works.
    #[arg(long)]
    quick: bool,
    /// Whom to measure; all that there are by default.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Who::value_variants().to_vec())]
    servers: Vec<Who>,
    /// Keeps the loaded servers' directories here, and uses what an earlier run left.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Where the page and its figures go.
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
}

pub fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    let mut works = Work::value_variants().to_vec();
    if arguments.quick {
        (arguments.edges, arguments.users, arguments.rounds) = (100_000, 10_000, 1);
        let quick =
            Measuring { seconds: 0.6, warm_seconds: 0.2, questions: 6_000, ..arguments.measuring };
        arguments.measuring = quick;
        works = QUICK_WORKS.to_vec();
    }
    let Arguments { measuring, rounds, quick, servers, .. } = &arguments;
    let graph = Graph::new(arguments.edges, arguments.users)?;
    let edges = graph.all_edges();
    let place = Place::of(arguments.keep.as_deref())?;
    let machine = Machine::look(place.path())?;
    let stage = Stage::set(&place, &graph, servers)?;
    let truth = Truth::of(graph);
    for peer in &stage.peers {
        for work in works.iter().filter(|work| peer.does(**work) && !work.only_writes()) {
            measuring.compare(peer.as_ref(), &truth, *work)?;
        }
    }
    let held = held(&stage, measuring, &truth)?;
    let mut table = Table::default();
    for round in 0..*rounds {
        eprintln!("round {} of {rounds}", round + 1);
        self::round(&stage, measuring, &truth, &works, round, &mut table)?;
    }
    let rows = table.rows();
    let open = open_loop(&stage, measuring, &truth, &table, *rounds)?;
    let programs: Vec<_> =
        stage.programs.iter().map(|it| (it.program, it.directory.clone())).collect();
    stage.end()?;
    let (mut start_rows, mut imports) = (Vec::new(), Vec::new());
    for (program, directory) in programs {
        eprintln!("starts of {}", program.name());
        let (stopped, killed) = starts::measure(program, &directory, &truth, servers, *rounds)?;
        for (after_kill, seconds) in [(false, stopped), (true, killed)] {
            let server = program.name().to_owned();
            start_rows.push(StartRow { server, after_kill, seconds });
        }
        if program == Program::Guanxi {
            imports = imports::measure(&directory, arguments.edges)?;
        }
    }
    let whole = Whole {
        date: machine::date()?,
        machine,
        quick: *quick,
        edges,
        users: arguments.users,
        connections: measuring.connections,
        rounds: *rounds,
        seconds: measuring.seconds,
        works: rows,
        held,
        open,
        starts: start_rows,
        imports,
    };
    table::print(&whole.works);
    aims::print(&whole);
    page::keep(&arguments.docs, page::WHOLE, &whole)?;
    page::write(&arguments.docs)
}

/// Every work at every server once. Each round asks other questions, and all servers the same.
pub fn round(
    stage: &Stage,
    measuring: &Measuring,
    truth: &Truth,
    works: &[Work],
    round: usize,
    table: &mut Table,
) -> anyhow::Result<()> {
    for (number, work) in (0..).zip(works) {
        let mut asked = measuring.questions(truth, *work, 1_000 * (round as u64 + 1) + number);
        for peer in stage.peers.iter().filter(|peer| peer.does(*work)) {
            if !asked.puts.is_empty() {
                // Another server's puts would be known to one that shares its directory.
                asked.puts = measuring.questions(truth, *work, 0).puts;
            }
            if round == 0 && work.only_writes() {
                measuring.compare(peer.as_ref(), truth, *work)?;
            }
            let outcome = measuring
                .measure(peer.as_ref(), truth, *work, &asked, None)
                .with_context(|| format!("{} at {}", work.name(), peer.name()))?;
            table.add(*work, peer.name(), outcome);
        }
    }
    Ok(())
}

/// What each program takes when it has answered a while.
fn held(stage: &Stage, measuring: &Measuring, truth: &Truth) -> anyhow::Result<Vec<Held>> {
    for peer in &stage.peers {
        let asked = measuring.questions(truth, Work::Hydrate, 7);
        measuring.measure(peer.as_ref(), truth, Work::Hydrate, &asked, None)?;
    }
    let held = stage.programs.iter().map(|standing| {
        Ok(Held {
            server: standing.program.name().to_owned(),
            edges: truth.graph.all_edges(),
            load_rate: standing.load_rate,
            resident_bytes: resident_bytes(standing.pid)?,
            disk_bytes: disk_bytes(&standing.directory)?,
        })
    });
    held.collect()
}

fn open_loop(
    stage: &Stage,
    measuring: &Measuring,
    truth: &Truth,
    table: &Table,
    rounds: usize,
) -> anyhow::Result<Vec<OpenRow>> {
    let mut found: Vec<(&'static str, f64, Vec<[f64; 3]>)> = Vec::new();
    for peer in &stage.peers {
        let rows = table.rows();
        let row =
            rows.iter().find(|row| row.work == Work::Hydrate.name() && row.server == peer.name());
        let rate = OPEN_SHARE * row.context("hydrate was measured")?.rate.median;
        found.push((peer.name(), rate, Vec::new()));
    }
    for round in 0..rounds {
        let asked = measuring.questions(truth, Work::Hydrate, 100_000 + round as u64);
        for (peer, (name, rate, rounds)) in stage.peers.iter().zip(&mut found) {
            let outcome =
                measuring.measure(peer.as_ref(), truth, Work::Hydrate, &asked, Some(*rate))?;
            rounds.push([0.5, 0.99, 0.999].map(|quantile| outcome.ms(quantile)));
            eprintln!("  {name} at {rate:.0}/s: p99 {:.2} ms", outcome.ms(0.99));
        }
    }
    let rows = found.into_iter().map(|(server, rate, rounds)| {
        let [p50_ms, p99_ms, p999_ms] = [0, 1, 2].map(|place: usize| {
            Spread::of(&rounds.iter().map(|round| round[place]).collect::<Vec<f64>>())
        });
        OpenRow { server: server.to_owned(), rate, p50_ms, p99_ms, p999_ms }
    });
    Ok(rows.collect())
}
