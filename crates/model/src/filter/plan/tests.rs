//! The plan's changes and what each role may do under it, one rule at a time. The histories of
//! `tests/model/filter_histories.rs` try them together.

use super::*;
use crate::filter::step::{FillProgress, FilterStep, Sight, next_step};

const HERE: FilterLineage = FilterLineage(1);
const ELSEWHERE: FilterLineage = FilterLineage(2);
const START_MS: u64 = 50_000;

fn standing(generation: u64, seal: u64) -> StandingFilter {
    StandingFilter {
        generation: Generation(generation),
        format: FORMAT,
        geometry: Geometry::for_items(0),
        seal: Seal::new(seal).unwrap(),
        lineage: HERE,
    }
}

fn serving(standing: StandingFilter) -> FilterPlan {
    FilterPlan::default().announced(standing, FillNeed::Scan).completed()
}

fn held(plan: FilterPlan) -> HeldPlan {
    HeldPlan::new(plan, asked_at(START_MS), START_MS)
}

/// The database's clock is another.
const AHEAD_MS: u64 = 7_000_000;

fn asked_at(here_ms: u64) -> PlanReading {
    PlanReading { here_ms, there_ms: here_ms + AHEAD_MS }
}

/// A deadline is drawn from it, and an answer that comes late brings no older one back.
#[test]
fn a_plan_keeps_the_time_of_its_last_question() {
    let mut held = held(FilterPlan::default());
    assert_eq!(held.there_ms(), START_MS + AHEAD_MS);
    held.renew(FilterPlan::default(), asked_at(START_MS + 10), START_MS + 12);
    assert_eq!(held.there_ms(), START_MS + AHEAD_MS + 10);
    held.renew(FilterPlan::default(), asked_at(START_MS + 5), START_MS + 20);
    assert_eq!(held.there_ms(), START_MS + AHEAD_MS + 10);
    held.renew(serving(standing(1, 11)), asked_at(START_MS + 30), START_MS + 31);
    assert_eq!(held.there_ms(), START_MS + AHEAD_MS + 30);
}

#[test]
fn a_reader_believes_what_served_when_it_asked_and_still_does() {
    let (first, resealed) = (standing(1, 11), standing(1, 12));
    let mut held = held(serving(first));
    assert_eq!(held.askable(None), None);
    assert_eq!(held.askable(Some(ELSEWHERE)), None);
    let asked = held.askable(Some(HERE)).unwrap();
    assert_eq!(held.believed(&asked, START_MS + PLAN_AGE_MAX_MS), Seal::new(11));
    assert_eq!(held.believed(&asked, START_MS + PLAN_AGE_MAX_MS + 1), None);

    // The answer may bear the new seal, and come from before the replay.
    let resumed =
        held.plan().withdrawing().let_go().announced(resealed, FillNeed::Replay).completed();
    held.renew(resumed, asked_at(START_MS + 10), START_MS + 10);
    assert_eq!(held.believed(&asked, START_MS + 10), None);
    assert_eq!(held.askable(Some(HERE)), Some(resealed));

    let foreign = StandingFilter { format: FORMAT + 1, ..first };
    assert_eq!(super::tests::held(serving(foreign)).askable(Some(HERE)), None);
}

#[test]
fn nothing_is_believed_of_what_is_being_built_or_was_withdrawn() {
    let building = FilterPlan::default().announced(standing(1, 11), FillNeed::Scan);
    assert_eq!(held(building).askable(Some(HERE)), None);
    let withdrawn = serving(standing(1, 11)).withdrawing();
    assert_eq!(held(withdrawn).askable(Some(HERE)), None);
}

#[test]
fn a_writer_owes_bits_to_all_that_may_be_believed() {
    let plan = serving(standing(1, 11)).announced(standing(2, 12), FillNeed::Scan);
    let owed = |plan: &FilterPlan| -> Vec<u64> {
        held(plan.clone()).owed().map(|standing| standing.generation.0).collect()
    };
    assert_eq!(owed(&plan), [1, 2]);
    let swapped = plan.completed();
    assert_eq!(owed(&swapped), [2, 1]);
    assert_eq!(owed(&swapped.let_go()), [2]);
    assert_eq!(owed(&swapped.withdrawing()), [1, 2]);
    assert_eq!(owed(&swapped.withdrawing().let_go()), []);
    assert_eq!(owed(&plan.abandoned()), [1]);
}

#[test]
fn a_writer_that_cannot_reach_something_takes_it_from_the_readers_first() {
    let (one, two) = (standing(1, 11), standing(2, 12));
    let plan = serving(one).announced(two, FillNeed::Scan);
    let both = held(plan.clone());
    assert_eq!(both.permission(START_MS, |_| true), WriterStep::Commit);
    let late_ms = START_MS + PLAN_AGE_MAX_MS + 1;
    assert_eq!(both.permission(late_ms, |_| true), WriterStep::Reread);
    let old_only = both.permission(START_MS, |standing| *standing == one);
    assert_eq!(old_only, WriterStep::Publish(Box::new(plan.abandoned())));

    let alone = held(plan.abandoned());
    let none = alone.permission(START_MS, |_| false);
    assert_eq!(none, WriterStep::Publish(Box::new(plan.abandoned().withdrawing())));

    let mut leaving = held(plan.abandoned().withdrawing());
    let until_ms = START_MS + PLAN_AGE_MAX_MS + 1;
    assert_eq!(leaving.permission(START_MS, |_| false), WriterStep::Hold { until_ms });
    assert_eq!(leaving.permission(START_MS, |_| true), WriterStep::Commit);
    leaving.renew(leaving.plan().clone(), asked_at(until_ms - 5), until_ms);
    assert_eq!(leaving.permission(until_ms - 1, |_| false), WriterStep::Hold { until_ms });
    assert_eq!(leaving.permission(until_ms, |_| false), WriterStep::Commit);
}

#[test]
fn strings_of_generations_are_retired_once() {
    let plan = serving(standing(1, 11)).announced(standing(2, 12), FillNeed::Scan).completed();
    assert_eq!(plan.retired, []);
    let retired = |plan: &FilterPlan| -> Vec<u64> {
        plan.retired.iter().map(|retired| retired.generation.0).collect()
    };
    let plan = plan.let_go();
    assert_eq!(retired(&plan), [1]);
    let withdrawn = plan.withdrawing().let_go();
    assert_eq!(retired(&withdrawn), [1], "what may be resumed is kept");
    assert_eq!(retired(&withdrawn.given_up()), [1, 2]);
    assert_eq!(retired(&withdrawn.given_up().deleted(Generation(1))), [2]);
    assert_eq!(withdrawn.given_up().next_generation(), Generation(3));
    let abandoned = withdrawn.announced(standing(2, 13), FillNeed::Replay).abandoned();
    assert_eq!(abandoned.withdrawn, Some(standing(2, 13)));
}

fn sight() -> Sight {
    Sight {
        lineage: HERE,
        serving_whole: true,
        building_whole: true,
        resumable: true,
        items: 1_000,
    }
}

#[test]
fn the_upkeeps_next_step() {
    let geometry = Geometry::for_items(0);
    let first = standing(1, 11);
    let plan = serving(first);
    let building = plan.announced(standing(2, 12), FillNeed::Scan);
    let withdrawn = plan.withdrawing().let_go();
    let elsewhere = Sight { lineage: ELSEWHERE, ..sight() };
    let prepare = |generation: u64, geometry: Geometry, fill: FillNeed| FilterStep::Prepare {
        generation: Generation(generation),
        geometry,
        fill,
    };
    let grown = Geometry::for_items(600_000);
    let cases = [
        ("nothing yet", FilterPlan::default(), sight(), prepare(1, geometry, FillNeed::Scan)),
        ("all is well", plan.clone(), sight(), FilterStep::Follow),
        ("failed over", plan.clone(), elsewhere, FilterStep::Publish(Box::new(plan.withdrawing()))),
        (
            "a shard is missing",
            plan.clone(),
            Sight { serving_whole: false, ..sight() },
            prepare(2, geometry, FillNeed::Scan),
        ),
        (
            "too many items",
            plan.clone(),
            Sight { items: 600_000, ..sight() },
            prepare(2, grown, FillNeed::Scan),
        ),
        ("announced", building.clone(), sight(), FilterStep::Fence),
        (
            "a shard of the new one is missing",
            building.clone(),
            Sight { building_whole: false, ..sight() },
            FilterStep::Publish(Box::new(building.abandoned())),
        ),
        ("still leaving", plan.withdrawing(), sight(), FilterStep::Follow),
        ("to be resumed", withdrawn.clone(), sight(), prepare(1, geometry, FillNeed::Replay)),
        (
            "not to be resumed",
            withdrawn.clone(),
            Sight { resumable: false, ..sight() },
            FilterStep::Publish(Box::new(withdrawn.given_up())),
        ),
    ];
    for (name, plan, sight, step) in cases {
        assert_eq!(next_step(&held(plan), &sight, None, START_MS), step, "{name}");
    }
}

#[test]
fn a_generation_is_completed_after_fence_and_fill_of_its_own_seal() {
    let plan = FilterPlan::default().announced(standing(1, 11), FillNeed::Scan);
    let step = |seal: u64, fenced: bool, filled: bool| {
        let mut progress = FillProgress::new(Seal::new(seal).unwrap());
        progress.fenced = fenced;
        progress.filled = filled;
        next_step(&held(plan.clone()), &sight(), Some(&progress), START_MS)
    };
    assert_eq!(step(11, false, false), FilterStep::Fence);
    assert_eq!(step(11, false, true), FilterStep::Fence);
    assert_eq!(step(11, true, false), FilterStep::Fill(FillNeed::Scan));
    assert_eq!(step(11, true, true), FilterStep::Publish(Box::new(plan.completed())));
    assert_eq!(step(10, true, true), FilterStep::Fence);
}

#[test]
fn what_leaves_is_let_go_after_the_plans_age_and_its_strings_go_later() {
    let plan = serving(standing(1, 11)).announced(standing(2, 12), FillNeed::Scan).completed();
    let step = |plan: &FilterPlan, waited_ms: u64| {
        next_step(&held(plan.clone()), &sight(), None, START_MS + waited_ms)
    };
    assert_eq!(step(&plan, PLAN_AGE_MAX_MS), FilterStep::Follow);
    assert_eq!(step(&plan, PLAN_AGE_MAX_MS + 1), FilterStep::Publish(Box::new(plan.let_go())));
    let plan = plan.let_go();
    assert_eq!(step(&plan, RETIRED_KEEP_MS), FilterStep::Follow);
    assert_eq!(step(&plan, RETIRED_KEEP_MS + 1), FilterStep::Delete(plan.retired[0]));
}
