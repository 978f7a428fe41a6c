//! Hydrate: a viewer's relations to many objects and their tallies in one call.

use guanxi_api::hydrate::{HydrateRequest, HydratedMany, HydratedObjects};
use utoipa::ToSchema;

use super::document::ReadRefusals;
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::hydrate;

/// The answer to one request, or to many.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it only describes the two answers")]
enum HydrateAnswers {
    One(HydratedObjects),
    Many(HydratedMany),
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
pub async fn hydrate(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let asked: HydrateRequest<'_> = request.json()?;
    let caller = request.caller(&query).await?;
    match asked {
        HydrateRequest::One(one) => reply::ok(&hydrate::one(caller, one).await?),
        HydrateRequest::Many(many) => reply::ok(&hydrate::many(caller, many).await?),
    }
}
