//! What a line about a node sees: the node as the lines before have left it.

use guanxi_core::snapshot::StoreError;
use guanxi_model::decide::Decided;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupSet, GroupsKey, Node, NodeKey, NodeRow, Record, TallyRow,
    TenantId, View, Which,
};

pub(super) struct NodeView<'a> {
    pub catalog: &'a Catalog,
    pub key: NodeKey,
    pub node: Node,
}

impl NodeView<'_> {
    pub fn take(&mut self, decided: &Decided) {
        for record in &decided.records {
            match record {
                Record::Node { row, .. } => self.node.settings = *row,
                Record::Counter { kind, delta, .. } => {
                    self.node.tallies.add(*kind, Which::Value, *delta);
                }
                _ => {}
            }
        }
    }
}

impl View for NodeView<'_> {
    type Error = StoreError;

    fn catalog(&self) -> &Catalog {
        self.catalog
    }

    fn edge(&self, _: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        Ok(None)
    }

    fn tallies(&self, _: &NodeKey) -> Result<TallyRow, StoreError> {
        Ok(self.node.tallies.clone())
    }

    fn groups(&self, _: &GroupsKey) -> Result<GroupSet, StoreError> {
        Ok(GroupSet::default())
    }

    fn node(&self, _: &NodeKey) -> Result<NodeRow, StoreError> {
        Ok(self.node.settings)
    }

    fn idempotency(
        &self,
        _: TenantId,
        _: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        Ok(None)
    }

    fn import(&self, _: TenantId, _: &ImportId) -> Result<Option<ImportRow>, StoreError> {
        Ok(None)
    }

    fn job(&self, _: TenantId, _: JobId) -> Result<Option<Job>, StoreError> {
        Ok(None)
    }
}
