//! Hydrate: a viewer's relations to many objects and their tallies in one call.

use std::sync::Arc;

use guanxi_api::Name;
use guanxi_api::hydrate::Hydrate;
use guanxi_engine::cluster::budget::Lane;
use guanxi_engine::hot::What;
use guanxi_engine::{HydrateObject, HydrateQuery, Hydrated, Reader};
use guanxi_model::limits::{
    HYDRATE_CELLS_MAX, HYDRATE_KINDS_MAX, HYDRATE_OBJECTS_MAX, HYDRATE_REQUESTS_MAX,
};
use guanxi_model::{Catalog, Error, Kind, NodeTypeId, TenantId};

use super::{Caller, Reading, kinds_in, node_type, within};

const OBJECT_TYPE_DEFAULT: &str = "post";
const AUTHOR_TYPE_DEFAULT: &str = "user";
/// Checks and tallies that are read at once on the worker; more go to a thread of their own.
const INLINE_CELLS_MAX: usize = 2_048;

/// Each request with kinds and types for their names, and what was found of its objects.
pub async fn hydrate(
    caller: &Caller<'_>,
    requests: &[Hydrate<'_>],
) -> Result<Reading<Vec<(HydrateQuery, Vec<Hydrated>)>>, Error> {
    within("requests", requests.len(), HYDRATE_REQUESTS_MAX)?;
    let all = |catalog: &Catalog| -> Result<Vec<HydrateQuery>, Error> {
        requests.iter().map(|request| resolved(caller.tenant, catalog, request)).collect()
    };
    let asked = caller.resolve(all).await?;
    asked.iter().for_each(|query| note(caller, query));
    let kinds = kinds_of(&asked);
    let asked = Arc::new(asked);
    let queries = asked.clone();
    let all = move |reader: &Reader| queries.iter().map(|query| reader.hydrate(query)).collect();
    let lane = match bounded(requests)? <= INLINE_CELLS_MAX {
        true => Lane::Reads,
        false => Lane::Lists,
    };
    let hydrated: Reading<Vec<Vec<Hydrated>>> = caller.read_or_default(lane, &kinds, all).await?;
    let Reading { answer, degraded } = hydrated;
    // The read is done with it, so nothing is copied.
    let answer = Arc::unwrap_or_clone(asked).into_iter().zip(answer).collect();
    Ok(Reading { answer, degraded })
}

/// All kinds that are asked about, each once.
fn kinds_of(queries: &[HydrateQuery]) -> Vec<Arc<Kind>> {
    let mut kinds: Vec<Arc<Kind>> = Vec::new();
    let of_query = |query: &'_ HydrateQuery| {
        let all = query.kinds.iter().chain(&query.tallies).chain(&query.reverse);
        all.cloned().collect::<Vec<_>>()
    };
    for kind in queries.iter().flat_map(of_query) {
        if !kinds.iter().any(|known| known.id == kind.id) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Notes what is read for whom: the viewer's checks, and the tallies of objects and authors.
fn note(caller: &Caller<'_>, query: &HydrateQuery) {
    if let Some(kind) = query.kinds.first() {
        caller.note(What::Checks(kind.fixed.source_type), query.viewer);
    }
    let counts = |of: NodeTypeId| query.tallies.iter().any(|kind| kind.fixed.target_type == of);
    let objects = counts(query.object_type);
    let authors = query.author_type != query.object_type && counts(query.author_type);
    for HydrateObject { id, author } in &query.objects {
        if objects {
            caller.note(What::Tallies(query.object_type), *id);
        }
        if let Some(author) = author.filter(|_| authors) {
            caller.note(What::Tallies(query.author_type), author);
        }
    }
}

/// Checks the bounds beside those of kinds; returns how many checks and tallies they are.
fn bounded(requests: &[Hydrate<'_>]) -> Result<usize, Error> {
    let mut cells = 0;
    for request in requests {
        let reverse = request.reverse.as_ref().map_or(0, Vec::len);
        within("objects", request.objects.len(), HYDRATE_OBJECTS_MAX)?;
        cells += request.objects.len() * (request.kinds.len() + request.tallies.len() + reverse);
    }
    within("checks and tallies", cells, HYDRATE_CELLS_MAX)?;
    Ok(cells)
}

/// The same request with kinds and types for their names.
fn resolved(
    tenant: TenantId,
    catalog: &Catalog,
    request: &Hydrate<'_>,
) -> Result<HydrateQuery, Error> {
    let named = |what, names| kinds_in(catalog, tenant, what, names, HYDRATE_KINDS_MAX);
    let kinds = named("kinds", &request.kinds)?;
    let tallies = named("tallies", &request.tallies)?;
    let reverse = named("reverse", request.reverse.as_deref().unwrap_or_default())?;
    let type_of = |name: &Option<Name<'_>>, default: &str| -> Result<NodeTypeId, Error> {
        node_type(catalog, tenant, name.as_ref().map_or(default, Name::as_str))
    };
    let object_type = type_of(&request.object_type, OBJECT_TYPE_DEFAULT)?;
    let author_type = type_of(&request.author_type, AUTHOR_TYPE_DEFAULT)?;
    let objects = request.objects.iter().map(|object| HydrateObject {
        id: object.id.0,
        author: object.author.map(|author| author.0),
    });
    Ok(HydrateQuery {
        tenant,
        viewer: request.viewer.0,
        objects: objects.collect(),
        kinds,
        tallies,
        reverse,
        object_type,
        author_type,
    })
}
