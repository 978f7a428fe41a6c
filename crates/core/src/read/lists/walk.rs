//! Walks along outgoing edges that keep some and drop others, by an index or sorted in memory.

use std::ops::ControlFlow;

use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{Code, EdgeKey, EdgeRow, Error, GroupId, GroupSet, SourceId};

use super::super::{Reader, unreadable};
use super::query::{GroupFilter, ListQuery};
use crate::snapshot::{Ahead, Direction, Wanted};

/// An edge on a walk; the row only where it is at hand.
#[derive(Debug, Clone)]
pub(super) struct WalkStep {
    pub place: PagePlace,
    pub row: Option<EdgeRow>,
}

/// How far one walk goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub kept: usize,
    pub looked: usize,
}

/// The edge that must be live beside the one to an id.
pub(super) type Beside<'a> = dyn Fn(u64) -> EdgeKey + 'a;

/// Places that a walk which drops many reads at once, where they are far away.
const WALK_AHEAD: usize = 256;

/// One page of a walk: what was kept, and where it stopped if it did.
pub(super) struct Walked {
    pub steps: Vec<WalkStep>,
    pub stopped_at: Option<PagePlace>,
}

impl Reader {
    /// Walks outgoing edges in order, within a bound of those kept and those looked at.
    pub(super) fn walk(
        &self,
        query: &ListQuery,
        groups: &GroupSet,
        after: Option<PagePlace>,
        bound: Bound,
        beside: Option<&Beside<'_>>,
    ) -> Result<Walked, Error> {
        let wanted = wanted_group(query, groups)?;
        let keep = |id: u64| beside.map_or(Ok(true), |edge| self.is_live(&edge(id)));
        let mut walked = Walked { steps: Vec::new(), stopped_at: None };
        let mut last = None;
        let mut looked = 0;
        let mut look = |step: WalkStep| {
            if walked.steps.len() == bound.kept || looked == bound.looked {
                walked.stopped_at = last;
                return Ok(ControlFlow::Break(()));
            }
            looked += 1;
            last = Some(step.place);
            let step = self.with_row(query, step, wanted.is_some())?;
            if in_group(&step, wanted, groups) && keep(step.place.id)? {
                walked.steps.push(step);
            }
            Ok(ControlFlow::Continue(()))
        };
        if self.snapshot.lists_outgoing_by_time(query.tenant, query.kind.id) {
            // Where many are dropped, more are looked at than shown.
            let filtered = wanted.is_some() || beside.is_some();
            let places = if filtered { WALK_AHEAD } else { bound.kept.saturating_add(1) };
            let wants = |place: PagePlace, rows: &mut Wanted| {
                if wanted.is_some() || beside.is_none() {
                    rows.edges.push(query.edge_of(place.id));
                }
                rows.edges.extend(beside.map(|edge| edge(place.id)));
            };
            let ahead = Ahead { places, wants: &wants };
            self.each_by_time(query, after, &ahead, &mut look)?;
        } else {
            for step in self.sorted_after(query, after)? {
                if look(step)?.is_break() {
                    break;
                }
            }
        }
        Ok(walked)
    }

    fn each_by_time(
        &self,
        query: &ListQuery,
        after: Option<PagePlace>,
        ahead: &Ahead<'_>,
        look: &mut dyn FnMut(WalkStep) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let mut failed = None;
        let list = query.timeline(Direction::Outgoing);
        let mut visit = |place| {
            look(WalkStep { place, row: None }).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            })
        };
        let walk = self.snapshot.timeline_ahead(&list, &query.range(after), ahead, &mut visit);
        walk.map_err(unreadable)?;
        failed.map_or(Ok(()), Err)
    }

    /// The whole rest of a short list, sorted in memory.
    fn sorted_after(
        &self,
        query: &ListQuery,
        after: Option<PagePlace>,
    ) -> Result<Vec<WalkStep>, Error> {
        let mut steps = Vec::new();
        let (tenant, kind, source) = (query.tenant, query.kind.id, SourceId(query.id));
        let walk = self.snapshot.edges_of_source(tenant, kind, source, None, &mut |target, row| {
            let place = PagePlace { since: row.since, id: target.0 };
            let comes = after.is_none_or(|after| place.is_after(after, query.order));
            if row.state == query.state && query.within(row.since) && comes {
                steps.push(WalkStep { place, row: Some(row) });
            }
            ControlFlow::Continue(())
        });
        walk.map_err(unreadable)?;
        steps.sort_unstable_by_key(|step| step.place);
        if query.order == Order::Newest {
            steps.reverse();
        }
        Ok(steps)
    }

    pub(super) fn with_row(
        &self,
        query: &ListQuery,
        step: WalkStep,
        wanted: bool,
    ) -> Result<WalkStep, Error> {
        if step.row.is_some() || !wanted {
            return Ok(step);
        }
        let row = self.edge(&query.edge_of(step.place.id))?;
        Ok(WalkStep { row, ..step })
    }
}

/// What a group filter asks for: ungrouped, or one group that must be there.
fn wanted_group(query: &ListQuery, groups: &GroupSet) -> Result<Option<Option<GroupId>>, Error> {
    match &query.group {
        None => Ok(None),
        Some(GroupFilter::Ungrouped) => Ok(Some(None)),
        Some(GroupFilter::Named(name)) => match groups.by_name(name.as_str()) {
            Some(group) => Ok(Some(Some(group.id))),
            None => Err(Error::new(
                Code::UnknownGroup,
                format!("source {} has no group '{}'", query.id, name.as_str()),
            )),
        },
    }
}

/// A group that is gone reads as ungrouped.
fn in_group(step: &WalkStep, wanted: Option<Option<GroupId>>, groups: &GroupSet) -> bool {
    let Some(wanted) = wanted else {
        return true;
    };
    let id = step.row.as_ref().and_then(|row| row.group);
    id.filter(|id| groups.by_id(*id).is_some()) == wanted
}
