//! Hydrate: a viewer's relations to many objects and their tallies in one call.

use guanxi_api::Name;
use guanxi_api::hydrate::{
    Hydrate, HydrateMany, HydrateRequest, HydratedMany, HydratedObject, HydratedObjects,
    TallyValues,
};
use guanxi_engine::{HydrateObject, HydrateQuery, Hydrated};
use guanxi_model::limits::{
    HYDRATE_CELLS_MAX, HYDRATE_KINDS_MAX, HYDRATE_OBJECTS_MAX, HYDRATE_REQUESTS_MAX,
};
use guanxi_model::{Catalog, Error, NodeTypeId};
use utoipa::ToSchema;

use super::check::names;
use super::document::ReadRefusals;
use super::extract::{Call, unknown_type};
use super::reply::{Answered, Reply};
use super::tallies::{kinds_named, too_many};

const OBJECT_TYPE_DEFAULT: &str = "post";
const AUTHOR_TYPE_DEFAULT: &str = "user";
/// Checks and tallies that are read at once on the worker; more go to a thread of their own.
const INLINE_CELLS_MAX: usize = 2_048;

/// The answer to one request, or to many.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it only describes the two answers")]
enum HydrateAnswers<'a> {
    One(HydratedObjects<'a>),
    Many(HydratedMany<'a>),
}

/// Answers everything that a feed needs about its objects.
///
/// A kind whose target type is the object's is about the object, else one whose target type is
/// the author's is about the author.
#[utoipa::path(
    post, path = "/v1/hydrate", tag = "reads", operation_id = "hydrate",
    request_body(content = HydrateRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each object.", body = HydrateAnswers),
        ReadRefusals,
    ),
)]
pub async fn hydrate(call: Call) -> Answered {
    let query = call.query(&[])?;
    let (requests, many) = match call.json()? {
        HydrateRequest::One(request) => (vec![request], false),
        HydrateRequest::Many(HydrateMany { requests }) => (requests, true),
    };
    if requests.len() > HYDRATE_REQUESTS_MAX {
        return Err(too_many("requests", requests.len(), HYDRATE_REQUESTS_MAX).into());
    }
    let catalog = call.app.engine.catalog();
    let mut asked = Vec::with_capacity(requests.len());
    for request in &requests {
        asked.push(resolved(&call, &catalog, request)?);
    }
    let cells = bounded(&requests)?;
    let (asked, hydrated) = if cells <= INLINE_CELLS_MAX {
        let reader = call.reader(&query).await?;
        let hydrated: Result<Vec<_>, Error> = asked.iter().map(|q| reader.hydrate(q)).collect();
        (asked, hydrated?)
    } else {
        call.meet(&query).await?;
        let read = call.app.read_apart(move |reader| {
            let hydrated: Result<Vec<_>, Error> = asked.iter().map(|q| reader.hydrate(q)).collect();
            Ok((asked, hydrated?))
        });
        read.await?
    };
    let tallies: Vec<Vec<&str>> = asked
        .iter()
        .map(|query| query.tallies.iter().map(|kind| kind.name.as_str()).collect())
        .collect();
    let answers = requests.iter().zip(&asked).zip(&hydrated).zip(&tallies);
    let mut results: Vec<HydratedObjects<'_>> = answers
        .map(|(((request, query), hydrated), tallies)| shown(request, query, hydrated, tallies))
        .collect();
    match results.pop() {
        Some(only) if !many => Reply::ok(&only),
        last => {
            results.extend(last);
            Reply::ok(&HydratedMany { results })
        }
    }
}

/// Checks the bounds beside those of kinds; returns how many checks and tallies they are.
fn bounded(requests: &[Hydrate<'_>]) -> Result<usize, Error> {
    let within = |what: &str, count: usize, max: usize| match count <= max {
        true => Ok(()),
        false => Err(too_many(what, count, max)),
    };
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
fn resolved(call: &Call, catalog: &Catalog, request: &Hydrate<'_>) -> Result<HydrateQuery, Error> {
    let named = |what, names| kinds_named(call, what, names, HYDRATE_KINDS_MAX);
    let kinds = named("kinds", &request.kinds)?;
    let tallies = named("tallies", &request.tallies)?;
    let reverse = named("reverse", request.reverse.as_deref().unwrap_or_default())?;
    let node_type = |name: &Option<Name<'_>>, default: &str| -> Result<NodeTypeId, Error> {
        let name = name.as_ref().map_or(default, |name| name.as_str());
        let found = catalog.type_named(call.tenant(), name);
        found.ok_or_else(|| unknown_type(name))
    };
    let object_type = node_type(&request.object_type, OBJECT_TYPE_DEFAULT)?;
    let author_type = node_type(&request.author_type, AUTHOR_TYPE_DEFAULT)?;
    let objects = request.objects.iter().map(|object| HydrateObject {
        id: object.id.0,
        author: object.author.map(|author| author.0),
    });
    Ok(HydrateQuery {
        tenant: call.tenant(),
        viewer: request.viewer.0,
        objects: objects.collect(),
        kinds,
        tallies,
        reverse,
        object_type,
        author_type,
    })
}

fn shown<'a>(
    request: &Hydrate<'_>,
    query: &'a HydrateQuery,
    hydrated: &'a [Hydrated],
    tallies: &'a [&'a str],
) -> HydratedObjects<'a> {
    let reverse = request.reverse.is_some();
    let objects = request.objects.iter().zip(hydrated);
    let objects = objects.map(|(object, hydrated)| HydratedObject {
        id: object.id,
        related: names(&hydrated.related, &query.kinds),
        pending: names(&hydrated.pending, &query.kinds),
        reverse: reverse.then(|| names(&hydrated.reverse, &query.reverse)),
        tallies: TallyValues { names: tallies, values: &hydrated.tallies },
    });
    HydratedObjects { objects: objects.collect() }
}
