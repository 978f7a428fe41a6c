//! What is read most, and what the existence filter is, over HTTP.

use guanxi_api::Id;
use guanxi_api::filters::{Filter, FilterAnswers, FilterPhase, FilterRedis, Filters};
use guanxi_api::hot::{HotKey, HotKeys, WhatRead};
use guanxi_engine::cluster::memory::{self, FilterStatus};
use guanxi_engine::hot::What;

use super::document::{AdminReadRefusals, HotListed};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::hot;

/// Lists what is read most, over all instances of a cluster.
#[utoipa::path(
    get, path = "/v1/admin/hot", tag = "admin", operation_id = "list_hot",
    params(HotListed),
    responses((status = 200, description = "The keys.", body = HotKeys), AdminReadRefusals),
)]
pub async fn list(call: Call) -> Answered {
    let query = call.query(&["limit"])?;
    call.no_body()?;
    let limit = query.number("limit", 1..=hot::ITEMS_MAX as u64)?;
    let limit = limit.map_or(hot::ITEMS_DEFAULT, |limit| limit as usize);
    let (hottest, instances) = hot::hottest(&call.caller(&query)?, limit).await?;
    let catalog = call.app.deployment.catalog();
    let items = hottest.iter().map(|found| {
        let (kind, node_type) = hot::names(&found.key, &catalog);
        HotKey {
            what: match found.key.what {
                What::Tallies(_) => WhatRead::Tallies,
                What::Incoming(_) => WhatRead::Incoming,
                What::Outgoing(_) => WhatRead::Outgoing,
                What::Checks(_) => WhatRead::Checks,
            },
            kind,
            node_type,
            id: Id(found.key.id),
            per_second: found.per_second.round() as u64,
            pinned: found.pinned,
        }
    });
    Reply::ok(&HotKeys { items: items.collect(), instances })
}

/// Shows the existence filter as this instance sees it. An embedded service has none.
#[utoipa::path(
    get, path = "/v1/admin/filters", tag = "admin", operation_id = "list_filters",
    responses((status = 200, description = "The filters.", body = Filters), AdminReadRefusals),
)]
pub async fn filters(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    let filters = hot::filters(&call.caller(&query)?).await?;
    Reply::ok(&Filters { filters: filters.into_iter().map(view).collect() })
}

fn view(status: FilterStatus) -> Filter {
    Filter {
        phase: match status.phase {
            memory::FilterPhase::Off => FilterPhase::Off,
            memory::FilterPhase::Warming => FilterPhase::Warming,
            memory::FilterPhase::Serving => FilterPhase::Serving,
        },
        generation: status.generation,
        believed: status.believed,
        shards: status.shards,
        bytes: status.bytes,
        edges_nominal: status.edges_nominal,
        answers: FilterAnswers {
            surely_not: status.figures.surely_not,
            maybe: status.figures.maybe,
            unknown: status.figures.unknown,
        },
        redis: status.redis.map(|redis| FilterRedis {
            address: redis.address,
            connected: redis.figures.reachable,
            unanswered: redis.figures.unanswered,
            refused: redis.figures.refused,
        }),
    }
}
