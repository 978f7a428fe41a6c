//! What a transaction writes: the rows that its changes left different, the records for the log,
//! and the answers of idempotency keys. Everything is written in the order of its key.

use std::fmt::Write;

use guanxi_model::codec::{encode_import, encode_job, encode_kind};
use guanxi_model::record::EdgeRecord;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupsKey, Index, Millis, NodeRow, TenantId, places,
};

use super::CommitterShared;
use super::held_rows::{CounterCell, HeldRows};
use crate::catalog::UNMARKED;
use crate::idempotency::{self, TenantKey};
use crate::outbox::{self, OutboxRow};
use crate::rows::{EdgeColumns, HEAD_COLUMNS, edge_tuple};
use crate::sql::text;

/// Slots of a counter, and what one of them holds at most, either sign: together what a counter
/// may be.
pub(super) const COUNTER_SLOTS: u16 = 16;
const SLOT_ABS_MAX: i64 = 1 << 49;

/// Statements are sent when they have grown to this size: well below what servers take at once.
const STATEMENTS_BYTES_MAX: usize = 1 << 20;

/// Everything that a transaction writes, as texts to be sent one after the other; and its rows of
/// the outbox, into which its records go.
pub(super) fn statements(
    held: &mut HeldRows,
    before: &Catalog,
    now: Millis,
    shared: &CommitterShared,
) -> (Vec<String>, Vec<OutboxRow>) {
    let mut out = Statements::default();
    let records = std::mem::take(&mut held.records);
    let held = &*held;
    catalog(held, before, &mut out);
    edges(held, &mut out);
    heads(held, &mut out);
    groups(held, &mut out);
    expiry(held, &mut out);
    let rows = outbox(records, now, shared.outgoing.shard(), &mut out);
    nodes(held, &mut out);
    counters(held, shared.instance, &mut out);
    jobs_and_imports(held, &mut out);
    keys(held, &mut out);
    (out.done, rows)
}

#[derive(Debug, Default)]
struct Statements {
    /// The last one is still open.
    done: Vec<String>,
}

impl Statements {
    /// Writes `items` as the list between `before` and `after`, so many statements as it takes.
    fn write<T>(
        &mut self,
        items: &[T],
        before: &str,
        after: &str,
        one: impl Fn(&mut String, &T) + Copy,
    ) {
        for items in items.chunks(text::TUPLES_MAX) {
            if self.done.last().is_none_or(|open| open.len() >= STATEMENTS_BYTES_MAX) {
                self.done.push(String::new());
            }
            let Some(open) = self.done.last_mut() else {
                return;
            };
            open.push_str(before);
            text::list(open, items, one);
            open.push_str(after);
            open.push(';');
        }
    }

    /// The same for rows that go; `before` ends with `IN (`.
    fn delete<T>(&mut self, keys: &[T], before: &str, one: impl Fn(&mut String, &T) + Copy) {
        for keys in keys.chunks(text::TUPLES_MAX) {
            let mut list = String::new();
            text::keys(&mut list, keys, one);
            self.write(&[list], before, ")", |out, list| out.push_str(list));
        }
    }
}

fn edges(held: &HeldRows, out: &mut Statements) {
    let mut changed: Vec<(&EdgeKey, &EdgeRow, &'static str)> = Vec::new();
    for (key, cause) in &held.causes {
        let foreseen = held.foreseen.get(key);
        if let Some(row) = held.edges.get(key).and_then(|cell| cell.after.as_ref())
            && foreseen.is_none_or(|(written, why)| (written, why) != (row, cause))
        {
            changed.push((key, row, cause.name()));
        }
    }
    changed.sort_unstable_by_key(|(key, _, _)| **key);
    let mut refused: Vec<&EdgeKey> =
        held.foreseen.keys().filter(|key| !held.causes.contains_key(key)).collect();
    refused.sort_unstable();
    let before = "DELETE FROM outgoing WHERE (tenant,kind,source,target) IN (";
    out.delete(&refused, before, |out, key| edge_tuple(out, key));
    let columns = EdgeColumns::ALL;
    let before = format!("INSERT INTO outgoing ({columns}) VALUES ");
    let after = " ON DUPLICATE KEY UPDATE version=VALUES(version),state=VALUES(state),\
                 since=VALUES(since),group_id=VALUES(group_id),owner=VALUES(owner),\
                 data=VALUES(data),expires_at=VALUES(expires_at),cause=VALUES(cause)";
    out.write(&changed, &before, after, |out, (key, row, cause)| {
        columns.row(out, key, row, cause);
    });
}

fn heads(held: &HeldRows, out: &mut Statements) {
    let mut changed: Vec<_> =
        held.heads.iter().filter(|(_, cell)| cell.head != cell.written).collect();
    changed.sort_unstable_by_key(|(key, _)| **key);
    let before = format!("INSERT INTO head ({HEAD_COLUMNS}) VALUES ");
    let after = " ON DUPLICATE KEY UPDATE outgoing=VALUES(outgoing),\
                 pending_outgoing=VALUES(pending_outgoing),next_group=VALUES(next_group),\
                 excluded=VALUES(excluded)";
    out.write(&changed, &before, after, |out, (key, cell)| {
        let head = &cell.head;
        let _ = write!(
            out,
            "({},{},{},{},{},{},{},{})",
            key.tenant.0,
            key.kind.0,
            key.source.0,
            head.version.0,
            head.outgoing,
            head.pending_outgoing,
            head.next_group,
            u8::from(head.excluded)
        );
    });
}

fn groups(held: &HeldRows, out: &mut Statements) {
    let mut changed: Vec<_> =
        held.groups.iter().filter(|(_, cell)| cell.before != cell.after).collect();
    changed.sort_unstable_by_key(|(key, _)| **key);
    let (mut gone, mut kept) = (Vec::new(), Vec::new());
    for (key, cell) in changed {
        for group in &cell.before.groups {
            if cell.after.by_id(group.id).is_none() {
                gone.push((key, group.id));
            }
        }
        for group in &cell.after.groups {
            if cell.before.by_id(group.id) != Some(group) {
                kept.push((key, group));
            }
        }
    }
    let group_key = |out: &mut String, key: &GroupsKey, id: u32| {
        let _ = write!(out, "({},{},{},{id}", key.tenant.0, key.kind.0, key.source.0);
    };
    let before = "DELETE FROM `groups` WHERE (tenant,kind,source,id) IN (";
    out.delete(&gone, before, |out, (key, id)| {
        group_key(out, key, id.0);
        out.push(')');
    });
    let before = "INSERT INTO `groups` (tenant,kind,source,id,name,size) VALUES ";
    let after = " ON DUPLICATE KEY UPDATE name=VALUES(name),size=VALUES(size)";
    out.write(&kept, before, after, |out, (key, group)| {
        group_key(out, key, group.id.0);
        out.push(',');
        text::bytes(out, group.name.as_str().as_bytes());
        let _ = write!(out, ",{})", group.size);
    });
}

fn expiry(held: &HeldRows, out: &mut Statements) {
    let expires = |row: &Option<EdgeRow>| {
        row.as_ref().filter(|row| row.stands()).and_then(|row| row.expires_at)
    };
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    for key in held.causes.keys() {
        let Some(cell) = held.edges.get(key) else {
            continue;
        };
        let (old, now) = (expires(&cell.before), expires(&cell.after));
        if old != now {
            gone.extend(old.map(|at| (source_shard(key), at, *key)));
            new.extend(now.map(|at| (source_shard(key), at, *key)));
        }
    }
    for (entry, present) in &held.entries {
        if let Index::Expiry { at } = entry.index {
            let list = if *present { &mut new } else { &mut gone };
            list.push((source_shard(&entry.edge), at, entry.edge));
        }
    }
    gone.sort_unstable();
    new.sort_unstable();
    let tuple = |out: &mut String, (shard, at, key): &(u8, Millis, EdgeKey)| {
        let EdgeKey { tenant, kind, source, target } = key;
        let (tenant, kind, source, target) = (tenant.0, kind.0, source.0, target.0);
        let _ = write!(out, "({shard},{},{tenant},{kind},{source},{target})", at.0);
    };
    let before = "DELETE FROM expiry WHERE (shard,expires_at,tenant,kind,source,target) IN (";
    out.delete(&gone, before, tuple);
    let before = "INSERT INTO expiry (shard,expires_at,tenant,kind,source,target) VALUES ";
    out.write(&new, before, " ON DUPLICATE KEY UPDATE shard=VALUES(shard)", tuple);
}

fn source_shard(key: &EdgeKey) -> u8 {
    places::source_shard(key.tenant, key.kind, key.source)
}

fn outbox(
    records: Vec<EdgeRecord>,
    now: Millis,
    shard: u8,
    out: &mut Statements,
) -> Vec<OutboxRow> {
    let mut rows = Vec::new();
    for (row, value) in outbox::pack(records, now, shard) {
        let before = "INSERT INTO outbox (shard,version,id,records,value) VALUES ";
        // Each by itself: a statement of several could be too long.
        out.write(&[value], before, "", |out, value| {
            let (key, records) = (&row.key, row.records.len());
            let _ = write!(out, "({},{},{},{records},", key.shard, key.version.0, key.id);
            text::bytes(out, value);
            out.push(')');
        });
        rows.push(row);
    }
    rows
}

fn nodes(held: &HeldRows, out: &mut Statements) {
    let mut changed: Vec<_> =
        held.nodes.iter().filter(|(_, cell)| cell.before != cell.after).collect();
    changed.sort_unstable_by_key(|(node, _)| **node);
    let (gone, kept): (Vec<_>, Vec<_>) =
        changed.into_iter().partition(|(_, cell)| cell.after == NodeRow::default());
    let before = "DELETE FROM nodes WHERE (tenant,node_type,id) IN (";
    out.delete(&gone, before, |out, (node, _)| crate::rows::node_tuple(out, node));
    let before = "INSERT INTO nodes (tenant,node_type,id,private,erased_by) VALUES ";
    let after = " ON DUPLICATE KEY UPDATE private=VALUES(private),erased_by=VALUES(erased_by)";
    out.write(&kept, before, after, |out, (node, cell)| {
        let private = u8::from(cell.after.private);
        let _ = write!(out, "({},{},{},{private},", node.tenant.0, node.node_type.0, node.id);
        text::optional(out, cell.after.erased_by, |out, job| text::number(out, job.0));
        out.push(')');
    });
}

/// Counters grow by what is added, so that others may add to their slots meanwhile.
fn counters(held: &HeldRows, instance: u64, out: &mut Statements) {
    let mut parts = Vec::new();
    for (key, cell) in &held.counters {
        parts.extend(spread(cell, instance).map(|(slot, delta)| (*key, slot, delta)));
    }
    parts.sort_unstable();
    let before = "INSERT INTO counter (tenant,kind,node,slot,value) VALUES ";
    let after = " ON DUPLICATE KEY UPDATE value=value+VALUES(value)";
    out.write(&parts, before, after, |out, (key, slot, delta)| {
        let (tenant, kind, node) = (key.tenant.0, key.kind.0, key.source.0);
        let _ = write!(out, "({tenant},{kind},{node},{slot},{delta})");
    });
}

/// The instance's own slot takes what fits, the next ones the rest.
fn spread(cell: &CounterCell, instance: u64) -> impl Iterator<Item = (u16, i64)> {
    let mut left = cell.delta;
    let first = (instance % u64::from(COUNTER_SLOTS)) as u16;
    (0..COUNTER_SLOTS).filter_map(move |step| {
        let slot = (first + step) % COUNTER_SLOTS;
        let standing = cell.slots.get(&slot).copied().unwrap_or(0);
        let wanted = standing.saturating_add(left).clamp(-SLOT_ABS_MAX, SLOT_ABS_MAX);
        let taken = wanted - standing;
        left -= taken;
        (taken != 0).then_some((slot, taken))
    })
}

fn jobs_and_imports(held: &HeldRows, out: &mut Statements) {
    let mut jobs = Vec::new();
    for ((tenant, id), cell) in &held.jobs {
        if let Some(job) = cell.after.as_ref().filter(|_| cell.before != cell.after) {
            jobs.push((*tenant, *id, job));
        }
    }
    jobs.sort_unstable_by_key(|(tenant, id, _)| (*tenant, *id));
    let before = "INSERT INTO jobs (tenant,id,finished,job) VALUES ";
    let after = " ON DUPLICATE KEY UPDATE finished=VALUES(finished),job=VALUES(job)";
    out.write(&jobs, before, after, |out, (tenant, id, job)| {
        let _ = write!(out, "({},{},{},", tenant.0, id.0, u8::from(job.finished.is_some()));
        text::bytes(out, &encode_job(job));
        out.push(')');
    });
    let mut imports = Vec::new();
    for ((tenant, id), cell) in &held.imports {
        if let Some(row) = cell.after.as_ref().filter(|_| cell.before != cell.after) {
            imports.push((*tenant, id, row));
        }
    }
    imports.sort_unstable_by_key(|(tenant, id, _)| (*tenant, *id));
    let before = "INSERT INTO imports (tenant,id,place) VALUES ";
    out.write(&imports, before, " ON DUPLICATE KEY UPDATE place=VALUES(place)", |out, import| {
        let (tenant, id, row) = import;
        let _ = write!(out, "({},", tenant.0);
        text::bytes(out, id.as_str().as_bytes());
        out.push(',');
        text::bytes(out, &encode_import(row));
        out.push(')');
    });
}

/// A key whose request was refused is free again.
fn keys(held: &HeldRows, out: &mut Statements) {
    let (mut free, mut taken): (Vec<TenantKey>, Vec<_>) = Default::default();
    for (key, cell) in &held.keys {
        match &cell.row {
            Some(row) if cell.changed => taken.push((key, row)),
            None if cell.ours => free.push(key.clone()),
            _ => {}
        }
    }
    free.sort_unstable();
    taken.sort_unstable_by_key(|(key, _)| *key);
    let before = "DELETE FROM idempotency WHERE (tenant,name) IN (";
    out.delete(&free, before, idempotency::key_tuple);
    let before = "INSERT INTO idempotency (tenant,name,mark,at,answers) VALUES ";
    let after = " ON DUPLICATE KEY UPDATE answers=VALUES(answers)";
    // The row stands, with the mark and the time by which it was taken.
    out.write(&taken, before, after, |out, used| idempotency::answers_tuple(out, *used, 0));
}

fn catalog(held: &HeldRows, before: &Catalog, out: &mut Statements) {
    if !held.catalog_changed {
        return;
    }
    let (mut types, mut kinds) = (Vec::new(), Vec::new());
    let mut tenants: Vec<TenantId> = held.catalog.tenants().collect();
    tenants.sort_unstable();
    for tenant in tenants {
        for (id, name) in held.catalog.types(tenant) {
            if before.type_name(tenant, id) != Some(name) {
                types.push((tenant, id, name));
            }
        }
        for kind in held.catalog.kinds(tenant) {
            if before.kind(tenant, kind.id) != Some(kind) {
                kinds.push((tenant, kind));
            }
        }
    }
    if excludes_more(before, &held.catalog) {
        let start = "INSERT INTO facts (name,value) VALUES ";
        out.write(&[UNMARKED], start, " ON DUPLICATE KEY UPDATE value=1", |out, name| {
            let _ = write!(out, "('{name}',1)");
        });
    }
    let start = "INSERT INTO node_types (tenant,id,name) VALUES ";
    out.write(&types, start, "", |out, (tenant, id, name)| {
        let _ = write!(out, "({},{},'{name}')", tenant.0, id.0);
    });
    let start = "INSERT INTO kinds (tenant,id,name,definition) VALUES ";
    let end = " ON DUPLICATE KEY UPDATE definition=VALUES(definition)";
    out.write(&kinds, start, end, |out, (tenant, kind)| {
        let _ = write!(out, "({},{},'{}',", tenant.0, kind.id.0, kind.name);
        text::bytes(out, &encode_kind(kind));
        out.push(')');
    });
}

/// Whether a kind that may have edges came to exclude another: the heads do not tell of those.
pub fn excludes_more(before: &Catalog, after: &Catalog) -> bool {
    after.tenants().any(|tenant| {
        after.kinds(tenant).any(|kind| {
            let excluded = &kind.rules.excludes;
            let before = before.kind(tenant, kind.id);
            before.is_some_and(|old| excluded.iter().any(|id| !old.rules.excludes.contains(id)))
        })
    })
}
