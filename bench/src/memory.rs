//! Reads of a cluster whose memory is warm, held against those of the embedded service: processor
//! time of the servers for each, in turns, so that both meet the same machine. It starts the real
//! binary (`GUANXI_BIN`) and real servers, and speaks HTTP.

mod callers;
mod world;

use std::time::Duration;

use clap::ValueEnum;

use self::callers::{Cost, Run};
use self::world::World;
use crate::results::Results;

#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Figure::value_variants().to_vec())]
    figures: Vec<Figure>,
    /// Callers that wait at once.
    #[arg(long, default_value_t = 16)]
    callers: usize,
    /// Length of each measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How often each is done.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of the first run, by which everything is filled.
    #[arg(long, default_value_t = 30)]
    warm_seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// One viewer, six objects, three kinds, four tallies: the cluster's cost over the embedded one.
    Hydrate,
    /// The first page and the tally of one whom very many begin to follow, over the quiet ones.
    Celebrity,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let time = Duration::from_secs(arguments.seconds);
    let mut results = Results::default();
    let world = World::set()?;
    let warm = Duration::from_secs(arguments.warm_seconds);
    Run { callers: arguments.callers, time: warm }.hydrate(&world.instance, &world)?;
    for round in 1..=arguments.rounds {
        println!("round {round} of {}", arguments.rounds);
        let run = Run { callers: arguments.callers, time };
        if arguments.figures.contains(&Figure::Hydrate) {
            hydrate(&world, &run, &mut results)?;
        }
        if arguments.figures.contains(&Figure::Celebrity) {
            celebrity(&world, &run, &mut results)?;
        }
    }
    results.print();
    Ok(())
}

fn hydrate(world: &World, run: &Run, results: &mut Results) -> anyhow::Result<()> {
    let embedded = run.hydrate(&world.embedded, world)?;
    println!("embedded: {embedded}");
    let before = world.checked();
    let cluster = run.hydrate(&world.instance, world)?;
    let sure = world.checked().surely_not - before.surely_not;
    println!("cluster: {cluster}");
    results.add("hydrate: cluster / embedded", cluster.each / embedded.each, 2.2, false);
    let negative = cluster.negative as f64;
    results.add("negative checks that end in the filter, %", 100.0 * sure / negative, 98.0, true);
    Ok(())
}

/// Others follow at another instance, so that the reading one's cost is that of reading. What they
/// cost Redis is theirs: the quiet reads ask it next to nothing.
fn celebrity(world: &World, run: &Run, results: &mut Results) -> anyhow::Result<()> {
    let quiet = run.celebrity(world)?;
    println!("a celebrity, quiet: {quiet}");
    let (storm, followed): (Cost, u64) = world.storm(|| run.celebrity(world))?;
    println!("under {followed} follows: {storm}");
    let own = |cost: &Cost| cost.each - cost.redis_each;
    results.add("celebrity: storm / quiet", own(&storm) / own(&quiet), 1.2, false);
    Ok(())
}
