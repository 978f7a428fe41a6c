//! Reading one side of a kind's edges in stretches: whole nodes, each stretch in a picture of its
//! own, so that the rows and what they are compared with are of one moment.

use guanxi_core::audit::AuditError;
use guanxi_model::{EdgeKey, EdgeRow, Kind, TenantId};
use mysql::Row;

use super::look::{PAGE_ROWS, STRETCH_ROWS, SqlLook, Suspect};
use super::picture::Picture;
use crate::rows::{self, INCOMING_COLUMNS, OUTGOING_COLUMNS, cell};
use crate::sql::SqlError;

/// A table of edges, in the order of the nodes at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EdgeSide {
    Source,
    Target,
}

impl SqlLook<'_> {
    /// Goes from stretch to stretch. Each is told after which node it begins, and returns the last
    /// node that it has compared; the greatest says that there are no more.
    pub(super) fn stretches(
        &mut self,
        mut one: impl FnMut(
            &mut Self,
            &mut Picture<'_>,
            u64,
            &mut Vec<Suspect>,
        ) -> Result<u64, AuditError>,
    ) -> Result<(), AuditError> {
        let parts = self.parts;
        let mut after = 0;
        loop {
            let mut picture = Picture::begin(&parts.database)?;
            let mut suspects = Vec::new();
            let until = one(self, &mut picture, after, &mut suspects)?;
            picture.end()?;
            self.suspect(suspects)?;
            if until == u64::MAX || self.is_full() {
                return Ok(());
            }
            after = until;
        }
    }

    /// Reads a stretch of whole nodes, page by page. Returns the last node of which it has all.
    pub(super) fn read_stretch(
        &mut self,
        picture: &mut Picture<'_>,
        side: EdgeSide,
        (tenant, kind): (TenantId, &Kind),
        after: u64,
        mut take: impl FnMut(
            &mut Self,
            &mut Picture<'_>,
            &[(EdgeKey, EdgeRow)],
        ) -> Result<(), AuditError>,
    ) -> Result<u64, AuditError> {
        let mut read = 0;
        let mut place = (after, u64::MAX);
        loop {
            let statement = side.page(side.columns(), tenant, kind, place, PAGE_ROWS);
            let found = picture.rows(&statement)?;
            let full = found.len() == PAGE_ROWS;
            self.pace(found.len())?;
            read += found.len();
            if let Some(last) = found.last() {
                place = side.place(last)?;
            }
            let mut page = self.readable(found, tenant, kind, |row| side.edge(row));
            let mut until = None;
            if !full {
                until = Some(u64::MAX);
            } else if read >= STRETCH_ROWS {
                // The last node goes on in the next page: it is left to the next stretch, once
                // there is another one to end with.
                let cut = page.partition_point(|(edge, _)| side.node(edge) < place.0);
                if cut > 0 {
                    page.truncate(cut);
                    until = page.last().map(|(edge, _)| side.node(edge));
                }
            }
            take(self, picture, &page)?;
            if let Some(until) = until {
                return Ok(until);
            }
        }
    }

    /// Rows that can be read; the others are noted.
    fn readable<T>(
        &mut self,
        found: Vec<Row>,
        tenant: TenantId,
        kind: &Kind,
        read: impl Fn(&Row) -> Result<T, SqlError>,
    ) -> Vec<T> {
        let mut page = Vec::with_capacity(found.len());
        for row in found {
            match read(&row) {
                Ok(row) => page.push(row),
                Err(error) => {
                    let text = format!("a row of {} cannot be read: {error}", kind.name);
                    self.findings.unreadable(Some((tenant, kind.id)), &text);
                }
            }
        }
        page
    }
}

impl EdgeSide {
    /// A page of the table after a place: a node, and the node at the other end of its edge.
    pub(super) fn page(
        self,
        columns: &str,
        tenant: TenantId,
        kind: &Kind,
        (node_after, other_after): (u64, u64),
        rows: usize,
    ) -> String {
        let (table, node, other) = match self {
            EdgeSide::Source => ("outgoing", "source", "target"),
            EdgeSide::Target => ("incoming", "target", "source"),
        };
        format!(
            "SELECT {columns} FROM {table} FORCE INDEX (PRIMARY) WHERE tenant={} AND kind={} AND \
             ({node}>{node_after} OR ({node}={node_after} AND {other}>{other_after})) \
             ORDER BY tenant,kind,{node},{other} LIMIT {rows}",
            tenant.0, kind.id.0
        )
    }

    fn columns(self) -> &'static str {
        match self {
            EdgeSide::Source => OUTGOING_COLUMNS,
            EdgeSide::Target => INCOMING_COLUMNS,
        }
    }

    fn edge(self, row: &Row) -> Result<(EdgeKey, EdgeRow), SqlError> {
        match self {
            EdgeSide::Source => rows::outgoing(row),
            EdgeSide::Target => rows::incoming(row),
        }
    }

    fn node(self, edge: &EdgeKey) -> u64 {
        match self {
            EdgeSide::Source => edge.source.0,
            EdgeSide::Target => edge.target.0,
        }
    }

    /// Read from the key alone, so that a row that cannot be read is passed too.
    fn place(self, row: &Row) -> Result<(u64, u64), SqlError> {
        let (source, target) = (cell(row, 2)?, cell(row, 3)?);
        Ok(match self {
            EdgeSide::Source => (source, target),
            EdgeSide::Target => (target, source),
        })
    }
}
