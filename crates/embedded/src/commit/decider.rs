//! Decides batches: every change against the store's rows, the rows on their way to it, and the
//! batch's own. Does no I/O of its own, so the simulator runs this very code.

use std::sync::Arc;

use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::encode_record;
use guanxi_model::decide::{Stamp, Stop, decide};
use guanxi_model::idempotency::{Answers, decide_once};
use guanxi_model::import::ImportStep;
use guanxi_model::{
    Answer, Change, Epoch, Error, Millis, Position, Record, Request, Version, View,
};

use crate::log::Frame;
use crate::overlay::{Base, Dirty, Layers};
use crate::store::{Applied, Store};

/// A batch takes no further request once its records have this many bytes: with the largest
/// request behind it, it still fits a frame.
const BATCH_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub struct Decider {
    region: u8,
    applied: Applied,
    /// By which idempotency keys may be forgotten.
    keys_past: Millis,
    /// Decided batches that the store may not have yet, oldest first.
    inflight: Vec<Arc<Dirty>>,
}

/// A decided batch. Nothing of it is durable or visible yet.
#[derive(Debug)]
pub struct Decision {
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
struct Batch<'a> {
    now: Millis,
    keys_past: Millis,
    region: u8,
    version: Version,
    dirty: Dirty,
    records: Vec<Vec<u8>>,
    bytes: usize,
    inflight: &'a [Arc<Dirty>],
    base: &'a Base<'a>,
}

/// A request needs a row that could not be read.
struct Unreadable {
    /// Requests that were decided before it.
    before: usize,
    error: StoreError,
}

impl Decider {
    /// Goes on after `applied`, the end of the log.
    pub fn new(epoch: Epoch, applied: Applied, region: u8) -> Decider {
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
    ) -> Result<Decision, StoreError> {
        match self.decide_some(requests.clone(), now, store) {
            // What the failed one left in the batch is not to be told apart, so it begins anew.
            Err(Unreadable { before, .. }) if before > 0 => {
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
    ) -> Result<Decision, Unreadable> {
        // In this order: the snapshot has all that `applied` says, perhaps more.
        let stored = store.applied().position;
        let snapshot = store.snapshot();
        let base = Base::new(snapshot.as_ref());
        self.inflight.retain(|dirty| dirty.last > stored);
        let mut batch = Batch {
            now: now.max(self.applied.commit),
            keys_past: self.keys_past,
            region: self.region,
            version: self.applied.version,
            dirty: Dirty::default(),
            records: Vec::new(),
            bytes: 0,
            inflight: &self.inflight,
            base: &base,
        };
        let mut answers = Vec::new();
        let mut changes = 0;
        for request in requests {
            changes += request.changes.len();
            let before = answers.len();
            let answered = batch.request(request);
            answers.push(answered.map_err(|error| Unreadable { before, error })?);
            if batch.bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        let Batch { now: commit, version, mut dirty, records, .. } = batch;
        let epoch = self.applied.epoch;
        let first = Position(self.applied.position.0 + 1);
        let position = Position(self.applied.position.0 + records.len() as u64);
        dirty.last = position;
        let dirty = Arc::new(dirty);
        let mut frame = None;
        if !records.is_empty() {
            frame = Some(Frame { epoch, first, commit_ms: commit.0, records });
            self.applied = Applied { epoch, position, commit, version };
            self.inflight.push(dirty.clone());
        }
        Ok(Decision { frame, dirty, applied: self.applied, answers, changes })
    }
}

impl Batch<'_> {
    fn view(&self) -> Layers<'_> {
        Layers { current: &self.dirty, inflight: self.inflight, base: self.base }
    }

    /// The request's answers; the inner error refuses it as a whole.
    fn request(&mut self, request: &Request) -> Result<Result<Answers, Error>, StoreError> {
        if let Some(step) = &request.import {
            return self.import(request, step);
        }
        let Some(key) = &request.key else {
            return self.changes(&request.changes).map(Ok);
        };
        let tenant = request.tenant;
        let row = self.view().idempotency(tenant, key)?;
        let now = self.now.min(self.keys_past);
        let decided = decide_once(row, key, &request.changes, now, |change| self.change(change))?;
        let (answers, row) = match decided {
            Ok(decided) => decided,
            Err(conflict) => return Ok(Err(conflict)),
        };
        if let Some(row) = row {
            self.take(&[Record::Idempotency { tenant, key: key.clone(), row }])?;
        }
        Ok(Ok(answers))
    }

    /// A chunk of an import: its lines and its new place, or nothing.
    fn import(
        &mut self,
        request: &Request,
        step: &ImportStep,
    ) -> Result<Result<Answers, Error>, StoreError> {
        let standing = self.view().import(request.tenant, &step.id)?.unwrap_or_default();
        if let Err(conflict) = step.check(&standing) {
            return Ok(Err(conflict));
        }
        let answers = self.changes(&request.changes)?;
        let row = step.done(&standing, &answers, self.now);
        self.take(&[Record::Import { tenant: request.tenant, id: step.id.clone(), row }])?;
        Ok(Ok(answers))
    }

    /// Every change's answer. One that cannot be decided ends the request: its other answers would
    /// be kept under a key, or a place would move past it, and no retry could mend that.
    fn changes(&mut self, changes: &[Change]) -> Result<Answers, StoreError> {
        changes.iter().map(|change| self.change(change)).collect()
    }

    /// Decides one change and takes its records in.
    fn change(&mut self, change: &Change) -> Result<Result<Answer, Error>, StoreError> {
        let (now, region) = (self.now, self.region);
        let mut version = self.version;
        let mut next = |_, _, _| {
            version = Version::next(version, now, region);
            version
        };
        let decided = decide(change, &self.view(), &mut Stamp { now, versions: &mut next });
        self.version = version;
        match decided {
            Ok(decided) => {
                self.take(&decided.records)?;
                Ok(Ok(decided.answer))
            }
            Err(Stop::Refused(error)) => Ok(Err(error)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn take(&mut self, records: &[Record]) -> Result<(), StoreError> {
        for record in records {
            self.dirty.absorb(record, self.inflight, self.base)?;
            let encoded = encode_record(record);
            self.bytes += encoded.len();
            self.records.push(encoded);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
