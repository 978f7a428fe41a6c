//! What an operator may ask about the existence filter: where it stands by the plan, whether this
//! instance believes it, what became of its questions, and how the Redis does that holds it.

use guanxi_core::deployment::{FilterStage, FilterStatus, RedisStatus};
use guanxi_model::filter::FilterPlan;

use super::SharedMemory;
use super::filter::FilterFigures;
use super::tier::{Tier, TierFigures};

impl SharedMemory {
    /// None where this instance has no Redis and no other has built a filter.
    pub fn filter_status(&self) -> Option<FilterStatus> {
        let plan = self
            .filter_part
            .plans
            .held()
            .map_or_else(FilterPlan::default, |held| held.plan().clone());
        let (phase, standing) = match (plan.serving, plan.building) {
            // What serves by the plan alone is gone from Redis, and another is on its way.
            (Some(_), Some(building)) if self.filter.is_gone() => {
                (FilterStage::Warming, Some(building.standing))
            }
            (Some(serving), _) => (FilterStage::Serving, Some(serving)),
            (None, Some(building)) => (FilterStage::Warming, Some(building.standing)),
            (None, None) => (FilterStage::Off, None),
        };
        if self.filter_part.tier.is_none() && standing.is_none() {
            return None;
        }
        let geometry = standing.map(|standing| standing.geometry);
        let redis = |tier: &Tier| {
            let TierFigures { reachable, unanswered, refused, .. } = tier.figures();
            RedisStatus { address: tier.address().to_owned(), reachable, unanswered, refused }
        };
        let FilterFigures { surely_not, maybe, unknown, .. } = self.filter.figures();
        Some(FilterStatus {
            phase,
            generation: standing.map(|standing| standing.generation.0),
            believed: self.filter.serves(),
            shards: geometry.map_or(0, |geometry| geometry.shards()),
            bytes: geometry.map_or(0, |geometry| geometry.words_all() * size_of::<u64>() as u64),
            edges_nominal: geometry.map_or(0, |geometry| geometry.items_nominal()),
            surely_not,
            maybe,
            unknown,
            redis: self.filter_part.tier.as_ref().map(redis),
        })
    }
}
