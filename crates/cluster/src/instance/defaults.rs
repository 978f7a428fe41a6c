//! Reads that the database has no time for, or cannot be asked for: from what is at hand, the rest
//! by default. Which kinds may be answered so is for the caller to say.

use std::time::Instant;

use guanxi_core::read::Reader;
use guanxi_model::Error;

use super::Cluster;
use crate::read_budget::ReadBudget;
use crate::snapshot::{Defaulted, DefaultsNote, Remembered};

impl Cluster {
    /// What this instance may ask of the database at a moment.
    pub fn budget(&self) -> &ReadBudget {
        &self.budget
    }

    /// Runs the read without the database; the second says what of it was not known.
    pub fn read_by_default<T>(
        &self,
        remembered: &Remembered,
        read: &(impl Fn(&Reader) -> Result<T, Error> + ?Sized),
    ) -> (Result<T, Error>, Defaulted) {
        let note = DefaultsNote::default();
        let snapshot = self.snapshot_with(remembered, Instant::now()).or_defaults(&note);
        let answer = read(&Reader::new(Box::new(snapshot), &self.secret));
        (answer, note.taken())
    }
}
