//! Hydrate: a viewer's relations to many objects and their tallies in one call.

use guanxi_api::hydrate::{
    Hydrate, HydrateMany, HydrateRequest, HydratedMany, HydratedObject, HydratedObjects,
    TallyValues,
};
use guanxi_engine::{HydrateQuery, Hydrated};
use utoipa::ToSchema;

use super::document::ReadRefusals;
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::{Reading, hydrate, names};

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
/// the author's is about the author: an object that is given without one is not related by it, and
/// its tally is 0.
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
    let Reading { answer: hydrated, degraded } =
        hydrate::hydrate(&call.caller(&query)?, &requests).await?;
    let tallies: Vec<Vec<&str>> = hydrated
        .iter()
        .map(|(query, _)| query.tallies.iter().map(|kind| kind.name.as_str()).collect())
        .collect();
    let answers = requests.iter().zip(&hydrated).zip(&tallies);
    let mut results: Vec<HydratedObjects<'_>> = answers
        .map(|((request, (query, hydrated)), tallies)| shown(request, query, hydrated, tallies))
        .collect();
    match results.pop() {
        Some(only) if !many => Reply::ok(&HydratedObjects { degraded, ..only }),
        last => {
            results.extend(last);
            Reply::ok(&HydratedMany { results, degraded })
        }
    }
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
    HydratedObjects { objects: objects.collect(), degraded: false }
}
