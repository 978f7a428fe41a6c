//! What `decide` may look at: rows as they stand, with everything decided before.

use crate::catalog::Catalog;
use crate::edge::{EdgeKey, EdgeRow};
use crate::group::{GroupSet, GroupsKey};
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::import::{ImportId, ImportRow};
use crate::job::{Job, JobId};
use crate::kind::KindId;
use crate::node::{NodeKey, NodeRow, TenantId};
use crate::tally::{TallyRow, Which};

pub trait View {
    /// A row could not be read; nothing is decided then.
    type Error;

    fn catalog(&self) -> &Catalog;
    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, Self::Error>;
    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, Self::Error>;

    /// One number of a node.
    fn tally(&self, node: &NodeKey, kind: KindId, which: Which) -> Result<i64, Self::Error> {
        Ok(self.tallies(node)?.get(kind, which))
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, Self::Error>;
    fn node(&self, node: &NodeKey) -> Result<NodeRow, Self::Error>;
    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, Self::Error>;
    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, Self::Error>;
    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, Self::Error>;
}
