//! Reads from what instances remember, without the database: tried on the spot, and again with what
//! Redis knew of what was lacking.

use std::time::Instant;

use guanxi_core::read::Reader;
use guanxi_model::Error;

use super::Cluster;
use crate::snapshot::{Remembered, SqlSnapshot};

/// Questions to Redis for one read; what wants more goes to the database.
const ROUNDS_MAX: usize = 4;

/// What became of a read that asks no database.
#[derive(Debug)]
pub enum RecalledRead<T> {
    /// What the read answered, or refused.
    Read(Result<T, Error>),
    /// It needs rows that are not at hand; these facts need not be asked for again.
    Lacking(Remembered),
}

impl Cluster {
    /// Runs the read on what is at hand, as long as that brings it further.
    pub async fn recall<T>(
        &self,
        read: &(impl Fn(&Reader) -> Result<T, Error> + Sync + ?Sized),
    ) -> RecalledRead<T> {
        let mut remembered = Remembered::default();
        for _ in 0..ROUNDS_MAX {
            let lacked = {
                let snapshot = self.snapshot_with(&remembered, Instant::now()).at_hand();
                let reader = Reader::new(Box::new(snapshot), &self.secret);
                let answer = read(&reader);
                match reader.lacked() {
                    None => return RecalledRead::Read(answer),
                    Some(lacked) => lacked,
                }
            };
            let catalog = self.catalog.current();
            if !self.memory.recall(&catalog, &self.cache, &lacked, &mut remembered).await {
                break;
            }
        }
        RecalledRead::Lacking(remembered)
    }

    /// A reader that asks the database for what it does not know by these facts.
    pub fn reader_with(&self, remembered: &Remembered, deadline: Instant) -> Reader {
        Reader::new(Box::new(self.snapshot_with(remembered, deadline)), &self.secret)
    }

    pub(super) fn snapshot_with(&self, remembered: &Remembered, deadline: Instant) -> SqlSnapshot {
        SqlSnapshot::begin(&self.database, self.catalog.current(), deadline)
            .with_cache(&self.cache)
            .with_remembered(remembered)
            .with_filling(self.memory.tallies(), remembered)
    }
}
