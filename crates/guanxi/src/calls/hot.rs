//! What is read most, and what the existence filter is.

use guanxi_engine::cluster::memory::FilterStatus;
use guanxi_engine::hot::{Hot, HotKey, What};
use guanxi_model::{Catalog, Error, NodeTypeId};

use super::Caller;

/// Keys of one answer at most, and unless fewer or more are asked for.
pub const ITEMS_MAX: usize = 256;
pub const ITEMS_DEFAULT: usize = 20;

/// The tenant's keys that are read most, the most first, and how many instances they are of.
pub async fn hottest(caller: &Caller<'_>, items_max: usize) -> Result<(Vec<Hot>, u64), Error> {
    caller.meet().await?;
    let hot = caller.app.deployment.hot();
    let mut hottest = hot.hottest(caller.tenant, items_max);
    // What is read less than once in two seconds is read by chance.
    hottest.retain(|hot| hot.per_second >= 0.5);
    Ok((hottest, hot.instances() as u64))
}

/// What there is of filters; an embedded service needs none.
pub async fn filters(caller: &Caller<'_>) -> Result<Vec<FilterStatus>, Error> {
    caller.meet().await?;
    Ok(Vec::from_iter(caller.app.deployment.filter_status()))
}

/// The names of the kind and of the node type that a key has; none of what is not there any more.
pub fn names<'a>(key: &HotKey, catalog: &'a Catalog) -> (Option<&'a str>, Option<&'a str>) {
    let type_name = |of: NodeTypeId| catalog.type_name(key.tenant, of).map(|name| name.as_str());
    match key.what {
        What::Tallies(of) | What::Checks(of) => (None, type_name(of)),
        What::Incoming(kind) | What::Outgoing(kind) => {
            (catalog.kind(key.tenant, kind).map(|kind| kind.name.as_str()), None)
        }
    }
}
