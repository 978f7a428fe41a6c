//! Decides batches: every change against the store's rows, the rows on their way to it, and the
//! batch's own. Does no I/O of its own, so the simulator runs this very code.

use std::sync::Arc;

use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::encode_record;
use guanxi_model::idempotency::Answers;
use guanxi_model::{
    Epoch, Error, GroupsKey, Ledger, Millis, Origin, Position, Record, Region, Request, Version,
    absorb, decide_request,
};

use crate::log::Frame;
use crate::overlay::{Dirty, Layers, ReadRows};
use crate::store::{Applied, Store};

/// A batch takes no further request once its records have this many bytes: with the largest
/// request behind it, it still fits a frame.
const BATCH_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub struct Decider {
    region: Region,
    applied: Applied,
    /// By which idempotency keys may be forgotten.
    keys_past: Millis,
    /// Decided batches that the store may not have yet, oldest first.
    inflight: Vec<Arc<Dirty>>,
}

/// A decided batch. Nothing of it is durable or visible yet.
#[derive(Debug)]
pub struct DecidedBatch {
    /// What goes into the log; none when no change left a record.
    pub frame: Option<Frame>,
    pub dirty: Arc<Dirty>,
    /// Where the store stands after it.
    pub applied: Applied,
    /// One entry per request taken, which may be fewer than were offered.
    pub answers: Vec<Result<Answers, Error>>,
    pub changes: usize,
}

/// A batch in the making.
struct OpenBatch<'a> {
    now: Millis,
    keys_past: Millis,
    region: Region,
    version: Version,
    layers: Layers<'a>,
    records: Vec<Vec<u8>>,
    bytes: usize,
}

/// A request needs a row that could not be read.
struct UnreadableRow {
    /// Requests that were decided before it.
    before: usize,
    error: StoreError,
}

impl Decider {
    /// Goes on after `applied`, the end of the log.
    pub fn new(epoch: Epoch, applied: Applied, region: Region) -> Decider {
        let applied = Applied { epoch, ..applied };
        Decider { region, applied, keys_past: Millis(u64::MAX), inflight: Vec::new() }
    }

    /// Idempotency keys age by this time from now on, where it is before that of their batch. The
    /// rows that they leave have it, and so the store forgets no more.
    pub fn age_keys_by(&mut self, past: Millis) {
        self.keys_past = past;
    }

    /// Decides as many of the requests as one frame takes, at least one, and none from the first
    /// on that needs a row which could not be read. An error means that it is the very first one:
    /// nothing was decided, and the same call may be made again.
    pub fn decide<'r>(
        &mut self,
        requests: impl Iterator<Item = &'r Request> + Clone,
        now: Millis,
        store: &dyn Store,
    ) -> Result<DecidedBatch, StoreError> {
        match self.decide_some(requests.clone(), now, store) {
            // What the failed one left in the batch is not to be told apart, so it begins anew.
            Err(UnreadableRow { before, .. }) if before > 0 => {
                let decided = self.decide_some(requests.take(before), now, store);
                decided.map_err(|unreadable| unreadable.error)
            }
            decided => decided.map_err(|unreadable| unreadable.error),
        }
    }

    fn decide_some<'r>(
        &mut self,
        requests: impl Iterator<Item = &'r Request>,
        now: Millis,
        store: &dyn Store,
    ) -> Result<DecidedBatch, UnreadableRow> {
        // In this order: the snapshot has all that `applied` says, perhaps more.
        let stored = store.applied().position;
        let snapshot = store.snapshot();
        let base = ReadRows::new(snapshot.as_ref());
        self.inflight.retain(|dirty| dirty.last > stored);
        let mut batch = OpenBatch {
            now: now.max(self.applied.commit),
            keys_past: self.keys_past,
            region: self.region,
            version: self.applied.version,
            layers: Layers::new(&self.inflight, &base),
            records: Vec::new(),
            bytes: 0,
        };
        let mut answers = Vec::new();
        let mut changes = 0;
        for request in requests {
            changes += request.changes.len();
            let before = answers.len();
            let answered = decide_request(&mut batch, request);
            answers.push(answered.map_err(|error| UnreadableRow { before, error })?);
            if batch.bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        let OpenBatch { now: commit, version, layers, records, .. } = batch;
        let epoch = self.applied.epoch;
        let first = Position(self.applied.position.0 + 1);
        let position = Position(self.applied.position.0 + records.len() as u64);
        let dirty = Arc::new(Dirty { last: position, ..layers.current });
        let mut frame = None;
        if !records.is_empty() {
            frame = Some(Frame { epoch, first, commit_ms: commit.0, records });
            self.applied = Applied { epoch, position, commit, version };
            self.inflight.push(dirty.clone());
        }
        Ok(DecidedBatch { frame, dirty, applied: self.applied, answers, changes })
    }
}

impl<'a> Ledger for OpenBatch<'a> {
    type Rows = Layers<'a>;
    type Broken = StoreError;

    fn rows(&self) -> &Layers<'a> {
        &self.layers
    }

    fn now(&self) -> Millis {
        self.now
    }

    fn keys_age_by(&self) -> Millis {
        self.now.min(self.keys_past)
    }

    /// All heads draw from one series.
    fn version(&self, _: &GroupsKey, drawn: &[GroupsKey]) -> Version {
        Version::next(self.version, self.now, self.region).plus(drawn.len() as u64)
    }

    fn spend(&mut self, drawn: &[GroupsKey]) -> Result<(), StoreError> {
        if let [earlier @ .., last] = drawn {
            self.version = self.version(last, earlier);
        }
        Ok(())
    }

    fn take(&mut self, record: Record, origin: &Origin) -> Result<(), StoreError> {
        let encoded = encode_record(&record, origin);
        self.bytes += encoded.len();
        self.records.push(encoded);
        absorb(record, &mut self.layers)
    }

    fn fetch(&mut self, unreadable: StoreError, _: usize) -> Result<(), StoreError> {
        Err(unreadable)
    }
}

#[cfg(test)]
mod tests;
