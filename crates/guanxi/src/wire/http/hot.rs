//! What is read most, and what the existence filter is, over HTTP.

use guanxi_api::filters::Filters;
use guanxi_api::hot::{HOT_KEYS_MAX, HotKeys, ListHot};

use super::document::{AdminReadRefusals, HotListed};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::hot;

/// Lists what is read most, over all instances of a cluster.
#[utoipa::path(
    get, path = "/v1/admin/hot", tag = "admin", operation_id = "list_hot",
    params(HotListed),
    responses((status = 200, description = "The keys.", body = HotKeys), AdminReadRefusals),
)]
pub async fn list(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit"])?;
    request.no_body()?;
    let limit = query.number("limit", 1..=HOT_KEYS_MAX as u64)?.map(|limit| limit as usize);
    reply::ok(&hot::list(request.caller(&query).await?, ListHot { limit }).await?)
}

/// Shows the existence filter as this instance sees it. An embedded service has none.
#[utoipa::path(
    get, path = "/v1/admin/filters", tag = "admin", operation_id = "list_filters",
    responses((status = 200, description = "The filters.", body = Filters), AdminReadRefusals),
)]
pub async fn filters(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    reply::ok(&hot::filters(request.caller(&query).await?).await?)
}
