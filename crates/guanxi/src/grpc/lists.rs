//! The service `Lists`.

use guanxi_api::Id;
use guanxi_api::proto::lists_server::Lists;
use guanxi_api::proto::{
    self, ListCommonRequest, ListIncomingRequest, ListItem, ListKnownRequest, ListMutualRequest,
    ListOutgoingRequest, ListPage, ScanIncomingRequest, ScanOutgoingRequest, read_bound, timestamp,
};
use guanxi_engine::{Direction, Item, ListQuery, Page, Reader};
use guanxi_model::limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};
use guanxi_model::page::Order;
use guanxi_model::{Error, Millis, State};
use prost_types::Timestamp;
use tonic::Request;

use super::{Answered, Call, Services};
use crate::calls::{in_range, lists};

#[tonic::async_trait]
impl Lists for Services {
    async fn outgoing(&self, request: Request<ListOutgoingRequest>) -> Answered<ListPage> {
        self.answer(request, outgoing).await
    }

    async fn incoming(&self, request: Request<ListIncomingRequest>) -> Answered<ListPage> {
        self.answer(request, incoming).await
    }

    async fn mutual(&self, request: Request<ListMutualRequest>) -> Answered<ListPage> {
        self.answer(request, mutual).await
    }

    async fn common(&self, request: Request<ListCommonRequest>) -> Answered<ListPage> {
        self.answer(request, common).await
    }

    async fn known(&self, request: Request<ListKnownRequest>) -> Answered<ListPage> {
        self.answer(request, known).await
    }

    async fn scan_outgoing(&self, request: Request<ScanOutgoingRequest>) -> Answered<ListPage> {
        self.answer(request, scan_outgoing).await
    }

    async fn scan_incoming(&self, request: Request<ScanIncomingRequest>) -> Answered<ListPage> {
        self.answer(request, scan_incoming).await
    }
}

/// The fields that every list has.
macro_rules! plain {
    ($call:expr, $request:expr, $direction:ident, $limit_default:expr) => {
        ListQuery {
            tenant: $call.tenant(),
            kind: $call.kind(&$request.kind).await?,
            id: Id::from_number($request.id, "id")?.0,
            direction: Direction::$direction,
            limit: limit($request.limit, $limit_default)?,
            cursor: $request.cursor,
            page: None,
            order: Order::default(),
            since: None,
            until: None,
            group: None,
            state: State::Live,
            mutual: false,
        }
    };
}

async fn outgoing(call: Call, request: ListOutgoingRequest) -> Result<ListPage, Error> {
    let plain = plain!(call, request, Outgoing, PAGE_ITEMS_DEFAULT);
    let list = ListQuery {
        page: page_number(request.page)?,
        order: order(request.order)?,
        since: bound(request.since, "since")?,
        until: bound(request.until, "until")?,
        group: lists::group_filter(request.group.as_deref())?,
        state: state(request.state)?,
        mutual: request.mutual,
        ..plain
    };
    page(&call, list, &request.at_least, Reader::list).await
}

async fn incoming(call: Call, request: ListIncomingRequest) -> Result<ListPage, Error> {
    let plain = plain!(call, request, Incoming, PAGE_ITEMS_DEFAULT);
    let list = ListQuery {
        order: order(request.order)?,
        since: bound(request.since, "since")?,
        until: bound(request.until, "until")?,
        state: state(request.state)?,
        mutual: request.mutual,
        ..plain
    };
    page(&call, list, &request.at_least, Reader::list).await
}

async fn mutual(call: Call, request: ListMutualRequest) -> Result<ListPage, Error> {
    let plain = plain!(call, request, Outgoing, PAGE_ITEMS_DEFAULT);
    let list = ListQuery {
        order: order(request.order)?,
        since: bound(request.since, "since")?,
        until: bound(request.until, "until")?,
        group: lists::group_filter(request.group.as_deref())?,
        ..plain
    };
    page(&call, list, &request.at_least, Reader::mutual).await
}

async fn common(call: Call, request: ListCommonRequest) -> Result<ListPage, Error> {
    let other = Id::from_number(request.other, "other")?.0;
    let list = plain!(call, request, Outgoing, PAGE_ITEMS_DEFAULT);
    let read = move |reader: &Reader, list: &ListQuery| reader.common(list, other);
    page(&call, list, &request.at_least, read).await
}

async fn known(call: Call, request: ListKnownRequest) -> Result<ListPage, Error> {
    let other = Id::from_number(request.other, "other")?.0;
    let list = plain!(call, request, Outgoing, PAGE_ITEMS_DEFAULT);
    let read = move |reader: &Reader, list: &ListQuery| reader.known(list, other);
    page(&call, list, &request.at_least, read).await
}

async fn scan_outgoing(call: Call, request: ScanOutgoingRequest) -> Result<ListPage, Error> {
    let list = plain!(call, request, Outgoing, PAGE_ITEMS_MAX);
    page(&call, list, &request.at_least, Reader::scan).await
}

async fn scan_incoming(call: Call, request: ScanIncomingRequest) -> Result<ListPage, Error> {
    let list = plain!(call, request, Incoming, PAGE_ITEMS_MAX);
    page(&call, list, &request.at_least, Reader::scan).await
}

pub fn limit(given: Option<u32>, default: usize) -> Result<usize, Error> {
    let Some(limit) = given else {
        return Ok(default);
    };
    let limit = in_range("limit", Some(limit.into()), &(1..=PAGE_ITEMS_MAX as u64))?;
    Ok(limit as usize)
}

fn page_number(given: Option<u64>) -> Result<Option<u64>, Error> {
    let Some(page) = given else {
        return Ok(None);
    };
    in_range("page", Some(page), &(1..=u64::from(u32::MAX))).map(Some)
}

fn bound(time: Option<Timestamp>, what: &str) -> Result<Option<Millis>, Error> {
    time.map(|time| read_bound(&time, what)).transpose()
}

fn order(number: i32) -> Result<Order, Error> {
    match proto::Order::try_from(number) {
        Ok(proto::Order::Unspecified | proto::Order::Newest) => Ok(Order::Newest),
        Ok(proto::Order::Oldest) => Ok(Order::Oldest),
        Err(_) => Err(Error::invalid("order: it is newest or oldest")),
    }
}

fn state(number: i32) -> Result<State, Error> {
    match proto::State::try_from(number) {
        Ok(proto::State::Unspecified | proto::State::Live) => Ok(State::Live),
        Ok(proto::State::Pending) => Ok(State::Pending),
        Ok(proto::State::Removed) | Err(_) => Err(Error::invalid("state: it is live or pending")),
    }
}

async fn page(
    call: &Call,
    list: ListQuery,
    at_least: &Option<String>,
    read: impl Fn(&Reader, &ListQuery) -> Result<Page, Error> + Send + Sync + 'static,
) -> Result<ListPage, Error> {
    let outgoing = list.direction == Direction::Outgoing;
    let page = lists::page(&call.caller(at_least), list, read).await?;
    let items = page.items.into_iter().map(|item| shown(item, outgoing));
    Ok(ListPage { items: items.collect(), total: page.total, next: page.next })
}

fn shown(item: Item, outgoing: bool) -> ListItem {
    let plain = ListItem {
        id: item.id,
        state: proto::State::from(item.state).into(),
        since: Some(timestamp(item.since)),
        mutual: item.mutual,
        ..ListItem::default()
    };
    if !outgoing {
        return plain;
    }
    ListItem {
        group: item.group.map(|name| name.as_str().to_owned()),
        owner: item.owner,
        data: item.data.map(String::from),
        expires_at: item.expires_at.map(timestamp),
        ..plain
    }
}
