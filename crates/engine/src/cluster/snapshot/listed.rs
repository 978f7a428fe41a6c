//! Walks of a complete outgoing list that is at hand, as the tables' own would go.

use std::ops::ControlFlow;
use std::sync::Arc;

use guanxi_model::page::{Order, Place};
use guanxi_model::{EdgeRow, GroupsKey, SourceId, State, TallyRow, TargetId, Which};

use super::SqlSnapshot;
use crate::cluster::memory::lists::packed::Outgoing;
use crate::store::{TimeRange, Timeline};

pub(super) fn list_key(list: &Timeline) -> GroupsKey {
    GroupsKey { tenant: list.tenant, kind: list.kind, source: SourceId(list.id) }
}

impl SqlSnapshot {
    pub(super) fn listed(&self, key: &GroupsKey) -> Option<Arc<Outgoing>> {
        self.known.borrow().list(key).cloned()
    }
}

impl Outgoing {
    pub(super) fn edge(&self, target: TargetId) -> Option<&EdgeRow> {
        let found = self.rows.binary_search_by_key(&target, |(target, _)| *target);
        found.ok().map(|at| &self.rows[at].1)
    }

    /// The source's numbers: what stands is what they count.
    pub(super) fn tallies(&self, key: &GroupsKey) -> TallyRow {
        let mut tallies = TallyRow::default();
        for (_, row) in &self.rows {
            let which = match row.state {
                State::Live => Which::Outgoing,
                State::Pending => Which::PendingOutgoing,
                State::Removed => continue,
            };
            tallies.add(key.kind, which, 1);
        }
        tallies
    }

    pub(super) fn each_by_target(
        &self,
        after: Option<TargetId>,
        visit: &mut dyn FnMut(TargetId, EdgeRow) -> ControlFlow<()>,
    ) {
        let behind = |target: &TargetId| after.is_none_or(|after| *target > after);
        for (target, row) in self.rows.iter().filter(|(target, _)| behind(target)) {
            if visit(*target, row.clone()).is_break() {
                return;
            }
        }
    }

    pub(super) fn each_by_time(
        &self,
        state: State,
        range: &TimeRange,
        visit: &mut dyn FnMut(Place) -> ControlFlow<()>,
    ) {
        let of_state = self.rows.iter().filter(|(_, row)| row.state == state);
        let places = of_state.map(|(target, row)| Place { since: row.since, id: target.0 });
        let wanted = |place: &Place| {
            range.since.is_none_or(|since| place.since >= since)
                && range.until.is_none_or(|until| place.since < until)
        };
        let mut places: Vec<Place> = places.filter(wanted).collect();
        places.sort_unstable();
        if range.order == Order::Newest {
            places.reverse();
        }
        let behind = |place: &Place| match (range.after, range.order) {
            (None, _) => true,
            (Some(after), Order::Newest) => *place < after,
            (Some(after), Order::Oldest) => *place > after,
        };
        for place in places.into_iter().filter(behind) {
            if visit(place).is_break() {
                return;
            }
        }
    }
}
