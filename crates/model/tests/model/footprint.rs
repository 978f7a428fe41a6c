//! Every change of every test is decided on rows that end where its footprint ends: a look beyond
//! it fails the test, and so does a version of a head that is not held.

use std::convert::Infallible;

use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId, JobWork};
use guanxi_model::{
    Catalog, Change, EdgeKey, EdgeRow, Footprint, GroupSet, GroupsKey, KindId, NodeKey, NodeRow,
    SourceId, TallyRow, TenantId, View, Which,
};

use crate::reference::Rows;
use crate::world::{BLOCK, FOLLOW, TENANT, World, edge, groups_of, node};

/// What stands in place of a number that a change must not ask for.
const ABSURD: i64 = 1 << 40;

#[derive(Debug)]
pub struct Bounded<'a> {
    pub rows: &'a Rows,
    pub footprint: Footprint,
    change: &'a Change,
}

impl<'a> Bounded<'a> {
    pub fn new(rows: &'a Rows, change: &'a Change) -> Bounded<'a> {
        let erased = |tenant: TenantId, id: JobId| match rows.jobs.get(&(tenant, id))?.work {
            JobWork::Erase { node } => Some(node),
            JobWork::BuildIndex { .. } => None,
        };
        let mut footprint = Footprint::default();
        footprint.add(change, &rows.catalog, erased);
        Bounded { rows, footprint, change }
    }

    pub fn assert_drawn(&self, drawn: impl Iterator<Item = (TenantId, KindId, SourceId)>) {
        let mut left = self.footprint.heads.clone();
        for (tenant, kind, source) in drawn {
            let head = GroupsKey { tenant, kind, source };
            let at = left.iter().position(|held| *held == head);
            let at = at.unwrap_or_else(|| panic!("{head:?} is not held for {:?}", self.change));
            left.swap_remove(at);
        }
    }

    fn holds(&self, head: &GroupsKey) -> bool {
        self.footprint.heads.contains(head)
    }
}

impl View for Bounded<'_> {
    type Error = Infallible;

    fn catalog(&self) -> &Catalog {
        &self.rows.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, Infallible> {
        let excludes = self.footprint.exclusions.iter().any(|(_, excluding)| excluding == key);
        assert!(excludes || self.footprint.edges.contains(key), "{key:?} for {:?}", self.change);
        self.rows.edge(key)
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, Infallible> {
        let mut row = self.rows.tallies(node)?;
        for kind in self.rows.catalog.kinds(node.tenant) {
            let key = GroupsKey { tenant: node.tenant, kind: kind.id, source: SourceId(node.id) };
            for which in Which::ALL {
                let allowed = match which {
                    Which::Outgoing | Which::PendingOutgoing => self.holds(&key),
                    Which::Value => self.footprint.counters.contains(&key),
                    // A repair of the target's side is decided where that is kept.
                    _ => matches!(self.change, Change::RepairTally { .. }),
                };
                if !allowed {
                    row.set(kind.id, which, ABSURD);
                }
            }
        }
        Ok(row)
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, Infallible> {
        assert!(self.holds(key), "groups of {key:?} for {:?}", self.change);
        self.rows.groups(key)
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, Infallible> {
        assert!(self.footprint.nodes.contains(node), "{node:?} for {:?}", self.change);
        self.rows.node(node)
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, Infallible> {
        let wanted = (tenant, key.clone());
        assert!(self.footprint.keys.contains(&wanted), "{key:?} for {:?}", self.change);
        self.rows.idempotency(tenant, key)
    }

    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, Infallible> {
        self.rows.import(tenant, id)
    }

    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, Infallible> {
        assert!(self.footprint.jobs.contains(&(tenant, id)), "{id:?} for {:?}", self.change);
        self.rows.job(tenant, id)
    }
}

/// The footprint of a put in a world with the built-in kinds.
fn of_put(kind: KindId) -> Footprint {
    let world = World::new(crate::world::Deployment::Cluster);
    let put = Change::Put(guanxi_model::change::Put::plain(edge(kind, 1, 2)));
    let mut footprint = Footprint::default();
    footprint.add(&put, &world.rows.catalog, |_, _| None);
    footprint
}

#[test]
fn a_plain_follow_asks_for_no_more_than_it_needs() {
    let footprint = of_put(FOLLOW);
    assert_eq!(footprint.heads, [groups_of(FOLLOW, 1)]);
    assert_eq!(footprint.edges, [edge(FOLLOW, 1, 2)]);
    let blocks = [edge(BLOCK, 1, 2), edge(BLOCK, 2, 1)];
    assert_eq!(footprint.exclusions, blocks.map(|block| (groups_of(FOLLOW, 1), block)));
    assert_eq!(footprint.nodes, [node(crate::world::USER, 1), node(crate::world::USER, 2)]);
    let (heads, edges, exclusions, nodes) = Default::default();
    let rest = Footprint { heads, edges, exclusions, nodes, ..footprint };
    assert_eq!(rest, Footprint::default());
}

#[test]
fn a_block_holds_the_heads_of_both_sources() {
    let footprint = of_put(BLOCK);
    let heads = [groups_of(BLOCK, 1), groups_of(FOLLOW, 1), groups_of(FOLLOW, 2)];
    assert_eq!(footprint.heads, heads, "of tenant {}", TENANT.0);
}
