//! Makes the target's side of given edges what `outgoing` says, under the fence: for a rebuild, a
//! dead letter that is tried again, an audit's repair. The truth is read after the lock, so no
//! applier can put something older over it afterwards. The log does not tell of it, so it makes
//! everybody forget the values in Redis.

use std::collections::BTreeMap;

use guanxi_model::{Catalog, EdgeKey, EdgeRow};

use super::super::kafka::LogPosition;
use super::super::memory::epoch;
use super::super::sql::commit_deadline::CommitBy;
use super::super::sql::commit_in_doubt::{self, CommitFailure, Witness};
use super::super::sql::{Session, text};
use super::batch::{positions, raced, sorted, take};
use super::fold::{Fold, IncomingKey};
use super::statements;

/// What must be locked before anything of a partition may be changed by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The log whose partitions these are.
    pub topic: String,
    /// Locked in this order; sorted.
    pub partitions: Vec<u32>,
}

impl Fence {
    pub fn of(topic: &str, partitions: impl IntoIterator<Item = u32>) -> Fence {
        let mut partitions: Vec<u32> = partitions.into_iter().collect();
        partitions.sort_unstable();
        partitions.dedup();
        Fence { topic: topic.to_owned(), partitions }
    }

    /// Statements for the beginning of a transaction: lock the partitions' positions, and every
    /// position of another log, which may bring records of the same targets. Three sets of rows;
    /// `Fence::positions` reads the second.
    pub fn statements(&self) -> [String; 3] {
        let others = |than: &str| {
            let mut out = format!("SELECT part FROM applied WHERE topic {than} ");
            text::bytes(&mut out, self.topic.as_bytes());
            out.push_str(" ORDER BY topic,part FOR UPDATE");
            out
        };
        [others("<"), statements::lock_positions(&self.topic, &self.partitions), others(">")]
    }
}

/// What a settlement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settled {
    /// Whether all positions were the expected ones; if not, nothing was done.
    pub fenced: bool,
    /// Edges whose target side differed.
    pub changed: u64,
}

/// What else is done in the transaction of a settlement, at its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extra<'a> {
    pub statements: &'a [String],
    /// For what must not be done twice, and until when it may be done.
    pub witness: Option<(Witness, CommitBy)>,
}

/// Settles these edges in one transaction, with what is `extra`. `expected` has positions that must
/// stand. Edges of kinds that the catalog does not know are left alone.
pub fn settle(
    session: &mut Session<'_>,
    fence: &Fence,
    expected: Option<&BTreeMap<u32, LogPosition>>,
    partitions: u32,
    edges: impl Iterator<Item = EdgeKey>,
    catalog: &Catalog,
    extra: Extra<'_>,
) -> Result<Settled, CommitFailure> {
    let keys = sorted(edges);
    let mut asked = vec!["BEGIN".to_owned()];
    asked.extend(fence.statements());
    asked.extend(statements::select_incoming(&keys));
    asked.extend(statements::select_outgoing(&keys));
    asked.extend(extra.witness.into_iter().flat_map(|(witness, _)| witness.raise()));
    let mut sets = session.run(&asked.join(";"))?;
    let raised = match extra.witness {
        Some((witness, by)) => Some((witness.raised(sets.pop().as_ref())?, by)),
        None => None,
    };
    let mut sets = sets.into_iter().skip(2);
    let found = positions(sets.next().unwrap_or_default())?;
    if expected.is_some_and(|expected| *expected != found) {
        session.run("ROLLBACK")?;
        return Ok(Settled::default());
    }
    let mut sets = sets.skip(1);
    let standing = take(&mut sets, &keys)?;
    let present: BTreeMap<IncomingKey, EdgeRow> = take(&mut sets, &keys)?
        .into_iter()
        .map(|(edge, row)| (IncomingKey::of(&edge), row))
        .collect();

    let mut fold = Fold::new(partitions, standing);
    let mut changed = 0;
    for key in &keys {
        let Some(kind) = catalog.kind(key.tenant, key.kind) else {
            continue;
        };
        let row = present.get(key);
        if fold.row(key) != row {
            fold.replace(kind, &key.edge(), row);
            changed += 1;
        }
    }
    let mut last = Vec::new();
    statements::write_fold(&mut last, &fold, |_| None);
    last.extend(extra.statements.iter().cloned());
    // A rebuild does so once, in its end.
    if expected.is_none() && (changed > 0 || !extra.statements.is_empty()) {
        last.push(epoch::RAISE.into());
    }
    match raised {
        Some((raised, by)) => {
            let text: String = last.iter().flat_map(|text| [text.as_str(), ";"]).collect();
            commit_in_doubt::commit(session, text, raised, by, || false).map_err(|failure| {
                match failure {
                    CommitFailure::Nothing(error) => CommitFailure::Nothing(raced(error)),
                    unknown => unknown,
                }
            })?;
        }
        None => {
            last.push("COMMIT".into());
            session.run(&last.join(";")).map_err(raced)?;
        }
    }
    Ok(Settled { fenced: true, changed })
}
