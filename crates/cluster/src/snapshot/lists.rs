//! Lists by time, along the index that has a list's states apart, so that no tombstone is ever
//! read. Each statement names one range of that index: behind a place come first the ties of its
//! time, then the rest. One condition for both would make a server read all ties, or sort.

use std::ops::ControlFlow;

use guanxi_core::snapshot::{Ahead, Direction, StoreError, TimeRange, Timeline, Wanted};
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{Millis, State};
use mysql::Row;

use super::{Scans, SqlSnapshot, unreadable};
use crate::rows::cell;
use crate::sql::SqlError;
use crate::sql::text::TUPLES_MAX;

/// Places of a list that are read at once.
pub const CHUNK_PLACES: usize = 1_024;

type VisitPlace<'a> = dyn FnMut(PagePlace) -> ControlFlow<()> + 'a;

impl SqlSnapshot {
    pub(super) fn walk_by_time(
        &self,
        list: &Timeline,
        range: &TimeRange,
        ahead: &Ahead<'_>,
        visit: &mut VisitPlace<'_>,
    ) -> Result<(), StoreError> {
        // A removed edge reads as none, so there is no list of them.
        if list.state == State::Removed {
            return Ok(());
        }
        let mut over = match list.direction {
            Direction::Incoming => self.late()?.over(list, range),
            Direction::Outgoing => Default::default(),
        };
        let flow = self.each_chunk(list, range, ahead, &mut |place| {
            while let Some(late) = over.before(Some(place)) {
                visit(late)?;
            }
            if over.hides(place) { ControlFlow::Continue(()) } else { visit(place) }
        })?;
        if flow.is_continue() {
            while let Some(late) = over.before(None) {
                if visit(late).is_break() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The list as the table has it; says whether the visitor broke off.
    fn each_chunk(
        &self,
        list: &Timeline,
        range: &TimeRange,
        ahead: &Ahead<'_>,
        visit: &mut VisitPlace<'_>,
    ) -> Result<ControlFlow<()>, StoreError> {
        if range.order == Order::Newest && self.scans == Scans::Forward {
            return self.turned_round(list, range, visit);
        }
        let mut range = *range;
        let mut places_max = ahead.places.clamp(1, CHUNK_PLACES);
        loop {
            let places = self.chunk(list, &range, places_max)?;
            // The visitor may break before it comes to the last of a long chunk.
            for places in places.chunks(TUPLES_MAX) {
                let mut wanted = Wanted { more: true, ..Wanted::default() };
                places.iter().for_each(|place| (ahead.wants)(*place, &mut wanted));
                self.fetch(wanted)?;
                for place in places {
                    if visit(*place).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            match places.last() {
                Some(last) if places.len() == places_max => range.after = Some(*last),
                _ => return Ok(ControlFlow::Continue(())),
            }
            places_max = (2 * places_max).min(CHUNK_PLACES);
        }
    }

    /// Newest first without a backward scan: all of the part, read forward.
    fn turned_round(
        &self,
        list: &Timeline,
        range: &TimeRange,
        visit: &mut VisitPlace<'_>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let mut all = Vec::new();
        let mut forward = TimeRange { order: Order::Oldest, after: None, ..*range };
        loop {
            let places = self.chunk(list, &forward, CHUNK_PLACES)?;
            all.extend_from_slice(&places);
            match places.last() {
                Some(last) if places.len() == CHUNK_PLACES => forward.after = Some(*last),
                _ => break,
            }
        }
        let shown = all.iter().rev();
        for place in shown.filter(|place| range.after.is_none_or(|after| **place < after)) {
            if visit(*place).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn chunk(
        &self,
        list: &Timeline,
        range: &TimeRange,
        places_max: usize,
    ) -> Result<Vec<PagePlace>, StoreError> {
        let statements = statements(list, range, places_max);
        if statements.is_empty() {
            return Ok(Vec::new());
        }
        let sets = self.read(&statements)?;
        let rows = sets.iter().flatten().take(places_max);
        rows.map(|row| place(row).map_err(unreadable)).collect()
    }
}

pub(crate) fn place(row: &Row) -> Result<PagePlace, SqlError> {
    Ok(PagePlace { since: Millis(cell(row, 0)?), id: cell(row, 1)? })
}

/// The next places of a list, in one or two statements whose rows follow each other. Public so
/// that a server's plan for them can be looked at.
pub fn statements(list: &Timeline, range: &TimeRange, places_max: usize) -> Vec<String> {
    let (table, whose, id) = match list.direction {
        Direction::Outgoing => ("outgoing", "source", "target"),
        Direction::Incoming => ("incoming", "target", "source"),
    };
    let (turn, behind) = match range.order {
        Order::Newest => ("DESC", "<"),
        Order::Oldest => ("ASC", ">"),
    };
    let select = |condition: &str| {
        format!(
            "SELECT since,{id} FROM {table} FORCE INDEX (by_time) WHERE tenant={} AND kind={} \
             AND {whose}={} AND state={}{condition} \
             ORDER BY since {turn},{id} {turn} LIMIT {places_max}",
            list.tenant.0, list.kind.0, list.id, list.state as u8
        )
    };
    let since = range.since.map_or(0, |since| since.0);
    // The time after the last one, which none is beyond.
    let until = range.until.map(|until| until.0);
    let Some(after) = range.after else {
        return Vec::from_iter(between(since, until).map(|condition| select(&condition)));
    };
    let time = after.since.0;
    let mut statements = Vec::with_capacity(2);
    if time >= since && until.is_none_or(|until| time < until) {
        statements.push(select(&format!(" AND since={time} AND {id}{behind}{}", after.id)));
    }
    let rest = match range.order {
        Order::Newest => between(since, Some(until.map_or(time, |until| until.min(time)))),
        Order::Oldest => match time.checked_add(1) {
            Some(next) => between(since.max(next), until),
            None => None,
        },
    };
    statements.extend(rest.map(|condition| select(&condition)));
    statements
}

/// The condition of [since, until), unless nothing can be there.
fn between(since: u64, until: Option<u64>) -> Option<String> {
    let mut condition = String::new();
    if until.is_some_and(|until| until <= since) {
        return None;
    }
    if since > 0 {
        condition.push_str(&format!(" AND since>={since}"));
    }
    if let Some(until) = until {
        condition.push_str(&format!(" AND since<{until}"));
    }
    Some(condition)
}
