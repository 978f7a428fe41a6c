//! What is read most, and what the existence filter is, of the service `Admin`.

use guanxi_api::proto::{
    self, ListFiltersAnswer, ListFiltersRequest, ListHotAnswer, ListHotRequest,
};
use guanxi_engine::cluster::memory::{FilterPhase, FilterStatus};
use guanxi_engine::hot::What;
use guanxi_model::Error;
use proto::filter::Phase;

use super::Call;
use crate::calls::{hot, in_range};

pub async fn list(call: Call, request: ListHotRequest) -> Result<ListHotAnswer, Error> {
    let limit = request.limit.map_or(hot::ITEMS_DEFAULT as u64, u64::from);
    let limit = in_range("limit", Some(limit), &(1..=hot::ITEMS_MAX as u64))? as usize;
    let (hottest, instances) = hot::hottest(&call.caller(&None), limit).await?;
    let catalog = call.app.deployment.catalog();
    let items = hottest.iter().map(|found| {
        let (kind, node_type) = hot::names(&found.key, &catalog);
        let what = match found.key.what {
            What::Tallies(_) => proto::hot_key::What::Tallies,
            What::Incoming(_) => proto::hot_key::What::Incoming,
            What::Outgoing(_) => proto::hot_key::What::Outgoing,
            What::Checks(_) => proto::hot_key::What::Checks,
        };
        proto::HotKey {
            what: what.into(),
            kind: kind.map(str::to_owned),
            r#type: node_type.map(str::to_owned),
            id: found.key.id,
            per_second: found.per_second.round() as u64,
            pinned: found.pinned,
        }
    });
    Ok(ListHotAnswer { items: items.collect(), instances })
}

pub async fn filters(call: Call, _request: ListFiltersRequest) -> Result<ListFiltersAnswer, Error> {
    let filters = hot::filters(&call.caller(&None)).await?;
    Ok(ListFiltersAnswer { filters: filters.into_iter().map(message).collect() })
}

fn message(status: FilterStatus) -> proto::Filter {
    let phase = match status.phase {
        FilterPhase::Off => Phase::Off,
        FilterPhase::Warming => Phase::Warming,
        FilterPhase::Serving => Phase::Serving,
    };
    proto::Filter {
        phase: phase.into(),
        generation: status.generation,
        believed: status.believed,
        shards: status.shards,
        bytes: status.bytes,
        edges_nominal: status.edges_nominal,
        surely_not: status.figures.surely_not,
        maybe: status.figures.maybe,
        unknown: status.figures.unknown,
        redis: status.redis.map(|redis| proto::FilterRedis {
            address: redis.address,
            connected: redis.figures.reachable,
            unanswered: redis.figures.unanswered,
            refused: redis.figures.refused,
        }),
    }
}
