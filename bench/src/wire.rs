//! Works over the wire, beside other servers: the same graph, the same questions, one generator,
//! in turns, so that all meet the same machine. What is compared first is the processor time of the
//! server for each request: rates and latencies share the machine with the generator.

mod connection;
mod generator;
mod graph;
mod grpc;
mod grpc_peer;
mod guanxi;
mod http;
mod http_peer;
mod mariadb_peer;
mod mysql;
mod peer;
mod question;
mod redis_peer;
mod requests;
mod resp;
mod resp_peer;
mod stage;
mod table;
mod truth;
mod zipf;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use self::generator::{Load, Outcome};
use self::peer::Peer;
use self::question::{Asked, READS_TO_A_PUT, Work};
use self::requests::{Requests, Supply};
use self::stage::Stage;
use self::table::Table;
use self::truth::Truth;

/// Of each measurement, before anything is counted.
const WARM: Duration = Duration::from_millis(400);

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
    /// Callers that wait at once, where the work does not say it.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of each measurement.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Keeps the loaded servers' directories here, and uses what an earlier run left.
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Who {
    Redis,
    Mariadb,
    GuanxiHttp,
    GuanxiGrpc,
    GuanxiResp,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let graph = graph::Graph::new(arguments.edges, arguments.users)?;
    let stage = Stage::set(&graph, arguments.keep.as_deref(), &arguments.servers)?;
    let truth = Truth::of(graph);
    let mut table = Table::default();
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        for (number, work) in (0..).zip(&arguments.works) {
            let time = Duration::from_secs_f64(arguments.seconds);
            // Each round asks other questions, and every server the same ones.
            let seed = 1_000 * (round as u64 + 1) + number;
            let asked = (time + 2 * WARM).as_secs_f64();
            for peer in stage.peers().iter().filter(|peer| peer.does(*work)) {
                let mut questions = work.questions(&truth.graph, asked, seed);
                if round == 0 {
                    peer::compare(peer.as_ref(), &truth, &mut questions)?;
                }
                let outcome = measured(peer.as_ref(), &truth, *work, &questions, arguments, time)?;
                table.add(*work, peer.name(), outcome);
            }
            if round == 0 {
                table.print_last(*work);
            }
        }
    }
    stage.end()?;
    table.print();
    Ok(())
}

fn measured(
    peer: &dyn Peer,
    truth: &Truth,
    work: Work,
    asked: &Asked,
    arguments: &Arguments,
    time: Duration,
) -> anyhow::Result<Outcome> {
    let made = |questions: &[question::Question]| {
        let mut requests = Requests::default();
        for question in questions {
            requests.add(peer.replies(question), |to| peer.write(&truth.graph, question, to));
        }
        requests
    };
    let (reads, puts) = (made(&asked.reads), made(&asked.puts));
    let load = Load {
        address: peer.address(),
        pid: peer.pid(),
        protocol: peer.protocol(),
        connections: work.connections().unwrap_or(arguments.connections),
        warm: WARM,
        time,
        supply: Supply::new(&reads, &puts, READS_TO_A_PUT),
        rate: None,
    };
    load.run()
}
