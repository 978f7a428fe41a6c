//! What became of a COMMIT. Any error of the round trip that has it says nothing: a server may have
//! done it and answer with a killed query, a timeout or not at all, and one did so more than a
//! second after its client had vanished.
//!
//! So whoever must not do a thing twice raises a **witness** first: a head of no tenant that belongs
//! to its writer alone. Its version is then the transaction's own. To change that head is to wait
//! for the transaction, which has it locked, and afterwards the version tells whether it happened.
//! The change is committed too: a transaction that lost its lock unseen, as TiDB's may, collides
//! with it and can never be committed behind the answer.
//!
//! In the same way everybody's writes can be waited for, also those whose COMMIT lasts: `await_all`.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use guanxi_model::footprint::NO_KIND;
use guanxi_model::hash::hash64;
use guanxi_model::{GroupsKey, HeadVersion, SourceId};
use parking_lot::Mutex;

use super::commit_deadline::{CommitBy, is_late};
use super::text::NOW_MS;
use super::{Database, RowSet, Session, SqlError};
use crate::rows::{HeadKey, NO_TENANT, cell};

/// How long the fate of a COMMIT is looked for before it counts as unknown: longer than a server that
/// ends idle transactions keeps their locks. MySQL and old TiDB do not, and keep them for a minute;
/// a caller is not left waiting so long.
const LOOK_MAX: Duration = Duration::from_secs(15);
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How long a witness surely stands after it was raised: the clean-up leaves those of the last day.
const STANDS_MS: u64 = 12 * 60 * 60 * 1_000;
/// Witnesses that are waited for in one round trip, one after the other.
const AWAITED_AT_ONCE: usize = 32;

/// Why a transaction left nothing, or may have left everything.
#[derive(Debug, Clone)]
pub enum CommitFailure {
    /// Nothing happened, and nothing will.
    Nothing(SqlError),
    /// Whether it was committed could not be found out.
    Unknown(SqlError),
}

impl CommitFailure {
    /// For whoever may do it again in either case.
    pub fn into_error(self) -> SqlError {
        let (CommitFailure::Nothing(error) | CommitFailure::Unknown(error)) = self;
        error
    }
}

impl From<SqlError> for CommitFailure {
    fn from(error: SqlError) -> CommitFailure {
        CommitFailure::Nothing(error)
    }
}

/// A head that one writer alone raises, transaction by transaction. The clean-up takes it away when
/// its writer is long gone.
#[derive(Debug, Clone, Copy)]
pub struct Witness {
    head: HeadKey,
}

impl Witness {
    /// Of one of the lanes in which an instance writes.
    pub fn of_lane(instance: u64, lane: u8) -> Witness {
        let mut name = instance.to_be_bytes().to_vec();
        name.push(lane);
        Witness::named(hash64(&name))
    }

    /// For a piece of work that nobody else does.
    pub fn drawn() -> Witness {
        Witness::named(fastrand::u64(..))
    }

    fn named(name: u64) -> Witness {
        Witness { head: GroupsKey { tenant: NO_TENANT, kind: NO_KIND, source: SourceId(name) } }
    }

    pub fn head(self) -> HeadKey {
        self.head
    }

    /// Two statements for the beginning of a transaction; `raised` reads the second one's row.
    pub fn raise(self) -> [String; 2] {
        let HeadKey { tenant, kind, source } = self.head;
        let raise = format!(
            "INSERT INTO head (tenant,kind,source,version) \
             VALUES ({},{},{},{NOW_MS}*{}) \
             ON DUPLICATE KEY UPDATE version=GREATEST(version+1,VALUES(version))",
            tenant.0,
            kind.0,
            source.0,
            HeadVersion::OF_A_MILLISECOND
        );
        [raise, self.select()]
    }

    /// Sees to it that the head stands before a transaction that commits by then raises it: one that
    /// it makes itself would be seen by nobody who waits for it. In a short transaction of its own,
    /// which `first` begins; doing so twice is harmless.
    pub fn make_sure(
        self,
        session: &mut Session<'_>,
        by: CommitBy,
        first: &str,
    ) -> Result<(), SqlError> {
        if session.database().standing.surely(self, by) {
            return Ok(());
        }
        let [raise, _] = self.raise();
        session.run(&format!("BEGIN;{first}{raise};COMMIT"))?;
        session.database().standing.found(self, by);
        Ok(())
    }

    pub fn raised(self, answer: Option<&RowSet>) -> Result<Raised, SqlError> {
        let row = answer.and_then(|set| set.rows.first());
        let row = row.ok_or_else(|| SqlError::Refused("a transaction has no witness".into()))?;
        Ok(self.with(HeadVersion(cell(row, 0)?)))
    }

    /// Raised to this version by the transaction that goes on.
    pub fn with(self, version: HeadVersion) -> Raised {
        Raised { witness: self, version }
    }

    fn select(self) -> String {
        let HeadKey { tenant, kind, source } = self.head;
        let (tenant, kind, source) = (tenant.0, kind.0, source.0);
        format!(
            "SELECT version FROM head WHERE tenant={tenant} AND kind={kind} AND source={source}"
        )
    }

    /// Waits for the transaction that holds it, changes it in a column that says nothing, and reads
    /// the version. It may be sent again and again.
    fn look(self) -> String {
        let HeadKey { tenant, kind, source } = self.head;
        let mut out = String::from("BEGIN;INSERT INTO head (tenant,kind,source,version) VALUES ");
        let _ = write!(out, "({},{},{},0)", tenant.0, kind.0, source.0);
        let _ = write!(
            out,
            " ON DUPLICATE KEY UPDATE next_group=next_group+1;{};COMMIT",
            self.select()
        );
        out
    }
}

/// Which witnesses surely stand, and until when, by the database's clock.
#[derive(Debug, Default)]
pub struct StandingWitnesses(Mutex<HashMap<HeadKey, u64>>);

impl StandingWitnesses {
    fn surely(&self, witness: Witness, by: CommitBy) -> bool {
        self.0.lock().get(&witness.head).is_some_and(|until_ms| by.at_ms() <= *until_ms)
    }

    /// It was raised by who had to commit by then, and so not long before.
    fn found(&self, witness: Witness, by: CommitBy) {
        self.0.lock().insert(witness.head, by.at_ms() + STANDS_MS);
    }

    /// The same, for one that was made sure once; others are of no interest.
    fn raised(&self, witness: Witness, by: CommitBy) {
        if let Some(until_ms) = self.0.lock().get_mut(&witness.head) {
            *until_ms = by.at_ms() + STANDS_MS;
        }
    }
}

/// A witness with the version that a transaction gave it.
#[derive(Debug, Clone, Copy)]
pub struct Raised {
    witness: Witness,
    version: HeadVersion,
}

/// Sends the last statements of a transaction, each with its `;`, and COMMIT; after `by` it leaves
/// nothing. `given_up` ends the search for the fate of a COMMIT early.
pub fn commit(
    session: &mut Session<'_>,
    mut text: String,
    raised: Raised,
    by: CommitBy,
    given_up: impl Fn() -> bool,
) -> Result<(), CommitFailure> {
    text.push_str(&by.commit());
    let Err(error) = session.run(&text) else {
        session.database().standing.raised(raised.witness, by);
        return Ok(());
    };
    let error = match is_late(&error) {
        true => SqlError::Late(error.to_string()),
        false => error,
    };
    match find_out(session.database(), raised, &given_up) {
        Some(true) => Ok(()),
        Some(false) => Err(CommitFailure::Nothing(error)),
        None => Err(CommitFailure::Unknown(error)),
    }
}

/// Waits until every transaction has ended that holds a witness now, of whatever writer, and holds
/// none across another. When one does not end, or its fate cannot be known now, that is an error,
/// and nothing is known.
pub fn await_all(session: &mut Session<'_>) -> Result<(), SqlError> {
    let (tenant, kind) = (NO_TENANT.0, NO_KIND.0);
    let mut next = Some(0_u64);
    while let Some(from) = next {
        let rows = session.rows(&format!(
            "SELECT source FROM head FORCE INDEX (PRIMARY) WHERE tenant={tenant} AND kind={kind} \
             AND source>={from} ORDER BY tenant,kind,source LIMIT {AWAITED_AT_ONCE}"
        ))?;
        let names = rows.iter().map(|row| cell(row, 0)).collect::<Result<Vec<u64>, _>>()?;
        let looks: Vec<String> = names.iter().map(|name| Witness::named(*name).look()).collect();
        if !looks.is_empty() {
            session.run(&looks.join(";"))?;
        }
        let full = names.len() == AWAITED_AT_ONCE;
        next = names.last().filter(|_| full).and_then(|last| last.checked_add(1));
    }
    Ok(())
}

/// Whether the transaction was committed.
fn find_out(database: &Database, raised: Raised, given_up: &dyn Fn() -> bool) -> Option<bool> {
    let until = Instant::now() + LOOK_MAX;
    let statements = raised.witness.look();
    loop {
        let looked = database.session(until).and_then(|mut session| {
            let sets = session.run(&statements)?;
            raised.witness.raised(sets.get(2))
        });
        match looked {
            Ok(found) => return Some(found.version == raised.version),
            Err(error) if Instant::now() >= until || given_up() => {
                tracing::error!(%error, "whether a transaction was committed cannot be found out");
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "looking whether a transaction was committed");
                std::thread::sleep(LOOK_PAUSE);
            }
        }
    }
}
