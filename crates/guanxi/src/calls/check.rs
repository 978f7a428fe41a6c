//! Batch checks.

use std::sync::Arc;

use guanxi_api::Id;
use guanxi_api::check::CheckPair;
use guanxi_engine::Checked;
use guanxi_engine::cluster::budget::Lane;
use guanxi_engine::hot::What;
use guanxi_model::limits::REQUEST_CHECKS_MAX;
use guanxi_model::{Catalog, EdgeKey, Error, Kind, SourceId, State, TargetId};

use super::{Caller, Reading, within};

/// One source against many targets: the kinds that were named, and what was found of each target.
pub async fn targets(
    caller: &Caller<'_>,
    source: Id,
    targets: &[Id],
    kinds: &[impl AsRef<str>],
    reverse: bool,
) -> Result<(Vec<Arc<Kind>>, Reading<Vec<Checked>>), Error> {
    let named = caller.kinds_named("kinds", kinds, REQUEST_CHECKS_MAX).await?;
    let ways = 1 + usize::from(reverse);
    within("checks", targets.len() * kinds.len() * ways, REQUEST_CHECKS_MAX)?;
    for kind in &named {
        kind.require_edges()?;
    }
    if let Some(kind) = named.first() {
        caller.note(What::Checks(kind.fixed.source_type), source.0);
    }
    let targets: Vec<TargetId> = targets.iter().map(|id| TargetId(id.0)).collect();
    let (tenant, kinds) = (caller.tenant, named.clone());
    let read = caller.read_or_default(Lane::Reads, &named, move |reader| {
        reader.check(tenant, SourceId(source.0), &targets, &kinds, reverse)
    });
    let checked = read.await?;
    Ok((named, checked))
}

/// Any pairs: the state of each edge that stands.
pub async fn pairs(
    caller: &Caller<'_>,
    pairs: &[CheckPair<'_>],
) -> Result<Reading<Vec<Option<State>>>, Error> {
    within("checks", pairs.len(), REQUEST_CHECKS_MAX)?;
    let find = |catalog: &Catalog| -> Result<Vec<Arc<Kind>>, Error> {
        let kind = |pair: &CheckPair<'_>| {
            let kind = catalog.named(caller.tenant, pair.kind.as_str())?;
            kind.require_edges()?;
            Ok(kind.clone())
        };
        pairs.iter().map(kind).collect()
    };
    let of_pairs = caller.resolve(find).await?;
    let mut edges = Vec::with_capacity(pairs.len());
    let mut kinds: Vec<Arc<Kind>> = Vec::new();
    for (pair, kind) in pairs.iter().zip(&of_pairs) {
        caller.note(What::Checks(kind.fixed.source_type), pair.source.0);
        if !kinds.iter().any(|known| known.id == kind.id) {
            kinds.push(kind.clone());
        }
        edges.push(EdgeKey {
            tenant: caller.tenant,
            kind: kind.id,
            source: SourceId(pair.source.0),
            target: TargetId(pair.target.0),
        });
    }
    let read = caller.read_or_default(Lane::Reads, &kinds, move |reader| {
        reader.prefetch(|wanted| wanted.edges.extend_from_slice(&edges))?;
        let state = |edge: &EdgeKey| Ok(reader.edge(edge)?.map(|row| row.state));
        edges.iter().map(state).collect()
    });
    read.await
}
