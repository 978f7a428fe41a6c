//! Clean-up of tombstones, and of heads that are left with nothing. A tombstone makes late records
//! lose, so it goes only when none can come: a day after everything that the topics keep is
//! younger, and never when a topic keeps its records for ever. A barrier before each pass shows
//! that neither the outbox nor an applier is further behind.

use std::time::{Duration, Instant};

use guanxi_model::{GroupsKey, HeadVersion, Kind, SourceId, TenantId};

use super::{Chore, ChoreHalt};
use crate::barrier;
use crate::kafka::longest_retention;
use crate::rows::{HeadKey, cell};
use crate::sql::text;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Rows of one page, of which few are tombstones.
const PAGE_ROWS: usize = 500;
/// A pass begins only when the log's records reach the target side within this.
const BARRIER_WAIT: Duration = Duration::from_secs(60);
const BARRIER_LOOK: Duration = Duration::from_millis(200);

pub(super) fn run(chore: &Chore) {
    chore.repeat(chore.parts.settings.clean_interval, |chore| {
        let Some(cutoff) = cutoff(chore)? else {
            return Ok(false);
        };
        let catalog = chore.parts.catalog.current();
        for tenant in catalog.tenants() {
            for kind in catalog.kinds(tenant).filter(|kind| !kind.fixed.counter) {
                clean_edges(chore, &OUTGOING, tenant, kind, cutoff)?;
                clean_edges(chore, &INCOMING, tenant, kind, cutoff)?;
                clean_heads(chore, tenant, kind, cutoff)?;
            }
        }
        Ok(false)
    });
}

/// Tombstones made before this time, in milliseconds, may go; none when none may.
fn cutoff(chore: &Chore) -> Result<Option<u64>, ChoreHalt> {
    let now = chore.now_ms()?;
    let kept = longest_retention(&chore.parts.kafka, chore.parts.changefeed.as_deref());
    let Some(kept) = kept.map_err(|error| ChoreHalt::Log(error.to_string()))? else {
        return Ok(None);
    };
    let cutoff = (kept + DAY).as_millis() as u64;
    let Some(cutoff) = now.checked_sub(cutoff) else {
        return Ok(None);
    };
    let database = &chore.parts.database;
    let until = Instant::now() + BARRIER_WAIT;
    let partitions = chore.parts.kafka.partitions;
    let id = barrier::raise(database, until)?;
    while Instant::now() < until {
        if barrier::wait(database, id, partitions, Instant::now() + BARRIER_LOOK)? {
            return Ok(Some(cutoff));
        }
        chore.go_on()?;
    }
    Ok(None)
}

/// A table of edges and the order of its key.
struct EdgeTable {
    name: &'static str,
    first: &'static str,
    second: &'static str,
}

const OUTGOING: EdgeTable = EdgeTable { name: "outgoing", first: "source", second: "target" };
const INCOMING: EdgeTable = EdgeTable { name: "incoming", first: "target", second: "source" };

fn clean_edges(
    chore: &Chore,
    table: &EdgeTable,
    tenant: TenantId,
    kind: &Kind,
    cutoff: u64,
) -> Result<(), ChoreHalt> {
    let EdgeTable { name, first, second } = table;
    let (tenant, kind) = (tenant.0, kind.id.0);
    let mut place = (0_u64, u64::MAX);
    loop {
        chore.go_on()?;
        let (a, b) = place;
        let found = chore.session()?.rows(&format!(
            "SELECT {first},{second},state,since FROM {name} FORCE INDEX (PRIMARY) WHERE \
             tenant={tenant} AND kind={kind} AND ({first}>{a} OR ({first}={a} AND {second}>{b})) \
             ORDER BY tenant,kind,{first},{second} LIMIT {PAGE_ROWS}"
        ))?;
        let mut old: Vec<(u64, u64)> = Vec::new();
        for row in &found {
            place = (cell(row, 0)?, cell(row, 1)?);
            if cell::<u8>(row, 2)? == 2 && cell::<u64>(row, 3)? < cutoff {
                old.push(place);
            }
        }
        for old in old.chunks(text::TUPLES_MAX) {
            let mut statement =
                format!("DELETE FROM {name} WHERE (tenant,kind,{first},{second}) IN (");
            text::keys(&mut statement, old, |out, (first, second)| {
                text::number(out, format_args!("({tenant},{kind},{first},{second})"));
            });
            // An edge that was put again meanwhile is none.
            text::number(&mut statement, format_args!(") AND state=2 AND since<{cutoff}"));
            chore.transact(&statement)?;
        }
        pace(chore, found.len())?;
        if found.len() < PAGE_ROWS {
            return Ok(());
        }
    }
}

/// Heads with nothing left. One that has given out group ids stays, as these are never reused, and
/// so does one that tells of exclusions: others rely on its word.
fn clean_heads(chore: &Chore, tenant: TenantId, kind: &Kind, cutoff: u64) -> Result<(), ChoreHalt> {
    let mut after = 0;
    loop {
        chore.go_on()?;
        let found = chore.session()?.rows(&format!(
            "SELECT source,version,outgoing,pending_outgoing,next_group FROM head FORCE INDEX \
             (PRIMARY) WHERE tenant={} AND kind={} AND source>{after} AND excluded=0 \
             ORDER BY tenant,kind,source LIMIT {PAGE_ROWS}",
            tenant.0, kind.id.0
        ))?;
        for row in &found {
            after = cell(row, 0)?;
            let version = HeadVersion(cell(row, 1)?);
            let tallies = (cell::<i64>(row, 2)?, cell::<i64>(row, 3)?);
            let groups: u32 = cell(row, 4)?;
            if version.time().0 < cutoff && tallies == (0, 0) && groups <= 1 {
                let source = SourceId(after);
                drop_head(chore, &GroupsKey { tenant, kind: kind.id, source }, version)?;
            }
        }
        pace(chore, found.len())?;
        if found.len() < PAGE_ROWS {
            return Ok(());
        }
    }
}

/// Deletes a head that is as it was seen and has no row and no group. Its columns are compared one
/// by one: for a DELETE by a row of them MariaDB reads the whole table.
fn drop_head(chore: &Chore, key: &HeadKey, version: HeadVersion) -> Result<(), ChoreHalt> {
    let (tenant, kind, source) = (key.tenant.0, key.kind.0, key.source.0);
    let head = format!("tenant={tenant} AND kind={kind} AND source={source}");
    chore.transact(&format!(
        "SELECT 1 FROM head WHERE {head} FOR UPDATE;\
         DELETE FROM head WHERE {head} AND version={} AND excluded=0 AND \
         NOT EXISTS (SELECT 1 FROM outgoing WHERE {head}) AND \
         NOT EXISTS (SELECT 1 FROM `groups` WHERE {head})",
        version.0
    ))?;
    Ok(())
}

fn pace(chore: &Chore, rows: usize) -> Result<(), ChoreHalt> {
    let rate = chore.parts.settings.clean_rows_per_second.max(1);
    chore.pause(Duration::from_secs_f64(rows as f64 / rate as f64))
}
