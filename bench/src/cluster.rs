//! Follows through an instance of the cluster, on real servers that it starts, held against seven
//! statements by hand on the same database. Peer and instance take turns, so that both meet the
//! same machine; a figure is the median of its rounds.

mod lag;
mod load;
mod seven;
mod stage;

use std::time::Duration;

use clap::ValueEnum;

use self::lag::Lags;
use self::load::{Load, Pace};
use self::stage::{Cost, Stage};
use crate::results::Results;

/// Follows of the storm.
const STORM_FOLLOWS: usize = 50_000;
/// Callers that make it.
const STORM_IN_FLIGHT: usize = 64;
/// What flows beside the storm, of what the cluster can sustain.
const STEADY_SHARE: f64 = 0.25;
/// Callers by whom the sustained rate is found.
const SUSTAINED_IN_FLIGHT: usize = 256;

#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Figure::value_variants().to_vec())]
    figures: Vec<Figure>,
    /// Callers that wait at once; several are measured one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256])]
    in_flight: Vec<usize>,
    /// Length of each measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How often each is done.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Puts acknowledged, against the peer: an instance that only serves callers.
    Acknowledged,
    /// Puts applied at the target's side, against the peer: everything runs and keeps up.
    EndToEnd,
    /// Both rates when everybody follows one, against the uniform ones.
    Celebrity,
    /// From acknowledgement to visibility at the target's side, at half of the sustained rate.
    Lag,
    /// The same for others while one is followed by very many.
    Storm,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let time = Duration::from_secs(arguments.seconds);
    let has = |figure| arguments.figures.contains(&figure);
    let stage = Stage::set()?;
    stage.warm()?;
    let (mut results, mut kept_up) = (Results::default(), None);
    for round in 1..=arguments.rounds {
        println!("round {round} of {}", arguments.rounds);
        for in_flight in &arguments.in_flight {
            if has(Figure::Acknowledged) || has(Figure::EndToEnd) || has(Figure::Celebrity) {
                let whole = rates(&stage, *in_flight, time, &arguments.figures, &mut results)?;
                kept_up = whole.or(kept_up);
            }
        }
        if has(Figure::Lag) || has(Figure::Storm) {
            let sustained = match kept_up {
                Some(known) => known,
                None => stage.whole.keep_up(None, SUSTAINED_IN_FLIGHT, time)?,
            };
            kept_up = Some(sustained);
            if has(Figure::Lag) {
                let lags = lag_beside(&stage.whole, sustained / 2.0, time)?;
                println!("lag at {:.0} puts/s: {lags}", sustained / 2.0);
                results.add("lag p99 at half of the sustained rate, ms", lags.p99(), 500.0, false);
            }
            if has(Figure::Storm) {
                storm(&stage.whole, sustained * STEADY_SHARE, time, &mut results)?;
            }
        }
    }
    results.print();
    stage.close();
    Ok(())
}

/// Returns what the whole cluster kept up with, where that many callers show it.
fn rates(
    stage: &Stage,
    in_flight: usize,
    time: Duration,
    figures: &[Figure],
    results: &mut Results,
) -> anyhow::Result<Option<f64>> {
    let mut sustained = None;
    let celebrity = figures.contains(&Figure::Celebrity).then(crate::commit::random_id);
    let (people, by_hand) = (&stage.people, &stage.by_hand);
    let seven = || stage.costing("seven statements", || seven::rate(by_hand, people, None, time));
    let mut before = seven()?;
    let mut one = |name: String, load: &Load, target, whole: bool| -> anyhow::Result<(f64, f64)> {
        let rate = stage.costing(&format!("{in_flight} in flight, {name}"), || match whole {
            true => load.keep_up(target, in_flight, time),
            false => load.acknowledged(target, in_flight, time),
        })?;
        // The peer before and after it: others may use the machine more or less by then.
        let after = seven()?;
        let peer = (before + after) / 2.0;
        before = after;
        println!("  {:.2} x seven statements", rate / peer);
        Ok((rate, rate / peer))
    };
    let paths = [
        (Figure::Acknowledged, "acknowledged", &stage.alone, false, 4.0),
        (Figure::EndToEnd, "end to end", &stage.whole, true, 3.0),
    ];
    for (figure, name, load, whole, wanted) in paths {
        if !figures.contains(&figure) && celebrity.is_none() {
            continue;
        }
        let (mut uniform, mut ratio) = one(name.into(), load, None, whole)?;
        if celebrity.is_some() {
            let (rate, against) = one(format!("{name}, a celebrity"), load, celebrity, whole)?;
            // The others before and after it: tables grow and servers flush meanwhile.
            let after = one(format!("{name}, again"), load, None, whole)?;
            (uniform, ratio) = ((uniform + after.0) / 2.0, (ratio + after.1) / 2.0);
            let row = format!("celebrity / uniform {name}, {in_flight} in flight");
            results.add(&row, rate / uniform, 0.95, true);
            let row = format!("celebrity {name} / seven uniform, {in_flight} in flight");
            results.add(&row, against, wanted, true);
        }
        results.add(&format!("{name} / seven, {in_flight} in flight"), ratio, wanted, true);
        if whole && in_flight == SUSTAINED_IN_FLIGHT {
            sustained = Some(uniform);
        }
    }
    Ok(sustained)
}

fn lag_beside(load: &Load, rate: f64, time: Duration) -> anyhow::Result<Lags> {
    load.settle()?;
    let pace = Pace::begin(load, rate)?;
    std::thread::sleep(time);
    pace.end()
}

fn storm(load: &Load, rate: f64, time: Duration, results: &mut Results) -> anyhow::Result<()> {
    let quiet = lag_beside(load, rate, time)?;
    load.settle()?;
    let pace = Pace::begin(load, rate)?;
    let begun = std::time::Instant::now();
    load.follow_one(crate::commit::random_id(), STORM_FOLLOWS, STORM_IN_FLIGHT)?;
    let storm = pace.end()?;
    println!(
        "{rate:.0} puts/s, quiet: {quiet}\nbeside {STORM_FOLLOWS} follows of one in {:.1} s: {storm}",
        begun.elapsed().as_secs_f64()
    );
    results.add("storm: others' lag p50 / quiet", storm.p50() / quiet.p50(), 2.0, false);
    results.add("storm: others' lag p99 / quiet", storm.p99() / quiet.p99(), 2.0, false);
    Ok(())
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cost { database, broker, own } = self;
        write!(
            f,
            "us of CPU a put: database {database:.0}, broker {broker:.0}, this process {own:.0}"
        )
    }
}
