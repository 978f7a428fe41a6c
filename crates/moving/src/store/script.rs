//! A batch's rows as statements, each with a bounded number of rows.

mod edges;

use std::fmt::Write;

use guanxi_model::codec::{encode_idempotency, encode_import, encode_job, encode_kind};
use guanxi_model::group::Group;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{
    Catalog, GroupId, GroupsKey, Millis, Node, NodeKey, NodeRow, TenantId, Version, Which,
};
use rustc_hash::FxHashMap;

use guanxi_cluster::rows::{head_tuple, node_tuple};
use guanxi_cluster::sql::text::{self, TUPLES_MAX};
use guanxi_embedded::overlay::GroupCell;
use guanxi_embedded::store::Applied;

/// Statements that go together in one round trip stay well below a server's packet.
const PART_BYTES_MAX: usize = 1 << 20;
/// A counter's slots: its value is spread over them, so that each stays within its own bound.
const COUNTER_SLOTS: i64 = 16;
/// Where owned numbers stand that nobody will look at by partition.
const OWNED_SLOT: u16 = 1;
/// Old idempotency keys that one batch forgets beyond those that it adds.
const FORGOTTEN_KEYS_MARGIN: usize = 16;

/// Where owned numbers go, which stand apart from a target's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnedSlots {
    /// All in one, as a node's row has them.
    One,
    /// In the slots of the targets' partitions, as appliers keep them and audits compare them: what
    /// each edge adds or takes.
    ByTarget { partitions: u32 },
}

#[derive(Debug)]
pub(crate) struct LoadScript {
    statements: Vec<String>,
    owned: OwnedSlots,
    /// None of the rows is there yet.
    fresh: bool,
}

impl LoadScript {
    /// Over rows that may stand.
    pub fn over(owned: OwnedSlots) -> LoadScript {
        LoadScript { statements: Vec::new(), owned, fresh: false }
    }

    /// Of rows that are all new.
    pub fn fresh(owned: OwnedSlots) -> LoadScript {
        LoadScript { statements: Vec::new(), owned, fresh: true }
    }

    pub fn push(&mut self, statement: String) {
        self.statements.push(statement);
    }

    /// What rows are written with: one that stands is replaced, unless there can be none.
    fn insert(&self) -> &'static str {
        if self.fresh { "INSERT" } else { "REPLACE" }
    }

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

    pub fn nodes(&mut self, nodes: &FxHashMap<NodeKey, Node>, catalog: &Catalog, last: Version) {
        if !self.fresh {
            let keys: Vec<String> = nodes.keys().map(|key| written(node_tuple, key)).collect();
            self.each_of("DELETE FROM nodes WHERE (tenant,node_type,id) IN (", &keys, ")");
            let of_slots = match self.owned {
                OwnedSlots::One => ")",
                OwnedSlots::ByTarget { .. } => ") AND slot=0",
            };
            self.each_of("DELETE FROM tally WHERE (tenant,node_type,node) IN (", &keys, of_slots);
        }
        let owned_here = self.owned == OwnedSlots::One;
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
                let owned = if owned_here { number(Which::Owned) } else { 0 };
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
                    if !self.fresh {
                        counted.push(format!("({of_kind})"));
                    }
                    values.extend(counter_tuples(&of_kind, number(Which::Value)));
                } else if kind.fixed.source_type == key.node_type {
                    let [live, pending] = [Which::Outgoing, Which::PendingOutgoing].map(number);
                    match (live, pending) {
                        (0, 0) if self.fresh => {}
                        (0, 0) => none.push(format!("({of_kind})")),
                        _ => heads.push(format!("({of_kind},{},{live},{pending})", last.head().0)),
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
            heads.push(format!("({of},{},{})", last.head().0, cell.after.next.0));
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

    /// Groups and next ids as they lie in a copy, each by itself; there is none yet.
    pub fn loaded_groups(
        &mut self,
        groups: &[(GroupsKey, Group)],
        next: &[(GroupsKey, GroupId)],
        last: Version,
    ) {
        let of = |GroupsKey { tenant, kind, source }: &GroupsKey| {
            format!("{},{},{}", tenant.0, kind.0, source.0)
        };
        let tuple = |(key, group): &(GroupsKey, Group)| {
            let mut row = format!("({},{},", of(key), group.id.0);
            text::bytes(&mut row, group.name.as_str().as_bytes());
            let _ = write!(row, ",{})", group.size);
            row
        };
        let rows: Vec<String> = groups.iter().map(tuple).collect();
        self.each("INSERT INTO `groups` (tenant,kind,source,id,name,size) VALUES ", &rows, "");
        let heads =
            next.iter().map(|(key, id)| format!("({},{},{})", of(key), last.head().0, id.0));
        self.each(
            "INSERT INTO head (tenant,kind,source,version,next_group) VALUES ",
            &heads.collect::<Vec<_>>(),
            " ON DUPLICATE KEY UPDATE next_group=VALUES(next_group)",
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
