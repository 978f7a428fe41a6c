//! Walks by key, a bounded number of rows at a time: edges, groups, nodes, what is due, jobs.

use std::ops::ControlFlow;

use guanxi_core::snapshot::{StoreError, Wanted};
use guanxi_model::codec::decode_job;
use guanxi_model::group::Group;
use guanxi_model::job::{Job, JobId};
use guanxi_model::places::SHARDS;
use guanxi_model::{
    EdgeKey, EdgeRow, Ends, GroupsKey, KindId, Millis, Node, NodeKey, NodeTypeId, SourceId, State,
    TargetId, TenantId,
};
use mysql::Row;

use super::{Scans, SqlSnapshot, blob, unreadable};
use crate::rows::{self, GROUP_COLUMNS, OUTGOING_COLUMNS, cell};
use crate::sql::SqlError;

/// Rows that are read at once.
const CHUNK_ROWS: usize = 1_024;
/// Nodes that are read at once: each has rows in several tables.
const CHUNK_NODES: usize = 128;

const REMOVED: u8 = State::Removed as u8;

impl SqlSnapshot {
    pub(super) fn walk_edges_of_source(
        &self,
        of: &GroupsKey,
        after: Option<TargetId>,
        visit: &mut dyn FnMut(TargetId, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let GroupsKey { tenant, kind, source } = of;
        let mut behind = after.map(|target| format!(" AND target>{}", target.0));
        loop {
            let statement = format!(
                "SELECT {OUTGOING_COLUMNS} FROM outgoing FORCE INDEX (PRIMARY) WHERE tenant={} \
                 AND kind={} AND source={}{} AND state<>{REMOVED} ORDER BY target \
                 LIMIT {CHUNK_ROWS}",
                tenant.0,
                kind.0,
                source.0,
                behind.as_deref().unwrap_or_default()
            );
            let edges = self.parsed(&[statement], rows::outgoing)?;
            let last =
                edges.last().map(|(key, _)| key.target).filter(|_| edges.len() == CHUNK_ROWS);
            for (key, row) in edges {
                if visit(key.target, row).is_break() {
                    return Ok(());
                }
            }
            let Some(last) = last else {
                return Ok(());
            };
            behind = Some(format!(" AND target>{}", last.0));
        }
    }

    pub(super) fn walk_edges_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        after: Option<Ends>,
        visit: &mut dyn FnMut(Ends, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut after = after;
        loop {
            let behind = after.map(|(source, target)| (source.0, target.0));
            let statements = two_part_keys(behind, "source", "target", |condition, order| {
                format!(
                    "SELECT {OUTGOING_COLUMNS} FROM outgoing FORCE INDEX (PRIMARY) \
                     WHERE tenant={} AND kind={}{condition} AND state<>{REMOVED} \
                     ORDER BY {order} LIMIT {CHUNK_ROWS}",
                    tenant.0, kind.0
                )
            });
            let mut edges = self.parsed(&statements, rows::outgoing)?;
            edges.truncate(CHUNK_ROWS);
            let full = edges.len() == CHUNK_ROWS;
            after = edges.last().map(|(key, _)| (key.source, key.target)).filter(|_| full);
            for (key, row) in edges {
                if visit((key.source, key.target), row).is_break() {
                    return Ok(());
                }
            }
            if after.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) fn walk_groups_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        visit: &mut dyn FnMut(SourceId, Group) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut after: Option<(u64, u64)> = None;
        loop {
            let statements = two_part_keys(after, "source", "id", |condition, order| {
                format!(
                    "SELECT {GROUP_COLUMNS} FROM `groups` WHERE tenant={} AND kind={}{condition} \
                     ORDER BY {order} LIMIT {CHUNK_ROWS}",
                    tenant.0, kind.0
                )
            });
            let mut groups = self.parsed(&statements, rows::group)?;
            groups.truncate(CHUNK_ROWS);
            let full = groups.len() == CHUNK_ROWS;
            let last = groups.last().map(|(key, group)| (key.source.0, u64::from(group.id.0)));
            after = last.filter(|_| full);
            for (key, group) in groups {
                if visit(key.source, group).is_break() {
                    return Ok(());
                }
            }
            if after.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) fn walk_nodes_of_type(
        &self,
        tenant: TenantId,
        node_type: NodeTypeId,
        visit: &mut dyn FnMut(u64, Node) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let statements = self.node_statements(tenant, node_type, after);
            let mut ids = self.parsed(&statements, |row| cell::<u64>(row, 0))?;
            ids.sort_unstable();
            ids.dedup();
            ids.truncate(CHUNK_NODES);
            let key = |id| NodeKey { tenant, node_type, id };
            let nodes = ids.iter().map(|id| key(*id)).collect();
            self.fetch(Wanted { nodes, more: true, ..Wanted::default() })?;
            for id in &ids {
                let node = self.with_node(&key(*id), Node::clone)?;
                if node != Node::default() && visit(*id, node).is_break() {
                    return Ok(());
                }
            }
            match ids.last() {
                Some(last) if ids.len() == CHUNK_NODES => after = Some(*last),
                _ => return Ok(()),
            }
        }
    }

    /// The next ids that each table has something of, in their order.
    fn node_statements(
        &self,
        tenant: TenantId,
        node_type: NodeTypeId,
        after: Option<u64>,
    ) -> Vec<String> {
        let behind = |id: &str| after.map_or(String::new(), |after| format!(" AND {id}>{after}"));
        let select = |table: &str, id: &str, prefix: String| {
            format!(
                "SELECT DISTINCT {id} FROM {table} WHERE tenant={} AND {prefix}{} \
                 ORDER BY {id} LIMIT {CHUNK_NODES}",
                tenant.0,
                behind(id)
            )
        };
        let of_type = format!("node_type={}", node_type.0);
        let mut statements =
            vec![select("nodes", "id", of_type.clone()), select("tally", "node", of_type)];
        for kind in self.catalog.kinds(tenant) {
            let (fixed, of_kind) = (&kind.fixed, format!("kind={}", kind.id.0));
            if fixed.counter && fixed.target_type == node_type {
                statements.push(select("counter", "node", of_kind));
            } else if fixed.outgoing_tally && fixed.source_type == node_type {
                statements.push(select("head", "source", of_kind));
            }
        }
        statements
    }

    pub(super) fn due_edges(
        &self,
        now: Millis,
        edges_max: usize,
    ) -> Result<Vec<(Millis, EdgeKey)>, StoreError> {
        let chunk = edges_max.min(CHUNK_ROWS);
        let mut due = Vec::new();
        // Each shard has a first chunk; those that filled it have another.
        let mut shards: Vec<(u8, Option<DueEdge>)> =
            (0..SHARDS).map(|shard| (shard, None)).collect();
        while !shards.is_empty() && chunk > 0 {
            let statement =
                |(shard, after): &(u8, Option<DueEdge>)| due_after(*shard, *after, now, chunk);
            let statements: Vec<String> = shards.iter().map(statement).collect();
            let mut full = Vec::new();
            for ((shard, _), set) in shards.iter().zip(self.read(&statements)?) {
                let parse = |row: &Row| Ok((Millis(cell(row, 4)?), rows::edge_key(row)?));
                let edges = set.iter().map(parse).collect::<Result<Vec<DueEdge>, SqlError>>();
                let edges = edges.map_err(unreadable)?;
                // More of a shard than the caller takes are never needed.
                if edges.len() == chunk && chunk < edges_max {
                    full.push((*shard, edges.last().copied()));
                }
                due.extend(edges);
            }
            shards = full;
        }
        due.sort_unstable();
        due.truncate(edges_max);
        Ok(due)
    }

    pub(super) fn walk_jobs(
        &self,
        tenant: TenantId,
        before: Option<JobId>,
        visit: &mut dyn FnMut(Job) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let before = before.map_or_else(String::new, |job| format!(" AND id<{}", job.0));
        let backward = self.scans == Scans::Backward;
        let (turn, behind) = if backward { ("DESC", "<") } else { ("ASC", ">") };
        let (mut after, mut all) = (String::new(), Vec::new());
        loop {
            let statement = format!(
                "SELECT id,job FROM jobs WHERE tenant={}{before}{after} ORDER BY id {turn} \
                 LIMIT {CHUNK_ROWS}",
                tenant.0
            );
            let sets = self.read(&[statement])?;
            let rows = sets.first().map(Vec::as_slice).unwrap_or_default();
            for row in rows {
                let job = decode_job(&blob(row, 1)?)?;
                if !backward {
                    all.push(job);
                } else if visit(job).is_break() {
                    return Ok(());
                }
            }
            match rows.last() {
                Some(last) if rows.len() == CHUNK_ROWS => {
                    after = format!(" AND id{behind}{}", cell::<u64>(last, 0).map_err(unreadable)?);
                }
                _ => break,
            }
        }
        for job in all.into_iter().rev() {
            if visit(job).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn parsed<T>(
        &self,
        statements: &[String],
        parse: impl Fn(&Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, StoreError> {
        let sets = self.read(statements)?;
        sets.iter().flatten().map(|row| parse(row).map_err(unreadable)).collect()
    }
}

type DueEdge = (Millis, EdgeKey);

fn due_after(shard: u8, after: Option<DueEdge>, now: Millis, rows_max: usize) -> String {
    // Ties of a time are few: edges of one source and kind, or a coincidence.
    let behind = after.map_or(String::new(), |(at, edge)| {
        let mut key = String::new();
        rows::edge_tuple(&mut key, &edge);
        format!(
            " AND expires_at>={} AND (expires_at>{} OR (tenant,kind,source,target)>{key})",
            at.0, at.0
        )
    });
    format!(
        "SELECT tenant,kind,source,target,expires_at FROM expiry WHERE shard={shard} \
         AND expires_at<={}{behind} ORDER BY expires_at,tenant,kind,source,target LIMIT {rows_max}",
        now.0
    )
}

/// Statements for the rows behind a key of two parts: those that share the first part, then the
/// rest. `select` makes one from a condition and an order.
fn two_part_keys(
    after: Option<(u64, u64)>,
    first: &str,
    second: &str,
    select: impl Fn(&str, &str) -> String,
) -> Vec<String> {
    let order = format!("{first},{second}");
    match after {
        None => vec![select("", &order)],
        Some((one, two)) => vec![
            select(&format!(" AND {first}={one} AND {second}>{two}"), &order),
            select(&format!(" AND {first}>{one}"), &order),
        ],
    }
}
