//! Batch tallies.

use std::sync::Arc;

use guanxi_api::Id;
use guanxi_api::tallies::KindTallies;
use guanxi_engine::Reader;
use guanxi_model::limits::REQUEST_TALLIES_MAX;
use guanxi_model::{Error, Kind, NodeKey, NodeTypeId, TallyRow, TenantId};

use super::{Caller, within};

/// The kinds that were named, and for each id its tallies by them, in order.
pub async fn tallies(
    caller: &Caller<'_>,
    ids: &[Id],
    kinds: &[impl AsRef<str>],
) -> Result<(Vec<Arc<Kind>>, Vec<Vec<KindTallies>>), Error> {
    let named = caller.kinds_named("kinds", kinds, REQUEST_TALLIES_MAX)?;
    within("ids × kinds", ids.len() * kinds.len(), REQUEST_TALLIES_MAX)?;
    let (ids, tenant) = (ids.to_vec(), caller.tenant);
    let read = caller.read(move |reader| {
        reader.prefetch(|wanted| {
            for (id, kind) in ids.iter().flat_map(|id| named.iter().map(move |kind| (id, kind))) {
                let fixed = &kind.fixed;
                let types = [Some(fixed.source_type), Some(fixed.target_type), fixed.owner_type];
                let node = |node_type| NodeKey { tenant, node_type, id: id.0 };
                wanted.nodes.extend(types.into_iter().flatten().map(node));
            }
        })?;
        let of_id = |id: &Id| of_one(reader, tenant, id.0, &named);
        let results = ids.iter().map(of_id).collect::<Result<Vec<_>, Error>>()?;
        Ok((named, results))
    });
    read.await
}

fn of_one(
    reader: &Reader,
    tenant: TenantId,
    id: u64,
    kinds: &[Arc<Kind>],
) -> Result<Vec<KindTallies>, Error> {
    let mut rows = Rows::of(reader, tenant, id);
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
struct Rows<'a> {
    reader: &'a Reader,
    tenant: TenantId,
    id: u64,
    rows: Vec<(NodeTypeId, TallyRow)>,
}

impl<'a> Rows<'a> {
    fn of(reader: &'a Reader, tenant: TenantId, id: u64) -> Rows<'a> {
        Rows { reader, tenant, id, rows: Vec::new() }
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
