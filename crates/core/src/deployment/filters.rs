//! What an operator may ask about the existence filter.

/// How far a filter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterStage {
    /// There is none, and none is being built.
    Off,
    /// It is being built.
    Warming,
    /// Instances that reach it may believe it.
    Serving,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterStatus {
    pub phase: FilterStage,
    /// Which one serves or is being built.
    pub generation: Option<u64>,
    /// Whether this instance takes its word.
    pub believed: bool,
    pub shards: u32,
    pub bytes: u64,
    /// The edges that it was made for; with more it grows.
    pub edges_nominal: u64,
    /// This instance's questions since its start, by their answers.
    pub surely_not: u64,
    pub maybe: u64,
    /// The filter was not to be believed, or not to be reached.
    pub unknown: u64,
    /// None where this instance is not told of a Redis.
    pub redis: Option<RedisStatus>,
}

/// One Redis as this instance sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStatus {
    /// Without a password.
    pub address: String,
    pub reachable: bool,
    /// Commands not answered in time, or on a connection that broke.
    pub unanswered: u64,
    pub refused: u64,
}
