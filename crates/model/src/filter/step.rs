//! What the upkeep of a place does next. It holds the lease of its place, but nothing here relies
//! on there being one upkeep only: every change of the plan is a compare-and-set.

use super::geometry::Geometry;
use super::header::{FilterLineage, Generation, Seal};
use super::plan::{
    FillNeed, FilterPlan, HeldPlan, PLAN_AGE_MAX_MS, RETIRED_KEEP_MS, RETIRED_MAX, Retired,
    StandingFilter,
};

/// What the upkeep sees over its connection to the place's Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    pub lineage: FilterLineage,
    /// Every shard of what serves bears its seal, and its ledger stands at a position from which the
    /// log can still be read.
    pub serving_whole: bool,
    /// Every shard of what is being built bears its seal.
    pub building_whole: bool,
    /// Every shard of what was withdrawn is there, under whatever seal, and so is its ledger, at a
    /// position from which the log can still be read.
    pub resumable: bool,
    /// Live and pending edges of the place, or what `Geometry::items_estimated` says.
    pub items: u64,
}

/// How far the upkeep has come with what is being built. It is kept in memory, for one seal: after
/// a restart all of it is done again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillProgress {
    seal: Seal,
    /// Every write that was let through by a plan before the announcement has ended.
    pub fenced: bool,
    /// The scan, begun after the fence, has reached its end, and the ledger has been made at a
    /// position noted before the scan. Or, for a replay: a barrier raised after the fence has come
    /// by, and all before it is set.
    pub filled: bool,
}

impl FillProgress {
    pub fn new(seal: Seal) -> FillProgress {
        FillProgress { seal, fenced: false, filled: false }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterStep {
    /// Nothing to do but to follow the log.
    Follow,
    /// Publish this plan over the revision that is held.
    Publish(Box<FilterPlan>),
    /// Write the headers of all shards with a new random seal, then publish
    /// `plan.announced(standing, fill)`. A new generation begins with empty shards, and without a
    /// ledger that a forgotten attempt may have left: that goes first. One to resume gets the seal
    /// only where its own header stands, and if one is missing nothing is published.
    Prepare { generation: Generation, geometry: Geometry, fill: FillNeed },
    /// Wait until every instance has said that it has no write under way that an older plan than
    /// this revision let through, or until `PLAN_AGE_MAX_MS` and a write's longest life are over.
    Fence,
    /// Scan, or replay up to a barrier.
    Fill(FillNeed),
    /// Delete the strings, then publish `plan.deleted(generation)`.
    Delete(Retired),
}

/// The next step, by the plan as held, what is seen, and what has been done for the seal that is
/// being built.
pub fn next_step(
    held: &HeldPlan,
    sight: &Sight,
    progress: Option<&FillProgress>,
    now_ms: u64,
) -> FilterStep {
    let plan = held.plan();
    let here = |standing: &StandingFilter| standing.lineage == sight.lineage;
    if plan.serving.is_some_and(|standing| !here(&standing)) {
        return FilterStep::Publish(Box::new(plan.withdrawing()));
    }
    if let Some(building) = plan.building
        && (!here(&building.standing) || !sight.building_whole)
    {
        return FilterStep::Publish(Box::new(plan.abandoned()));
    }
    if !plan.leaving.is_empty() && held.known_ms(now_ms) > PLAN_AGE_MAX_MS {
        return FilterStep::Publish(Box::new(plan.let_go()));
    }
    if let Some(building) = plan.building {
        return match progress.filter(|progress| progress.seal == building.standing.seal) {
            None | Some(FillProgress { fenced: false, .. }) => FilterStep::Fence,
            Some(FillProgress { filled: false, .. }) => FilterStep::Fill(building.fill),
            Some(_) if plan.leaving.is_empty() => FilterStep::Publish(Box::new(plan.completed())),
            Some(_) => FilterStep::Follow,
        };
    }
    if let Some(oldest) = plan.retired.first() {
        let crowded = plan.retired.len() > RETIRED_MAX;
        if crowded || held.known_ms(now_ms) > RETIRED_KEEP_MS {
            return FilterStep::Delete(*oldest);
        }
    }
    begin(plan, sight)
}

/// What to begin when nothing is being built.
fn begin(plan: &FilterPlan, sight: &Sight) -> FilterStep {
    if !plan.leaving.is_empty() {
        return FilterStep::Follow;
    }
    let anew = |geometry: Geometry| FilterStep::Prepare {
        generation: plan.next_generation(),
        geometry,
        fill: FillNeed::Scan,
    };
    match (plan.serving, plan.withdrawn) {
        // Shards are missing: those alone are unknown until there is a new generation.
        (Some(serving), _) if !sight.serving_whole => {
            anew(serving.geometry.grown(sight.items).unwrap_or(serving.geometry))
        }
        (Some(serving), _) => match serving.geometry.grown(sight.items) {
            Some(geometry) => anew(geometry),
            None => FilterStep::Follow,
        },
        (None, Some(old)) if sight.resumable => FilterStep::Prepare {
            generation: old.generation,
            geometry: old.geometry,
            fill: FillNeed::Replay,
        },
        (None, Some(_)) => FilterStep::Publish(Box::new(plan.given_up())),
        (None, None) => anew(Geometry::for_items(sight.items)),
    }
}
