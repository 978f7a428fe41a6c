//! Guanxi at several sizes: what a check, a page and a put cost as the graph grows, bytes per edge,
//! and starts. All sizes run at once and take turns, so that they meet the same machine.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::wire::graph::{self, Graph};
use crate::wire::machine::{self, disk_bytes, resident_bytes};
use crate::wire::measuring::Measuring;
use crate::wire::page;
use crate::wire::question::Work;
use crate::wire::report::{Growth, Held, Machine, SizeRow, Spread};
use crate::wire::stage::{Place, Stage, Who};
use crate::wire::starts;
use crate::wire::truth::Truth;

/// What is held against its cost at the smallest size.
const WORKS: [Work; 6] = [
    Work::Check,
    Work::CheckHit,
    Work::Hydrate,
    Work::Newest,
    Work::NewestCelebrity,
    Work::Follow256,
];
const KINDS: u64 = graph::KINDS.len() as u64;
/// Edges of a user, of each kind.
const DEGREE: u64 = 10;
const SERVERS: [Who; 1] = [Who::GuanxiHttp];

#[derive(clap::Args)]
pub struct Arguments {
    /// Edges of all kinds together, one service for each; the smallest first.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000, 5_000_000, 25_000_000])]
    sizes: Vec<u64>,
    #[command(flatten)]
    measuring: Measuring,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Keeps the loaded directories here, and uses what an earlier run left.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Where the page and its figures go.
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
}

struct Size {
    stage: Stage,
    truth: Truth,
    held: Option<Held>,
    /// Of each work, in each round.
    cpu_us: Vec<Vec<f64>>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { measuring, rounds, .. } = arguments;
    let place = Place::of(arguments.keep.as_deref())?;
    let machine = Machine::look(place.path())?;
    let mut sizes = Vec::new();
    for edges in &arguments.sizes {
        let users = u32::try_from(edges / (KINDS * DEGREE))?;
        let graph = Graph::new(u64::from(users) * DEGREE, users)?;
        let stage = Stage::set(&place, &graph, &SERVERS)?;
        let truth = Truth::of(graph);
        let cpu_us = WORKS.iter().map(|_| Vec::new()).collect();
        sizes.push(Size { stage, truth, held: None, cpu_us });
    }
    for round in 0..=*rounds {
        eprintln!("round {round} of {rounds}");
        for (number, work) in WORKS.into_iter().enumerate() {
            for size in &mut sizes {
                size.measure(measuring, number, work, round)?;
            }
        }
        for size in sizes.iter_mut().filter(|_| round == 0) {
            size.held = Some(size.held()?);
        }
    }
    let smallest = sizes.first().context("a size")?.cpu_us.clone();
    let mut rows = Vec::new();
    for size in sizes {
        let over_smallest = WORKS.iter().zip(size.cpu_us.iter().zip(&smallest));
        let over_smallest = over_smallest.map(|(work, (own, smallest))| {
            let ratios = own.iter().zip(smallest).map(|(own, smallest)| own / smallest);
            (work.name(), Spread::of(&ratios.collect::<Vec<f64>>()))
        });
        let over_smallest = over_smallest.collect();
        let cpu_us = WORKS.iter().zip(&size.cpu_us);
        let cpu_us = cpu_us.map(|(work, values)| (work.name(), Spread::of(values))).collect();
        let standing = size.stage.programs.first().context("a service")?;
        let (program, directory) = (standing.program, standing.directory.clone());
        size.stage.end()?;
        let (clean_start_s, killed_start_s) =
            starts::measure(program, &directory, &size.truth, &SERVERS, *rounds)?;
        let held = size.held.context("it was looked at")?;
        rows.push(SizeRow { held, cpu_us, over_smallest, clean_start_s, killed_start_s });
    }
    let growth = Growth {
        date: machine::date()?,
        machine,
        rounds: *rounds,
        seconds: measuring.seconds,
        sizes: rows,
    };
    page::keep(&arguments.docs, page::GROWTH, &growth)?;
    page::write(&arguments.docs)
}

impl Size {
    /// The first round warms, and compares the answers; it does not count.
    fn measure(
        &mut self,
        measuring: &Measuring,
        number: usize,
        work: Work,
        round: usize,
    ) -> anyhow::Result<()> {
        let peer = self.stage.peers.first().context("a peer")?.as_ref();
        if round == 0 {
            measuring.compare(peer, &self.truth, work)?;
            if work.only_writes() {
                return Ok(());
            }
        }
        let seed = 1_000 * round as u64 + number as u64;
        let asked = measuring.questions(&self.truth, work, seed);
        let outcome = measuring.measure(peer, &self.truth, work, &asked, None)?;
        let (edges, cpu) = (self.truth.graph.all_edges(), outcome.cpu_each_us());
        eprintln!("  {:<16} {edges:>9} edges {cpu:>8.1} us", work.name());
        if round > 0 {
            self.cpu_us[number].push(cpu);
        }
        Ok(())
    }

    fn held(&self) -> anyhow::Result<Held> {
        let standing = self.stage.programs.first().context("a service")?;
        Ok(Held {
            server: standing.program.name().to_owned(),
            edges: self.truth.graph.all_edges(),
            load_rate: standing.load_rate,
            resident_bytes: resident_bytes(standing.pid)?,
            disk_bytes: disk_bytes(&standing.directory)?,
        })
    }
}
