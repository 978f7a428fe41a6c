//! The tables as a `Store`: rows that a log implies, written a batch at a time with their place in
//! that log. It is what moving a data directory into a cluster loads with, and what holds the
//! cluster's reads to the suite that every store passes; a serving cluster writes by `commit` and
//! its appliers instead.
//!
//! There is one writer. A batch is one transaction that first locks the place, so a second writer
//! is refused. A removed edge leaves no row here: nothing comes late to a table that only this
//! writes.

pub(super) mod script;

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::catalog::UNMARKED;
use guanxi_cluster::commit::excludes_more;
use guanxi_cluster::rows::{Row, cell};
use guanxi_cluster::snapshot::{Scans, SqlSnapshot, unreadable};
use guanxi_cluster::sql::{Database, Dialect, Session, SqlError};
use guanxi_core::snapshot::{Snapshot, StoreError};
use guanxi_embedded::overlay::Dirty;
use guanxi_embedded::store::{Applied, Store};
use guanxi_model::codec::decode_kind;
use guanxi_model::{Catalog, Epoch, KindName, Millis, NodeTypeId, Position, TenantId, Version};
use parking_lot::{Mutex, RwLock};

use self::script::LoadScript;
pub use self::script::OwnedSlots;

/// How long a read or a write may wait for a connection, and a snapshot may be read.
const SNAPSHOT_TIME: Duration = Duration::from_secs(3_600);
const WRITE_WAIT: Duration = Duration::from_secs(30);

const SELECT_PLACE: &str = "SELECT name,value FROM facts WHERE name IN \
     ('store.epoch','store.position','store.commit','store.version')";
const SELECT_CATALOG: &str =
    "SELECT tenant,id,name FROM node_types;SELECT tenant,id,definition FROM kinds";

#[derive(Debug)]
pub struct SqlStore {
    database: Arc<Database>,
    owned: OwnedSlots,
    standing: RwLock<SqlStorePoint>,
    writing: Mutex<()>,
}

#[derive(Debug, Clone)]
struct SqlStorePoint {
    applied: Applied,
    catalog: Arc<Catalog>,
}

impl SqlStore {
    /// Takes up tables that `schema::migrate` has made, where the last batch left them.
    pub fn open(database: &Arc<Database>) -> Result<SqlStore, StoreError> {
        SqlStore::open_with(database, OwnedSlots::One)
    }

    /// The same with owned numbers in these slots, of which all must be.
    pub fn open_with(database: &Arc<Database>, owned: OwnedSlots) -> Result<SqlStore, StoreError> {
        let read = || {
            let mut session = database.session(Instant::now() + WRITE_WAIT)?;
            Ok(SqlStorePoint {
                applied: read_place(&mut session)?,
                catalog: read_catalog(&mut session)?,
            })
        };
        let standing = RwLock::new(read().map_err(unreadable)?);
        Ok(SqlStore { database: database.clone(), owned, standing, writing: Mutex::new(()) })
    }

    fn standing(&self) -> SqlStorePoint {
        self.standing.read().clone()
    }

    fn transact(&self, script: &LoadScript, before: Applied) -> Result<(), SqlError> {
        let mut session = self.database.session(Instant::now() + WRITE_WAIT)?;
        let locked = session.run(&format!("BEGIN;{SELECT_PLACE} FOR UPDATE"))?;
        let found = place(locked.last().map(|set| set.rows.as_slice()).unwrap_or_default())?;
        if found != before {
            session.close();
            return Err(SqlError::Refused(format!(
                "the tables are at position {} and not at {}: someone else writes them too",
                found.position.0, before.position.0
            )));
        }
        for part in script.parts() {
            session.run(&part)?;
        }
        session.run("COMMIT").map(|_| ())
    }
}

impl Store for SqlStore {
    fn snapshot(&self) -> Box<dyn Snapshot> {
        // Under the lock: catalog and rows are of one batch.
        let _writing = self.writing.lock();
        let standing = self.standing();
        // Whoever asks a store wants exactness, and no page of it is on a user's way.
        let scans = match self.database.dialect() {
            Dialect::TiDb => Scans::Forward,
            Dialect::MariaDb | Dialect::MySql => Scans::Backward,
        };
        let deadline = Instant::now() + SNAPSHOT_TIME;
        let snapshot = SqlSnapshot::begin(&self.database, standing.catalog, deadline);
        let snapshot = snapshot.with_scans(scans);
        // A failure is kept in it and is what its reads answer.
        let _ = snapshot.open();
        Box::new(snapshot)
    }

    fn write(&self, dirty: &Dirty, applied: Applied) -> Result<(), StoreError> {
        let _writing = self.writing.lock();
        let SqlStorePoint { applied: before, catalog } = self.standing();
        let after = dirty.catalog.clone().unwrap_or_else(|| catalog.clone());
        let mut script = LoadScript::over(self.owned);
        script.edges(&dirty.edges, &after, applied.version);
        script.nodes(&dirty.nodes, &after, applied.version);
        script.groups(&dirty.groups, applied.version);
        script.answers(&dirty.idempotency, applied.commit);
        script.imports(&dirty.imports);
        script.jobs(&dirty.jobs);
        if dirty.catalog.is_some() {
            script.catalog(&catalog, &after);
            if excludes_more(&catalog, &after) {
                script.push(format!("REPLACE INTO facts (name,value) VALUES ('{UNMARKED}',1)"));
            }
        }
        // `indexed` and `repaired` say nothing here: an index is the database's own, there from
        // the beginning and never apart from its rows.
        script.place(applied);
        self.transact(&script, before).map_err(unreadable)?;
        let mut standing = self.standing.write();
        *standing = SqlStorePoint { applied, catalog: after };
        Ok(())
    }

    fn applied(&self) -> Applied {
        self.standing().applied
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.standing().catalog
    }

    /// A committed batch is durable.
    fn persist(&self) -> Result<Position, StoreError> {
        Ok(self.standing().applied.position)
    }

    /// As the server estimates it; 0 when it does not say.
    fn bytes(&self) -> u64 {
        let asked = || {
            let mut session = self.database.session(Instant::now() + WRITE_WAIT)?;
            let rows = session.rows(
                "SELECT CAST(COALESCE(SUM(data_length+index_length),0) AS UNSIGNED) \
                 FROM information_schema.tables WHERE table_schema=DATABASE()",
            )?;
            rows.first().map_or(Ok(0), |row| cell(row, 0))
        };
        asked().unwrap_or_else(|error: SqlError| {
            tracing::warn!(%error, "the tables' size could not be read");
            0
        })
    }
}

fn read_place(session: &mut Session<'_>) -> Result<Applied, SqlError> {
    place(&session.rows(SELECT_PLACE)?)
}

fn place(rows: &[Row]) -> Result<Applied, SqlError> {
    let mut applied = Applied::NOTHING;
    for row in rows {
        let value: u64 = cell(row, 1)?;
        match cell::<Vec<u8>>(row, 0)?.as_slice() {
            b"store.epoch" => applied.epoch = Epoch(cell(row, 1)?),
            b"store.position" => applied.position = Position(value),
            b"store.commit" => applied.commit = Millis(value),
            b"store.version" => applied.version = Version(value),
            _ => {}
        }
    }
    Ok(applied)
}

fn read_catalog(session: &mut Session<'_>) -> Result<Arc<Catalog>, SqlError> {
    let mut catalog = Catalog::default();
    let damaged = |what: &str| SqlError::Refused(format!("{what} cannot be read"));
    for (index, set) in session.run(SELECT_CATALOG)?.iter().enumerate() {
        for row in &set.rows {
            let tenant = TenantId(cell(row, 0)?);
            let bytes: Vec<u8> = cell(row, 2)?;
            if index == 0 {
                let name = String::from_utf8(bytes).ok().and_then(|name| KindName::new(&name).ok());
                let name = name.ok_or_else(|| damaged("the name of a node type"))?;
                catalog.set_type(tenant, NodeTypeId(cell(row, 1)?), name);
            } else {
                let kind = decode_kind(&bytes).map_err(|_| damaged("a kind"))?;
                catalog.set_kind(tenant, kind);
            }
        }
    }
    Ok(Arc::new(catalog))
}
