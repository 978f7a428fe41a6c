//! Lists, between messages and what JSON has for them.

use guanxi_model::limits::PAGE_ITEMS_MAX;
use guanxi_model::page::Order;
use guanxi_model::{Error, Millis, State};
use prost_types::Timestamp;

use super::{
    ListCommonRequest, ListIncomingRequest, ListItem, ListKnownRequest, ListMutualRequest,
    ListOutgoingRequest, ListPage, ScanIncomingRequest, ScanOutgoingRequest, read_bound, timestamp,
};
use crate::id::Id;
use crate::lists::{Item, JoinedList, List, ListOf, OwnFields};
use crate::name::{Name, WireGroupName};
use crate::number::in_range;
use crate::time::Time;

/// The fields that every list has.
macro_rules! plain {
    ($request:expr) => {
        ListOf {
            limit: limit($request.limit)?,
            cursor: $request.cursor,
            ..ListOf::new(Name::from($request.kind), Id::from_number($request.id, "id")?)
        }
    };
}

impl TryFrom<ListOutgoingRequest> for ListOf<'static> {
    type Error = Error;

    fn try_from(request: ListOutgoingRequest) -> Result<Self, Error> {
        Ok(ListOf {
            page: page_number(request.page)?,
            order: order(request.order)?,
            since: bound(request.since, "since")?,
            until: bound(request.until, "until")?,
            group: request.group,
            state: state(request.state)?,
            mutual: request.mutual,
            ..plain!(request)
        })
    }
}

impl TryFrom<ListIncomingRequest> for ListOf<'static> {
    type Error = Error;

    fn try_from(request: ListIncomingRequest) -> Result<Self, Error> {
        Ok(ListOf {
            order: order(request.order)?,
            since: bound(request.since, "since")?,
            until: bound(request.until, "until")?,
            state: state(request.state)?,
            mutual: request.mutual,
            ..plain!(request)
        })
    }
}

impl TryFrom<ListMutualRequest> for ListOf<'static> {
    type Error = Error;

    fn try_from(request: ListMutualRequest) -> Result<Self, Error> {
        Ok(ListOf {
            order: order(request.order)?,
            since: bound(request.since, "since")?,
            until: bound(request.until, "until")?,
            group: request.group,
            ..plain!(request)
        })
    }
}

impl TryFrom<ScanOutgoingRequest> for ListOf<'static> {
    type Error = Error;

    fn try_from(request: ScanOutgoingRequest) -> Result<Self, Error> {
        Ok(plain!(request))
    }
}

impl TryFrom<ScanIncomingRequest> for ListOf<'static> {
    type Error = Error;

    fn try_from(request: ScanIncomingRequest) -> Result<Self, Error> {
        Ok(plain!(request))
    }
}

impl TryFrom<ListCommonRequest> for JoinedList<'static> {
    type Error = Error;

    fn try_from(request: ListCommonRequest) -> Result<Self, Error> {
        let other = Id::from_number(request.other, "other")?;
        Ok(JoinedList { list: plain!(request), other })
    }
}

impl TryFrom<ListKnownRequest> for JoinedList<'static> {
    type Error = Error;

    fn try_from(request: ListKnownRequest) -> Result<Self, Error> {
        let other = Id::from_number(request.other, "other")?;
        Ok(JoinedList { list: plain!(request), other })
    }
}

pub(super) fn limit(given: Option<u32>) -> Result<Option<usize>, Error> {
    let Some(limit) = given else {
        return Ok(None);
    };
    let limit = in_range("limit", Some(limit.into()), &(1..=PAGE_ITEMS_MAX as u64))?;
    Ok(Some(limit as usize))
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
    match super::Order::try_from(number) {
        Ok(super::Order::Unspecified | super::Order::Newest) => Ok(Order::Newest),
        Ok(super::Order::Oldest) => Ok(Order::Oldest),
        Err(_) => Err(Error::invalid("order: it is newest or oldest")),
    }
}

fn state(number: i32) -> Result<State, Error> {
    match super::State::try_from(number) {
        Ok(super::State::Unspecified | super::State::Live) => Ok(State::Live),
        Ok(super::State::Pending) => Ok(State::Pending),
        Ok(super::State::Removed) | Err(_) => Err(Error::invalid("state: it is live or pending")),
    }
}

impl From<List> for ListPage {
    fn from(list: List) -> ListPage {
        let items = list.items.into_iter().map(ListItem::from);
        ListPage { items: items.collect(), total: list.total, next: list.next }
    }
}

impl From<Item> for ListItem {
    fn from(item: Item) -> ListItem {
        let Time(since) = item.since;
        let plain = ListItem {
            id: item.id.0,
            state: super::State::from(item.state).into(),
            since: Some(timestamp(since)),
            mutual: item.mutual,
            ..ListItem::default()
        };
        let Some(OwnFields { group, owner, data, expires_at }) = item.own else {
            return plain;
        };
        ListItem {
            group: group.map(|WireGroupName(name)| name.as_str().to_owned()),
            owner: owner.map(|owner| owner.0),
            data: data.map(String::from),
            expires_at: expires_at.map(|Time(at)| timestamp(at)),
            ..plain
        }
    }
}
