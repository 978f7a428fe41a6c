//! The catalog: all kinds and node types of all tenants, small enough to be held in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::error::{Code, Error};
use crate::kind::{Kind, KindId, KindName};
use crate::node::{NodeTypeId, TenantId};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    tenants: HashMap<TenantId, TenantCatalog>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TenantCatalog {
    kinds: BTreeMap<KindId, Arc<Kind>>,
    kind_names: HashMap<KindName, KindId>,
    types: BTreeMap<NodeTypeId, KindName>,
}

impl Catalog {
    pub fn kind(&self, tenant: TenantId, id: KindId) -> Option<&Arc<Kind>> {
        self.tenants.get(&tenant)?.kinds.get(&id)
    }

    /// The kind that a caller names, or `unknown_kind`.
    pub fn named(&self, tenant: TenantId, name: &str) -> Result<&Arc<Kind>, Error> {
        self.find(tenant, name).ok_or_else(|| {
            let hint = "list the kinds to see those there are";
            let shown: String = name.chars().take(40).collect();
            Error::new(Code::UnknownKind, format!("there is no kind '{shown}'; {hint}"))
        })
    }

    pub fn find(&self, tenant: TenantId, name: &str) -> Option<&Arc<Kind>> {
        let tenant = self.tenants.get(&tenant)?;
        tenant.kinds.get(tenant.kind_names.get(name)?)
    }

    /// A tenant's kinds in the order of their ids.
    pub fn kinds(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<Kind>> {
        self.tenants.get(&tenant).into_iter().flat_map(|tenant| tenant.kinds.values())
    }

    /// Kinds whose standing edges forbid an edge of `kind` between the same two nodes.
    pub fn excluders(&self, tenant: TenantId, kind: KindId) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds(tenant).filter(move |other| other.rules.excludes.contains(&kind))
    }

    pub fn type_named(&self, tenant: TenantId, name: &str) -> Option<NodeTypeId> {
        let types = &self.tenants.get(&tenant)?.types;
        types.iter().find(|(_, named)| named.as_str() == name).map(|(id, _)| *id)
    }

    pub fn type_name(&self, tenant: TenantId, id: NodeTypeId) -> Option<&KindName> {
        self.tenants.get(&tenant)?.types.get(&id)
    }

    /// A tenant's node types in the order of their ids.
    pub fn types(&self, tenant: TenantId) -> impl Iterator<Item = (NodeTypeId, &KindName)> {
        let types = self.tenants.get(&tenant).into_iter().flat_map(|tenant| &tenant.types);
        types.map(|(id, name)| (*id, name))
    }

    pub fn tenants(&self) -> impl Iterator<Item = TenantId> {
        self.tenants.keys().copied()
    }

    pub fn next_kind_id(&self, tenant: TenantId) -> KindId {
        let last = self.tenants.get(&tenant).and_then(|t| t.kinds.last_key_value());
        KindId(last.map_or(1, |(id, _)| id.0 + 1))
    }

    pub fn next_type_id(&self, tenant: TenantId) -> NodeTypeId {
        let last = self.tenants.get(&tenant).and_then(|t| t.types.last_key_value());
        NodeTypeId(last.map_or(1, |(id, _)| id.0 + 1))
    }

    pub fn set_kind(&mut self, tenant: TenantId, kind: Kind) {
        let tenant = self.tenants.entry(tenant).or_default();
        tenant.kind_names.insert(kind.name.clone(), kind.id);
        tenant.kinds.insert(kind.id, Arc::new(kind));
    }

    pub fn set_type(&mut self, tenant: TenantId, id: NodeTypeId, name: KindName) {
        self.tenants.entry(tenant).or_default().types.insert(id, name);
    }
}
