//! The sweeper: issues the removals of edges whose expiry has come, through the normal commit
//! path. An edge is live until its removal commits, so tallies always equal live edges.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use guanxi_model::places::SHARDS;
use guanxi_model::{Answer, Change, EdgeKey, GroupsKey, Millis, TenantId};

use super::{Chore, ChoreHalt};
use crate::rows::{self, cell};
use crate::sql::text;

const SWEEP_INTERVAL: Duration = Duration::from_millis(300);
/// Edges of one look.
const DUE_MAX: usize = 500;
/// Edges of one transaction, which holds all lanes of this instance.
const REMOVALS_MAX: usize = 100;
/// An edge whose removal was refused is left alone for this long.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Such edges that are remembered.
const REFUSED_MAX: usize = 10_000;

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ExpiryRow {
    shard: u8,
    at: Millis,
    edge: EdgeKey,
}

pub(super) fn run(chore: &Chore) {
    let mut refused: HashMap<ExpiryRow, Instant> = HashMap::new();
    chore.repeat(SWEEP_INTERVAL, |chore| {
        refused.retain(|_, since| since.elapsed() < REFUSED_PAUSE);
        let mut due = due(chore, DUE_MAX + refused.len())?;
        due.retain(|entry| !refused.contains_key(entry));
        let more = due.len() >= DUE_MAX;
        let mut tenants: BTreeMap<TenantId, Vec<ExpiryRow>> = BTreeMap::new();
        for entry in due {
            tenants.entry(entry.edge.tenant).or_default().push(entry);
        }
        for (tenant, entries) in tenants {
            for entries in entries.chunks(REMOVALS_MAX) {
                chore.go_on()?;
                for entry in remove(chore, tenant, entries)? {
                    if refused.len() < REFUSED_MAX {
                        refused.insert(entry, Instant::now());
                    }
                }
            }
        }
        Ok(more)
    });
}

fn due(chore: &Chore, limit: usize) -> Result<Vec<ExpiryRow>, ChoreHalt> {
    let mut statement = String::from(
        "SELECT tenant,kind,source,target,expires_at,shard FROM expiry FORCE INDEX (PRIMARY) \
         WHERE shard IN (",
    );
    text::list(&mut statement, 0..SHARDS, text::number);
    let now = chore.now_ms()?;
    text::number(&mut statement, format_args!(") AND expires_at<={now} LIMIT {limit}"));
    let rows = chore.session()?.rows(&statement)?;
    let entry = |row| {
        let (at, shard) = (Millis(cell(row, 4)?), cell(row, 5)?);
        Ok(ExpiryRow { shard, at, edge: rows::edge_key(row)? })
    };
    rows.iter().map(entry).collect()
}

/// Removes the edges that are due; returns those whose removal was refused.
fn remove(
    chore: &Chore,
    tenant: TenantId,
    entries: &[ExpiryRow],
) -> Result<Vec<ExpiryRow>, ChoreHalt> {
    let expire = |entry: &ExpiryRow| Change::Expire { edge: entry.edge, expires_at: entry.at };
    let written = chore.write(tenant, entries.iter().map(expire).collect())?;
    let mut refused = Vec::new();
    for (entry, answer) in entries.iter().zip(written.answers) {
        match answer {
            Ok(Answer::Edge(answer)) if answer.changed => {}
            // The edge is gone, or expires at another time: the entry has no cause.
            Ok(_) => forget(chore, entry)?,
            Err(error) => {
                tracing::warn!(%error, "an expired edge was not removed");
                refused.push(*entry);
            }
        }
    }
    Ok(refused)
}

/// Deletes an entry whose edge does not expire then. Under the head, so that the edge cannot be
/// given that very time meanwhile.
fn forget(chore: &Chore, ExpiryRow { shard, at, edge }: &ExpiryRow) -> Result<(), ChoreHalt> {
    let EdgeKey { tenant, kind, source, target } = edge;
    let mut head = String::new();
    rows::head_tuple(&mut head, &GroupsKey::of(edge));
    let at = at.0;
    let (tenant, kind, source, target) = (tenant.0, kind.0, source.0, target.0);
    chore.transact(&format!(
        "SELECT 1 FROM head WHERE (tenant,kind,source)={head} FOR UPDATE;\
         DELETE FROM expiry WHERE shard={shard} AND expires_at={at} AND tenant={tenant} AND \
         kind={kind} AND source={source} AND target={target} AND NOT EXISTS (SELECT 1 FROM \
         outgoing WHERE tenant={tenant} AND kind={kind} AND source={source} AND target={target} \
         AND state<2 AND expires_at={at})"
    ))?;
    Ok(())
}
