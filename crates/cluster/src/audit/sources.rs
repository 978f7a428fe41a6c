//! The source's side: outgoing rows against heads, group sizes and the expiry index, which commit
//! together and so agree in every picture; and against the incoming rows, which may lag.

use std::collections::{BTreeMap, HashMap, HashSet};

use guanxi_core::audit::AuditError;
use guanxi_model::{
    EdgeKey, EdgeRow, GroupsKey, HeadVersion, Kind, Millis, SourceId, State, TenantId, Which,
    places,
};

use super::look::{PAGE_ROWS, SqlLook, Suspect, agree};
use super::mend::Mend;
use super::picture::Picture;
use super::stretch::EdgeSide;
use crate::rows::{self, GROUP_COLUMNS, HEAD_COLUMNS, Head, cell};
use crate::sql::{SqlError, text};

/// What one source's rows add up to.
#[derive(Default)]
struct SourceSum {
    live: i64,
    pending: i64,
    /// Versions as heads hold them.
    version: HeadVersion,
    groups: BTreeMap<u32, i64>,
}

/// Sources after one and up to another.
struct Range {
    tenant: TenantId,
    after: u64,
    until: u64,
}

impl SqlLook<'_> {
    pub(super) fn sources(&mut self, tenant: TenantId, kind: &Kind) -> Result<(), AuditError> {
        self.stretches(|look, picture, after, suspects| {
            let mut sums: BTreeMap<u64, SourceSum> = BTreeMap::new();
            let place = (tenant, kind);
            let until = look.read_stretch(
                picture,
                EdgeSide::Source,
                place,
                after,
                |look, picture, page| {
                    look.sum_page(page, kind, &mut sums);
                    look.look_elsewhere(picture, page, suspects)
                },
            )?;
            let range = Range { tenant, after, until };
            look.compare_heads(picture, kind, &range, &sums)?;
            look.compare_groups(picture, kind, &range, &sums)?;
            Ok(until)
        })
    }

    fn sum_page(
        &mut self,
        page: &[(EdgeKey, EdgeRow)],
        kind: &Kind,
        sums: &mut BTreeMap<u64, SourceSum>,
    ) {
        let mut edges = 0;
        for (edge, row) in page {
            let sum = sums.entry(edge.source.0).or_default();
            sum.version = sum.version.max(row.version.head());
            edges += u64::from(row.stands());
            match row.state {
                State::Live => {
                    sum.live += i64::from(kind.fixed.outgoing_tally);
                    if let Some(group) = row.group {
                        *sum.groups.entry(group.0).or_default() += 1;
                    }
                }
                State::Pending => sum.pending += i64::from(kind.fixed.outgoing_tally),
                State::Removed => {}
            }
        }
        if let Some((edge, _)) = page.first() {
            self.findings.of(Some((edge.tenant, edge.kind))).edges += edges;
        }
    }

    /// Looks for what each row should have elsewhere.
    fn look_elsewhere(
        &mut self,
        picture: &mut Picture<'_>,
        page: &[(EdgeKey, EdgeRow)],
        suspects: &mut Vec<Suspect>,
    ) -> Result<(), AuditError> {
        let edges: Vec<EdgeKey> = page.iter().map(|(edge, _)| *edge).collect();
        let incoming: HashMap<EdgeKey, EdgeRow> = picture.incoming(&edges)?.into_iter().collect();
        for (edge, row) in page {
            if !agree(Some(row), incoming.get(edge)) {
                suspects.push(Suspect { edge: *edge, version: Some(row.version) });
            }
        }
        let expiring: Vec<(EdgeKey, Millis)> = page
            .iter()
            .filter(|(_, row)| row.stands())
            .filter_map(|(edge, row)| Some((*edge, row.expires_at?)))
            .collect();
        for expiring in expiring.chunks(text::TUPLES_MAX) {
            let listed = expiry_entries(picture, expiring)?;
            for (edge, at) in expiring.iter().filter(|entry| !listed.contains(*entry)) {
                self.missing_expiry(*edge, *at);
            }
        }
        Ok(())
    }

    fn compare_heads(
        &mut self,
        picture: &mut Picture<'_>,
        kind: &Kind,
        range: &Range,
        sums: &BTreeMap<u64, SourceSum>,
    ) -> Result<(), AuditError> {
        let nothing = SourceSum::default();
        let mut headless: HashSet<u64> = sums.keys().copied().collect();
        let mut after = range.after;
        loop {
            let found = picture.rows(&range.page(HEAD_COLUMNS, "head", kind, after))?;
            let full = found.len() == PAGE_ROWS;
            self.pace(found.len())?;
            for row in &found {
                let (key, head) = rows::head(row)?;
                after = key.source.0;
                headless.remove(&after);
                self.compare_head(key, kind, &head, sums.get(&after).unwrap_or(&nothing));
            }
            if !full {
                break;
            }
        }
        for source in headless {
            let key = GroupsKey { tenant: range.tenant, kind: kind.id, source: SourceId(source) };
            self.compare_head(key, kind, &Head::default(), sums.get(&source).unwrap_or(&nothing));
        }
        Ok(())
    }

    fn compare_head(&mut self, key: GroupsKey, kind: &Kind, head: &Head, sum: &SourceSum) {
        self.findings.of(Some((key.tenant, key.kind))).tallies += 1;
        let outgoing = sum.live - head.outgoing;
        let pending = sum.pending - head.pending_outgoing;
        if outgoing != 0 {
            self.wrong_head(key, kind, Which::Outgoing, outgoing);
        }
        if pending != 0 {
            self.wrong_head(key, kind, Which::PendingOutgoing, pending);
        }
        if (outgoing, pending) != (0, 0) {
            self.mend(Mend::Head { head: key, outgoing, pending, version: sum.version });
        }
    }

    fn compare_groups(
        &mut self,
        picture: &mut Picture<'_>,
        kind: &Kind,
        range: &Range,
        sums: &BTreeMap<u64, SourceSum>,
    ) -> Result<(), AuditError> {
        let mut place = (range.after, u32::MAX);
        loop {
            let statement = format!(
                "SELECT {GROUP_COLUMNS} FROM `groups` FORCE INDEX (PRIMARY) WHERE tenant={} AND \
                 kind={} AND (source>{source} OR (source={source} AND id>{id})) AND \
                 source<={until} ORDER BY tenant,kind,source,id LIMIT {PAGE_ROWS}",
                range.tenant.0,
                kind.id.0,
                source = place.0,
                id = place.1,
                until = range.until,
            );
            let found = picture.rows(&statement)?;
            let full = found.len() == PAGE_ROWS;
            self.pace(found.len())?;
            for row in &found {
                let (key, group) = rows::group(row)?;
                place = (key.source.0, group.id.0);
                let sum = sums.get(&key.source.0).and_then(|sum| sum.groups.get(&group.id.0));
                let delta = sum.copied().unwrap_or_default() - group.size;
                if delta != 0 {
                    self.wrong_group(key, group.id, delta);
                }
            }
            if !full {
                return Ok(());
            }
        }
    }
}

impl Range {
    /// One page of a table with one row per source.
    fn page(&self, columns: &str, table: &str, kind: &Kind, after: u64) -> String {
        format!(
            "SELECT {columns} FROM {table} FORCE INDEX (PRIMARY) WHERE tenant={} AND kind={} AND \
             source>{after} AND source<={} ORDER BY tenant,kind,source LIMIT {PAGE_ROWS}",
            self.tenant.0, kind.id.0, self.until
        )
    }
}

fn expiry_entries(
    picture: &mut Picture<'_>,
    expiring: &[(EdgeKey, Millis)],
) -> Result<HashSet<(EdgeKey, Millis)>, SqlError> {
    let mut statement = String::from(
        "SELECT tenant,kind,source,target,expires_at FROM expiry FORCE INDEX (PRIMARY) \
         WHERE (shard,expires_at,tenant,kind,source,target) IN (",
    );
    text::list(&mut statement, expiring, |out, (edge, at)| {
        let EdgeKey { tenant, kind, source, target } = edge;
        let shard = places::source_shard(*tenant, *kind, *source);
        let (tenant, kind, source, target) = (tenant.0, kind.0, source.0, target.0);
        text::number(out, format_args!("({shard},{},{tenant},{kind},{source},{target})", at.0));
    });
    statement.push(')');
    let rows = picture.rows(&statement)?;
    rows.iter().map(|row| Ok((rows::edge_key(row)?, Millis(cell(row, 4)?)))).collect()
}
