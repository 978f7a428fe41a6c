//! Nodes, the ends of edges, and the tenant that owns an id space.

/// One product that uses the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

impl TenantId {
    /// Whoever shows no credential.
    pub const DEFAULT: TenantId = TenantId(1);
}

/// What a node is: user, post… Given out once per tenant and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTypeId(pub u16);

/// One node of a tenant. Its id is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeKey {
    pub tenant: TenantId,
    pub node_type: NodeTypeId,
    pub id: u64,
}

/// All that is kept for a node. Nearly every change asks for both parts, so they share a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub settings: NodeRow,
    pub tallies: crate::tally::TallyRow,
}

/// A node's settings and marks. The default stands for a node nobody has said anything about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeRow {
    /// New incoming edges of kinds with approval wait for it.
    pub private: bool,
    /// The erase job that runs on it: puts that touch it are refused meanwhile.
    pub erased_by: Option<crate::job::JobId>,
}
