//! Everything of a tenant, or of one kind, in one walk over one snapshot. Groups come before the
//! edges that are in them, so that whoever reads it in order makes them in their order.

use std::ops::ControlFlow;

use guanxi_model::{
    EdgeKey, EdgeRow, Error, GroupName, GroupSet, GroupsKey, Kind, KindName, NodeTypeId, SourceId,
    TenantId, Which,
};

use super::{Reader, unreadable};
use crate::snapshot::{Snapshot, StoreError};

/// One thing of an export.
#[derive(Debug)]
pub enum Exported<'a> {
    Group {
        kind: &'a Kind,
        source: SourceId,
        name: &'a GroupName,
    },
    Edge {
        kind: &'a Kind,
        key: EdgeKey,
        row: &'a EdgeRow,
        group: Option<&'a GroupName>,
    },
    /// Nodes about which nothing was said are left out.
    Node {
        node_type: &'a KindName,
        id: u64,
        private: bool,
    },
    Counter {
        kind: &'a Kind,
        id: u64,
        value: i64,
    },
}

type VisitExported<'a> = dyn FnMut(Exported<'_>) -> ControlFlow<()> + 'a;

impl Reader {
    /// Visits groups and edges of all kinds or of one, then (of all) nodes, then counters, until
    /// the visitor breaks.
    pub fn export(
        &self,
        tenant: TenantId,
        only: Option<&Kind>,
        visit: &mut VisitExported<'_>,
    ) -> Result<(), Error> {
        let mut walk = ExportWalk { snapshot: self.snapshot.as_ref(), tenant, visit, ended: false };
        walk.all(only).map_err(unreadable)
    }
}

/// A walk over several tables; once the visitor has broken it off, it visits no more.
struct ExportWalk<'a, 'v> {
    snapshot: &'a dyn Snapshot,
    tenant: TenantId,
    visit: &'a mut VisitExported<'v>,
    ended: bool,
}

impl ExportWalk<'_, '_> {
    fn all(&mut self, only: Option<&Kind>) -> Result<(), StoreError> {
        let catalog = self.snapshot.catalog();
        let kinds = || {
            let kinds = catalog.kinds(self.tenant).map(AsRef::as_ref);
            kinds.filter(|kind: &&Kind| only.is_none_or(|only| only.id == kind.id))
        };
        let (counters, of_edges): (Vec<&Kind>, Vec<&Kind>) =
            kinds().partition(|kind| kind.fixed.counter);
        for kind in of_edges {
            self.groups(kind)?;
            self.edges(kind)?;
        }
        for (node_type, name) in catalog.types(self.tenant) {
            let of_type = counters.iter().filter(|kind| kind.fixed.target_type == node_type);
            let of_type: Vec<&Kind> = of_type.copied().collect();
            let name = only.is_none().then_some(name);
            if name.is_some() || !of_type.is_empty() {
                self.nodes(node_type, name, &of_type)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, exported: Exported<'_>) -> ControlFlow<()> {
        let flow = (self.visit)(exported);
        self.ended |= flow.is_break();
        flow
    }

    fn groups(&mut self, kind: &Kind) -> Result<(), StoreError> {
        if self.ended {
            return Ok(());
        }
        self.snapshot.groups_of_kind(self.tenant, kind.id, &mut |source, group| {
            self.show(Exported::Group { kind, source, name: &group.name })
        })
    }

    fn edges(&mut self, kind: &Kind) -> Result<(), StoreError> {
        if self.ended {
            return Ok(());
        }
        let tenant = self.tenant;
        // Edges come source by source, so the groups of the last one are mostly those needed.
        let mut groups = (SourceId(0), GroupSet::default());
        let mut failed = None;
        let walked = self.snapshot.edges_of_kind(tenant, kind.id, None, &mut |ends, row| {
            let (source, target) = ends;
            let key = EdgeKey { tenant, kind: kind.id, source, target };
            if row.group.is_some() && groups.0 != source {
                match self.snapshot.groups(&GroupsKey::of(&key)) {
                    Ok(set) => groups = (source, set),
                    Err(error) => {
                        failed = Some(error);
                        return ControlFlow::Break(());
                    }
                }
            }
            let group = groups.1.name_of(row.group.filter(|_| groups.0 == source));
            self.show(Exported::Edge { kind, key, row: &row, group })
        });
        walked?;
        failed.map_or(Ok(()), Err)
    }

    fn nodes(
        &mut self,
        node_type: NodeTypeId,
        named: Option<&KindName>,
        counters: &[&Kind],
    ) -> Result<(), StoreError> {
        if self.ended {
            return Ok(());
        }
        self.snapshot.nodes_of_type(self.tenant, node_type, &mut |id, node| {
            if let Some(node_type) = named.filter(|_| node.settings.private) {
                let private = node.settings.private;
                self.show(Exported::Node { node_type, id, private })?;
            }
            for kind in counters {
                let value = node.tallies.get(kind.id, Which::Value);
                if value != 0 {
                    self.show(Exported::Counter { kind, id, value })?;
                }
            }
            ControlFlow::Continue(())
        })
    }
}
