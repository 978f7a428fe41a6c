//! What a batch will most likely write, before anything was read: nearly every put is of an edge
//! that never was, for a source whose last version is older than the clock. Such rows are written
//! while the heads are locked and compared with what is decided afterwards; only where the two
//! differ is a second statement needed. Nothing rests on the guess but the cost.

use std::convert::Infallible;

use guanxi_model::decide::{Stamp, decide};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::tally::CountedTally;
use guanxi_model::tally::apply_edge;
use guanxi_model::{
    Catalog, Change, EdgeKey, EdgeRow, GroupSet, GroupsKey, HeadVersion, Millis, NodeKey, NodeRow,
    Record, Region, Request, TallyRow, TenantId, View, Which,
};
use rustc_hash::FxHashMap;

use crate::rows::HeadKey;

/// A row that is written before it is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForeseenEdge {
    pub key: EdgeKey,
    pub row: EdgeRow,
    pub cause: Cause,
}

/// By how much a head's tallies grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ForeseenHead {
    pub outgoing: i64,
    pub pending_outgoing: i64,
}

#[derive(Debug, Default)]
pub(super) struct Foresight {
    /// In the order of their keys.
    pub edges: Vec<ForeseenEdge>,
    pub heads: FxHashMap<HeadKey, ForeseenHead>,
}

impl Foresight {
    /// `given` is the version that every head has given out if the clock is ahead of it. Heads that
    /// are named once are foreseen: then nothing else of the batch can change what their put will
    /// find.
    pub fn of(
        requests: &[&Request],
        heads: &[HeadKey],
        catalog: &Catalog,
        given: HeadVersion,
        region: Region,
        now: Millis,
    ) -> Foresight {
        let mut times: FxHashMap<HeadKey, u32> = FxHashMap::default();
        for head in heads {
            *times.entry(*head).or_default() += 1;
        }
        let mut foresight = Foresight::default();
        let view = Blank(catalog);
        for change in requests.iter().flat_map(|request| &request.changes) {
            let Change::Put(put) = change else {
                continue;
            };
            let head = GroupsKey::of(&put.edge);
            if times.get(&head) != Some(&1) {
                continue;
            }
            let mut next = |_| given.plus(1).with_region(region);
            let mut stamp = Stamp { now, keys_age_by: now, versions: &mut next };
            if let Ok(decided) = decide(change, &view, &mut stamp)
                && let Ok([Record::Edge(record)]) = <[Record; 1]>::try_from(decided.records)
            {
                foresight.take(head, *record, catalog);
            }
        }
        foresight.edges.sort_unstable_by_key(|edge| edge.key);
        foresight
    }

    fn take(&mut self, head: HeadKey, record: EdgeRecord, catalog: &Catalog) {
        let Some(kind) = catalog.kind(record.key.tenant, record.key.kind) else {
            return;
        };
        let Some(tallies) = apply_edge(kind, &record, None) else {
            return;
        };
        let mut growth = ForeseenHead::default();
        for (counted, by) in tallies {
            match counted {
                CountedTally::Node { which: Which::Outgoing, .. } => growth.outgoing += by,
                CountedTally::Node { which: Which::PendingOutgoing, .. } => {
                    growth.pending_outgoing += by;
                }
                _ => {}
            }
        }
        self.heads.insert(head, growth);
        let EdgeRecord { key, new: row, cause, .. } = record;
        self.edges.push(ForeseenEdge { key, row, cause });
    }
}

/// Rows of a world in which nothing has happened yet.
struct Blank<'a>(&'a Catalog);

impl View for Blank<'_> {
    type Error = Infallible;

    fn catalog(&self) -> &Catalog {
        self.0
    }

    fn edge(&self, _: &EdgeKey) -> Result<Option<EdgeRow>, Infallible> {
        Ok(None)
    }

    fn tallies(&self, _: &NodeKey) -> Result<TallyRow, Infallible> {
        Ok(TallyRow::default())
    }

    fn groups(&self, _: &GroupsKey) -> Result<GroupSet, Infallible> {
        Ok(GroupSet::default())
    }

    fn node(&self, _: &NodeKey) -> Result<NodeRow, Infallible> {
        Ok(NodeRow::default())
    }

    fn idempotency(
        &self,
        _: TenantId,
        _: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, Infallible> {
        Ok(None)
    }

    fn import(&self, _: TenantId, _: &ImportId) -> Result<Option<ImportRow>, Infallible> {
        Ok(None)
    }

    fn job(&self, _: TenantId, _: JobId) -> Result<Option<Job>, Infallible> {
        Ok(None)
    }
}
