//! What every store must do alike, as one suite that each backend runs whole.
//!
//! What a store cannot be asked by its nature is an `Exception`, with its reason.
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
use std::sync::Arc;

use guanxi_core::snapshot::{Snapshot, StoreError};
pub use history::{IDS, StoreBatch, TENANTS, random as random_history};
pub use reopened::{Reopenable, run_reopened};

use compare::{compare, compare_store};
use reference::ReferenceStore;

use super::{EmbeddedSnapshot, EmbeddedStore, Store};
use crate::engine::apply_frame;
#[cfg(test)]
use crate::resident::{EdgeFilter, ResidentSettings};

/// A store under the suite.
pub enum Subject {
    /// All of the suite.
    Embedded(Box<dyn EmbeddedStore>),
    /// A database's tables: all but `EXCEPTIONS`.
    Tables(Box<dyn Store>),
}

/// What is not asked of tables in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exception {
    /// Raw rows, the inventory and single index entries: keys, indexes and their entries are the
    /// database's own, nothing of it can be walked or be apart from its row.
    Inventory,
    /// Where in a log a snapshot is: only a load has such a place, and the store itself says it.
    PositionOfASnapshot,
    /// That a kind which keeps no list by time has none: the tables' indexes hold every kind.
    ListsThatAreNotKept,
    /// Every answer after every batch, every range of a list, every seed: each answer is a round
    /// trip, so of the many that are alike only one in `TABLES_STRIDE` is asked for.
    Repetition,
}

/// Of comparisons that differ in little, the share that is made on tables.
const TABLES_STRIDE: usize = 13;

impl Subject {
    /// Whether the `number`th of many comparisons that are alike is passed over.
    fn skips(&self, number: usize) -> bool {
        let skipped = matches!(self, Subject::Tables(_)) && !number.is_multiple_of(TABLES_STRIDE);
        if skipped {
            excepted(Exception::Repetition);
        }
        skipped
    }

    /// A snapshot, with all that this sort of store can say.
    fn taken(&self) -> TakenSnapshot {
        match self {
            Subject::Embedded(store) => TakenSnapshot::Embedded(store.picture()),
            Subject::Tables(store) => TakenSnapshot::Tables(store.snapshot()),
        }
    }
}

impl std::ops::Deref for Subject {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        match self {
            Subject::Embedded(store) => store.as_ref(),
            Subject::Tables(store) => store.as_ref(),
        }
    }
}

/// An empty store that has a filter, and so little room and lists so short that what is at hand
/// comes and goes.
#[cfg(test)]
pub(crate) fn with_all_at_hand<B: super::keyed::Backend>(backend: B) -> super::KeyedStore<B> {
    let settings =
        ResidentSettings { rows_bytes_max: 1 << 17, list_places_max: 2, ..Default::default() };
    let store = super::KeyedStore::open_with(backend, settings);
    let store = store.unwrap_or_else(|error| panic!("an empty store: {error}"));
    store.begin_filter(Arc::new(EdgeFilter::for_edges(10_000, u64::MAX)));
    store.finish_filter();
    store
}

enum TakenSnapshot {
    Embedded(Box<dyn EmbeddedSnapshot>),
    Tables(Box<dyn Snapshot>),
}

impl TakenSnapshot {
    fn rows(&self) -> &dyn Snapshot {
        match self {
            TakenSnapshot::Embedded(snapshot) => snapshot.as_ref(),
            TakenSnapshot::Tables(snapshot) => snapshot.as_ref(),
        }
    }
}

type StoreCase = (&'static str, fn(&Subject) -> Result<(), String>);

const CASES: &[StoreCase] = &[
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
pub fn run(make: impl Fn() -> Subject) -> Result<(), String> {
    for (name, case) in CASES {
        case(&make()).map_err(|what| format!("{name}: {what}"))?;
    }
    for (number, seed) in SEEDS.into_iter().enumerate() {
        let store = make();
        if store.skips(number) {
            continue;
        }
        let history = history::random(seed, BATCHES)?;
        let verdict = written(&store, &history);
        verdict.map_err(|what| format!("history {seed}, written: {what}"))?;
        let verdict = replayed(&make(), &history);
        verdict.map_err(|what| format!("history {seed}, replayed: {what}"))?;
    }
    Ok(())
}

/// Every answer after every few batches, as the committer writes them.
fn written(store: &Subject, history: &[StoreBatch]) -> Result<(), String> {
    let mut reference = ReferenceStore::default();
    for (number, batch) in history.iter().enumerate() {
        write(store, &mut reference, batch)?;
        same("applied", store.applied(), batch.applied)?;
        if number % STRIDE == 0 && !store.skips(number / STRIDE) {
            compare_store(store, &reference).map_err(|what| format!("batch {number}: {what}"))?;
        }
    }
    compare_store(store, &reference)
}

/// The same answers from the log alone.
fn replayed(store: &Subject, history: &[StoreBatch]) -> Result<(), String> {
    for batch in history {
        worked("apply_frame", apply_frame(&batch.frame, &**store))?;
    }
    compare_store(store, &ReferenceStore::after(history)?)
}

fn empty(store: &Subject) -> Result<(), String> {
    same("applied", store.applied(), super::Applied::NOTHING)?;
    compare_store(store, &ReferenceStore::default())
}

fn unmoved(store: &Subject) -> Result<(), String> {
    let history = history::random(11, BATCHES)?;
    let mut reference = ReferenceStore::default();
    let mut taken = Vec::new();
    for (number, batch) in history.iter().enumerate() {
        write(store, &mut reference, batch)?;
        if number % 50 == 0 {
            taken.push((store.taken(), reference.clone()));
        }
    }
    for (snapshot, reference) in taken {
        compare(&snapshot, &reference)?;
    }
    Ok(())
}

fn known_frames(store: &Subject) -> Result<(), String> {
    let history = history::random(12, BATCHES)?;
    let mut reference = ReferenceStore::default();
    for batch in &history {
        write(store, &mut reference, batch)?;
    }
    let applied = store.applied();
    for batch in &history {
        worked("apply_frame", apply_frame(&batch.frame, &**store))?;
        same("applied", store.applied(), applied)?;
    }
    compare_store(store, &reference)
}

fn persisted(store: &Subject) -> Result<(), String> {
    let mut reference = ReferenceStore::default();
    for batch in &history::random(13, 30)? {
        write(store, &mut reference, batch)?;
        let position = worked("persist", store.persist())?;
        same("the persisted position", position, reference.position)?;
    }
    Ok(())
}

fn write(
    store: &Subject,
    reference: &mut ReferenceStore,
    batch: &StoreBatch,
) -> Result<(), String> {
    worked("write", store.write(&batch.dirty, batch.applied))?;
    reference.apply(batch)
}

/// Marks where the suite passes over something, so that the place names its reason.
fn excepted(_exception: Exception) {}

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
