//! Statements of one round trip that fetch rows, and how their answers become `HeldRows` rows.

use std::fmt::Write;

use guanxi_model::codec::{decode_import, decode_job};
use guanxi_model::import::ImportId;
use guanxi_model::job::JobId;
use guanxi_model::{
    EdgeKey, GroupId, GroupSet, GroupsKey, KindId, NodeKey, NodeRow, NodeTypeId, SourceId, TenantId,
};
use mysql::Row;

use super::held_rows::{CounterCell, HeadCell, HeldRow, HeldRows, KeyCell};
use crate::idempotency::{self, TakenKey};
use crate::rows::{self, GROUP_COLUMNS, cell, head_tuple, node_tuple};
use crate::sql::{Dialect, RowSet, Session, SqlError, text};

/// What the rows of a statement are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expect {
    Nothing,
    /// How many rows it inserted is what matters.
    Inserted,
    Heads,
    /// The revision of the catalog as it stands.
    Revision,
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
pub(super) struct FetchScript {
    text: String,
    expected: Vec<Expect>,
    edges: Vec<EdgeKey>,
    nodes: Vec<NodeKey>,
    groups: Vec<GroupsKey>,
    counters: Vec<GroupsKey>,
    jobs: Vec<(TenantId, JobId)>,
    imports: Vec<(TenantId, ImportId)>,
}

impl FetchScript {
    /// `begin` is whole statements whose rows nobody wants.
    pub fn new(begin: &str) -> FetchScript {
        let expected = vec![Expect::Nothing; begin.split(';').filter(|s| !s.is_empty()).count()];
        FetchScript { text: begin.to_owned(), expected, ..FetchScript::default() }
    }

    pub fn statement(&mut self, expect: Expect) -> &mut String {
        if !self.text.is_empty() && !self.text.ends_with(';') {
            self.text.push(';');
        }
        self.expected.push(expect);
        &mut self.text
    }

    pub fn expect_last(&mut self, expect: Expect) {
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

    /// Sorted, so that those of one type stand together: MariaDB reads a list of plain numbers at
    /// half the price of one of rows.
    pub fn nodes(&mut self, nodes: &[NodeKey], dialect: Dialect) {
        const COLUMNS: &str =
            "SELECT tenant,node_type,id,private,erased_by FROM nodes FORCE INDEX (PRIMARY) WHERE";
        if dialect == Dialect::MariaDb {
            let together = |one: &NodeKey, next: &NodeKey| {
                (one.tenant, one.node_type) == (next.tenant, next.node_type)
            };
            for nodes in nodes.chunk_by(together) {
                let (tenant, node_type) = (nodes[0].tenant.0, nodes[0].node_type.0);
                let start =
                    format!("{COLUMNS} tenant={tenant} AND node_type={node_type} AND id IN (");
                self.select(nodes, Expect::Nodes, &start, |out, node| text::number(out, node.id));
            }
        } else {
            let start = format!("{COLUMNS} (tenant,node_type,id) IN (");
            self.select(nodes, Expect::Nodes, &start, node_tuple);
        }
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

    /// Runs it, takes the rows in, and returns how many were inserted. `locked` is the
    /// transaction's mark and steps, where heads and keys are locked.
    pub fn run(
        self,
        session: &mut Session<'_>,
        locked: Option<(u64, u64)>,
        held: &mut HeldRows,
    ) -> Result<u64, SqlError> {
        if self.expected.is_empty() {
            return Ok(0);
        }
        let sets = session.run(self.text.trim_end_matches(';'))?;
        if sets.len() != self.expected.len() {
            let (got, wanted) = (sets.len(), self.expected.len());
            session.close();
            return Err(SqlError::Refused(format!("{got} answers to {wanted} statements")));
        }
        self.known(held);
        let (mark, steps) = locked.unwrap_or_default();
        let mut inserted = 0;
        for (RowSet { rows, changed }, expect) in sets.into_iter().zip(&self.expected) {
            if matches!(expect, Expect::Inserted) {
                inserted += changed;
            }
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
        Ok(inserted)
    }

    /// What was asked for is none, unless a row says otherwise.
    fn known(&self, held: &mut HeldRows) {
        for key in &self.edges {
            held.edges.insert(*key, HeldRow::fetched(None));
        }
        for node in &self.nodes {
            held.nodes.insert(*node, HeldRow::fetched(NodeRow::default()));
        }
        for key in &self.groups {
            held.groups.insert(*key, HeldRow::fetched(GroupSet::default()));
        }
        for key in &self.counters {
            held.counters.insert(*key, CounterCell::default());
        }
        for job in &self.jobs {
            held.jobs.insert(*job, HeldRow::fetched(None));
        }
        for import in &self.imports {
            held.imports.insert(import.clone(), HeldRow::fetched(None));
        }
    }
}

fn take(
    row: &Row,
    expect: Expect,
    mark: u64,
    steps: u64,
    held: &mut HeldRows,
) -> Result<(), SqlError> {
    match expect {
        Expect::Nothing | Expect::Inserted => {}
        Expect::Heads => {
            let (key, head) = rows::head(row)?;
            let given = head.version.minus(steps);
            held.heads.insert(key, HeadCell { head, written: head, given, changed: false });
        }
        Expect::Revision => held.revision = cell(row, 0)?,
        Expect::Keys => {
            let (key, TakenKey { ours, row }) = idempotency::key_row(row, mark)?;
            held.keys.insert(key, KeyCell { row, ours, changed: false });
        }
        Expect::Edges => {
            let (key, edge) = rows::outgoing(row)?;
            held.edges.insert(key, HeldRow::fetched(Some(edge)));
        }
        Expect::Nodes => {
            let node = NodeKey {
                tenant: TenantId(cell(row, 0)?),
                node_type: NodeTypeId(cell(row, 1)?),
                id: cell(row, 2)?,
            };
            let erased_by = cell::<Option<u64>>(row, 4)?.map(JobId);
            let private = cell::<u8>(row, 3)? != 0;
            held.nodes.insert(node, HeldRow::fetched(NodeRow { private, erased_by }));
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
            let (tenant, kind) = (TenantId(cell(row, 0)?), KindId(cell(row, 1)?));
            let key = GroupsKey { tenant, kind, source: SourceId(cell(row, 2)?) };
            let value: i64 = cell(row, 4)?;
            let counter = held.counters.entry(key).or_default();
            counter.slots.insert(cell(row, 3)?, value);
            counter.value += value;
        }
        Expect::Jobs => {
            let key = (TenantId(cell(row, 0)?), JobId(cell(row, 1)?));
            let job = decode_job(&cell::<Vec<u8>>(row, 2)?).map_err(|_| unreadable("a job"))?;
            held.jobs.insert(key, HeldRow::fetched(Some(job)));
        }
        Expect::Imports => {
            let id = String::from_utf8(cell(row, 1)?).ok();
            let id = id.and_then(|id| ImportId::new(&id).ok());
            let id = id.ok_or_else(|| unreadable("an import's id"))?;
            let place = decode_import(&cell::<Vec<u8>>(row, 2)?);
            let place = place.map_err(|_| unreadable("an import's place"))?;
            held.imports.insert((TenantId(cell(row, 0)?), id), HeldRow::fetched(Some(place)));
        }
    }
    Ok(())
}

fn unreadable(what: &str) -> SqlError {
    SqlError::Refused(format!("{what} cannot be read: a newer release may have written it"))
}
