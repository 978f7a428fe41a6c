//! Lists of edges: outgoing, incoming, mutual, common, known, scan.

use std::sync::Arc;

use guanxi_api::lists::{Item, List, OwnFields};
use guanxi_api::{Id, Time};
use guanxi_engine::{Direction, ListQuery, Page, Reader};
use guanxi_model::limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};
use guanxi_model::page::Order;
use guanxi_model::{Error, Kind, State};

use super::document::{
    Joined, ListPath, ListRefusals, Listed, ListedIncoming, ListedMutual, OtherPath, Scanned,
};
use super::extract::Call;
use super::query::Query;
use super::reply::{Answered, Reply};
use crate::calls::lists;

/// Lists whom a node relates to.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/outgoing", tag = "lists", operation_id = "list_outgoing",
    params(ListPath, Listed),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn outgoing(call: Call) -> Answered {
    let kind = call.kind().await?;
    let known = ["limit", "cursor", "page", "order", "since", "until", "group", "state", "mutual"];
    let query = call.query(&known)?;
    let list = asked(&call, kind, &query, Direction::Outgoing, PAGE_ITEMS_DEFAULT)?;
    page(&call, &query, list, Reader::list).await
}

/// Lists who relates to a node.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/incoming", tag = "lists", operation_id = "list_incoming",
    params(ListPath, ListedIncoming),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn incoming(call: Call) -> Answered {
    let kind = call.kind().await?;
    let known = ["limit", "cursor", "page", "order", "since", "until", "group", "state", "mutual"];
    let query = call.query(&known)?;
    let list = asked(&call, kind, &query, Direction::Incoming, PAGE_ITEMS_DEFAULT)?;
    page(&call, &query, list, Reader::list).await
}

/// Lists whom a node relates to and who relate back.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/mutual", tag = "lists", operation_id = "list_mutual",
    params(ListPath, ListedMutual),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn mutual(call: Call) -> Answered {
    let kind = call.kind().await?;
    let query = call.query(&["limit", "cursor", "order", "since", "until", "group"])?;
    let list = asked(&call, kind, &query, Direction::Outgoing, PAGE_ITEMS_DEFAULT)?;
    page(&call, &query, list, Reader::mutual).await
}

/// Lists whom both nodes relate to.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/common/{other}", tag = "lists",
    operation_id = "list_common",
    params(ListPath, OtherPath, Joined),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn common(call: Call) -> Answered {
    let kind = call.kind().await?;
    let other = call.id("other")?;
    let query = call.query(&["limit", "cursor"])?;
    let list = asked(&call, kind, &query, Direction::Outgoing, PAGE_ITEMS_DEFAULT)?;
    page(&call, &query, list, move |reader, list| reader.common(list, other)).await
}

/// Lists those whom the node relates to and who relate to the other: "followers you know".
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/known/{other}", tag = "lists", operation_id = "list_known",
    params(ListPath, OtherPath, Joined),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn known(call: Call) -> Answered {
    let kind = call.kind().await?;
    let other = call.id("other")?;
    let query = call.query(&["limit", "cursor"])?;
    let list = asked(&call, kind, &query, Direction::Outgoing, PAGE_ITEMS_DEFAULT)?;
    page(&call, &query, list, move |reader, list| reader.known(list, other)).await
}

/// Walks the whole incoming list, however deep, in a stable order.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/incoming/scan", tag = "lists",
    operation_id = "scan_incoming",
    params(ListPath, Scanned),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn scan_incoming(call: Call) -> Answered {
    scan(call, Direction::Incoming).await
}

/// Walks the whole outgoing list in a stable order.
#[utoipa::path(
    get, path = "/v1/edges/{kind}/{id}/outgoing/scan", tag = "lists",
    operation_id = "scan_outgoing",
    params(ListPath, Scanned),
    responses((status = 200, description = "One page.", body = List), ListRefusals),
)]
pub async fn scan_outgoing(call: Call) -> Answered {
    scan(call, Direction::Outgoing).await
}

async fn scan(call: Call, direction: Direction) -> Answered {
    let kind = call.kind().await?;
    let query = call.query(&["limit", "cursor"])?;
    let list = asked(&call, kind, &query, direction, PAGE_ITEMS_MAX)?;
    page(&call, &query, list, Reader::scan).await
}

/// What the parameters ask for. Which of them fit which list is the engine's to say; those that a
/// call does not take at all never get here.
fn asked(
    call: &Call,
    kind: Arc<Kind>,
    query: &Query<'_>,
    direction: Direction,
    limit_default: usize,
) -> Result<ListQuery, Error> {
    let limit = query.number("limit", 1..=PAGE_ITEMS_MAX as u64)?;
    let orders = [("newest", Order::Newest), ("oldest", Order::Oldest)];
    let states = [("live", State::Live), ("pending", State::Pending)];
    Ok(ListQuery {
        tenant: call.tenant(),
        kind,
        id: call.id("id")?,
        direction,
        limit: limit.map_or(limit_default, |limit| limit as usize),
        cursor: query.text("cursor").map(str::to_owned),
        page: query.number("page", 1..=u64::from(u32::MAX))?,
        order: query.word("order", &orders)?.unwrap_or_default(),
        since: query.time("since")?,
        until: query.time("until")?,
        group: lists::group_filter(query.text("group"))?,
        state: query.word("state", &states)?.unwrap_or(State::Live),
        mutual: query.flag("mutual")?,
    })
}

async fn page(
    call: &Call,
    query: &Query<'_>,
    list: ListQuery,
    read: impl Fn(&Reader, &ListQuery) -> Result<Page, Error> + Send + Sync + 'static,
) -> Answered {
    call.no_body()?;
    let outgoing = list.direction == Direction::Outgoing;
    let page = lists::page(&call.caller(query)?, list, read).await?;
    let items = page.items.iter().map(|item| Item {
        id: Id(item.id),
        state: item.state.into(),
        since: Time(item.since),
        mutual: item.mutual,
        own: outgoing.then(|| OwnFields {
            group: item.group.as_ref().map(|name| name.as_str()),
            owner: item.owner.map(Id),
            data: item.data.as_deref(),
            expires_at: item.expires_at.map(Time),
        }),
    });
    Reply::ok(&List { items: items.collect(), total: page.total, next: page.next.as_deref() })
}
