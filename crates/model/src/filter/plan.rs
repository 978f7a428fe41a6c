//! The plan: which generations stand, on which server's history, and who must write where. It is
//! one row in the database for each place, changed only by compare-and-set on its revision.
//! `filter.rs` says why each rule is as it is.

use super::geometry::Geometry;
use super::header::{FORMAT, FilterLineage, Generation, Seal};

/// How old an instance's copy of the plan may be, counted from before it was asked for. Instances
/// look four times as often. A reader believes no older copy, a writer commits by no older one, and
/// whoever takes something from the readers waits this long.
pub const PLAN_AGE_MAX_MS: u64 = 1_000;
/// How long the strings of a generation outlive it: time to look at them when something is odd.
pub const RETIRED_KEEP_MS: u64 = 600_000;
/// Retired generations whose strings are kept; the oldest goes when there are more.
pub const RETIRED_MAX: usize = 2;

/// A sealed generation in one history of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandingFilter {
    pub generation: Generation,
    pub format: u16,
    pub geometry: Geometry,
    pub seal: Seal,
    pub lineage: FilterLineage,
}

/// What a generation lacks before it may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillNeed {
    /// It is new: every live and pending edge, from the database.
    Scan,
    /// It was complete once: the log, from its ledger on.
    Replay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Building {
    pub standing: StandingFilter,
    pub fill: FillNeed,
}

/// A generation that nobody asks or writes any more; its strings go later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retired {
    pub generation: Generation,
    pub geometry: Geometry,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterPlan {
    /// Raised by every change; a change is published only over the revision that it was made from.
    pub revision: u64,
    /// The highest generation that was ever announced.
    pub last: Generation,
    /// The one that is complete: readers may believe it.
    pub serving: Option<StandingFilter>,
    pub building: Option<Building>,
    /// No longer believed by this plan, but by readers that have not seen it yet: writers owe it
    /// bits until it is let go. At most two: what a swap replaced, and what was withdrawn after it.
    pub leaving: Vec<StandingFilter>,
    /// Complete when it was withdrawn: it may be resumed.
    pub withdrawn: Option<StandingFilter>,
    /// Oldest first.
    pub retired: Vec<Retired>,
}

impl Default for FilterPlan {
    /// Of a place that has no filter yet.
    fn default() -> FilterPlan {
        FilterPlan {
            revision: 0,
            last: Generation(0),
            serving: None,
            building: None,
            leaving: Vec::new(),
            withdrawn: None,
            retired: Vec::new(),
        }
    }
}

impl FilterPlan {
    /// The number of the next generation; its strings are made before it is announced.
    pub fn next_generation(&self) -> Generation {
        Generation(self.last.0 + 1)
    }

    /// Writers set bits in it from now on. Its shards bear the seal already.
    pub fn announced(&self, standing: StandingFilter, fill: FillNeed) -> FilterPlan {
        let mut plan = self.next();
        debug_assert!(self.building.is_none() && self.leaving.is_empty());
        if fill == FillNeed::Replay {
            debug_assert!(self.serving.is_none());
            debug_assert_eq!(self.withdrawn.map(|old| old.generation), Some(standing.generation));
            plan.withdrawn = None;
        }
        plan.last = plan.last.max(standing.generation);
        plan.building = Some(Building { standing, fill });
        plan
    }

    /// What was being built lacks bits and is given up. One that was resumed may be so again: its
    /// ledger says what it lacks.
    pub fn abandoned(&self) -> FilterPlan {
        let mut plan = self.next();
        match plan.building.take() {
            Some(Building { standing, fill: FillNeed::Replay }) => plan.withdrawn = Some(standing),
            Some(Building { standing, fill: FillNeed::Scan }) => plan.retire(standing),
            None => {}
        }
        plan
    }

    /// What was being built is complete and takes the place of what served.
    pub fn completed(&self) -> FilterPlan {
        let mut plan = self.next();
        if let Some(building) = plan.building.take() {
            plan.leaving.extend(plan.serving.replace(building.standing));
            if let Some(old) = plan.withdrawn.take() {
                plan.retire(old);
            }
        }
        plan
    }

    /// Nothing is to be believed: a writer cannot reach what serves, or its history has ended.
    pub fn withdrawing(&self) -> FilterPlan {
        let mut plan = self.next();
        if let Some(standing) = plan.serving.take() {
            plan.leaving.push(standing);
            if let Some(older) = plan.withdrawn.replace(standing) {
                plan.retire(older);
            }
        }
        plan
    }

    /// No reader believes what was leaving any more.
    pub fn let_go(&self) -> FilterPlan {
        let mut plan = self.next();
        for standing in std::mem::take(&mut plan.leaving) {
            if plan.withdrawn != Some(standing) {
                plan.retire(standing);
            }
        }
        plan
    }

    /// What was withdrawn cannot be resumed.
    pub fn given_up(&self) -> FilterPlan {
        let mut plan = self.next();
        if let Some(standing) = plan.withdrawn.take() {
            plan.retire(standing);
        }
        plan
    }

    /// The strings of a retired generation are gone.
    pub fn deleted(&self, generation: Generation) -> FilterPlan {
        let mut plan = self.next();
        plan.retired.retain(|retired| retired.generation != generation);
        plan
    }

    fn next(&self) -> FilterPlan {
        FilterPlan { revision: self.revision + 1, ..self.clone() }
    }

    fn retire(&mut self, standing: StandingFilter) {
        let StandingFilter { generation, geometry, .. } = standing;
        if self.retired.iter().all(|retired| retired.generation != generation) {
            self.retired.push(Retired { generation, geometry });
        }
    }
}

/// An instance's copy of the plan. Times are of a clock that never steps and does not rest while
/// the machine sleeps.
#[derive(Debug, Clone)]
pub struct HeldPlan {
    plan: FilterPlan,
    /// When this revision was first known here.
    since_ms: u64,
    asked: PlanReading,
}

/// When a plan was asked for: just before, by the clock of the instance, and what the database's
/// clock said before it looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanReading {
    pub here_ms: u64,
    pub there_ms: u64,
}

/// What a writer does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriterStep {
    /// Commit, within the write's deadline.
    Commit,
    /// The copy of the plan is too old: read it, set what bits are new in it, ask again.
    Reread,
    /// Publish this over the revision that is held, read the plan, ask again; also when another
    /// change came first.
    Publish(Box<FilterPlan>),
    /// Readers may still believe what lacks the bits: ask again then.
    Hold { until_ms: u64 },
}

impl HeldPlan {
    /// The plan as read by a query that was answered at `now_ms`.
    pub fn new(plan: FilterPlan, asked: PlanReading, now_ms: u64) -> HeldPlan {
        HeldPlan { plan, since_ms: now_ms, asked }
    }

    /// The plan was read again.
    pub fn renew(&mut self, plan: FilterPlan, asked: PlanReading, now_ms: u64) {
        if plan.revision != self.plan.revision {
            *self = HeldPlan::new(plan, asked, now_ms);
        } else if asked.here_ms > self.asked.here_ms {
            self.asked = asked;
        }
    }

    pub fn plan(&self) -> &FilterPlan {
        &self.plan
    }

    /// A time of the database's clock at which this plan stood there.
    pub fn there_ms(&self) -> u64 {
        self.asked.there_ms
    }

    /// For how long this revision has been known here.
    pub fn known_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.since_ms)
    }

    /// What to ask over a connection of this lineage, if anything is worth asking.
    pub fn askable(&self, connection: Option<FilterLineage>) -> Option<StandingFilter> {
        let standing = self.plan.serving?;
        let good = standing.format == FORMAT && connection == Some(standing.lineage);
        good.then_some(standing)
    }

    /// The seal under which an answer is to be believed, now that it has come from what was
    /// `askable` before. The plan must be fresh now, so that a pause before the question counts;
    /// and what serves now must have served then: a shard may have been asked while it was still
    /// being filled, under the seal that a newer plan calls complete.
    pub fn believed(&self, asked: &StandingFilter, now_ms: u64) -> Option<Seal> {
        let good = self.fresh(now_ms) && self.plan.serving.as_ref() == Some(asked);
        good.then_some(asked.seal)
    }

    /// Where a writer sets its bits before it commits.
    pub fn owed(&self) -> impl Iterator<Item = &StandingFilter> {
        let building = self.plan.building.iter().map(|building| &building.standing);
        self.plan.serving.iter().chain(building).chain(&self.plan.leaving)
    }

    /// Whether a writer may commit. `reached` says of what is owed whether **set** was answered, with
    /// 1 or 0, over a connection of its lineage. Zero will do: a shard that has lost its seal is
    /// unknown to everyone on that lineage, and nobody gives it that seal again.
    pub fn permission(&self, now_ms: u64, reached: impl Fn(&StandingFilter) -> bool) -> WriterStep {
        if !self.fresh(now_ms) {
            return WriterStep::Reread;
        }
        // Nobody believes it yet, so it need only never be completed: no wait.
        if self.plan.building.is_some_and(|building| !reached(&building.standing)) {
            return WriterStep::Publish(Box::new(self.plan.abandoned()));
        }
        if self.plan.serving.is_some_and(|standing| !reached(&standing)) {
            return WriterStep::Publish(Box::new(self.plan.withdrawing()));
        }
        let until_ms = self.since_ms + PLAN_AGE_MAX_MS;
        if now_ms <= until_ms && !self.plan.leaving.iter().all(reached) {
            return WriterStep::Hold { until_ms: until_ms + 1 };
        }
        WriterStep::Commit
    }

    fn fresh(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.asked.here_ms) <= PLAN_AGE_MAX_MS
    }
}

#[cfg(test)]
mod tests;
