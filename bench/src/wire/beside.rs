//! Chosen works at chosen servers, for whoever changes the code: prints, and keeps nothing but the
//! loaded directories.

use std::path::PathBuf;

use clap::ValueEnum as _;

use crate::wire::graph::Graph;
use crate::wire::measuring::Measuring;
use crate::wire::question::Work;
use crate::wire::stage::{Place, Stage, Who};
use crate::wire::table::{self, Table};
use crate::wire::truth::Truth;
use crate::wire::whole::round;

#[derive(clap::Args)]
pub struct Arguments {
    /// Edges of each kind: follow, like and favorite.
    #[arg(long, default_value_t = 1_000_000)]
    edges: u64,
    /// Users; posts are twice as many.
    #[arg(long, default_value_t = 100_000)]
    users: u32,
    /// What to measure; all by default.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Work::value_variants().to_vec())]
    works: Vec<Work>,
    /// Whom to measure; all that there are by default.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Who::value_variants().to_vec())]
    servers: Vec<Who>,
    #[command(flatten)]
    measuring: Measuring,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Keeps the loaded servers' directories here, and uses what an earlier run left.
    #[arg(long)]
    keep: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { measuring, works, .. } = arguments;
    let graph = Graph::new(arguments.edges, arguments.users)?;
    let place = Place::of(arguments.keep.as_deref())?;
    let stage = Stage::set(&place, &graph, &arguments.servers)?;
    let truth = Truth::of(graph);
    for peer in &stage.peers {
        for work in works.iter().filter(|work| peer.does(**work) && !work.only_writes()) {
            measuring.compare(peer.as_ref(), &truth, *work)?;
        }
    }
    let mut table = Table::default();
    for number in 0..arguments.rounds {
        eprintln!("round {} of {}", number + 1, arguments.rounds);
        round(&stage, measuring, &truth, works, number, &mut table)?;
    }
    stage.end()?;
    table::print(&table.rows());
    Ok(())
}
