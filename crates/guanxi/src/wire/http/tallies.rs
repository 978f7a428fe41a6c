//! Batch tallies.

use guanxi_api::tallies::{TalliesAnswer, TalliesRequest};

use super::document::ReadRefusals;
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::tallies;

/// Reads the tallies of many ids by many kinds.
#[utoipa::path(
    post, path = "/v1/tallies", tag = "reads", operation_id = "tallies",
    request_body(content = TalliesRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each id.", body = TalliesAnswer),
        ReadRefusals,
    ),
)]
pub async fn tallies(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let asked: TalliesRequest<'_> = request.json()?;
    reply::ok(&tallies::tallies(request.caller(&query).await?, asked).await?)
}
