//! The catalog of a cluster: kinds and node types stand in the database, each instance holds a
//! copy. A revision in `facts` says when a copy is old; a thread looks every second, so that every
//! instance has a change well within five.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::Next;
use guanxi_model::codec::decode_kind;
use guanxi_model::{Catalog, KindName, NodeTypeId, TenantId};
use mysql::Row;
use parking_lot::RwLock;

use super::rows::cell;
use super::sql::{Database, Session, SqlError};

/// How often the revision is looked at.
const POLL: Duration = Duration::from_secs(1);
/// How long a look may wait for a connection.
const WAIT: Duration = Duration::from_secs(3);

/// What `facts` calls the revision.
pub(crate) const REVISION: &str = "catalog";

/// What `facts` calls that heads do not tell of every edge that may exclude.
pub const UNMARKED: &str = "unmarked";

/// Reads kinds and node types as they stand, the revision they belong to before them, and what
/// heads do not tell of them after them.
pub(crate) const SELECT_CATALOG: &str = "SELECT value FROM facts WHERE name='catalog';\
     SELECT tenant,id,name FROM node_types;SELECT tenant,id,definition FROM kinds;\
     SELECT value FROM facts WHERE name='unmarked'";

#[derive(Debug)]
pub struct SharedCatalog {
    held: RwLock<CatalogCopy>,
}

#[derive(Debug, Default)]
struct CatalogCopy {
    catalog: Arc<Catalog>,
    revision: u64,
    unmarked: bool,
}

/// What a transaction decides by.
#[derive(Debug, Clone)]
pub(crate) struct DecidedBy {
    pub catalog: Arc<Catalog>,
    pub revision: u64,
    /// Whether a head tells of every edge that may exclude one of its source's.
    pub exclusions_marked: bool,
}

/// The catalog as it stood in the database.
#[derive(Debug)]
pub(crate) struct ReadCatalog {
    pub catalog: Catalog,
    pub revision: u64,
    /// Whether an edge that excludes may stand of which the heads do not tell.
    pub unmarked: bool,
}

impl SharedCatalog {
    /// Reads the catalog as it stands; an empty one before anybody has created a kind.
    pub fn open(database: &Database) -> Result<Arc<SharedCatalog>, SqlError> {
        let shared = SharedCatalog { held: RwLock::default() };
        shared.refresh(database)?;
        Ok(Arc::new(shared))
    }

    pub fn current(&self) -> Arc<Catalog> {
        self.held.read().catalog.clone()
    }

    /// The catalog with its revision, and whether a head tells of every edge that may exclude one
    /// of its source's: all of one moment.
    pub(crate) fn to_decide_by(&self) -> DecidedBy {
        let held = self.held.read();
        let (catalog, revision) = (held.catalog.clone(), held.revision);
        DecidedBy { catalog, revision, exclusions_marked: !held.unmarked }
    }

    /// Grows with every change of the catalog.
    pub fn revision(&self) -> u64 {
        self.held.read().revision
    }

    /// Brings the copy up to what the database has.
    pub fn refresh(&self, database: &Database) -> Result<(), SqlError> {
        self.refresh_in(&mut database.session(Instant::now() + WAIT)?)
    }

    /// The same, for whoever has a connection.
    pub(crate) fn refresh_in(&self, session: &mut Session<'_>) -> Result<(), SqlError> {
        self.take(read_settled(session)?);
        Ok(())
    }

    /// Takes a newer copy; an older one, which came late, is left.
    pub(crate) fn take(&self, read: ReadCatalog) {
        let ReadCatalog { catalog, revision, unmarked } = read;
        let mut held = self.held.write();
        if revision >= held.revision {
            *held = CatalogCopy { catalog: Arc::new(catalog), revision, unmarked };
        }
    }

    /// The same, if the database has another one; for whoever has a connection, and for whoever
    /// meets a kind that this copy does not know: it may be new. A look that somebody else has begun
    /// says nothing of it, as it may have read the catalog before the kind was there.
    pub(crate) fn refresh_if_old(&self, session: &mut Session<'_>) -> Result<(), SqlError> {
        let rows = session.rows("SELECT value FROM facts WHERE name='catalog'")?;
        if rows.first().map_or(Ok(0), |row| cell::<u64>(row, 0))? == self.revision() {
            return Ok(());
        }
        self.refresh_in(session)
    }

    /// The same, for whoever has none.
    pub(crate) fn look(&self, database: &Database) -> Result<(), SqlError> {
        self.refresh_if_old(&mut database.session(Instant::now() + WAIT)?)
    }
}

/// The statements see one another's commits, so the revision is read before the rows: at worst it
/// is too low, and the next look reads them again.
fn read_settled(session: &mut Session<'_>) -> Result<ReadCatalog, SqlError> {
    parse(&mut session.run(SELECT_CATALOG)?.into_iter().map(|set| set.rows))
}

/// Takes the sets of `SELECT_CATALOG`.
pub(crate) fn parse(sets: &mut impl Iterator<Item = Vec<Row>>) -> Result<ReadCatalog, SqlError> {
    let fact = |rows: Vec<Row>| rows.first().map_or(Ok(0), |row| cell::<u64>(row, 0));
    let revision = fact(sets.next().unwrap_or_default())?;
    let mut catalog = Catalog::default();
    for row in sets.next().unwrap_or_default() {
        let name: Vec<u8> = cell(&row, 2)?;
        let name = String::from_utf8(name).ok().and_then(|name| KindName::new(&name).ok());
        let name = name.ok_or_else(|| damaged("a node type has no proper name"))?;
        catalog.set_type(TenantId(cell(&row, 0)?), NodeTypeId(cell(&row, 1)?), name);
    }
    for row in sets.next().unwrap_or_default() {
        let definition: Vec<u8> = cell(&row, 2)?;
        let kind = decode_kind(&definition).map_err(|_| damaged("a kind cannot be read"))?;
        catalog.set_kind(TenantId(cell(&row, 0)?), kind);
    }
    let unmarked = fact(sets.next().unwrap_or_default())? != 0;
    Ok(ReadCatalog { catalog, revision, unmarked })
}

fn damaged(what: &str) -> SqlError {
    SqlError::Refused(format!("{what}: a newer release may have written it"))
}

/// Keeps a shared catalog fresh.
pub fn watch_catalog(
    crew: &Crew,
    catalog: Arc<SharedCatalog>,
    database: Arc<Database>,
) -> io::Result<Workers> {
    let trouble = "the catalog could not be looked at";
    crew.repeat("guanxi-catalog", trouble, Backoff::default(), move |_| {
        catalog.look(&database)?;
        Ok::<_, SqlError>(Next::After(POLL))
    })
}
