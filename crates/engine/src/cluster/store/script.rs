//! A batch's rows as statements, each with a bounded number of rows.

use std::fmt::Write;

use guanxi_model::codec::{encode_idempotency, encode_import, encode_job, encode_kind};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupsKey, Millis, Node, NodeKey, NodeRow, TenantId, Version, Which,
};
use rustc_hash::FxHashMap;

use crate::cluster::places::source_shard;
use crate::cluster::rows::{edge_tuple, head_tuple, node_tuple};
use crate::cluster::sql::text::{self, TUPLES_MAX};
use crate::overlay::{EdgeCell, GroupCell};
use crate::store::Applied;

/// Statements that go together in one round trip stay well below a server's packet.
const PART_BYTES_MAX: usize = 1 << 20;
/// A counter's slots: its value is spread over them, so that each stays within its own bound.
const COUNTER_SLOTS: i64 = 16;
/// Owned numbers stand apart from a target's own; those of a load are in the first partition's
/// slot, and add up with what the appliers add to any.
const OWNED_SLOT: u8 = 1;
/// Old idempotency keys that one batch forgets beyond those that it adds.
const FORGOTTEN_KEYS_MARGIN: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Script {
    statements: Vec<String>,
}

impl Script {
    /// The statements, as many to a part as fit.
    pub fn parts(&self) -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        for statement in &self.statements {
            match parts.last_mut() {
                Some(part) if part.len() + statement.len() < PART_BYTES_MAX => {
                    part.push(';');
                    part.push_str(statement);
                }
                _ => parts.push(statement.clone()),
            }
        }
        parts
    }

    /// One statement for every so many tuples.
    fn each(&mut self, before: &str, tuples: &[String], after: &str) {
        for tuples in tuples.chunks(TUPLES_MAX) {
            self.statements.push(format!("{before}{}{after}", tuples.join(",")));
        }
    }

    /// The same where the tuples are keys of rows that stand.
    fn each_of(&mut self, before: &str, keys: &[String], after: &str) {
        for keys in keys.chunks(TUPLES_MAX) {
            let mut statement = before.to_owned();
            text::keys(&mut statement, keys, |out, key| out.push_str(key));
            statement.push_str(after);
            self.statements.push(statement);
        }
    }

    pub fn edges(
        &mut self,
        edges: &FxHashMap<EdgeKey, EdgeCell>,
        catalog: &Catalog,
        last: Version,
    ) {
        self.exclusions(edges, catalog, last);
        let (mut outgoing, mut incoming, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let (mut expiring, mut expiring_no_more) = (Vec::new(), Vec::new());
        for (key, cell) in edges {
            let at = |row: &Option<EdgeRow>| row.as_ref().and_then(|row| row.expires_at);
            let (before, after) = (at(&cell.before), at(&cell.after));
            if before != after {
                expiring_no_more.extend(before.map(|at| expiry_tuple(key, at)));
                expiring.extend(after.map(|at| expiry_tuple(key, at)));
            }
            match &cell.after {
                Some(row) => {
                    outgoing.push(outgoing_tuple(key, row));
                    incoming.push(incoming_tuple(key, row));
                }
                None => gone.push(key),
            }
        }
        self.each(
            "REPLACE INTO outgoing (tenant,kind,source,target,version,state,since,group_id,owner,\
             data,expires_at) VALUES ",
            &outgoing,
            "",
        );
        self.each(
            "REPLACE INTO incoming (tenant,kind,target,source,version,state,since,owner) VALUES ",
            &incoming,
            "",
        );
        let keys: Vec<String> = gone.iter().map(|key| written(edge_tuple, *key)).collect();
        self.each_of("DELETE FROM outgoing WHERE (tenant,kind,source,target) IN (", &keys, ")");
        let turned = |key: &&EdgeKey| written(edge_tuple, &key.reversed());
        let keys: Vec<String> = gone.iter().map(turned).collect();
        self.each_of("DELETE FROM incoming WHERE (tenant,kind,target,source) IN (", &keys, ")");
        let columns = "(shard,expires_at,tenant,kind,source,target)";
        self.each_of(&format!("DELETE FROM expiry WHERE {columns} IN ("), &expiring_no_more, ")");
        self.each(&format!("REPLACE INTO expiry {columns} VALUES "), &expiring, "");
    }

    /// Leaves word of excluding edges in the heads of what they exclude, both ways.
    fn exclusions(
        &mut self,
        edges: &FxHashMap<EdgeKey, EdgeCell>,
        catalog: &Catalog,
        last: Version,
    ) {
        let mut heads = Vec::new();
        for (key, cell) in edges {
            let excluding = catalog.kind(key.tenant, key.kind);
            let excluded = excluding.map_or(&[][..], |kind| &kind.rules.excludes);
            if excluded.is_empty() || cell.after.as_ref().is_none_or(|row| !row.is_live()) {
                continue;
            }
            for kind in excluded {
                let there = key.of_kind(*kind);
                heads.extend([GroupsKey::of(&there), GroupsKey::of(&there.reversed())]);
            }
        }
        heads.sort_unstable();
        heads.dedup();
        let version = last.0 >> 8;
        let tuple = |head: &GroupsKey| {
            format!("({},{},{},{version},1)", head.tenant.0, head.kind.0, head.source.0)
        };
        let heads: Vec<String> = heads.iter().map(tuple).collect();
        self.each(
            "INSERT INTO head (tenant,kind,source,version,excluded) VALUES ",
            &heads,
            " ON DUPLICATE KEY UPDATE excluded=1",
        );
    }

    pub fn nodes(&mut self, nodes: &FxHashMap<NodeKey, Node>, catalog: &Catalog, last: Version) {
        let keys: Vec<String> = nodes.keys().map(|key| written(node_tuple, key)).collect();
        self.each_of("DELETE FROM nodes WHERE (tenant,node_type,id) IN (", &keys, ")");
        self.each_of("DELETE FROM tally WHERE (tenant,node_type,node) IN (", &keys, ")");
        let (mut settings, mut tallies, mut heads) = (Vec::new(), Vec::new(), Vec::new());
        let (mut none, mut counted, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (key, node) in nodes {
            if node.settings != NodeRow::default() {
                settings.push(settings_tuple(key, &node.settings));
            }
            for kind in catalog.kinds(key.tenant) {
                let number = |which| node.tallies.get(kind.id, which);
                let (tenant, id) = (key.tenant.0, key.id);
                let own = [number(Which::Incoming), number(Which::PendingIncoming)];
                let owned = number(Which::Owned);
                let tally = |slot, [incoming, pending]: [i64; 2], owned| {
                    let (node_type, kind) = (key.node_type.0, kind.id.0);
                    format!(
                        "({tenant},{node_type},{id},{kind},{slot},{incoming},{pending},{owned})"
                    )
                };
                tallies.extend((own != [0, 0]).then(|| tally(0, own, 0)));
                tallies.extend((owned != 0).then(|| tally(OWNED_SLOT, [0, 0], owned)));
                let of_kind = format!("{tenant},{},{id}", kind.id.0);
                if kind.fixed.counter && kind.fixed.target_type == key.node_type {
                    counted.push(format!("({of_kind})"));
                    values.extend(counter_tuples(&of_kind, number(Which::Value)));
                } else if kind.fixed.source_type == key.node_type {
                    let [live, pending] = [Which::Outgoing, Which::PendingOutgoing].map(number);
                    match (live, pending) {
                        (0, 0) => none.push(format!("({of_kind})")),
                        _ => heads.push(format!("({of_kind},{},{live},{pending})", last.0 >> 8)),
                    }
                }
            }
        }
        self.each(
            "INSERT INTO nodes (tenant,node_type,id,private,erased_by) VALUES ",
            &settings,
            "",
        );
        self.each(
            "INSERT INTO tally (tenant,node_type,node,kind,slot,incoming,pending_incoming,owned) \
             VALUES ",
            &tallies,
            "",
        );
        self.each_of(
            "UPDATE head SET outgoing=0,pending_outgoing=0 WHERE (tenant,kind,source) IN (",
            &none,
            ")",
        );
        self.each(
            "INSERT INTO head (tenant,kind,source,version,outgoing,pending_outgoing) VALUES ",
            &heads,
            " ON DUPLICATE KEY UPDATE version=GREATEST(version,VALUES(version)),\
             outgoing=VALUES(outgoing),pending_outgoing=VALUES(pending_outgoing)",
        );
        self.each_of("DELETE FROM counter WHERE (tenant,kind,node) IN (", &counted, ")");
        self.each("INSERT INTO counter (tenant,kind,node,slot,value) VALUES ", &values, "");
    }

    pub fn groups(&mut self, groups: &FxHashMap<GroupsKey, GroupCell>, last: Version) {
        let keys: Vec<String> = groups.keys().map(|key| written(head_tuple, key)).collect();
        self.each_of("DELETE FROM `groups` WHERE (tenant,kind,source) IN (", &keys, ")");
        let (mut rows, mut heads) = (Vec::new(), Vec::new());
        for (GroupsKey { tenant, kind, source }, cell) in groups {
            let of = format!("{},{},{}", tenant.0, kind.0, source.0);
            heads.push(format!("({of},{},{})", last.0 >> 8, cell.after.next.0));
            for group in &cell.after.groups {
                let mut row = format!("({of},{},", group.id.0);
                text::bytes(&mut row, group.name.as_str().as_bytes());
                let _ = write!(row, ",{})", group.size);
                rows.push(row);
            }
        }
        self.each("INSERT INTO `groups` (tenant,kind,source,id,name,size) VALUES ", &rows, "");
        self.each(
            "INSERT INTO head (tenant,kind,source,version,next_group) VALUES ",
            &heads,
            " ON DUPLICATE KEY UPDATE version=GREATEST(version,VALUES(version)),\
             next_group=VALUES(next_group)",
        );
    }

    /// New keys, and old ones forgotten by the batches' own time.
    pub fn answers(
        &mut self,
        answers: &FxHashMap<(TenantId, IdempotencyKey), IdempotencyRow>,
        commit: Millis,
    ) {
        if answers.is_empty() {
            return;
        }
        let forgotten_max = 2 * answers.len() + FORGOTTEN_KEYS_MARGIN;
        self.statements.push(format!(
            "DELETE FROM idempotency WHERE at<={} ORDER BY at LIMIT {forgotten_max}",
            commit.saturating_sub(IDEMPOTENCY_TTL_MS).0
        ));
        let tuple = |((tenant, key), row): (&(TenantId, IdempotencyKey), &IdempotencyRow)| {
            let mut out = format!("({},", tenant.0);
            text::bytes(&mut out, key.as_str().as_bytes());
            let _ = write!(out, ",0,{},", row.at.0);
            text::bytes(&mut out, &encode_idempotency(row));
            out.push(')');
            out
        };
        // One to a statement: an answer may be long.
        for row in answers.iter().map(tuple) {
            let columns = "(tenant,name,mark,at,answers)";
            self.statements.push(format!("REPLACE INTO idempotency {columns} VALUES {row}"));
        }
    }

    pub fn imports(&mut self, imports: &FxHashMap<(TenantId, ImportId), ImportRow>) {
        let tuple = |((tenant, id), row): (&(TenantId, ImportId), &ImportRow)| {
            let mut out = format!("({},", tenant.0);
            text::bytes(&mut out, id.as_str().as_bytes());
            out.push(',');
            text::bytes(&mut out, &encode_import(row));
            out.push(')');
            out
        };
        let rows: Vec<String> = imports.iter().map(tuple).collect();
        self.each("REPLACE INTO imports (tenant,id,place) VALUES ", &rows, "");
    }

    pub fn jobs(&mut self, jobs: &FxHashMap<(TenantId, JobId), Job>) {
        let tuple = |((tenant, id), job): (&(TenantId, JobId), &Job)| {
            let finished = u8::from(job.finished.is_some());
            let mut out = format!("({},{},{finished},", tenant.0, id.0);
            text::bytes(&mut out, &encode_job(job));
            out.push(')');
            out
        };
        let rows: Vec<String> = jobs.iter().map(tuple).collect();
        self.each("REPLACE INTO jobs (tenant,id,finished,job) VALUES ", &rows, "");
    }

    /// What of the catalog is new, and the revision that tells others so.
    pub fn catalog(&mut self, before: &Catalog, after: &Catalog) {
        let (mut types, mut kinds) = (Vec::new(), Vec::new());
        let named = |of: String, name: &str| {
            let mut out = format!("({of},");
            text::bytes(&mut out, name.as_bytes());
            out
        };
        for tenant in after.tenants() {
            for (id, name) in after.types(tenant) {
                if before.type_name(tenant, id) != Some(name) {
                    types.push(named(format!("{},{}", tenant.0, id.0), name.as_str()) + ")");
                }
            }
            for kind in after.kinds(tenant) {
                if before.kind(tenant, kind.id) != Some(kind) {
                    let mut row = named(format!("{},{}", tenant.0, kind.id.0), kind.name.as_str());
                    row.push(',');
                    text::bytes(&mut row, &encode_kind(kind));
                    row.push(')');
                    kinds.push(row);
                }
            }
        }
        self.each("REPLACE INTO node_types (tenant,id,name) VALUES ", &types, "");
        self.each("REPLACE INTO kinds (tenant,id,name,definition) VALUES ", &kinds, "");
        self.statements.push(
            "INSERT INTO facts (name,value) VALUES ('catalog',1) \
             ON DUPLICATE KEY UPDATE value=value+1"
                .into(),
        );
    }

    pub fn place(&mut self, applied: Applied) {
        self.statements.push(format!(
            "REPLACE INTO facts (name,value) VALUES ('store.epoch',{}),('store.position',{}),\
             ('store.commit',{}),('store.version',{})",
            applied.epoch.0, applied.position.0, applied.commit.0, applied.version.0
        ));
    }
}

fn written<K>(write: impl Fn(&mut String, &K), key: &K) -> String {
    let mut out = String::with_capacity(48);
    write(&mut out, key);
    out
}

fn outgoing_tuple(key: &EdgeKey, row: &EdgeRow) -> String {
    let mut out = edge_start(key.tenant, key, [key.source.0, key.target.0], row);
    text::optional(&mut out, row.group.map(|group| group.0), text::number);
    out.push(',');
    text::optional(&mut out, row.owner, text::number);
    out.push(',');
    text::optional(&mut out, row.data.as_deref(), |out, data| text::bytes(out, data.as_bytes()));
    out.push(',');
    text::optional(&mut out, row.expires_at, |out, at| text::number(out, at.0));
    out.push(')');
    out
}

fn incoming_tuple(key: &EdgeKey, row: &EdgeRow) -> String {
    let mut out = edge_start(key.tenant, key, [key.target.0, key.source.0], row);
    text::optional(&mut out, row.owner, text::number);
    out.push(')');
    out
}

/// What both directions of a row begin with.
fn edge_start(tenant: TenantId, key: &EdgeKey, ends: [u64; 2], row: &EdgeRow) -> String {
    format!(
        "({},{},{},{},{},{},{},",
        tenant.0, key.kind.0, ends[0], ends[1], row.version.0, row.state as u8, row.since.0
    )
}

fn expiry_tuple(key: &EdgeKey, at: Millis) -> String {
    let EdgeKey { tenant, kind, source, target } = key;
    let shard = source_shard(*tenant, *kind, *source);
    format!("({shard},{},{},{},{},{})", at.0, tenant.0, kind.0, source.0, target.0)
}

fn settings_tuple(key: &NodeKey, row: &NodeRow) -> String {
    let NodeKey { tenant, node_type, id } = key;
    let mut out = format!("({},{},{id},{},", tenant.0, node_type.0, u8::from(row.private));
    text::optional(&mut out, row.erased_by, |out, job| text::number(out, job.0));
    out.push(')');
    out
}

/// A value as slots that add up to it.
fn counter_tuples(of: &str, value: i64) -> Vec<String> {
    let (each, left) = (value / COUNTER_SLOTS, value % COUNTER_SLOTS);
    let slot = |slot: i64| (slot, each + if slot < left.abs() { left.signum() } else { 0 });
    let slots = (0..COUNTER_SLOTS).map(slot).filter(|(_, value)| *value != 0);
    slots.map(|(slot, value)| format!("({of},{slot},{value})")).collect()
}
