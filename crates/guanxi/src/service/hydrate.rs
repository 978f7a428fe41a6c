//! Hydrate: a viewer's relations to many objects and their tallies in one call.

use std::sync::Arc;

use guanxi_api::Name;
use guanxi_api::hydrate::{
    Hydrate, HydrateMany, HydratedMany, HydratedObject, HydratedObjects, TallyValues,
};
use guanxi_core::deployment::{ReadAnswer, ReadLane};
use guanxi_core::hot::What;
use guanxi_core::{Checked, HydrateQuery, Hydrated, ReadObject, Reader};
use guanxi_model::limits::{
    HYDRATE_CELLS_MAX, HYDRATE_KINDS_MAX, HYDRATE_OBJECTS_MAX, HYDRATE_REQUESTS_MAX,
};
use guanxi_model::{Catalog, Code, Error, Kind, NodeTypeId, TenantId};

use super::{Caller, kinds_in, names, node_type, within};

const OBJECT_TYPE_DEFAULT: &str = "post";
const AUTHOR_TYPE_DEFAULT: &str = "user";
/// Checks and tallies that are read at once on the worker; more go to a thread of their own.
const INLINE_CELLS_MAX: usize = 2_048;

/// What a feed needs about its objects.
pub async fn one(caller: Caller, request: Hydrate<'_>) -> Result<HydratedObjects, Error> {
    let HydratedMany { mut results, degraded } = hydrate(&caller, vec![request]).await?;
    let only = results.pop().ok_or_else(|| Error::new(Code::Internal, "there is no result"))?;
    Ok(HydratedObjects { degraded, ..only })
}

/// The same for many viewers, or many feeds.
pub async fn many(caller: Caller, request: HydrateMany<'_>) -> Result<HydratedMany, Error> {
    hydrate(&caller, request.requests).await
}

async fn hydrate(caller: &Caller, requests: Vec<Hydrate<'_>>) -> Result<HydratedMany, Error> {
    within("requests", requests.len(), HYDRATE_REQUESTS_MAX)?;
    let all = |catalog: &Catalog| -> Result<Vec<HydrateQuery>, Error> {
        requests.iter().map(|request| resolved(caller.tenant, catalog, request)).collect()
    };
    let asked = caller.resolve(all).await?;
    asked.iter().for_each(|query| note(caller, query));
    let kinds = kinds_of(&asked);
    let lane = match bounded(&requests)? <= INLINE_CELLS_MAX {
        true => ReadLane::Reads,
        false => ReadLane::Lists,
    };
    let asked = Arc::new(asked);
    let queries = asked.clone();
    let all = move |reader: &Reader| {
        let each = queries.iter().map(|query| reader.hydrate(query));
        each.collect::<Result<Vec<_>, Error>>()
    };
    let ReadAnswer { answer, degraded } = caller.read_or_default(lane, &kinds, all).await?;
    let answers = requests.iter().zip(asked.iter()).zip(answer);
    let results = answers.map(|((request, query), hydrated)| shown(request, query, hydrated));
    Ok(HydratedMany { results: results.collect(), degraded })
}

fn shown(request: &Hydrate<'_>, query: &HydrateQuery, hydrated: Hydrated) -> HydratedObjects {
    let reverse = request.reverse.is_some();
    let tallied: Arc<[Arc<str>]> = query.tallies.iter().map(|kind| kind.name.shared()).collect();
    let objects = request.objects.iter().zip(hydrated.objects()).map(|(object, hydrated)| {
        let Checked { related, pending, reverse: back } = hydrated.relations;
        HydratedObject {
            id: object.id,
            related: names(related, &query.kinds),
            pending: names(pending, &query.kinds),
            reverse: reverse.then(|| names(back, &query.reverse)),
            tallies: TallyValues { names: tallied.clone(), values: hydrated.tallies.to_vec() },
        }
    });
    HydratedObjects { objects: objects.collect(), degraded: false }
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
fn note(caller: &Caller, query: &HydrateQuery) {
    if let Some(kind) = query.kinds.first() {
        caller.note(What::Checks(kind.fixed.source_type), query.viewer);
    }
    let counts = |of: NodeTypeId| query.tallies.iter().any(|kind| kind.fixed.target_type == of);
    let objects = counts(query.object_type);
    let authors = query.author_type != query.object_type && counts(query.author_type);
    for ReadObject { id, author } in &query.objects {
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
    let objects = request
        .objects
        .iter()
        .map(|object| ReadObject { id: object.id.0, author: object.author.map(|author| author.0) });
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
