//! For tests: a worker panics at its next turn.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use super::Crew;
use crate::signal::Signal;

#[derive(Default)]
pub(super) struct PlantedLosses {
    /// Who lasts, and by what they are woken.
    known: Mutex<BTreeMap<String, Signal>>,
    doomed: Mutex<BTreeSet<String>>,
}

impl PlantedLosses {
    pub fn knows(&self, worker: &str, signal: &Signal) {
        self.known.lock().insert(worker.to_owned(), signal.clone());
    }
}

thread_local! {
    /// Whose thread this is.
    static WORKER: RefCell<Option<(Crew, String)>> = const { RefCell::new(None) };
}

impl Crew {
    /// Makes the worker of this name panic at its next turn.
    pub fn plant_panic(&self, worker: &str) {
        self.0.planted.doomed.lock().insert(worker.to_owned());
        if let Some(signal) = self.0.planted.known.lock().get(worker) {
            signal.wake();
        }
    }

    /// The names of all threads that were started to last.
    pub fn lasting(&self) -> Vec<String> {
        self.0.planted.known.lock().keys().cloned().collect()
    }
}

pub(super) fn begin(crew: &Crew, worker: &str) {
    WORKER.set(Some((crew.clone(), worker.to_owned())));
}

pub(super) fn turn() {
    let planted = WORKER.with_borrow(|worker| {
        worker.as_ref().is_some_and(|(crew, name)| crew.0.planted.doomed.lock().remove(name))
    });
    assert!(!planted, "a test wanted this");
}
