//! The reference: decides every request once more on plain rows, and knows which of the decided
//! batches must be there after a crash, which may be, and which must not.

use std::collections::VecDeque;
use std::rc::Rc;

use guanxi_model::codec::encode_record;
use guanxi_model::decide::{Stamp, Undecided, decide};
use guanxi_model::idempotency::{Answers, decide_once};
use guanxi_model::{
    Answer, Change, Epoch, Error, Millis, Origin, Position, Record, Region, Request, Version,
};

use super::rows::ReferenceRows;
use crate::log::Frame;
use crate::store::Applied;

/// What stands after a decided batch.
#[derive(Debug, Clone)]
pub(super) struct Prefix {
    pub applied: Applied,
    pub rows: Rc<ReferenceRows>,
}

/// What deciding a batch must give.
pub(super) struct Expected {
    pub frame: Option<Frame>,
    pub applied: Applied,
    pub answers: Vec<Result<Answers, Error>>,
}

pub(super) struct ReferenceService {
    region: Region,
    epoch: Epoch,
    /// Every frame that may be in the log, from position 1 on.
    pub frames: Vec<Frame>,
    /// What readers may still come to see, oldest first: never empty.
    prefixes: VecDeque<Prefix>,
    /// What somebody was shown, by a read or an answer: it must be there ever after.
    shown: Position,
    /// What the log said is durable.
    pub durable: Position,
    /// What was given to the log.
    pub attempted: Position,
    /// From here on callers were told that nothing was done.
    refused_from: Position,
}

impl ReferenceService {
    pub fn new(region: Region) -> ReferenceService {
        let nothing = Prefix { applied: Applied::NOTHING, rows: Rc::default() };
        ReferenceService {
            region,
            epoch: Epoch(0),
            frames: Vec::new(),
            prefixes: VecDeque::from([nothing]),
            shown: Position(0),
            durable: Position(0),
            attempted: Position(0),
            refused_from: Position(u64::MAX),
        }
    }

    /// What stands after everything decided so far.
    pub fn tip(&self) -> Prefix {
        // There is always one.
        self.prefixes
            .back()
            .cloned()
            .unwrap_or(Prefix { applied: Applied::NOTHING, rows: Rc::default() })
    }

    /// What stands at this position, if batches end there.
    pub fn at(&self, position: Position) -> Option<Prefix> {
        let mut prefixes = self.prefixes.iter();
        let found = prefixes.find(|prefix| prefix.applied.position == position);
        found.cloned()
    }

    pub fn show(&mut self, position: Position) {
        self.shown = self.shown.max(position);
        while self.prefixes.get(1).is_some_and(|next| next.applied.position <= self.shown) {
            self.prefixes.pop_front();
        }
    }

    /// The caller of a batch that begins here was told that nothing was done.
    pub fn refuse(&mut self, first: Position) {
        self.refused_from = self.refused_from.min(first);
    }

    /// Decides a batch on plain rows.
    pub fn decide(&mut self, requests: &[Request], now: Millis) -> Expected {
        let before = self.tip();
        let mut batch = ReferenceBatch {
            now: now.max(before.applied.commit),
            region: self.region,
            version: before.applied.version,
            rows: ReferenceRows::clone(&before.rows),
            records: Vec::new(),
        };
        let answers = requests.iter().map(|request| batch.request(request));
        let answers = answers.collect();
        let (epoch, commit) = (self.epoch, batch.now);
        if batch.records.is_empty() {
            return Expected { frame: None, applied: Applied { epoch, ..before.applied }, answers };
        }
        let first = Position(before.applied.position.0 + 1);
        let frame = Frame { epoch, first, commit_ms: commit.0, records: batch.records };
        let applied = Applied { epoch, position: frame.last(), commit, version: batch.version };
        self.frames.push(frame.clone());
        self.prefixes.push_back(Prefix { applied, rows: Rc::new(batch.rows) });
        Expected { frame: Some(frame), applied, answers }
    }

    /// The log ends here after a start; whether it may, and what stands then.
    pub fn reopened(&mut self, last: Position, epoch: Epoch) -> Result<Prefix, String> {
        let must = self.shown.max(self.durable);
        if last < must {
            return Err(format!(
                "the log ends at {}, but {} was acknowledged, shown or durable",
                last.0, must.0
            ));
        }
        if last > self.attempted {
            return Err(format!(
                "the log ends at {}, but nothing past {} was ever given to it",
                last.0, self.attempted.0
            ));
        }
        if last >= self.refused_from {
            return Err(format!(
                "the log ends at {}, but from {} on callers were told that nothing was done",
                last.0, self.refused_from.0
            ));
        }
        let Some(prefix) = self.at(last) else {
            return Err(format!("the log ends at {}, amid a batch", last.0));
        };
        self.prefixes.retain(|prefix| prefix.applied.position <= last);
        self.frames.retain(|frame| frame.last() <= last);
        self.show(last);
        (self.durable, self.attempted) = (last, last);
        self.refused_from = Position(u64::MAX);
        self.epoch = epoch;
        Ok(prefix)
    }
}

/// A batch in the making.
struct ReferenceBatch {
    now: Millis,
    region: Region,
    version: Version,
    rows: ReferenceRows,
    records: Vec<Vec<u8>>,
}

impl ReferenceBatch {
    fn request(&mut self, request: &Request) -> Result<Answers, Error> {
        if let Some(step) = &request.import {
            let cell = (request.tenant, step.id.clone());
            let standing = self.rows.imports.get(&cell).cloned().unwrap_or_default();
            step.check(&standing)?;
            let answers = self.changes(request);
            let row = step.done(&standing, &answers, self.now);
            let record = Record::Import { tenant: request.tenant, id: step.id.clone(), row };
            self.take(record, &request.origin);
            return Ok(answers);
        }
        let Some(key) = &request.key else {
            return Ok(self.changes(request));
        };
        let tenant = request.tenant;
        let row = self.rows.idempotency.get(&(tenant, key.clone())).cloned();
        let now = self.now;
        let one = |change: &Change| Ok::<_, Error>(self.change(change, &request.origin));
        let (answers, row) = decide_once(row, key, &request.changes, now, one)??;
        if let Some(row) = row {
            let record = Record::Idempotency { tenant, key: key.clone(), row };
            self.take(record, &request.origin);
        }
        Ok(answers)
    }

    fn changes(&mut self, request: &Request) -> Answers {
        request.changes.iter().map(|change| self.change(change, &request.origin)).collect()
    }

    fn change(&mut self, change: &Change, origin: &Origin) -> Result<Answer, Error> {
        let (now, region) = (self.now, self.region);
        let mut version = self.version;
        let mut versions = |_| {
            version = Version::next(version, now, region);
            version
        };
        let mut stamp = Stamp { now, keys_age_by: now, versions: &mut versions };
        match decide(change, &self.rows, &mut stamp) {
            Ok(decided) => {
                self.version = version;
                let origin = match change {
                    Change::EraseStep { job, .. }
                    | Change::FinishErase { job, .. }
                    | Change::BuildIndexStep { job, .. }
                    | Change::FinishBuildIndex { job, .. } => {
                        Origin { job: Some(*job), ..origin.clone() }
                    }
                    _ => origin.clone(),
                };
                for mut record in decided.records {
                    if let Record::Edge(edge) = &mut record {
                        edge.origin = origin.clone();
                    }
                    self.take(record, &origin);
                }
                Ok(decided.answer)
            }
            Err(Undecided::Refused(error)) => Err(error),
            Err(Undecided::Failed(never)) => match never {},
        }
    }

    fn take(&mut self, record: Record, origin: &Origin) {
        self.rows.take(&record);
        self.records.push(encode_record(&record, origin));
    }
}
