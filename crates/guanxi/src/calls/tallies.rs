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
    let reader = caller.reader().await?;
    reader.prefetch(|wanted| {
        for (id, kind) in ids.iter().flat_map(|id| named.iter().map(move |kind| (id, kind))) {
            let (tenant, fixed) = (caller.tenant, &kind.fixed);
            let types = [Some(fixed.source_type), Some(fixed.target_type), fixed.owner_type];
            let node = |node_type| NodeKey { tenant, node_type, id: id.0 };
            wanted.nodes.extend(types.into_iter().flatten().map(node));
        }
    })?;
    let mut results = Vec::with_capacity(ids.len());
    for id in ids {
        let mut rows = Rows::of(&reader, caller.tenant, id.0);
        let mut by_kind = Vec::with_capacity(named.len());
        for kind in &named {
            let source = rows.row(kind.fixed.source_type)?;
            let target = rows.row(kind.fixed.target_type)?;
            let owner = rows.row(kind.fixed.owner_type.unwrap_or(kind.fixed.target_type))?;
            let [source, target, owner] = [source, target, owner].map(|at| &rows.rows[at].1);
            by_kind.push(KindTallies::of(kind, source, target, owner));
        }
        results.push(by_kind);
    }
    Ok((named, results))
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
