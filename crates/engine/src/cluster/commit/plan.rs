//! What a transaction locks and fetches first, in as few statements as its changes need, and how
//! the answers become `Held` rows.

use std::fmt::Write;

use guanxi_model::codec::{decode_idempotency, decode_import, decode_job};
use guanxi_model::footprint::NO_KIND;
use guanxi_model::hash::hash64;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::import::ImportId;
use guanxi_model::job::JobId;
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{
    Catalog, EdgeKey, Footprint, GroupId, GroupSet, GroupsKey, Millis, NodeKey, NodeRow,
    NodeTypeId, SourceId, TenantId,
};
use mysql::Row;

use super::held::{Cell, CounterCell, HeadCell, Held, KeyCell};
use crate::cluster::rows::{
    self, GROUP_COLUMNS, HEAD_COLUMNS, HeadKey, cell, head_tuple, node_tuple,
};
use crate::cluster::sql::{Dialect, Session, Set, SqlError, text};
use crate::commit::Request;

/// Everything that a batch of requests may touch, sorted: locks are taken in one order everywhere.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub footprint: Footprint,
    pub imports: Vec<(TenantId, ImportId)>,
    /// By how much each head is raised: as many versions as the batch may draw from one.
    pub steps: u64,
}

/// What the first round trip must know beside the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    pub dialect: Dialect,
    pub now: Millis,
    /// No version is below this one (without its region byte).
    pub floor: u64,
    pub mark: u64,
}

impl Plan {
    pub fn of(
        requests: &[&Request],
        catalog: &Catalog,
        erased: impl Fn(TenantId, JobId) -> Option<NodeKey> + Copy,
    ) -> Plan {
        let mut plan = Plan::default();
        for request in requests {
            for change in &request.changes {
                plan.footprint.add(change, catalog, erased);
            }
            if let Some(key) = &request.key {
                plan.footprint.keys.push((request.tenant, key.clone()));
            }
            if let Some(step) = &request.import {
                plan.footprint.heads.push(import_head(request.tenant, &step.id));
                plan.imports.push((request.tenant, step.id.clone()));
            }
        }
        let Footprint { heads, edges, nodes, groups, counters, keys, jobs, .. } =
            &mut plan.footprint;
        heads.sort_unstable();
        plan.steps = heads.chunk_by(PartialEq::eq).map(<[HeadKey]>::len).max().unwrap_or(0) as u64;
        heads.dedup();
        sort(edges);
        sort(nodes);
        sort(groups);
        sort(counters);
        sort(keys);
        sort(jobs);
        sort(&mut plan.imports);
        plan
    }

    /// Locks and reads it all in one round trip, after `opening` (the transaction's beginning).
    pub fn fetch(
        &self,
        session: &mut Session<'_>,
        begin: &str,
        opening: &Opening,
        held: &mut Held,
    ) -> Result<(), SqlError> {
        let mut script = Script::new(begin);
        self.lock_heads(opening, &mut script);
        lock_keys(&self.footprint.keys, opening, &mut script);
        script.edges(&self.footprint.edges, opening.dialect);
        script.nodes(&self.footprint.nodes);
        script.groups(&self.footprint.groups);
        script.counters(&self.footprint.counters);
        script.jobs(&self.footprint.jobs);
        script.imports(&self.imports);
        script.run(session, Some((opening.mark, self.steps)), held)?;
        // An edge in a group needs the groups of its source; few are.
        let mut unforeseen: Vec<GroupsKey> = Vec::new();
        for (key, cell) in &held.edges {
            let groups = GroupsKey::of(key);
            if cell.before.as_ref().is_some_and(|row| row.group.is_some())
                && held.heads.contains_key(&groups)
                && !held.groups.contains_key(&groups)
            {
                unforeseen.push(groups);
            }
        }
        if unforeseen.is_empty() {
            return Ok(());
        }
        sort(&mut unforeseen);
        let mut script = Script::new("");
        script.groups(&unforeseen);
        script.run(session, None, held)
    }

    /// Raises every head, so that it is locked whether it was there or not, and changed in any
    /// case: a server may pass over the lock of a row that stays as it is.
    fn lock_heads(&self, opening: &Opening, script: &mut Script) {
        let first = (opening.now.0 << 12).max(opening.floor) + self.steps;
        for heads in self.footprint.heads.chunks(text::TUPLES_MAX) {
            let out = script.statement(Expect::Nothing);
            out.push_str("INSERT INTO head (tenant,kind,source,version) VALUES ");
            text::list(out, heads, |out, head| {
                let (tenant, kind, source) = (head.tenant.0, head.kind.0, head.source.0);
                let _ = write!(out, "({tenant},{kind},{source},{first})");
            });
            let steps = self.steps;
            let _ = write!(
                out,
                " ON DUPLICATE KEY UPDATE version=GREATEST(version+{steps},VALUES(version))"
            );
            if opening.dialect == Dialect::MariaDb {
                let _ = write!(out, " RETURNING {HEAD_COLUMNS}");
                script.expect_last(Expect::Heads);
            } else {
                let out = script.statement(Expect::Heads);
                let _ = write!(
                    out,
                    "SELECT {HEAD_COLUMNS} FROM head FORCE INDEX (PRIMARY) \
                     WHERE (tenant,kind,source) IN ("
                );
                text::list(out, heads, head_tuple);
                out.push(')');
            }
        }
    }
}

/// Takes each key for this transaction unless it was used in the last 24 hours; the mark that
/// stands afterwards says whose it is.
fn lock_keys(keys: &[(TenantId, IdempotencyKey)], opening: &Opening, script: &mut Script) {
    let Opening { now, mark, .. } = *opening;
    for keys in keys.chunks(text::TUPLES_MAX) {
        let out = script.statement(Expect::Nothing);
        out.push_str("INSERT INTO idempotency (tenant,name,mark,at) VALUES ");
        text::list(out, keys, |out, (tenant, key)| {
            let _ = write!(out, "({},", tenant.0);
            text::bytes(out, key.as_str().as_bytes());
            let _ = write!(out, ",{mark},{})", now.0);
        });
        // Assignments are done in order, so the one that the others ask for comes last.
        let expired = now.0.saturating_sub(IDEMPOTENCY_TTL_MS);
        let _ = write!(
            out,
            " ON DUPLICATE KEY UPDATE mark=IF(at<={expired},VALUES(mark),mark),\
             answers=IF(at<={expired},NULL,answers),at=IF(at<={expired},VALUES(at),at)"
        );
        let out = script.statement(Expect::Keys);
        out.push_str(
            "SELECT tenant,name,mark,answers FROM idempotency FORCE INDEX (PRIMARY) \
             WHERE (tenant,name) IN (",
        );
        text::list(out, keys, key_tuple);
        out.push(')');
    }
}

/// What the rows of a statement are.
#[derive(Debug, Clone, Copy)]
enum Expect {
    Nothing,
    Heads,
    Keys,
    Edges,
    Nodes,
    Groups,
    Counters,
    Jobs,
    Imports,
}

/// Statements of one round trip with what each answers, and the keys that were asked for: a key
/// without a row is known to have none.
#[derive(Debug, Default)]
pub(super) struct Script {
    text: String,
    expected: Vec<Expect>,
    edges: Vec<EdgeKey>,
    nodes: Vec<NodeKey>,
    groups: Vec<GroupsKey>,
    counters: Vec<GroupsKey>,
    jobs: Vec<(TenantId, JobId)>,
    imports: Vec<(TenantId, ImportId)>,
}

impl Script {
    /// `begin` is whole statements whose rows nobody wants.
    pub fn new(begin: &str) -> Script {
        let expected = vec![Expect::Nothing; begin.split(';').filter(|s| !s.is_empty()).count()];
        Script { text: begin.to_owned(), expected, ..Script::default() }
    }

    fn statement(&mut self, expect: Expect) -> &mut String {
        if !self.text.is_empty() && !self.text.ends_with(';') {
            self.text.push(';');
        }
        self.expected.push(expect);
        &mut self.text
    }

    fn expect_last(&mut self, expect: Expect) {
        if let Some(last) = self.expected.last_mut() {
            *last = expect;
        }
    }

    /// Sorted, so that those of one kind stand together.
    pub fn edges(&mut self, edges: &[EdgeKey], dialect: Dialect) {
        let of_kinds = dialect == Dialect::MariaDb;
        let together = |one: &EdgeKey, next: &EdgeKey| {
            !of_kinds || (one.tenant, one.kind) == (next.tenant, next.kind)
        };
        for edges in edges.chunk_by(together).flat_map(|edges| edges.chunks(text::TUPLES_MAX)) {
            let statement = match of_kinds {
                true => rows::select_outgoing_of_kind(edges),
                false => rows::select_outgoing(edges),
            };
            self.statement(Expect::Edges).push_str(&statement);
        }
        self.edges.extend_from_slice(edges);
    }

    pub fn nodes(&mut self, nodes: &[NodeKey]) {
        let columns = "SELECT tenant,node_type,id,private,erased_by FROM nodes FORCE INDEX \
                       (PRIMARY) WHERE (tenant,node_type,id) IN (";
        self.select(nodes, Expect::Nodes, columns, node_tuple);
        self.nodes.extend_from_slice(nodes);
    }

    pub fn groups(&mut self, groups: &[GroupsKey]) {
        let columns = format!(
            "SELECT {GROUP_COLUMNS} FROM `groups` FORCE INDEX (PRIMARY) \
             WHERE (tenant,kind,source) IN ("
        );
        self.select(groups, Expect::Groups, &columns, head_tuple);
        self.groups.extend_from_slice(groups);
    }

    pub fn counters(&mut self, counters: &[GroupsKey]) {
        let columns = "SELECT tenant,kind,node,slot,value FROM counter FORCE INDEX (PRIMARY) \
                       WHERE (tenant,kind,node) IN (";
        self.select(counters, Expect::Counters, columns, head_tuple);
        self.counters.extend_from_slice(counters);
    }

    pub fn jobs(&mut self, jobs: &[(TenantId, JobId)]) {
        let columns = "SELECT tenant,id,job FROM jobs WHERE (tenant,id) IN (";
        self.select(jobs, Expect::Jobs, columns, |out, (tenant, id)| {
            let _ = write!(out, "({},{})", tenant.0, id.0);
        });
        self.jobs.extend_from_slice(jobs);
    }

    pub fn imports(&mut self, imports: &[(TenantId, ImportId)]) {
        let columns = "SELECT tenant,id,place FROM imports WHERE (tenant,id) IN (";
        self.select(imports, Expect::Imports, columns, |out, (tenant, id)| {
            let _ = write!(out, "({},", tenant.0);
            text::bytes(out, id.as_str().as_bytes());
            out.push(')');
        });
        self.imports.extend_from_slice(imports);
    }

    fn select<T>(
        &mut self,
        keys: &[T],
        expect: Expect,
        columns: &str,
        tuple: impl Fn(&mut String, &T) + Copy,
    ) {
        for keys in keys.chunks(text::TUPLES_MAX) {
            let out = self.statement(expect);
            out.push_str(columns);
            text::list(out, keys, tuple);
            out.push(')');
        }
    }

    /// Runs it and takes the rows in. `locked` is the transaction's mark and steps, where heads
    /// and keys are locked.
    pub fn run(
        self,
        session: &mut Session<'_>,
        locked: Option<(u64, u64)>,
        held: &mut Held,
    ) -> Result<(), SqlError> {
        if self.expected.is_empty() {
            return Ok(());
        }
        let sets = session.run(self.text.trim_end_matches(';'))?;
        if sets.len() != self.expected.len() {
            let (got, wanted) = (sets.len(), self.expected.len());
            session.close();
            return Err(SqlError::Refused(format!("{got} answers to {wanted} statements")));
        }
        self.known(held);
        let (mark, steps) = locked.unwrap_or_default();
        for (Set { rows, .. }, expect) in sets.into_iter().zip(&self.expected) {
            for row in rows {
                take(&row, *expect, mark, steps, held)?;
            }
        }
        for key in &self.groups {
            let next = held.heads.get(key).map_or(1, |cell| cell.head.next_group);
            if let Some(cell) = held.groups.get_mut(key) {
                (cell.before.next, cell.after.next) = (GroupId(next), GroupId(next));
            }
        }
        Ok(())
    }

    /// What was asked for is none, unless a row says otherwise.
    fn known(&self, held: &mut Held) {
        for key in &self.edges {
            held.edges.insert(*key, Cell::fetched(None));
        }
        for node in &self.nodes {
            held.nodes.insert(*node, Cell::fetched(NodeRow::default()));
        }
        for key in &self.groups {
            held.groups.insert(*key, Cell::fetched(GroupSet::default()));
        }
        for key in &self.counters {
            held.counters.insert(*key, CounterCell::default());
        }
        for job in &self.jobs {
            held.jobs.insert(*job, Cell::fetched(None));
        }
        for import in &self.imports {
            held.imports.insert(import.clone(), Cell::fetched(None));
        }
    }
}

fn take(row: &Row, expect: Expect, mark: u64, steps: u64, held: &mut Held) -> Result<(), SqlError> {
    match expect {
        Expect::Nothing => {}
        Expect::Heads => {
            let (key, head) = rows::head(row)?;
            let given = head.version.saturating_sub(steps);
            held.heads.insert(key, HeadCell { head, given, changed: false });
        }
        Expect::Keys => {
            let name: Vec<u8> = cell(row, 1)?;
            let name = String::from_utf8(name).ok();
            let key = name.and_then(|name| IdempotencyKey::new(&name).ok());
            let key = key.ok_or_else(|| unreadable("an idempotency key"))?;
            let ours = cell::<u64>(row, 2)? == mark;
            let answers: Option<Vec<u8>> = cell(row, 3)?;
            let stored = answers.filter(|_| !ours).map(|bytes| decode_idempotency(&bytes));
            let stored = stored.transpose().map_err(|_| unreadable("a stored answer"))?;
            let cell_of_key = KeyCell { row: stored, ours, changed: false };
            held.keys.insert((TenantId(cell(row, 0)?), key), cell_of_key);
        }
        Expect::Edges => {
            let (key, edge) = rows::outgoing(row)?;
            held.edges.insert(key, Cell::fetched(Some(edge)));
        }
        Expect::Nodes => {
            let node = NodeKey {
                tenant: TenantId(cell(row, 0)?),
                node_type: NodeTypeId(cell(row, 1)?),
                id: cell(row, 2)?,
            };
            let erased_by = cell::<Option<u64>>(row, 4)?.map(JobId);
            let private = cell::<u8>(row, 3)? != 0;
            held.nodes.insert(node, Cell::fetched(NodeRow { private, erased_by }));
        }
        Expect::Groups => {
            let (key, group) = rows::group(row)?;
            if let Some(cell) = held.groups.get_mut(&key) {
                // In the order of their creation, however the rows come.
                let at = cell.before.groups.partition_point(|other| other.id < group.id);
                cell.before.groups.insert(at, group.clone());
                cell.after.groups.insert(at, group);
            }
        }
        Expect::Counters => {
            let (tenant, kind) = (TenantId(cell(row, 0)?), guanxi_model::KindId(cell(row, 1)?));
            let key = GroupsKey { tenant, kind, source: SourceId(cell(row, 2)?) };
            let value: i64 = cell(row, 4)?;
            let counter = held.counters.entry(key).or_default();
            counter.slots.insert(cell(row, 3)?, value);
            counter.value += value;
        }
        Expect::Jobs => {
            let key = (TenantId(cell(row, 0)?), JobId(cell(row, 1)?));
            let job = decode_job(&cell::<Vec<u8>>(row, 2)?).map_err(|_| unreadable("a job"))?;
            held.jobs.insert(key, Cell::fetched(Some(job)));
        }
        Expect::Imports => {
            let id = String::from_utf8(cell(row, 1)?).ok();
            let id = id.and_then(|id| ImportId::new(&id).ok());
            let id = id.ok_or_else(|| unreadable("an import's id"))?;
            let place = decode_import(&cell::<Vec<u8>>(row, 2)?);
            let place = place.map_err(|_| unreadable("an import's place"))?;
            held.imports.insert((TenantId(cell(row, 0)?), id), Cell::fetched(Some(place)));
        }
    }
    Ok(())
}

/// `(tenant,name)` of an idempotency key.
pub(super) fn key_tuple(out: &mut String, (tenant, key): &(TenantId, IdempotencyKey)) {
    let _ = write!(out, "({},", tenant.0);
    text::bytes(out, key.as_str().as_bytes());
    out.push(')');
}

/// An import's place is moved under a head of its own; two imports that share one only wait.
fn import_head(tenant: TenantId, id: &ImportId) -> HeadKey {
    let source = SourceId(hash64(id.as_str().as_bytes()));
    GroupsKey { tenant, kind: NO_KIND, source }
}

fn unreadable(what: &str) -> SqlError {
    SqlError::Refused(format!("{what} cannot be read: a newer release may have written it"))
}

fn sort<T: Ord>(items: &mut Vec<T>) {
    items.sort_unstable();
    items.dedup();
}
