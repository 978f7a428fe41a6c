//! `absorb`: the one place where a record becomes rows. Each deployment has its own way to hold
//! them, its `Sheet`: the embedded store both sides and no tombstones, a cluster's transaction the
//! source's side with tombstones, its counters nothing but numbers.

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::edge::{EdgeKey, EdgeRow, Ends};
use crate::entry::IndexEntry;
use crate::group::{GroupSet, GroupsKey};
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::import::{ImportId, ImportRow};
use crate::job::Job;
use crate::kind::{Kind, KindId};
use crate::node::{NodeKey, NodeRow, TenantId};
use crate::record::{EdgeRecord, Record, Repair};
use crate::tally::apply_edge;
use crate::tally::{CountedTally, Which};
use crate::view::View;

/// Rows that records change. What a sheet does not keep is foreign to it.
pub trait Sheet: View {
    /// A record of what is not kept here.
    fn foreign(&self, what: &'static str) -> Self::Error;

    /// The record's row takes the place of the one that stands, if any does.
    fn replace(
        &mut self,
        _record: EdgeRecord,
        _standing: Option<EdgeRow>,
    ) -> Result<(), Self::Error> {
        Err(self.foreign("an edge"))
    }

    /// A record has come late or twice and changes nothing.
    fn pass_over(&mut self, _edge: &EdgeKey) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Only numbers that are kept here are changed.
    fn add(&mut self, counted: CountedTally, by: i64) -> Result<(), Self::Error>;

    fn set_tally(
        &mut self,
        _node: NodeKey,
        _kind: KindId,
        _which: Which,
        _value: i64,
    ) -> Result<(), Self::Error> {
        Err(self.foreign("a tally"))
    }

    fn change_groups(
        &mut self,
        _groups: GroupsKey,
        _change: impl FnOnce(&mut GroupSet),
    ) -> Result<(), Self::Error> {
        Err(self.foreign("a group"))
    }

    fn set_node(&mut self, _node: NodeKey, _row: NodeRow) -> Result<(), Self::Error> {
        Err(self.foreign("a node"))
    }

    fn change_catalog(&mut self, _change: impl FnOnce(&mut Catalog)) -> Result<(), Self::Error> {
        Err(self.foreign("a kind"))
    }

    fn keep_answers(
        &mut self,
        tenant: TenantId,
        key: IdempotencyKey,
        row: IdempotencyRow,
    ) -> Result<(), Self::Error>;

    fn set_import(
        &mut self,
        _tenant: TenantId,
        _id: ImportId,
        _row: ImportRow,
    ) -> Result<(), Self::Error> {
        Err(self.foreign("an import"))
    }

    fn set_job(&mut self, _tenant: TenantId, _job: Job) -> Result<(), Self::Error> {
        Err(self.foreign("a job"))
    }

    /// The edges of a kind in a range enter its index by time.
    fn index(
        &mut self,
        _tenant: TenantId,
        _kind: KindId,
        _after: Option<Ends>,
        _until: Ends,
    ) -> Result<(), Self::Error> {
        Err(self.foreign("an index"))
    }

    fn set_entry(&mut self, _entry: IndexEntry, _present: bool) -> Result<(), Self::Error> {
        Err(self.foreign("an index entry"))
    }
}

/// Takes one record in. After an error the sheet is of no use.
pub fn absorb<S: Sheet>(record: Record, sheet: &mut S) -> Result<(), S::Error> {
    match record {
        Record::Edge(record) => {
            let kind = kind(sheet, record.key.tenant, record.key.kind)?;
            let standing = sheet.edge(&record.key)?;
            let Some(mut tallies) = apply_edge(&kind, &record, standing.as_ref()) else {
                return sheet.pass_over(&record.key);
            };
            sheet.replace(*record, standing)?;
            tallies.try_for_each(|(counted, by)| sheet.add(counted, by))
        }
        Record::Counter { tenant, kind: of, id, delta } => {
            let node_type = kind(sheet, tenant, of)?.fixed.target_type;
            let node = NodeKey { tenant, node_type, id };
            sheet.add(CountedTally::Node { node, kind: of, which: Which::Value }, delta)
        }
        Record::Group { groups, id, name } => sheet.change_groups(groups, |set| set.set(id, name)),
        Record::Node { node, row } => sheet.set_node(node, row),
        Record::NodeType { tenant, id, name } => {
            sheet.change_catalog(|catalog| catalog.set_type(tenant, id, name))
        }
        Record::Kind { tenant, kind } => {
            sheet.change_catalog(|catalog| catalog.set_kind(tenant, *kind))
        }
        Record::Idempotency { tenant, key, row } => sheet.keep_answers(tenant, key, row),
        Record::Import { tenant, id, row } => sheet.set_import(tenant, id, row),
        Record::Job { tenant, job } => sheet.set_job(tenant, *job),
        Record::BuildIndex { tenant, kind, after, until, .. } => {
            sheet.index(tenant, kind, after, until)
        }
        Record::Repair(Repair::Tally { node, kind, which, value }) => {
            sheet.set_tally(node, kind, which, value)
        }
        Record::Repair(Repair::GroupSize { groups, id, size }) => {
            sheet.change_groups(groups, |set| set.set_size(id, size))
        }
        Record::Repair(Repair::Entry { entry, present }) => sheet.set_entry(entry, present),
    }
}

fn kind<S: Sheet>(sheet: &S, tenant: TenantId, id: KindId) -> Result<Arc<Kind>, S::Error> {
    let kind = sheet.catalog().kind(tenant, id).cloned();
    kind.ok_or_else(|| sheet.foreign("an edge or a counter of no kind"))
}
