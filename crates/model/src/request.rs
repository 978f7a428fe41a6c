//! Requests: what a caller wants written at once. What idempotency keys and imports' places have to
//! do with it, and what is kept of refusals, stands here alone; a deployment brings its rows as a
//! `Ledger`.

use crate::answer::Answer;
use crate::change::Change;
use crate::decide::{Decided, Stamp, Undecided, decide};
use crate::error::Error;
use crate::group::GroupsKey;
use crate::idempotency::{Answers, IdempotencyKey, decide_once};
use crate::import::ImportStep;
use crate::node::TenantId;
use crate::origin::Origin;
use crate::record::Record;
use crate::time::Millis;
use crate::version::Version;
use crate::view::View;

/// Changes that are decided together, in order, each on its own.
#[derive(Debug, Clone)]
pub struct Request {
    pub tenant: TenantId,
    pub changes: Vec<Change>,
    pub key: Option<IdempotencyKey>,
    /// The chunk of an import that the changes are.
    pub import: Option<ImportStep>,
    pub origin: Origin,
}

impl Request {
    pub fn new(tenant: TenantId, changes: Vec<Change>) -> Request {
        Request { tenant, changes, key: None, import: None, origin: Origin::default() }
    }

    pub fn one(tenant: TenantId, change: Change) -> Request {
        Request::new(tenant, vec![change])
    }
}

/// Rows that a batch of requests changes, in whatever way a deployment holds them.
pub trait Ledger {
    /// The rows as they stand, with everything decided before.
    type Rows: View;
    /// Why the batch ends here: what was taken in of it is of no use.
    type Broken;

    fn rows(&self) -> &Self::Rows;

    fn now(&self) -> Millis;

    /// The time by which idempotency keys age.
    fn keys_age_by(&self) -> Millis {
        self.now()
    }

    /// The next version of a head for a change that has drawn these before.
    fn version(&self, head: &GroupsKey, drawn: &[GroupsKey]) -> Version;

    /// The change stands, and with it the versions that it drew.
    fn spend(&mut self, drawn: &[GroupsKey]) -> Result<(), Self::Broken>;

    /// Takes in what was decided. An edge's record has its origin in it.
    fn take(&mut self, record: Record, origin: &Origin) -> Result<(), Self::Broken>;

    /// Fetches a row that is not at hand, after so many others for the same change; an error where
    /// that cannot be.
    fn fetch(
        &mut self,
        row: <Self::Rows as View>::Error,
        fetched: usize,
    ) -> Result<(), Self::Broken>;

    /// Why a change is not for this ledger, if it is not.
    fn refuses(&self, _: &Change) -> Option<Error> {
        None
    }
}

/// Every change's answer; the inner error refuses the request as a whole. A change that cannot be
/// decided ends the batch: its other answers would be kept under a key, or a place would move past
/// it, and no retry could mend that.
pub fn decide_request<L: Ledger>(
    ledger: &mut L,
    request: &Request,
) -> Result<Result<Answers, Error>, L::Broken> {
    let Request { tenant, changes, key, import, origin } = request;
    let tenant = *tenant;
    let mut drawn = Vec::new();
    let mut one =
        |ledger: &mut L, change: &Change| decide_change(ledger, change, origin, &mut drawn);
    if let Some(step) = import {
        let standing =
            look(ledger, |ledger| ledger.rows().import(tenant, &step.id))?.unwrap_or_default();
        if let Err(conflict) = step.check(&standing) {
            return Ok(Err(conflict));
        }
        let answers = changes.iter().map(|change| one(ledger, change));
        let answers = answers.collect::<Result<Answers, _>>()?;
        let row = step.done(&standing, &answers, ledger.now());
        ledger.take(Record::Import { tenant, id: step.id.clone(), row }, origin)?;
        return Ok(Ok(answers));
    }
    let Some(key) = key else {
        return changes.iter().map(|change| one(ledger, change)).collect::<Result<_, _>>().map(Ok);
    };
    let row = look(ledger, |ledger| ledger.rows().idempotency(tenant, key))?;
    let now = ledger.keys_age_by();
    let (answers, row) = match decide_once(row, key, changes, now, |change| one(ledger, change))? {
        Ok(decided) => decided,
        Err(conflict) => return Ok(Err(conflict)),
    };
    if let Some(row) = row {
        ledger.take(Record::Idempotency { tenant, key: key.clone(), row }, origin)?;
    }
    Ok(Ok(answers))
}

/// Decides one change and takes in what it leaves. `drawn` is room that is used again.
fn decide_change<L: Ledger>(
    ledger: &mut L,
    change: &Change,
    origin: &Origin,
    drawn: &mut Vec<GroupsKey>,
) -> Result<Result<Answer, Error>, L::Broken> {
    if let Some(error) = ledger.refuses(change) {
        return Ok(Err(error));
    }
    let decided = look(ledger, |ledger| {
        drawn.clear();
        let mut versions = |head: GroupsKey| {
            let version = ledger.version(&head, drawn);
            drawn.push(head);
            version
        };
        let (now, keys_age_by) = (ledger.now(), ledger.keys_age_by());
        let mut stamp = Stamp { now, keys_age_by, versions: &mut versions };
        match decide(change, ledger.rows(), &mut stamp) {
            Ok(decided) => Ok(Ok(decided)),
            Err(Undecided::Refused(error)) => Ok(Err(error)),
            Err(Undecided::Failed(row)) => Err(row),
        }
    })?;
    let Decided { records, answer } = match decided {
        Ok(decided) => decided,
        Err(refusal) => return Ok(Err(refusal)),
    };
    ledger.spend(drawn)?;
    let origin = origin.of(change);
    for mut record in records {
        if let Record::Edge(edge) = &mut record {
            edge.origin = origin.clone();
        }
        ledger.take(record, &origin)?;
    }
    Ok(Ok(answer))
}

/// Looks again after every row that had to be fetched.
fn look<L: Ledger, T>(
    ledger: &mut L,
    mut at: impl FnMut(&L) -> Result<T, <L::Rows as View>::Error>,
) -> Result<T, L::Broken> {
    let mut fetched = 0;
    loop {
        match at(ledger) {
            Ok(found) => return Ok(found),
            Err(row) => ledger.fetch(row, fetched)?,
        }
        fetched += 1;
    }
}
