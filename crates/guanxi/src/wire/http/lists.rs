//! Lists of edges: outgoing, incoming, mutual, common, known, scan.

use guanxi_api::lists::{JoinedList, List, ListOf};
use guanxi_model::limits::PAGE_ITEMS_MAX;
use guanxi_model::page::Order;
use guanxi_model::{Error, State};

use super::document::{
    Joined, ListPath, ListRefusals, Listed, ListedIncoming, ListedMutual, OtherPath, Scanned,
};
use super::query::Query;
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::lists;

/// Lists whom a node relates to.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/outgoing", tag = "lists", operation_id = "list_outgoing",
    params(ListPath, Listed),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn outgoing(request: HttpRequest) -> HttpAnswered {
    let known = ["limit", "cursor", "page", "order", "since", "until", "group", "state", "mutual"];
    let query = request.query(&known)?;
    let list = list_of(&request, &query)?;
    reply::ok(&lists::outgoing(request.caller(&query).await?, list).await?)
}

/// Lists who relates to a node.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/incoming", tag = "lists", operation_id = "list_incoming",
    params(ListPath, ListedIncoming),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn incoming(request: HttpRequest) -> HttpAnswered {
    let known = ["limit", "cursor", "page", "order", "since", "until", "group", "state", "mutual"];
    let query = request.query(&known)?;
    let list = list_of(&request, &query)?;
    reply::ok(&lists::incoming(request.caller(&query).await?, list).await?)
}

/// Lists whom a node relates to and who relate back.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/mutual", tag = "lists", operation_id = "list_mutual",
    params(ListPath, ListedMutual),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn mutual(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit", "cursor", "order", "since", "until", "group"])?;
    let list = list_of(&request, &query)?;
    reply::ok(&lists::mutual(request.caller(&query).await?, list).await?)
}

/// Lists whom both nodes relate to.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/common/{other}", tag = "lists",
    operation_id = "list_common",
    params(ListPath, OtherPath, Joined),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn common(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit", "cursor"])?;
    let joined = joined(&request, &query)?;
    reply::ok(&lists::common(request.caller(&query).await?, joined).await?)
}

/// Lists those whom the node relates to and who relate to the other: "followers you know".
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/known/{other}", tag = "lists", operation_id = "list_known",
    params(ListPath, OtherPath, Joined),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn known(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit", "cursor"])?;
    let joined = joined(&request, &query)?;
    reply::ok(&lists::known(request.caller(&query).await?, joined).await?)
}

/// Walks the whole incoming list, however deep, in a stable order.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/incoming/scan", tag = "lists",
    operation_id = "scan_incoming",
    params(ListPath, Scanned),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn scan_incoming(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit", "cursor"])?;
    let list = list_of(&request, &query)?;
    reply::ok(&lists::scan_incoming(request.caller(&query).await?, list).await?)
}

/// Walks the whole outgoing list in a stable order.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/outgoing/scan", tag = "lists",
    operation_id = "scan_outgoing",
    params(ListPath, Scanned),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn scan_outgoing(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit", "cursor"])?;
    let list = list_of(&request, &query)?;
    reply::ok(&lists::scan_outgoing(request.caller(&query).await?, list).await?)
}

fn joined<'a>(request: &'a HttpRequest, query: &Query<'_>) -> Result<JoinedList<'a>, Error> {
    Ok(JoinedList { other: request.id("other")?, list: list_of(request, query)? })
}

/// What the parameters ask for. Which of them fit which list is the engine's to say; those that a
/// call does not take at all never get here.
fn list_of<'a>(request: &'a HttpRequest, query: &Query<'_>) -> Result<ListOf<'a>, Error> {
    request.no_body()?;
    let orders = [("newest", Order::Newest), ("oldest", Order::Oldest)];
    let states = [("live", State::Live), ("pending", State::Pending)];
    let limit = query.number("limit", 1..=PAGE_ITEMS_MAX as u64)?;
    Ok(ListOf {
        kind: request.name("kind"),
        id: request.id("id")?,
        limit: limit.map(|limit| limit as usize),
        cursor: query.text("cursor").map(str::to_owned),
        page: query.number("page", 1..=u64::from(u32::MAX))?,
        order: query.word("order", &orders)?.unwrap_or_default(),
        since: query.time("since")?,
        until: query.time("until")?,
        group: query.text("group").map(str::to_owned),
        state: query.word("state", &states)?.unwrap_or(State::Live),
        mutual: query.flag("mutual")?,
    })
}
