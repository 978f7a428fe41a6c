//! Batch checks.

use std::sync::Arc;

use guanxi_api::WireState;
use guanxi_api::check::{CheckPair, CheckPairs, CheckTargets, Checks, PairChecked, TargetChecked};
use guanxi_core::deployment::ReadLane;
use guanxi_core::hot::What;
use guanxi_model::limits::REQUEST_CHECKS_MAX;
use guanxi_model::{Catalog, EdgeKey, Error, Kind, SourceId, State, TargetId};

use super::{Caller, names, within};

/// One source against many targets.
pub async fn targets(
    caller: Caller,
    request: CheckTargets<'_>,
) -> Result<Checks<TargetChecked>, Error> {
    let CheckTargets { source, targets, kinds: named, reverse } = request;
    let kinds = caller.kinds_named("kinds", &named, REQUEST_CHECKS_MAX).await?;
    let ways = 1 + usize::from(reverse);
    within("checks", targets.len() * named.len() * ways, REQUEST_CHECKS_MAX)?;
    for kind in &kinds {
        kind.require_edges()?;
    }
    if let Some(kind) = kinds.first() {
        caller.note(What::Checks(kind.fixed.source_type), source.0);
    }
    let target_ids: Vec<TargetId> = targets.iter().map(|id| TargetId(id.0)).collect();
    let (tenant, asked) = (caller.tenant, kinds.clone());
    let read = caller.read_or_default(ReadLane::Reads, &kinds, move |reader| {
        reader.check(tenant, SourceId(source.0), &target_ids, &asked, reverse)
    });
    let checked = read.await?;
    let results = targets.into_iter().zip(checked.answer).map(|(target, checked)| TargetChecked {
        target,
        related: names(&checked.related, &kinds),
        pending: names(&checked.pending, &kinds),
        reverse: reverse.then(|| names(&checked.reverse, &kinds)),
    });
    Ok(Checks { results: results.collect(), degraded: checked.degraded })
}

/// Any pairs.
pub async fn pairs(caller: Caller, request: CheckPairs<'_>) -> Result<Checks<PairChecked>, Error> {
    within("checks", request.pairs.len(), REQUEST_CHECKS_MAX)?;
    let find = |catalog: &Catalog| -> Result<Vec<Arc<Kind>>, Error> {
        let kind = |pair: &CheckPair<'_>| {
            let kind = catalog.named(caller.tenant, pair.kind.as_str())?;
            kind.require_edges()?;
            Ok(kind.clone())
        };
        request.pairs.iter().map(kind).collect()
    };
    let of_pairs = caller.resolve(find).await?;
    let mut edges = Vec::with_capacity(request.pairs.len());
    let mut kinds: Vec<Arc<Kind>> = Vec::new();
    for (pair, kind) in request.pairs.iter().zip(&of_pairs) {
        caller.note(What::Checks(kind.fixed.source_type), pair.source.0);
        if !kinds.iter().any(|known| known.id == kind.id) {
            kinds.push(kind.clone());
        }
        edges.push(caller.edge_key(kind, pair.source.0, pair.target.0));
    }
    let read = caller.read_or_default(ReadLane::Reads, &kinds, move |reader| {
        reader.prefetch(|wanted| wanted.edges.extend_from_slice(&edges))?;
        let state = |edge: &EdgeKey| Ok(reader.edge(edge)?.map(|row| row.state));
        edges.iter().map(state).collect::<Result<Vec<_>, Error>>()
    });
    let states = read.await?;
    let results = states.answer.into_iter().map(|state| PairChecked {
        related: state == Some(State::Live),
        state: state.map(WireState::from),
    });
    Ok(Checks { results: results.collect(), degraded: states.degraded })
}
