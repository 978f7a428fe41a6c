//! Batch checks.

use guanxi_api::check::{CheckAnswer, CheckRequest};

use super::document::ReadRefusals;
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::check;

/// Checks one source against many targets, or any pairs.
#[utoipa::path(
    post, path = "/v1/check", tag = "reads", operation_id = "check",
    request_body(content = CheckRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each target or pair.", body = CheckAnswer),
        ReadRefusals,
    ),
)]
pub async fn check(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let asked: CheckRequest<'_> = request.json()?;
    let caller = request.caller(&query).await?;
    match asked {
        CheckRequest::Targets(targets) => reply::ok(&check::targets(caller, targets).await?),
        CheckRequest::Pairs(pairs) => reply::ok(&check::pairs(caller, pairs).await?),
    }
}
