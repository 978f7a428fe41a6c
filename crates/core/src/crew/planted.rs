//! For tests: a worker panics at its next turn.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Crew;

#[derive(Default)]
pub(super) struct Planted(Mutex<HashSet<String>>);

impl Planted {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// Whose thread this is.
    static WORKER: RefCell<Option<(Crew, String)>> = const { RefCell::new(None) };
}

impl Crew {
    /// Makes the worker of this name panic at its next turn.
    pub fn plant_panic(&self, worker: &str) {
        self.0.planted.lock().insert(worker.to_owned());
    }
}

pub(super) fn begin(crew: &Crew, worker: &str) {
    WORKER.set(Some((crew.clone(), worker.to_owned())));
}

pub(super) fn turn() {
    let planted = WORKER.with_borrow(|worker| {
        worker.as_ref().is_some_and(|(crew, name)| crew.0.planted.lock().remove(name))
    });
    assert!(!planted, "a test wanted this");
}
