//! What every store must do alike, as one suite that each backend runs whole.
//!
//! `history` decides batches, `reference` says what they must lead to, `compare` holds every
//! answer of a snapshot against it, `inventory` what lies in it. `beside` has readers beside the writer, `reopened` what a
//! crash may leave, `planted` the stores that must fail.

mod beside;
mod compare;
mod history;
mod inventory;
#[cfg(test)]
pub(super) mod planted;
mod reference;
mod reopened;
mod scripted;

#[cfg(test)]
pub(crate) use history::random as random_history;
pub use reopened::{Reopenable, run_reopened};

use compare::{compare, compare_store};
use history::Batch;
use reference::Reference;

use super::{Store, StoreError};
use crate::engine::apply_frame;

type Case = (&'static str, fn(&dyn Store) -> Result<(), String>);

const CASES: &[Case] = &[
    ("an empty store", empty),
    ("a snapshot is unmoved by later writes", unmoved),
    ("a frame that the store has changes nothing", known_frames),
    ("persist covers what was written before", persisted),
    ("index entries follow their rows", scripted::entries),
    ("an index is built beside writes", scripted::built_index),
    ("a list is cut to its range, ties and all", scripted::ranges),
    ("a walk stops when its visitor breaks", scripted::breaks),
    ("group ids are never reused", scripted::group_ids),
    ("long answers come back whole", scripted::long_answers),
    ("keys are forgotten by time", scripted::forgotten_keys),
    ("no reader sees half a batch", beside::whole_batches),
];

/// Random histories that every store goes through, as written and as replayed.
const SEEDS: [u64; 3] = [1, 2, 3];
const BATCHES: usize = 120;
/// Batches between two comparisons of every answer.
const STRIDE: usize = 24;

/// Runs every case on a store of its own; the error names the first case that failed and why.
/// `make` gives an empty store each time.
pub fn run(make: impl Fn() -> Box<dyn Store>) -> Result<(), String> {
    for (name, case) in CASES {
        case(&*make()).map_err(|what| format!("{name}: {what}"))?;
    }
    for seed in SEEDS {
        let history = history::random(seed, BATCHES)?;
        let verdict = written(&*make(), &history);
        verdict.map_err(|what| format!("history {seed}, written: {what}"))?;
        let verdict = replayed(&*make(), &history);
        verdict.map_err(|what| format!("history {seed}, replayed: {what}"))?;
    }
    Ok(())
}

/// Every answer after every few batches, as the committer writes them.
fn written(store: &dyn Store, history: &[Batch]) -> Result<(), String> {
    let mut reference = Reference::default();
    for (number, batch) in history.iter().enumerate() {
        write(store, &mut reference, batch)?;
        same("applied", store.applied(), batch.applied)?;
        if number % STRIDE == 0 {
            compare_store(store, &reference).map_err(|what| format!("batch {number}: {what}"))?;
        }
    }
    compare_store(store, &reference)
}

/// The same answers from the log alone.
fn replayed(store: &dyn Store, history: &[Batch]) -> Result<(), String> {
    for batch in history {
        worked("apply_frame", apply_frame(&batch.frame, store))?;
    }
    compare_store(store, &Reference::after(history)?)
}

fn empty(store: &dyn Store) -> Result<(), String> {
    same("applied", store.applied(), super::Applied::NOTHING)?;
    compare_store(store, &Reference::default())
}

fn unmoved(store: &dyn Store) -> Result<(), String> {
    let history = history::random(11, BATCHES)?;
    let mut reference = Reference::default();
    let mut taken = Vec::new();
    for (number, batch) in history.iter().enumerate() {
        write(store, &mut reference, batch)?;
        if number % 50 == 0 {
            taken.push((store.snapshot(), reference.clone()));
        }
    }
    for (snapshot, reference) in taken {
        compare(snapshot.as_ref(), &reference)?;
    }
    Ok(())
}

fn known_frames(store: &dyn Store) -> Result<(), String> {
    let history = history::random(12, BATCHES)?;
    let mut reference = Reference::default();
    for batch in &history {
        write(store, &mut reference, batch)?;
    }
    let applied = store.applied();
    for batch in &history {
        worked("apply_frame", apply_frame(&batch.frame, store))?;
        same("applied", store.applied(), applied)?;
    }
    compare_store(store, &reference)
}

fn persisted(store: &dyn Store) -> Result<(), String> {
    let mut reference = Reference::default();
    for batch in &history::random(13, 30)? {
        write(store, &mut reference, batch)?;
        let position = worked("persist", store.persist())?;
        same("the persisted position", position, reference.position)?;
    }
    Ok(())
}

fn write(store: &dyn Store, reference: &mut Reference, batch: &Batch) -> Result<(), String> {
    worked("write", store.write(&batch.dirty, batch.applied))?;
    reference.apply(batch)
}

fn worked<T>(what: &str, done: Result<T, StoreError>) -> Result<T, String> {
    done.map_err(|error| format!("{what}: {error}"))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}, found {found:?}"))
}

fn check(holds: bool, otherwise: &str) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(otherwise.to_owned()),
    }
}
