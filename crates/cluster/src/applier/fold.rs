//! A batch folded: records in their order over the rows that stand, to the rows that must be
//! written and one difference per tally row. Pure; the model decides what each record does.

use std::collections::BTreeMap;

use guanxi_model::record::EdgeRecord;
use guanxi_model::tally::CountedTally;
use guanxi_model::tally::apply_edge;
use guanxi_model::{
    EdgeKey, EdgeRow, Kind, KindId, NodeTypeId, SourceId, TargetId, TenantId, Which, places,
};
use rustc_hash::FxHashMap;

/// An edge in the order of `incoming`'s primary key: all locks are taken in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct IncomingKey {
    pub tenant: TenantId,
    pub kind: KindId,
    pub target: TargetId,
    pub source: SourceId,
}

impl IncomingKey {
    pub fn of(edge: &EdgeKey) -> IncomingKey {
        let EdgeKey { tenant, kind, source, target } = *edge;
        IncomingKey { tenant, kind, target, source }
    }

    pub fn edge(&self) -> EdgeKey {
        let IncomingKey { tenant, kind, target, source } = *self;
        EdgeKey { tenant, kind, source, target }
    }
}

/// A row of `tally`, in the order of its primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TallyKey {
    pub tenant: TenantId,
    pub node_type: NodeTypeId,
    pub node: u64,
    pub kind: KindId,
    pub slot: u32,
}

/// By how much the numbers of a tally row change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TallyDifference {
    pub incoming: i64,
    pub pending_incoming: i64,
    pub owned: i64,
}

/// A target's own numbers.
const TARGET_SLOT: u32 = 0;

/// The slot in which an edge counts for its owner: a function of the edge alone, whichever way its
/// record came.
pub(crate) fn owner_slot(edge: &EdgeKey, partitions: u32) -> u32 {
    places::partition(places::edge_shard(edge), partitions) + 1
}

/// What a batch changes.
#[derive(Debug)]
pub(crate) struct Fold {
    partitions: u32,
    /// Rows as they stood; none where there was none.
    standing: FxHashMap<IncomingKey, EdgeRow>,
    rows: BTreeMap<IncomingKey, RowWrite>,
    tallies: FxHashMap<TallyKey, TallyDifference>,
    /// Records that came late or twice.
    pub stale: u64,
}

/// A row that must be written, and whether one stood there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowWrite {
    pub stood: bool,
    /// None: the row goes.
    pub row: Option<EdgeRow>,
}

impl Fold {
    pub fn new(partitions: u32, standing: impl IntoIterator<Item = (EdgeKey, EdgeRow)>) -> Fold {
        let standing =
            standing.into_iter().map(|(key, row)| (IncomingKey::of(&key), row)).collect();
        Fold {
            partitions,
            standing,
            rows: BTreeMap::new(),
            tallies: FxHashMap::default(),
            stale: 0,
        }
    }

    /// Applies one record over what stands by now.
    pub fn apply(&mut self, kind: &Kind, record: &EdgeRecord) {
        let key = IncomingKey::of(&record.key);
        let Some(tallies) = apply_edge(kind, record, self.row(&key)) else {
            self.stale += 1;
            return;
        };
        self.count(&record.key, tallies);
        self.write(key, Some(record.new.clone()));
    }

    /// Makes the row what `outgoing` says it is, whatever stood; none: it goes.
    pub fn replace(&mut self, kind: &Kind, edge: &EdgeKey, row: Option<&EdgeRow>) {
        let key = IncomingKey::of(edge);
        let before = guanxi_model::tally::contribution(kind, edge, self.row(&key));
        let after = guanxi_model::tally::contribution(kind, edge, row);
        let less = before.map(|counted| (counted, -1));
        self.count(edge, less.chain(after.map(|counted| (counted, 1))));
        self.write(key, row.cloned());
    }

    pub fn row(&self, key: &IncomingKey) -> Option<&EdgeRow> {
        match self.rows.get(key) {
            Some(write) => write.row.as_ref(),
            None => self.standing.get(key),
        }
    }

    pub fn rows(&self) -> &BTreeMap<IncomingKey, RowWrite> {
        &self.rows
    }

    /// The tally rows that change, in the order of their keys.
    pub fn tallies(&self) -> Vec<(TallyKey, TallyDifference)> {
        let changed = self.tallies.iter().filter(|(_, by)| **by != TallyDifference::default());
        let mut changed: Vec<_> = changed.map(|(key, by)| (*key, *by)).collect();
        changed.sort_unstable_by_key(|(key, _)| *key);
        changed
    }

    fn write(&mut self, key: IncomingKey, row: Option<EdgeRow>) {
        let stood = self.standing.contains_key(&key);
        self.rows.insert(key, RowWrite { stood, row });
    }

    /// Only what the target's side keeps: outgoing tallies and groups are the source's.
    fn count(&mut self, edge: &EdgeKey, tallies: impl Iterator<Item = (CountedTally, i64)>) {
        for (counted, by) in tallies {
            let CountedTally::Node { node, kind, which } = counted else {
                continue;
            };
            let slot = match which {
                Which::Incoming | Which::PendingIncoming => TARGET_SLOT,
                Which::Owned => owner_slot(edge, self.partitions),
                Which::Outgoing | Which::PendingOutgoing | Which::Value => continue,
            };
            let (tenant, node_type, node) = (node.tenant, node.node_type, node.id);
            let key = TallyKey { tenant, node_type, node, kind, slot };
            let difference = self.tallies.entry(key).or_default();
            match which {
                Which::Incoming => difference.incoming += by,
                Which::PendingIncoming => difference.pending_incoming += by,
                _ => difference.owned += by,
            }
        }
    }
}
