//! Batch tallies.

use std::sync::Arc;

use guanxi_api::Id;
use guanxi_api::tallies::{KindTallies, TalliesAnswer, TalliesByKind, TalliesOf, TalliesRequest};
use guanxi_core::Reader;
use guanxi_core::deployment::ReadLane;
use guanxi_core::hot::What;
use guanxi_model::limits::REQUEST_TALLIES_MAX;
use guanxi_model::{Error, Kind, NodeKey, NodeTypeId, TallyRow, TenantId};

use super::{Caller, within};

/// The tallies of many ids by many kinds.
pub async fn tallies(caller: Caller, request: TalliesRequest<'_>) -> Result<TalliesAnswer, Error> {
    let TalliesRequest { ids, kinds: named } = request;
    let kinds = caller.kinds_named("kinds", &named, REQUEST_TALLIES_MAX).await?;
    within("ids × kinds", ids.len() * named.len(), REQUEST_TALLIES_MAX)?;
    let types = node_types(&kinds);
    for id in &ids {
        types.iter().for_each(|node_type| caller.note(What::Tallies(*node_type), id.0));
    }
    let (asked, tenant, by) = (ids.clone(), caller.tenant, kinds.clone());
    let read = caller.read_or_default(ReadLane::Reads, &kinds, move |reader| {
        reader.prefetch(|wanted| {
            for id in &asked {
                let node =
                    |node_type: &NodeTypeId| NodeKey { tenant, node_type: *node_type, id: id.0 };
                wanted.nodes.extend(types.iter().map(node));
            }
        })?;
        let of_id = |id: &Id| of_one(reader, tenant, id.0, &by);
        asked.iter().map(of_id).collect::<Result<Vec<_>, Error>>()
    });
    let found = read.await?;
    let results = ids.into_iter().zip(found.answer).map(|(id, tallies)| {
        let names = kinds.iter().map(|kind| kind.name.shared());
        TalliesOf { id, tallies: TalliesByKind(names.zip(tallies).collect()) }
    });
    Ok(TalliesAnswer { results: results.collect(), degraded: found.degraded })
}

/// The types of the nodes whose rows these kinds' numbers are in, each once.
fn node_types(kinds: &[Arc<Kind>]) -> Vec<NodeTypeId> {
    let mut types = Vec::new();
    for kind in kinds {
        let fixed = &kind.fixed;
        let of_kind = [Some(fixed.source_type), Some(fixed.target_type), fixed.owner_type];
        for node_type in of_kind.into_iter().flatten() {
            if !types.contains(&node_type) {
                types.push(node_type);
            }
        }
    }
    types
}

fn of_one(
    reader: &Reader,
    tenant: TenantId,
    id: u64,
    kinds: &[Arc<Kind>],
) -> Result<Vec<KindTallies>, Error> {
    let mut rows = RowsOfId::of(reader, tenant, id);
    let mut by_kind = Vec::with_capacity(kinds.len());
    for kind in kinds {
        let source = rows.row(kind.fixed.source_type)?;
        let target = rows.row(kind.fixed.target_type)?;
        let owner = rows.row(kind.fixed.owner_type.unwrap_or(kind.fixed.target_type))?;
        let [source, target, owner] = [source, target, owner].map(|at| &rows.rows[at].1);
        by_kind.push(KindTallies::of(kind, source, target, owner));
    }
    Ok(by_kind)
}

/// The rows of one id as a node of each type, each read once.
struct RowsOfId<'a> {
    reader: &'a Reader,
    tenant: TenantId,
    id: u64,
    rows: Vec<(NodeTypeId, TallyRow)>,
}

impl<'a> RowsOfId<'a> {
    fn of(reader: &'a Reader, tenant: TenantId, id: u64) -> RowsOfId<'a> {
        RowsOfId { reader, tenant, id, rows: Vec::new() }
    }

    fn row(&mut self, node_type: NodeTypeId) -> Result<usize, Error> {
        if let Some(at) = self.rows.iter().position(|(known, _)| *known == node_type) {
            return Ok(at);
        }
        let row = self.reader.tallies(&NodeKey { tenant: self.tenant, node_type, id: self.id })?;
        self.rows.push((node_type, row));
        Ok(self.rows.len() - 1)
    }
}
