//! What deciding about counters looks at: the rows that the transaction read, with what the batch
//! has decided before.

use std::collections::HashMap;
use std::sync::Arc;

use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::tally::CountedTally;
use guanxi_model::{
    Catalog, Change, Code, EdgeKey, EdgeRow, Error, GroupSet, GroupsKey, Ledger, Millis, NodeKey,
    NodeRow, Origin, Record, Sheet, TallyRow, TenantId, Version, View, Which, absorb,
};

use super::rows::CounterKey;
use crate::idempotency::TenantKey;

/// Something was asked for that a change of a counter does not depend on.
#[derive(Debug)]
pub struct NotACounter;

pub struct CounterView {
    pub catalog: Arc<Catalog>,
    pub tallies: HashMap<NodeKey, TallyRow>,
    pub nodes: HashMap<NodeKey, NodeRow>,
    pub keys: HashMap<TenantKey, IdempotencyRow>,
    /// What the batch adds.
    pub deltas: HashMap<CounterKey, i64>,
    /// Keys that the batch uses.
    pub used: Vec<TenantKey>,
}

impl CounterView {
    pub fn new(catalog: Arc<Catalog>) -> CounterView {
        CounterView {
            catalog,
            tallies: HashMap::new(),
            nodes: HashMap::new(),
            keys: HashMap::new(),
            deltas: HashMap::new(),
            used: Vec::new(),
        }
    }

    /// The node that a counter of this kind stands on.
    pub fn node_of(&self, key: &CounterKey) -> Option<NodeKey> {
        let kind = self.catalog.kind(key.tenant, key.kind)?;
        Some(NodeKey { tenant: key.tenant, node_type: kind.fixed.target_type, id: key.node })
    }

    pub fn add(&mut self, key: CounterKey, value: i64) {
        if let Some(node) = self.node_of(&key) {
            self.tallies.entry(node).or_default().add(key.kind, Which::Value, value);
        }
    }
}

impl View for CounterView {
    type Error = NotACounter;

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, NotACounter> {
        Ok(self.tallies.get(node).cloned().unwrap_or_default())
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, NotACounter> {
        Ok(self.nodes.get(node).copied().unwrap_or_default())
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, NotACounter> {
        Ok(self.keys.get(&(tenant, key.clone())).cloned())
    }

    fn edge(&self, _: &EdgeKey) -> Result<Option<EdgeRow>, NotACounter> {
        Err(NotACounter)
    }

    fn groups(&self, _: &GroupsKey) -> Result<GroupSet, NotACounter> {
        Err(NotACounter)
    }

    fn import(&self, _: TenantId, _: &ImportId) -> Result<Option<ImportRow>, NotACounter> {
        Err(NotACounter)
    }

    fn job(&self, _: TenantId, _: JobId) -> Result<Option<Job>, NotACounter> {
        Err(NotACounter)
    }
}

impl Sheet for CounterView {
    fn foreign(&self, _: &'static str) -> NotACounter {
        NotACounter
    }

    fn add(&mut self, counted: CountedTally, by: i64) -> Result<(), NotACounter> {
        let CountedTally::Node { node, kind, which: Which::Value } = counted else {
            return Err(NotACounter);
        };
        let key = CounterKey { tenant: node.tenant, kind, node: node.id };
        self.tallies.entry(node).or_default().add(kind, Which::Value, by);
        *self.deltas.entry(key).or_default() += by;
        Ok(())
    }

    fn keep_answers(
        &mut self,
        tenant: TenantId,
        key: IdempotencyKey,
        row: IdempotencyRow,
    ) -> Result<(), NotACounter> {
        self.keys.insert((tenant, key.clone()), row);
        self.used.push((tenant, key));
        Ok(())
    }
}

/// A batch of counters being decided. No change of a counter takes a version, and an import's place
/// is kept by the committer of edges.
pub struct CounterLedger {
    pub view: CounterView,
    pub now: Millis,
}

impl Ledger for CounterLedger {
    type Rows = CounterView;
    type Broken = Error;

    fn rows(&self) -> &CounterView {
        &self.view
    }

    fn now(&self) -> Millis {
        self.now
    }

    fn version(&self, _: &GroupsKey, _: &[GroupsKey]) -> Version {
        Version::ZERO
    }

    fn spend(&mut self, _: &[GroupsKey]) -> Result<(), Error> {
        Ok(())
    }

    fn take(&mut self, record: Record, _: &Origin) -> Result<(), Error> {
        absorb(record, &mut self.view).map_err(not_a_counter)
    }

    fn fetch(&mut self, row: NotACounter, _: usize) -> Result<(), Error> {
        Err(not_a_counter(row))
    }

    fn refuses(&self, change: &Change) -> Option<Error> {
        let of_counter = matches!(change, Change::Count(_) | Change::ImportCounter { .. });
        (!of_counter).then(|| not_a_counter(NotACounter))
    }
}

fn not_a_counter(_: NotACounter) -> Error {
    Error::new(Code::Internal, "this change is not one of a counter")
}
