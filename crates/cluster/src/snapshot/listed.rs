//! Walks of a list that is at hand, complete or, if it is incoming, from its newest edge on, as the
//! tables' own would go.

use std::ops::ControlFlow;
use std::sync::Arc;

use guanxi_core::read::{ListQuery, Page};
use guanxi_core::snapshot::{Ahead, Direction, IncomingList, StoreError, TimeRange, Timeline};
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{EdgeRow, Error, GroupsKey, SourceId, State, TallyRow, TargetId, Which};

use super::SqlSnapshot;
use crate::cache::ReadCache;
use crate::memory::incoming::packed::{Newest, NewestPart};
use crate::memory::lists::packed::OutgoingList;

pub(super) fn list_key(list: &Timeline) -> GroupsKey {
    GroupsKey { tenant: list.tenant, kind: list.kind, source: SourceId(list.id) }
}

impl SqlSnapshot {
    pub(super) fn listed(&self, key: &GroupsKey) -> Option<Arc<OutgoingList>> {
        self.known.borrow().list(key).cloned()
    }

    pub(super) fn newest(&self, list: &IncomingList) -> Option<Arc<Newest>> {
        // Over what is not of the database's moment no token's edges are laid.
        self.known.borrow().newest(list).filter(|_| self.seen.is_empty()).cloned()
    }

    /// The part of an incoming list, where so many places of it are at hand, or all.
    pub(super) fn newest_part(
        &self,
        list: &Timeline,
        range: &TimeRange,
        places: usize,
    ) -> Option<NewestPart> {
        let Timeline { tenant, kind, direction, id, state } = *list;
        if (direction, state) != (Direction::Incoming, State::Live) {
            return None;
        }
        self.newest(&IncomingList { tenant, kind, target: TargetId(id) })?.part(range, places)
    }

    /// Who goes on behind what is at hand goes on in the database.
    pub(super) fn walk_part(
        &self,
        part: &NewestPart,
        list: &Timeline,
        range: &TimeRange,
        ahead: &Ahead<'_>,
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        for place in &part.places {
            if visit(*place).is_break() {
                return Ok(());
            }
        }
        match part.places.last() {
            Some(last) if !part.whole => {
                let rest = TimeRange { after: Some(*last), ..*range };
                self.walk_by_time(list, &rest, ahead, visit)
            }
            _ => Ok(()),
        }
    }

    /// Reads a page from what is at hand, and keeps it in the process if it is a popular one: its
    /// age counts from before Redis was asked.
    pub(super) fn page_at_hand(
        &self,
        query: &ListQuery,
        cache: &ReadCache,
        read: &mut dyn FnMut() -> Result<Page, Error>,
    ) -> Result<Page, Error> {
        let page = read()?;
        let asked = self.known.borrow().asked.filter(|_| self.defaults.is_none());
        if let Some(asked) = asked {
            cache.keep_page(query, &page, asked);
        }
        Ok(page)
    }
}

impl OutgoingList {
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
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
    ) {
        let of_state = self.rows.iter().filter(|(_, row)| row.state == state);
        let places = of_state.map(|(target, row)| PagePlace { since: row.since, id: target.0 });
        let wanted = |place: &PagePlace| {
            range.since.is_none_or(|since| place.since >= since)
                && range.until.is_none_or(|until| place.since < until)
        };
        let mut places: Vec<PagePlace> = places.filter(wanted).collect();
        places.sort_unstable();
        if range.order == Order::Newest {
            places.reverse();
        }
        let behind = |place: &PagePlace| match (range.after, range.order) {
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
