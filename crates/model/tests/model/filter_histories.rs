//! Random histories of a filter in Redis: puts, deletes, rebuilds, growth, FLUSHALL, evictions,
//! failovers to a replica that lags, restarts from old snapshots, partitions, paused and killed
//! instances, an upkeep that stops and starts. After every step each instance asks its filter about
//! every edge: none that was acknowledged and stands may be "surely not".
//!
//! The decisions are the model's (`Plan`, `Held`, `next_step`); the world (`filter_world`) plays the
//! database, the log, the servers and the connections. Each rule of `Broken` leaves one of them out,
//! and a test holds that every such world is found to be wrong.

use crate::filter_world::{Broken, Tally, World};

/// Histories that every rule must survive.
const HISTORIES: u64 = 1_000_000;
/// Without optimisation a million takes many minutes.
const HISTORIES_UNOPTIMISED: u64 = 20_000;
/// Steps of one.
const STEPS: usize = 120;
/// A broken rule must be found within these.
const HISTORIES_TO_FIND: u64 = 200_000;

/// What went wrong in the history of this seed, if anything.
fn run(seed: u64, broken: Option<Broken>) -> (World, Result<(), String>) {
    let mut world = World::new(seed, broken);
    for _ in 0..STEPS {
        world.step();
        if let Err(wrong) = world.check() {
            return (world, Err(wrong));
        }
    }
    (world, Ok(()))
}

/// Cargo builds the profile `dev` under `debug`; `checked` has its assertions too, so they do not
/// tell the two apart.
fn unoptimised() -> bool {
    std::env::current_exe().is_ok_and(|path| path.iter().any(|part| part == "debug"))
}

#[test]
fn an_acknowledged_edge_is_never_surely_not() {
    let histories = match std::env::var("GUANXI_FILTER_HISTORIES") {
        Ok(number) => number.parse().expect("GUANXI_FILTER_HISTORIES is a number"),
        Err(_) if unoptimised() => HISTORIES_UNOPTIMISED,
        Err(_) => HISTORIES,
    };
    let threads = std::thread::available_parallelism().map_or(1, |number| number.get() as u64);
    let seen = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut seen = Tally::default();
                    for seed in (thread..histories).step_by(threads as usize) {
                        let (world, result) = run(seed, None);
                        if let Err(wrong) = result {
                            panic!("history {seed}: {wrong}\n{}", world.story());
                        }
                        seen.add(world.tally());
                    }
                    seen
                })
            })
            .collect();
        let mut all = Tally::default();
        for worker in workers {
            all.add(&worker.join().expect("no history went wrong"));
        }
        all
    });
    println!("{histories} histories of {STEPS} steps: {seen:?}");
    assert_worth_something(&seen, histories);
}

/// A test of a filter that always says "unknown" would prove nothing.
fn assert_worth_something(seen: &Tally, histories: u64) {
    assert!(seen.acknowledged > histories, "too few puts: {seen:?}");
    assert!(seen.completed > histories / 2, "too few completed generations: {seen:?}");
    assert!(seen.resumed > histories / 50, "too few resumed generations: {seen:?}");
    assert!(seen.withdrawn > histories / 10, "too few withdrawals: {seen:?}");
    assert!(seen.grown > histories / 50, "too few grown generations: {seen:?}");
    let known = seen.surely_not + seen.maybe;
    assert!(known > seen.unknown / 10, "the filter hardly ever answers: {seen:?}");
    assert!(seen.surely_not > seen.maybe / 10, "hardly anything is surely not: {seen:?}");
}

#[test]
fn every_broken_rule_is_found() {
    let mut missed = Vec::new();
    for broken in Broken::ALL {
        match (0..HISTORIES_TO_FIND).find(|seed| run(*seed, Some(broken)).1.is_err()) {
            Some(seed) => println!("{broken:?}: found in history {seed}"),
            None => missed.push(broken),
        }
    }
    assert!(missed.is_empty(), "not found in {HISTORIES_TO_FIND} histories: {missed:?}");
}
