//! What deciding about counters looks at: the rows that the transaction read, with what the batch
//! has decided before.

use std::collections::HashMap;
use std::sync::Arc;

use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupSet, GroupsKey, NodeKey, NodeRow, Record, TallyRow, TenantId,
    View, Which,
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

    pub fn take(&mut self, record: Record) -> Result<(), NotACounter> {
        match record {
            Record::Counter { tenant, kind, id, delta } => {
                let key = CounterKey { tenant, kind, node: id };
                self.add(key, delta);
                *self.deltas.entry(key).or_default() += delta;
            }
            Record::Idempotency { tenant, key, row } => {
                self.keys.insert((tenant, key.clone()), row);
                self.used.push((tenant, key));
            }
            _ => return Err(NotACounter),
        }
        Ok(())
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
