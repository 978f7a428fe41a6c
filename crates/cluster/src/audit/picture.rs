//! One picture of the database: several reads that all see the same moment. The transaction reads
//! only and holds no lock; it is kept short, because servers keep old rows for as long as it lasts.

use std::time::{Duration, Instant};

use guanxi_model::{EdgeKey, EdgeRow};
use mysql::Row;

use crate::rows::{self, INCOMING_COLUMNS};
use crate::sql::{Database, Session, SqlError, text};

/// How long a picture waits for a connection.
const WAIT: Duration = Duration::from_secs(10);
/// Sessions are READ COMMITTED; this one transaction is not.
const BEGIN: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;\
                     START TRANSACTION WITH CONSISTENT SNAPSHOT";

pub struct Picture<'a> {
    session: Session<'a>,
    begun: Instant,
    ended: bool,
}

impl<'a> Picture<'a> {
    /// It may rest: whoever goes slowly pauses within it.
    pub fn begin(database: &'a Database) -> Result<Picture<'a>, SqlError> {
        let mut session = database.session(Instant::now() + WAIT)?;
        session.run(&format!("{}{BEGIN}", database.idle_limit_off()))?;
        Ok(Picture { session, begun: Instant::now(), ended: false })
    }

    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    pub fn rows(&mut self, statement: &str) -> Result<Vec<Row>, SqlError> {
        self.session.rows(statement)
    }

    /// The incoming rows of these edges.
    pub fn incoming(&mut self, edges: &[EdgeKey]) -> Result<Vec<(EdgeKey, EdgeRow)>, SqlError> {
        let mut found = Vec::with_capacity(edges.len());
        for edges in edges.chunks(text::TUPLES_MAX) {
            let statement = select_incoming(edges);
            for row in self.rows(&statement)? {
                found.push(rows::incoming(&row)?);
            }
        }
        Ok(found)
    }

    /// The outgoing rows of these edges.
    pub fn outgoing(&mut self, edges: &[EdgeKey]) -> Result<Vec<(EdgeKey, EdgeRow)>, SqlError> {
        let mut found = Vec::with_capacity(edges.len());
        for edges in edges.chunks(text::TUPLES_MAX) {
            for row in self.rows(&rows::select_outgoing(edges))? {
                found.push(rows::outgoing(&row)?);
            }
        }
        Ok(found)
    }

    pub fn end(mut self) -> Result<(), SqlError> {
        let commit = format!("COMMIT{}", self.session.database().idle_limit_on());
        self.session.run(&commit)?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Picture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.session.close();
        }
    }
}

pub fn select_incoming(edges: &[EdgeKey]) -> String {
    let mut out = format!(
        "SELECT {INCOMING_COLUMNS} FROM incoming FORCE INDEX (PRIMARY) \
         WHERE (tenant,kind,target,source) IN ("
    );
    text::list(&mut out, edges, |out, edge| {
        let EdgeKey { tenant, kind, source, target } = edge;
        text::number(out, format_args!("({},{},{},{})", tenant.0, kind.0, target.0, source.0));
    });
    out.push(')');
    out
}
