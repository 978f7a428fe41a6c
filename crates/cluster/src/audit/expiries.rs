//! The expiry index the other way round: entries whose edge does not expire then.

use std::collections::HashMap;

use guanxi_core::audit::{AuditError, Drift, OfKind};
use guanxi_model::places::SHARDS;
use guanxi_model::{Change, EdgeKey, EdgeRow, Index, IndexEntry, Millis};

use super::look::{PAGE_ROWS, STRETCH_ROWS, SqlLook};
use super::mend::Mend;
use super::picture::Picture;
use crate::rows::{self, cell};

impl SqlLook<'_> {
    pub(super) fn expiries(&mut self, only: Option<OfKind>) -> Result<(), AuditError> {
        let database = &self.parts.database;
        let mut picture = Picture::begin(database)?;
        let mut read = 0;
        for shard in 0..SHARDS {
            let mut after: Option<(Millis, EdgeKey)> = None;
            loop {
                if read >= STRETCH_ROWS {
                    picture.end()?;
                    picture = Picture::begin(database)?;
                    read = 0;
                }
                let page = entries(&mut picture, shard, after)?;
                let edges: Vec<EdgeKey> = page.iter().map(|(_, edge)| *edge).collect();
                let outgoing: HashMap<EdgeKey, EdgeRow> =
                    picture.outgoing(&edges)?.into_iter().collect();
                read += page.len();
                self.pace(page.len())?;
                for (at, edge) in &page {
                    let row = outgoing.get(edge).filter(|row| row.stands());
                    if row.is_none_or(|row| row.expires_at != Some(*at)) {
                        self.surplus_expiry(only, shard, *edge, *at);
                    }
                }
                after = page.last().copied();
                if page.len() < PAGE_ROWS {
                    break;
                }
            }
        }
        Ok(picture.end()?)
    }

    fn surplus_expiry(&mut self, only: Option<OfKind>, shard: u8, edge: EdgeKey, at: Millis) {
        let kind = (edge.tenant, edge.kind);
        if only.is_some_and(|only| only != kind) {
            return;
        }
        let entry = IndexEntry { edge, index: Index::Expiry { at } };
        self.note(kind, Drift::SurplusExpiry, Change::RepairEntry { entry });
        self.mend(Mend::NoExpiry { shard, edge, at });
    }
}

fn entries(
    picture: &mut Picture<'_>,
    shard: u8,
    after: Option<(Millis, EdgeKey)>,
) -> Result<Vec<(Millis, EdgeKey)>, AuditError> {
    let after = after.map_or_else(String::new, |(at, edge)| {
        let EdgeKey { tenant, kind, source, target } = edge;
        let (at, tenant, kind, source, target) = (at.0, tenant.0, kind.0, source.0, target.0);
        // Row comparisons are not taken for ranges by every server, so the first column stands
        // outside as well.
        format!(
            " AND expires_at>={at} AND (expires_at>{at} OR (tenant,kind,source,target)>\
             ({tenant},{kind},{source},{target}))"
        )
    });
    let found = picture.rows(&format!(
        "SELECT tenant,kind,source,target,expires_at FROM expiry FORCE INDEX (PRIMARY) WHERE \
         shard={shard}{after} ORDER BY shard,expires_at,tenant,kind,source,target \
         LIMIT {PAGE_ROWS}"
    ))?;
    let read = found.iter().map(|row| Ok((Millis(cell(row, 4)?), rows::edge_key(row)?)));
    read.collect()
}
