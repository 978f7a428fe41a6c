//! What the scrubber costs: durable puts with it and without it by turns, on one directory, so that
//! whatever else the machine does falls on both.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use guanxi_core::AuditSettings;
use guanxi_embedded::{Engine, Settings};

use crate::commit::{TENANT, load, puts};

#[derive(clap::Args)]
pub struct Arguments {
    /// Data directory; new or of an earlier run.
    #[arg(long)]
    dir: PathBuf,
    /// Edges to load before measuring.
    #[arg(long, default_value_t = 500_000)]
    edges: u64,
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Pairs of turns, one with the scrubber and one without.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// What the scrubber reads where it is on.
    #[arg(long, default_value_t = AuditSettings::default().scrub_rows_per_second)]
    rows_per_second: u64,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    turn(arguments, &runtime, 0, arguments.edges)?;
    let mut ratios = Vec::new();
    for round in 0..arguments.rounds {
        // Every other round the other way round, so that neither always comes first.
        let on_first = round % 2 == 1;
        let rates =
            [!on_first, on_first].map(|off| if off { 0 } else { arguments.rows_per_second });
        let first = turn(arguments, &runtime, rates[0], 0)?;
        let second = turn(arguments, &runtime, rates[1], 0)?;
        let (off, on) = if on_first { (second, first) } else { (first, second) };
        println!(
            "round {round}: {:.0} puts/s without, {:.0} with it, ratio {:.3}; p99 ms {:.1}, {:.1}",
            off.rate,
            on.rate,
            on.rate / off.rate,
            off.p99_ms,
            on.p99_ms
        );
        ratios.push(on.rate / off.rate);
    }
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.get(ratios.len() / 2).context("no round was measured")?;
    println!("ratio of all rounds: {ratios:.3?}, in the middle {middle:.3}");
    Ok(())
}

struct Turn {
    rate: f64,
    p99_ms: f64,
}

/// Opens the directory with this scrubber, loads so many edges, and puts.
fn turn(
    arguments: &Arguments,
    runtime: &tokio::runtime::Runtime,
    rows_per_second: u64,
    edges: u64,
) -> anyhow::Result<Turn> {
    let audit = AuditSettings { scrub_rows_per_second: rows_per_second };
    let engine = Engine::open(Settings { audit, ..Settings::new(&arguments.dir) })?;
    let kind = engine.catalog().named(TENANT, "follow")?.id;
    let (rate, latencies) = runtime.block_on(async {
        if edges > 0 {
            load(&engine, kind, edges).await?;
        }
        let time = Duration::from_secs(arguments.seconds);
        puts(&engine, kind, None, arguments.in_flight, time).await
    })?;
    engine.close();
    Ok(Turn { rate, p99_ms: latencies.value_at_quantile(0.99) as f64 / 1_000.0 })
}
