//! What operators look at, hot keys, filters and dead letters, between messages and what JSON has
//! for them.

use guanxi_model::Error;

use super::{
    DeadLetter, DroppedDeadLetter, Filter, FilterRedis, HotKey, ListDeadLettersAnswer,
    ListDeadLettersRequest, ListFiltersAnswer, ListHotAnswer, ListHotRequest, RetriedDeadLetter,
    filter, hot_key, owned, timestamp,
};
use crate::dead_letters::{self, DeadLetterView, Dropped, LETTERS_MAX, ListDeadLetters, Retried};
use crate::filters::{self, FilterPhase, Filters};
use crate::hot::{self, HOT_KEYS_MAX, HotKeys, ListHot, WhatRead};
use crate::number::in_range;

fn limit(given: Option<u32>, max: usize) -> Result<Option<usize>, Error> {
    let Some(limit) = given else {
        return Ok(None);
    };
    let limit = in_range("limit", Some(limit.into()), &(1..=max as u64))?;
    Ok(Some(limit as usize))
}

impl TryFrom<ListHotRequest> for ListHot {
    type Error = Error;

    fn try_from(request: ListHotRequest) -> Result<ListHot, Error> {
        Ok(ListHot { limit: limit(request.limit, HOT_KEYS_MAX)? })
    }
}

impl From<HotKeys> for ListHotAnswer {
    fn from(keys: HotKeys) -> ListHotAnswer {
        let items = keys.items.into_iter().map(HotKey::from);
        ListHotAnswer { items: items.collect(), instances: keys.instances }
    }
}

impl From<hot::HotKey> for HotKey {
    fn from(key: hot::HotKey) -> HotKey {
        let what = match key.what {
            WhatRead::Tallies => hot_key::What::Tallies,
            WhatRead::Incoming => hot_key::What::Incoming,
            WhatRead::Outgoing => hot_key::What::Outgoing,
            WhatRead::Checks => hot_key::What::Checks,
        };
        HotKey {
            what: what.into(),
            kind: key.kind.map(owned),
            r#type: key.node_type.map(owned),
            id: key.id.0,
            per_second: key.per_second,
            pinned: key.pinned,
        }
    }
}

impl From<Filters> for ListFiltersAnswer {
    fn from(filters: Filters) -> ListFiltersAnswer {
        ListFiltersAnswer { filters: filters.filters.into_iter().map(Filter::from).collect() }
    }
}

impl From<filters::Filter> for Filter {
    fn from(view: filters::Filter) -> Filter {
        let phase = match view.phase {
            FilterPhase::Off => filter::Phase::Off,
            FilterPhase::Warming => filter::Phase::Warming,
            FilterPhase::Serving => filter::Phase::Serving,
        };
        Filter {
            phase: phase.into(),
            generation: view.generation,
            believed: view.believed,
            shards: view.shards,
            bytes: view.bytes,
            edges_nominal: view.edges_nominal,
            surely_not: view.answers.surely_not,
            maybe: view.answers.maybe,
            unknown: view.answers.unknown,
            redis: view.redis.map(|redis| FilterRedis {
                address: redis.address,
                connected: redis.connected,
                unanswered: redis.unanswered,
                refused: redis.refused,
            }),
        }
    }
}

impl TryFrom<ListDeadLettersRequest> for ListDeadLetters {
    type Error = Error;

    fn try_from(request: ListDeadLettersRequest) -> Result<ListDeadLetters, Error> {
        let limit = limit(request.limit, LETTERS_MAX)?;
        Ok(ListDeadLetters { limit, after: request.after })
    }
}

impl From<dead_letters::DeadLetters> for ListDeadLettersAnswer {
    fn from(letters: dead_letters::DeadLetters) -> ListDeadLettersAnswer {
        let dead_letters = letters.dead_letters.into_iter().map(DeadLetter::from);
        let next = letters.next.map(|id| id.0);
        ListDeadLettersAnswer { dead_letters: dead_letters.collect(), next }
    }
}

impl From<DeadLetterView> for DeadLetter {
    fn from(view: DeadLetterView) -> DeadLetter {
        DeadLetter {
            id: view.id.0,
            topic: view.topic,
            partition: view.partition,
            position: view.position,
            kind: view.kind.map(owned),
            source: view.source.map(|source| source.0),
            target: view.target.map(|target| target.0),
            at: Some(timestamp(view.at.0)),
            cause: view.cause,
            value: view.value.map(Into::into),
        }
    }
}

impl From<Dropped> for DroppedDeadLetter {
    fn from(Dropped { .. }: Dropped) -> DroppedDeadLetter {
        DroppedDeadLetter {}
    }
}

impl From<Retried> for RetriedDeadLetter {
    fn from(retried: Retried) -> RetriedDeadLetter {
        RetriedDeadLetter {
            kind: retried.kind.map(owned),
            source: retried.source.0,
            target: retried.target.0,
            changed: retried.changed,
        }
    }
}
