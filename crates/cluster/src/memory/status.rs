//! What an operator may ask about the existence filter: where it stands by the plan, whether this
//! instance believes it, what became of its questions, and how the Redis does that holds it.

use guanxi_model::filter::Plan;

use super::Memory;
use super::filter::FilterFigures;
use super::tier::{Tier, TierFigures};

/// How far a filter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterPhase {
    /// There is none, and none is being built.
    Off,
    /// It is being built.
    Warming,
    /// Instances that reach it may believe it.
    Serving,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterStatus {
    pub phase: FilterPhase,
    /// Which one serves or is being built.
    pub generation: Option<u64>,
    /// Whether this instance takes its word.
    pub believed: bool,
    pub shards: u32,
    pub bytes: u64,
    /// The edges that it was made for; with more it grows.
    pub edges_nominal: u64,
    /// This instance's questions since its start.
    pub figures: FilterFigures,
    /// None where this instance is not told of a Redis.
    pub redis: Option<RedisStatus>,
}

/// One Redis as this instance sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStatus {
    /// Without a password.
    pub address: String,
    pub figures: TierFigures,
}

impl Memory {
    /// None where this instance has no Redis and no other has built a filter.
    pub fn filter_status(&self) -> Option<FilterStatus> {
        let plan =
            self.filter_part.plans.held().map_or_else(Plan::default, |held| held.plan().clone());
        let (phase, standing) = match (plan.serving, plan.building) {
            // What serves by the plan alone is gone from Redis, and another is on its way.
            (Some(_), Some(building)) if self.filter.is_gone() => {
                (FilterPhase::Warming, Some(building.standing))
            }
            (Some(serving), _) => (FilterPhase::Serving, Some(serving)),
            (None, Some(building)) => (FilterPhase::Warming, Some(building.standing)),
            (None, None) => (FilterPhase::Off, None),
        };
        if self.filter_part.tier.is_none() && standing.is_none() {
            return None;
        }
        let geometry = standing.map(|standing| standing.geometry);
        let redis = |tier: &Tier| RedisStatus {
            address: tier.address().to_owned(),
            figures: tier.figures(),
        };
        Some(FilterStatus {
            phase,
            generation: standing.map(|standing| standing.generation.0),
            believed: self.filter.serves(),
            shards: geometry.map_or(0, |geometry| geometry.shards()),
            bytes: geometry.map_or(0, |geometry| geometry.words_all() * size_of::<u64>() as u64),
            edges_nominal: geometry.map_or(0, |geometry| geometry.items_nominal()),
            figures: self.filter.figures(),
            redis: self.filter_part.tier.as_ref().map(redis),
        })
    }
}
