//! What a store must still have when it is opened again, after a clean stop or after a crash that
//! took some of what was not persisted.

use super::compare::compare_store;
use super::history::{self, StoreBatch};
use super::reference::ReferenceStore;
use super::{Subject, same, worked};
use crate::engine::apply_frame;
use crate::store::Applied;

/// A store that can be opened again.
pub struct Reopenable {
    pub store: Subject,
    pub reopen: Box<Reopen>,
}

/// Ends the store and opens what it left: everything persisted, and of the rest as much as a
/// crash of this kind may leave.
pub type Reopen = dyn Fn(Subject) -> Subject;

type ReopenCase = (&'static str, fn(Reopenable) -> Result<(), String>);

const CASES: &[ReopenCase] = &[
    ("an empty store opens empty", empty),
    ("what was persisted stands with its position", persisted),
    ("a crash leaves a prefix of the log", crashed),
];

const BATCHES: usize = 120;
const SEED: u64 = 21;

/// Runs every case on a store of its own; the error names the first case that failed and why.
pub fn run_reopened(make: impl Fn() -> Reopenable) -> Result<(), String> {
    for (name, case) in CASES {
        case(make()).map_err(|what| format!("{name}: {what}"))?;
    }
    Ok(())
}

fn empty(subject: Reopenable) -> Result<(), String> {
    worked("persist", subject.store.persist())?;
    let store = (subject.reopen)(subject.store);
    same("applied", store.applied(), Applied::NOTHING)?;
    compare_store(&store, &ReferenceStore::default())
}

/// Position, version, commit time and catalog come back exactly, with the rows.
fn persisted(subject: Reopenable) -> Result<(), String> {
    let history = history::random(SEED, BATCHES)?;
    let mut store = subject.store;
    for (number, batch) in history.iter().enumerate() {
        worked("write", store.write(&batch.dirty, batch.applied))?;
        if number % 40 == 0 {
            worked("persist", store.persist())?;
            store = (subject.reopen)(store);
            same("applied", store.applied(), batch.applied)?;
            compare_store(&store, &ReferenceStore::after(&history[..=number])?)?;
        }
    }
    Ok(())
}

/// Whatever is lost, the rest is the rows after some batch; replaying the log brings all back.
fn crashed(subject: Reopenable) -> Result<(), String> {
    let history = history::random(SEED + 1, BATCHES)?;
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut store = subject.store;
    let mut safe = 0;
    for (number, batch) in history.iter().enumerate() {
        worked("write", store.write(&batch.dirty, batch.applied))?;
        let written = &history[..=number];
        match random.u8(..20) {
            0..2 => safe = worked("persist", store.persist())?.0,
            2..4 => {
                store = (subject.reopen)(store);
                let kept = prefix(&store, written, safe)?;
                compare_store(&store, &ReferenceStore::after(kept)?)?;
                for lost in &written[kept.len()..] {
                    worked("apply_frame", apply_frame(&lost.frame, &*store))?;
                }
                compare_store(&store, &ReferenceStore::after(written)?)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The batches that the reopened store has, which must be whole ones and all that were safe.
fn prefix<'a>(
    store: &Subject,
    written: &'a [StoreBatch],
    safe: u64,
) -> Result<&'a [StoreBatch], String> {
    let position = store.applied().position;
    if position.0 < safe {
        return Err(format!("{position:?} is below the persisted {safe}"));
    }
    let kept = written.iter().take_while(|batch| batch.applied.position <= position).count();
    let last = written[..kept].last();
    let boundary = last.map_or(Applied::NOTHING.position, |batch| batch.applied.position);
    same("the position, a batch's end", position, boundary)?;
    Ok(&written[..kept])
}
