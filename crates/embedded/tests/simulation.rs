//! Thousands of seeded histories, and the planted bugs that they must catch.
//!
//! GUANXI_SIMULATION_HISTORIES sets how many, GUANXI_SIMULATION_SEED with which seed they begin.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use guanxi_embedded::resident::ResidentBug;
use guanxi_embedded::simulation::{Deeds, SimulationBug, run};
use parking_lot::Mutex;

const HISTORIES: u64 = 3_000;
const HISTORIES_TO_CATCH_A_BUG: u64 = 1_000;

#[test]
fn nothing_shown_is_lost_and_nothing_refused_appears() {
    let first = setting("GUANXI_SIMULATION_SEED").unwrap_or(0);
    let histories = setting("GUANXI_SIMULATION_HISTORIES").unwrap_or(HISTORIES);
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let done: Mutex<(Deeds, Vec<(u64, String)>)> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + histories || !done.lock().1.is_empty() {
                        break;
                    }
                    let ended = history(seed, None);
                    let (deeds, broken) = &mut *done.lock();
                    match ended {
                        Ok(of_history) => deeds.add(of_history),
                        Err(what) => broken.push((seed, what)),
                    }
                }
            });
        }
    });
    let (deeds, broken) = done.into_inner();
    if let Some((seed, what)) = broken.first() {
        panic!(
            "seed {seed}: {what}\n\nreplay it with: GUANXI_SIMULATION_SEED={seed} \
             GUANXI_SIMULATION_HISTORIES=1 cargo test --profile checked -p guanxi-embedded --test \
             simulation nothing_shown"
        );
    }
    println!("{histories} histories in {:?}: {deeds:#?}", begun.elapsed());
    if histories > 1 {
        assert!(deeds.reach(histories / 10), "too little happened");
    }
}

/// Runs a history; a failed assertion is as good as a broken promise.
fn history(seed: u64, bug: Option<SimulationBug>) -> Result<Deeds, String> {
    catch_unwind(|| run(seed, bug)).unwrap_or_else(|_| Err("it panicked, as said above".into()))
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// The bug is caught within the first histories, which are all good without it.
fn check(bug: SimulationBug) {
    let caught = (0..HISTORIES_TO_CATCH_A_BUG)
        .find_map(|seed| history(seed, Some(bug)).err().map(|what| (seed, what)));
    let Some((seed, what)) = caught else {
        panic!("{bug:?} was not caught in {HISTORIES_TO_CATCH_A_BUG} histories");
    };
    let what: String = what.chars().take(160).collect();
    println!("{bug:?} was caught in history {}: {what}", seed + 1);
}

macro_rules! caught {
    ($($test:ident: $bug:ident,)*) => {
        $(
            #[test]
            fn $test() {
                check(SimulationBug::$bug);
            }
        )*
    };
}

caught! {
    skipping_fsync_is_caught: SkipFsync,
    skipping_folder_syncs_is_caught: SkipFolderSync,
    recovering_without_fsync_is_caught: RecoverUnsynced,
    acknowledging_early_is_caught: AcknowledgeEarly,
    applying_before_fsync_is_caught: ApplyEarly,
    writing_ahead_of_fsync_is_caught: WriteAhead,
    tallying_on_replay_is_caught: TallyOnReplay,
    replaying_a_frame_twice_is_caught: ReplayTwice,
    a_position_after_its_batch_is_caught: PositionAfterBatch,
    a_position_before_its_batch_is_caught: PositionBeforeBatch,
    half_a_batch_is_caught: HalfBatch,
    deciding_on_old_rows_is_caught: DecideOnOldRows,
    cutting_a_good_frame_is_caught: CutTooMuch,
    trimming_what_replay_needs_is_caught: TrimTooMuch,
}

macro_rules! caught_in_memory {
    ($($test:ident: $bug:ident,)*) => {
        $(
            #[test]
            fn $test() {
                check(SimulationBug::Resident(ResidentBug::$bug));
            }
        )*
    };
}

caught_in_memory! {
    a_stale_fill_is_caught: StaleFill,
    an_entry_that_a_batch_leaves_is_caught: EntryNotUpdated,
    bits_after_the_publication_are_caught: BitsAfterPublication,
    a_forgotten_removal_is_caught: RemovalForgotten,
    a_saved_filter_without_later_bits_is_caught: SavedFilterLacksBits,
    a_build_that_misses_batches_is_caught: BuildMissesBatches,
}
