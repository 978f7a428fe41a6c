//! The cluster's audit: outgoing rows, the truth, are held against heads, groups, the expiry
//! index, incoming rows and tallies; what differs is reported and, on demand, mended. Its reports
//! are of the embedded audit's types, so that callers see both alike.
//!
//! There is one audit at a time in the whole cluster, by a lease. The position of a report is the
//! sum of the positions that the appliers have reached in all partitions of all logs: it grows
//! with them and tells two reports apart, but is no place to read from.

mod confirm;
mod expiries;
mod look;
mod mend;
mod picture;
mod sources;
mod stretch;
mod targets;
mod turn;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::audit::board::Board;
use guanxi_core::audit::{
    AuditError, AuditQuery, AuditReport, AuditRun, AuditSettings, AuditState, AuditVerdict,
    AuditWatch, Findings,
};
use guanxi_core::clock::Clock;
use guanxi_core::signal::Signal;
use guanxi_model::{Error, Millis, Position};

use self::look::SqlLook;
use self::turn::MendTurn;
use super::catalog::SharedCatalog;
use super::leases::{Leases, Share};
use super::rows::cell;
use super::sql::{Database, SqlError};

/// The lease under which an audit runs.
const LEASE: &str = "audit";
/// How long an audit waits for its lease: an instance that crashed holds it for some seconds.
const LEASE_WAIT: Duration = Duration::from_secs(10);
const LEASE_LOOK: Duration = Duration::from_millis(50);
/// As in the embedded audit: more rounds would only say that something makes drift faster than it
/// is mended.
const REPAIR_ROUNDS_MAX: usize = 3;
const WAIT: Duration = Duration::from_secs(10);
/// What `facts` calls the scrubber's last verdict.
const DRIFT: &str = "drift";
const DRIFT_AT: &str = "drift_at";
const DRIFT_POSITION: &str = "drift_position";

impl From<SqlError> for AuditError {
    fn from(error: SqlError) -> AuditError {
        AuditError::Database(Box::new(error))
    }
}

pub struct SqlAuditorParts {
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub leases: Arc<Leases>,
    pub clock: Arc<dyn Clock>,
    pub settings: AuditSettings,
    /// The cluster's own topic, also where a changefeed's is applied, and its partitions.
    pub topic: String,
    pub partitions: u32,
}

impl std::fmt::Debug for SqlAuditorParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlAuditorParts").field("topic", &self.topic).finish_non_exhaustive()
    }
}

pub struct SqlAuditor {
    parts: Arc<AuditParts>,
    leases: Arc<Leases>,
    board: Arc<Board>,
    signal: Signal,
    scrub_rows_per_second: u64,
}

/// What a look needs.
pub(super) struct AuditParts {
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    topic: String,
    partitions: u32,
}

impl std::fmt::Debug for SqlAuditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlAuditor").field("topic", &self.parts.topic).finish_non_exhaustive()
    }
}

impl SqlAuditor {
    pub fn new(parts: SqlAuditorParts) -> SqlAuditor {
        let SqlAuditorParts { database, catalog, leases, clock, settings, topic, partitions } =
            parts;
        SqlAuditor {
            parts: Arc::new(AuditParts { database, catalog, topic, partitions }),
            leases,
            board: Arc::new(Board::new(clock, settings)),
            signal: Signal::default(),
            scrub_rows_per_second: settings.scrub_rows_per_second,
        }
    }

    /// Begins an audit and returns its number. There is one at a time; one that runs in another
    /// instance is only noticed by the thread, whose result then says so.
    pub fn begin(&self, query: AuditQuery) -> Result<u64, Error> {
        let (parts, leases) = (self.parts.clone(), self.leases.clone());
        self.board.begin(query, AuditWatch::new(self.signal.clone()), move |watch| {
            let share = leases.share(LEASE, vec!["run".into()]);
            hold(&share, watch)?;
            run(&parts, MendTurn::take(&parts.database)?, watch, query)
        })
    }

    /// The audit of this number, when it has ended.
    pub async fn ended(&self, number: u64) -> Option<AuditRun> {
        self.board.ended(number).await
    }

    pub fn state(&self) -> AuditState {
        self.board.state()
    }

    pub fn verdict(&self) -> Option<AuditVerdict> {
        self.board.verdict()
    }

    /// A slow look at everything, for the scrubber. None when the service stops meanwhile.
    pub(super) fn scrub(&self, watch: &AuditWatch) -> Result<Option<AuditVerdict>, SqlError> {
        self.board.scrubbed(|scrubbing| scrubbing.rows = 0);
        let look = SqlLook::new(&self.parts, watch, Some(self.scrub_rows_per_second)).take(None);
        self.board.scrubbed(|scrubbing| scrubbing.rows = watch.rows_read());
        let look = match look {
            Ok(look) => look,
            Err(AuditError::Database(cause)) => {
                return Err(cause.downcast().map_or_else(
                    |other| SqlError::Away(other.to_string()),
                    |error: Box<SqlError>| *error,
                ));
            }
            Err(AuditError::Stopped) => return Ok(None),
            Err(other) => return Err(SqlError::Away(other.to_string())),
        };
        let position = position(&self.parts)?;
        let verdict = AuditVerdict { drift: look.findings.drift(), position, at: self.board.now() };
        self.board.publish(verdict);
        self.board.scrubbed(|scrubbing| scrubbing.passes += 1);
        self.tell(verdict)?;
        Ok(Some(verdict))
    }

    /// Leaves the verdict where other instances find it.
    fn tell(&self, verdict: AuditVerdict) -> Result<(), SqlError> {
        let AuditVerdict { drift, position, at } = verdict;
        let mut session = self.parts.database.session(Instant::now() + WAIT)?;
        session.run(&format!(
            "BEGIN;INSERT INTO facts (name,value) VALUES ('{DRIFT}',{drift}),('{DRIFT_AT}',{}),\
             ('{DRIFT_POSITION}',{}) ON DUPLICATE KEY UPDATE value=VALUES(value);COMMIT",
            at.0, position.0
        ))?;
        Ok(())
    }

    /// Takes over what another instance's scrubber has found, when it is newer.
    pub(super) fn hear(&self) -> Result<(), SqlError> {
        let mut session = self.parts.database.session(Instant::now() + WAIT)?;
        let rows = session.rows(&format!(
            "SELECT name,value FROM facts WHERE name IN ('{DRIFT}','{DRIFT_AT}','{DRIFT_POSITION}')"
        ))?;
        let mut facts: HashMap<Vec<u8>, u64> = HashMap::new();
        for row in &rows {
            facts.insert(cell(row, 0)?, cell(row, 1)?);
        }
        let fact = |name: &str| facts.get(name.as_bytes()).copied();
        if let (Some(drift), Some(at), Some(position)) =
            (fact(DRIFT), fact(DRIFT_AT), fact(DRIFT_POSITION))
        {
            let (position, at) = (Position(position), Millis(at));
            if self.verdict().is_none_or(|known| known.at < at) {
                self.board.publish(AuditVerdict { drift, position, at });
            }
        }
        Ok(())
    }

    pub(super) fn scrubs(&self) -> bool {
        self.scrub_rows_per_second > 0
    }

    /// Ends an audit that runs, and waits for it.
    pub fn close(&self) {
        self.signal.stop();
        self.board.join();
    }
}

/// One look, for whoever has the tables for himself or repairs nothing: it takes no lease.
pub fn look_at(
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    topic: String,
    partitions: u32,
    watch: &AuditWatch,
) -> Result<Findings, AuditError> {
    let parts = AuditParts { database, catalog, topic, partitions };
    Ok(SqlLook::new(&parts, watch, None).take(None)?.findings)
}

/// Waits for the lease of the one audit.
fn hold(share: &Share, watch: &AuditWatch) -> Result<(), AuditError> {
    let until = Instant::now() + LEASE_WAIT;
    while share.lease(0).is_none() {
        if Instant::now() >= until {
            return Err(AuditError::Elsewhere);
        }
        if watch.wait(LEASE_LOOK) {
            return Err(AuditError::Stopped);
        }
    }
    Ok(())
}

fn run(
    parts: &AuditParts,
    turn: MendTurn,
    watch: &AuditWatch,
    query: AuditQuery,
) -> Result<AuditReport, AuditError> {
    let mut last = SqlLook::new(parts, watch, None).take(query.kind)?;
    let findings = last.findings.clone();
    let mut repaired = 0;
    if query.repair {
        for _ in 0..REPAIR_ROUNDS_MAX {
            if last.findings.mendable() == 0 {
                break;
            }
            mend::mend(parts, turn, &last.catalog, watch, std::mem::take(&mut last.mends))?;
            last = SqlLook::new(parts, watch, None).take(query.kind)?;
        }
        repaired = findings.gone_in(&last.findings);
    }
    let left = last.findings.drift();
    Ok(AuditReport { position: position(parts)?, findings, repaired, left })
}

/// How far the appliers are, over all partitions.
fn position(parts: &AuditParts) -> Result<Position, SqlError> {
    let mut session = parts.database.session(Instant::now() + WAIT)?;
    let rows = session.rows("SELECT CAST(COALESCE(SUM(next),0) AS UNSIGNED) FROM applied")?;
    Ok(Position(rows.first().map_or(Ok(0), |row| cell(row, 0))?))
}
