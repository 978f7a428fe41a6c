//! Lists of edges.

use guanxi_engine::hot::What;
use guanxi_engine::{Direction, GroupFilter, ListQuery, Page, Reader};
use guanxi_model::{Error, GroupName};

use super::Caller;

/// One page, read off the workers unless it is remembered. Which fields fit which list is the
/// engine's to say.
pub async fn page(
    caller: &Caller<'_>,
    list: ListQuery,
    read: impl Fn(&Reader, &ListQuery) -> Result<Page, Error> + Send + Sync + 'static,
) -> Result<Page, Error> {
    list.kind.require_edges()?;
    let what = match list.direction {
        Direction::Outgoing => What::Outgoing(list.kind.id),
        Direction::Incoming => What::Incoming(list.kind.id),
    };
    caller.note(what, list.id);
    caller.read_or_apart(move |reader| read(reader, &list)).await
}

/// The group that a list is cut down to; the empty name stands for edges in none.
pub fn group_filter(name: Option<&str>) -> Result<Option<GroupFilter>, Error> {
    match name {
        None => Ok(None),
        Some("") => Ok(Some(GroupFilter::Ungrouped)),
        Some(name) => match GroupName::new(name) {
            Ok(name) => Ok(Some(GroupFilter::Named(name))),
            Err(error) => Err(Error::invalid(format!("group: {}", error.message))),
        },
    }
}
