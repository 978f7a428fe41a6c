//! Lists of edges seen from one node.

use guanxi_api::lists::{Item, JoinedList, List, ListOf, OwnFields};
use guanxi_api::name::WireGroupName;
use guanxi_api::{Id, Time};
use guanxi_core::hot::What;
use guanxi_core::{Direction, GroupFilter, ListQuery, Page, Reader};
use guanxi_model::limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};
use guanxi_model::{Error, GroupName};

use super::Caller;

/// Items of a page that are read on the spot.
const QUICK_ITEMS_MAX: usize = 200;

/// Whom a node relates to.
pub async fn outgoing(caller: Caller, list: ListOf<'_>) -> Result<List, Error> {
    page(caller, list, Direction::Outgoing, PAGE_ITEMS_DEFAULT, Reader::list).await
}

/// Who relates to a node.
pub async fn incoming(caller: Caller, list: ListOf<'_>) -> Result<List, Error> {
    page(caller, list, Direction::Incoming, PAGE_ITEMS_DEFAULT, Reader::list).await
}

/// Whom a node relates to and who relate back.
pub async fn mutual(caller: Caller, list: ListOf<'_>) -> Result<List, Error> {
    page(caller, list, Direction::Outgoing, PAGE_ITEMS_DEFAULT, Reader::mutual).await
}

/// Whom both nodes relate to.
pub async fn common(caller: Caller, joined: JoinedList<'_>) -> Result<List, Error> {
    let other = joined.other.0;
    let read = move |reader: &Reader, list: &ListQuery| reader.common(list, other);
    page(caller, joined.list, Direction::Outgoing, PAGE_ITEMS_DEFAULT, read).await
}

/// Those whom the node relates to and who relate to the other.
pub async fn known(caller: Caller, joined: JoinedList<'_>) -> Result<List, Error> {
    let other = joined.other.0;
    let read = move |reader: &Reader, list: &ListQuery| reader.known(list, other);
    page(caller, joined.list, Direction::Outgoing, PAGE_ITEMS_DEFAULT, read).await
}

/// The whole outgoing list in a stable order.
pub async fn scan_outgoing(caller: Caller, list: ListOf<'_>) -> Result<List, Error> {
    page(caller, list, Direction::Outgoing, PAGE_ITEMS_MAX, Reader::scan).await
}

/// The whole incoming list, however deep, in a stable order.
pub async fn scan_incoming(caller: Caller, list: ListOf<'_>) -> Result<List, Error> {
    page(caller, list, Direction::Incoming, PAGE_ITEMS_MAX, Reader::scan).await
}

/// One page, read off the workers unless it is short or remembered. Which fields fit which list is
/// the engine's to say.
async fn page(
    caller: Caller,
    list: ListOf<'_>,
    direction: Direction,
    limit_default: usize,
    read: impl Fn(&Reader, &ListQuery) -> Result<Page, Error> + Send + Sync + 'static,
) -> Result<List, Error> {
    let kind = caller.kind(&list.kind).await?;
    kind.require_edges()?;
    let what = match direction {
        Direction::Outgoing => What::Outgoing(kind.id),
        Direction::Incoming => What::Incoming(kind.id),
    };
    caller.note(what, list.id.0);
    let query = ListQuery {
        tenant: caller.tenant,
        kind,
        id: list.id.0,
        direction,
        limit: list.limit.unwrap_or(limit_default),
        cursor: list.cursor,
        page: list.page,
        order: list.order,
        since: list.since,
        until: list.until,
        group: list.group.as_deref().map(group_filter).transpose()?,
        state: list.state,
        mutual: list.mutual,
    };
    // An incoming list lies in the order in which it is walked.
    let is_walked = direction == Direction::Incoming && !query.mutual;
    let is_quick = is_walked && query.limit <= QUICK_ITEMS_MAX;
    let page = caller.read_list(is_quick, move |reader| read(reader, &query)).await?;
    let items = page.items.into_iter().map(|item| Item {
        id: Id(item.id),
        state: item.state.into(),
        since: Time(item.since),
        mutual: item.mutual,
        own: (direction == Direction::Outgoing).then(|| OwnFields {
            group: item.group.map(WireGroupName),
            owner: item.owner.map(Id),
            data: item.data,
            expires_at: item.expires_at.map(Time),
        }),
    });
    Ok(List { items: items.collect(), total: page.total, next: page.next })
}

/// The group that a list is cut down to; the empty name stands for edges in none.
fn group_filter(name: &str) -> Result<GroupFilter, Error> {
    if name.is_empty() {
        return Ok(GroupFilter::Ungrouped);
    }
    let name = GroupName::new(name);
    name.map(GroupFilter::Named)
        .map_err(|error| Error::invalid(format!("group: {}", error.message)))
}
