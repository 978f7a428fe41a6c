//! The existence filter of a cluster.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An embedded service, and a cluster without Redis, has none.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Filters {
    pub filters: Vec<Filter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FilterPhase {
    /// There is none, and none is being built.
    Off,
    /// It is being built.
    Warming,
    /// Checks may end in it.
    Serving,
}

/// A filter as the instance sees it that was asked.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    pub phase: FilterPhase,
    /// Counts the filters that were ever begun; null when there is none.
    #[schema(required)]
    pub generation: Option<u64>,
    /// Whether this instance takes its word.
    pub believed: bool,
    pub shards: u32,
    pub bytes: u64,
    /// The edges that it was made for; with more, a larger one is built.
    pub edges_nominal: u64,
    pub answers: FilterAnswers,
    /// Null where this instance is not told of a Redis.
    #[schema(required)]
    pub redis: Option<FilterRedis>,
}

/// Edges that this instance asked about since its start, by the answer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterAnswers {
    pub surely_not: u64,
    pub maybe: u64,
    /// The filter was away, or not to be believed.
    pub unknown: u64,
}

/// The Redis that holds it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterRedis {
    /// Host and port.
    pub address: String,
    /// Without a connection nothing is asked of it, and reads do without.
    pub connected: bool,
    /// Commands since the start that were not answered in time, or not at all.
    pub unanswered: u64,
    /// Commands since the start that it refused.
    pub refused: u64,
}
