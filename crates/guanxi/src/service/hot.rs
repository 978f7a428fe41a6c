//! What is read most, and what the existence filter is.

use guanxi_api::Id;
use guanxi_api::filters::{Filter, FilterAnswers, FilterPhase, FilterRedis, Filters};
use guanxi_api::hot::{HOT_KEYS_DEFAULT, HotKey, HotKeys, ListHot, WhatRead};
use guanxi_core::deployment::{self, FilterStatus};
use guanxi_core::hot::{HotRead, What};
use guanxi_model::{Catalog, Error, KindName, NodeTypeId};

use super::{Caller, kind_name};

/// What is read less than once in two seconds is read by chance.
const PER_SECOND_MIN: f64 = 0.5;

/// The tenant's keys that are read most, the most first, over all instances of a cluster.
pub async fn list(caller: Caller, request: ListHot) -> Result<HotKeys, Error> {
    caller.meet().await?;
    let hot = caller.app.deployment.hot();
    let mut hottest = hot.hottest(caller.tenant, request.limit.unwrap_or(HOT_KEYS_DEFAULT));
    hottest.retain(|hot| hot.per_second >= PER_SECOND_MIN);
    let catalog = caller.catalog();
    let items = hottest.into_iter().map(|hot| key(hot, &catalog));
    Ok(HotKeys { items: items.collect(), instances: hot.instances() as u64 })
}

fn key(hot: HotRead, catalog: &Catalog) -> HotKey {
    let tenant = hot.key.tenant;
    let type_name = |of: NodeTypeId| catalog.type_name(tenant, of).map(KindName::shared);
    let (what, kind, node_type) = match hot.key.what {
        What::Tallies(of) => (WhatRead::Tallies, None, type_name(of)),
        What::Checks(of) => (WhatRead::Checks, None, type_name(of)),
        What::Incoming(kind) => (WhatRead::Incoming, kind_name(catalog, tenant, kind), None),
        What::Outgoing(kind) => (WhatRead::Outgoing, kind_name(catalog, tenant, kind), None),
    };
    HotKey {
        what,
        kind,
        node_type,
        id: Id(hot.key.id),
        per_second: hot.per_second.round() as u64,
        pinned: hot.pinned,
    }
}

/// What there is of filters; an embedded service needs none.
pub async fn filters(caller: Caller) -> Result<Filters, Error> {
    caller.meet().await?;
    let filters = caller.app.deployment.filter_status().into_iter().map(filter);
    Ok(Filters { filters: filters.collect() })
}

fn filter(status: FilterStatus) -> Filter {
    Filter {
        phase: match status.phase {
            deployment::FilterStage::Off => FilterPhase::Off,
            deployment::FilterStage::Warming => FilterPhase::Warming,
            deployment::FilterStage::Serving => FilterPhase::Serving,
        },
        generation: status.generation,
        believed: status.believed,
        shards: status.shards,
        bytes: status.bytes,
        edges_nominal: status.edges_nominal,
        answers: FilterAnswers {
            surely_not: status.surely_not,
            maybe: status.maybe,
            unknown: status.unknown,
        },
        redis: status.redis.map(|redis| FilterRedis {
            address: redis.address,
            connected: redis.reachable,
            unanswered: redis.unanswered,
            refused: redis.refused,
        }),
    }
}
