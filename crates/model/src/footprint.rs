//! What a change may touch, before it is decided: the heads that must be held and the rows that
//! `decide` may look at. A deployment whose rows are far away fetches them together, and locks the
//! heads before it looks. A footprint may be larger than what `decide` needs, never smaller.

use crate::catalog::Catalog;
use crate::change::{Change, Field, Put};
use crate::edge::{EdgeKey, SourceId};
use crate::group::GroupsKey;
use crate::idempotency::IdempotencyKey;
use crate::job::JobId;
use crate::kind::{Kind, KindId};
use crate::node::{NodeKey, NodeTypeId, TenantId};

/// No kind has this id: its heads stand for what belongs to no kind. The head of source 0 is for
/// a tenant's jobs, the head of a node's id for its settings.
pub const NO_KIND: KindId = KindId(0);

/// Lists may name a thing several times. A head is named at least as often as the change may draw
/// a version from it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Footprint {
    pub heads: Vec<GroupsKey>,
    pub edges: Vec<EdgeKey>,
    /// Edges that would exclude one that is to become live, each with the head of that one. Whoever
    /// puts such an edge holds this head too, and may leave word there: without it there is none.
    pub exclusions: Vec<(GroupsKey, EdgeKey)>,
    /// Settings and marks of these nodes.
    pub nodes: Vec<NodeKey>,
    /// Groups that are looked at in any case. Those of any head in the list may be, when an edge
    /// turns out to be in one.
    pub groups: Vec<GroupsKey>,
    /// Pure counters: kind and node.
    pub counters: Vec<GroupsKey>,
    pub keys: Vec<(TenantId, IdempotencyKey)>,
    pub jobs: Vec<(TenantId, JobId)>,
    /// Whether it changes kinds or node types.
    pub catalog: bool,
}

impl Footprint {
    /// Adds what `change` may touch. `erased` tells the node of an erase job, which never changes.
    pub fn add(
        &mut self,
        change: &Change,
        catalog: &Catalog,
        erased: impl Fn(TenantId, JobId) -> Option<NodeKey>,
    ) {
        match change {
            Change::Put(put) => self.put(put, catalog, matches!(put.group, Field::Set(_))),
            Change::ImportEdge(line) => {
                let names_group = matches!(line.put.group, Field::Set(_));
                self.put(&line.put, catalog, names_group);
            }
            Change::Approve { edge } => {
                self.edge(edge);
                self.relating(edge, catalog);
            }
            Change::Delete { edge, .. }
            | Change::Decline { edge }
            | Change::Expire { edge, .. } => self.edge(edge),
            Change::AddMember { edge, .. } | Change::DropMember { edge, .. } => {
                self.edge(edge);
                self.groups.push(GroupsKey::of(edge));
            }
            Change::CreateGroup { groups, .. } | Change::ImportGroup { groups, .. } => {
                self.group_set(groups);
                if let Some(kind) = catalog.kind(groups.tenant, groups.kind) {
                    self.node(groups.tenant, kind.fixed.source_type, groups.source.0);
                }
            }
            Change::RenameGroup { groups, .. }
            | Change::DeleteGroup { groups, .. }
            | Change::RepairGroupSize { groups, .. } => self.group_set(groups),
            Change::SetNode { node, .. } => self.settings(node),
            Change::Count(count) => {
                self.counter(count.tenant, count.kind, count.id, catalog);
                self.keys.extend(count.key.clone().map(|key| (count.tenant, key)));
            }
            Change::ImportCounter { tenant, kind, id, .. } => {
                self.counter(*tenant, *kind, *id, catalog);
            }
            Change::CreateKind { .. } => self.catalog = true,
            Change::SetKind { tenant, .. } => {
                self.catalog = true;
                self.heads.push(jobs_head(*tenant));
            }
            Change::BeginErase { node } => {
                self.settings(node);
                self.heads.push(jobs_head(node.tenant));
            }
            Change::EraseStep { tenant, job, edges } => {
                self.job(*tenant, *job);
                for edge in edges {
                    self.edge(edge);
                }
            }
            Change::FinishErase { tenant, job } => {
                self.job(*tenant, *job);
                if let Some(node) = erased(*tenant, *job) {
                    self.whole_node(&node, catalog);
                }
            }
            Change::BuildIndexStep { tenant, job, .. } => self.job(*tenant, *job),
            Change::FinishBuildIndex { tenant, job } => {
                self.catalog = true;
                self.job(*tenant, *job);
            }
            Change::RepairTally { node, kind, .. } => {
                let source = SourceId(node.id);
                self.heads.push(GroupsKey { tenant: node.tenant, kind: *kind, source });
            }
            Change::RepairEntry { entry } => self.edge(&entry.edge),
        }
    }

    /// An edge is decided under its head.
    fn edge(&mut self, edge: &EdgeKey) {
        self.heads.push(GroupsKey::of(edge));
        self.edges.push(*edge);
    }

    fn put(&mut self, put: &Put, catalog: &Catalog, names_group: bool) {
        self.edge(&put.edge);
        self.relating(&put.edge, catalog);
        if names_group {
            self.groups.push(GroupsKey::of(&put.edge));
        }
    }

    /// What an edge that is to become live depends on, and what it cuts. Whoever puts an excluding
    /// edge holds the heads of what it excludes, both ways: a put of an excluded edge looks for it
    /// under one of these heads, so no interleaving leaves both standing.
    fn relating(&mut self, edge: &EdgeKey, catalog: &Catalog) {
        let Some(kind) = catalog.kind(edge.tenant, edge.kind) else {
            return;
        };
        self.node(edge.tenant, kind.fixed.source_type, edge.source.0);
        self.node(edge.tenant, kind.fixed.target_type, edge.target.0);
        for excluder in catalog.excluders(edge.tenant, edge.kind) {
            let (head, there) = (GroupsKey::of(edge), edge.of_kind(excluder.id));
            self.exclusions.extend([(head, there), (head, there.reversed())]);
        }
        for excluded in &kind.rules.excludes {
            let there = edge.of_kind(*excluded);
            self.edge(&there);
            self.edge(&there.reversed());
        }
    }

    fn node(&mut self, tenant: TenantId, node_type: NodeTypeId, id: u64) {
        self.nodes.push(NodeKey { tenant, node_type, id });
    }

    fn group_set(&mut self, groups: &GroupsKey) {
        self.heads.push(*groups);
        self.groups.push(*groups);
    }

    /// A node's settings are changed under a head of their own.
    fn settings(&mut self, node: &NodeKey) {
        self.heads.push(settings_head(node));
        self.nodes.push(*node);
    }

    fn counter(&mut self, tenant: TenantId, kind: KindId, id: u64, catalog: &Catalog) {
        let key = GroupsKey { tenant, kind, source: SourceId(id) };
        self.heads.push(key);
        if let Some(kind) = catalog.kind(tenant, kind) {
            self.counters.push(key);
            self.node(tenant, kind.fixed.target_type, id);
        }
    }

    fn job(&mut self, tenant: TenantId, job: JobId) {
        self.heads.push(jobs_head(tenant));
        self.jobs.push((tenant, job));
    }

    /// Everything of a node but its edges.
    fn whole_node(&mut self, node: &NodeKey, catalog: &Catalog) {
        self.settings(node);
        let of_node = |kind: &Kind| GroupsKey {
            tenant: node.tenant,
            kind: kind.id,
            source: SourceId(node.id),
        };
        for kind in catalog.kinds(node.tenant) {
            if kind.fixed.counter && kind.fixed.target_type == node.node_type {
                self.heads.push(of_node(kind));
                self.counters.push(of_node(kind));
            } else if kind.fixed.source_type == node.node_type {
                self.group_set(&of_node(kind));
            }
        }
    }
}

pub(crate) fn jobs_head(tenant: TenantId) -> GroupsKey {
    GroupsKey { tenant, kind: NO_KIND, source: SourceId(0) }
}

fn settings_head(node: &NodeKey) -> GroupsKey {
    GroupsKey { tenant: node.tenant, kind: NO_KIND, source: SourceId(node.id) }
}
