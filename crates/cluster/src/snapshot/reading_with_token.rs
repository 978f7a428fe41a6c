//! A token's edges that the appliers have not brought to the target's side yet, laid over it: on
//! incoming lists at their place in the order, on tallies as the difference of contributions. All
//! is read in the snapshot's moment, so whatever the appliers do meanwhile, the answer is the one
//! that they lead to.

use guanxi_core::snapshot::{Direction, StoreError, TimeRange, Timeline};
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{EdgeKey, EdgeRow, NodeKey, TallyRow, Which};
use rustc_hash::FxHashMap;

use super::{SqlSnapshot, unreadable};
use crate::rows;
use crate::sql::text::TUPLES_MAX;
use crate::token_edges::select_incoming;

/// The edges that are late, as the target's side has them and as they are.
#[derive(Debug, Default)]
pub(super) struct Late {
    edges: Vec<LateEdge>,
    /// By how much each number of the target's side is off.
    off: FxHashMap<NodeKey, TallyRow>,
}

#[derive(Debug)]
struct LateEdge {
    key: EdgeKey,
    standing: Option<EdgeRow>,
    current: Option<EdgeRow>,
}

impl SqlSnapshot {
    /// The late ones among the token's edges, read at the first need.
    pub(super) fn late(&self) -> Result<&Late, StoreError> {
        if let Some(late) = self.late.get() {
            return Ok(late);
        }
        let late = if self.seen.is_empty() { Late::default() } else { self.read_late()? };
        Ok(self.late.get_or_init(|| late))
    }

    fn read_late(&self) -> Result<Late, StoreError> {
        let mut edges: Vec<EdgeKey> = self.seen.iter().map(|seen| seen.edge).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut statements = Vec::new();
        for edges in edges.chunks(TUPLES_MAX) {
            statements.push(rows::select_outgoing(edges));
            statements.push(select_incoming(edges));
        }
        let (mut current, mut standing) = (FxHashMap::default(), FxHashMap::default());
        for (index, set) in self.read(&statements)?.iter().enumerate() {
            for row in set {
                if index % 2 == 0 {
                    current.extend([rows::outgoing(row).map_err(unreadable)?]);
                } else {
                    standing.extend([rows::incoming(row).map_err(unreadable)?]);
                }
            }
        }
        let mut late = Late::default();
        for key in edges {
            let (standing, current) = (standing.remove(&key), current.remove(&key));
            let seen = self.seen.iter().filter(|seen| seen.edge == key);
            let least = seen.map(|seen| seen.version).max();
            if standing.as_ref().map(|row| row.version) < least {
                self.lay(&mut late, LateEdge { key, standing, current });
            }
        }
        Ok(late)
    }

    fn lay(&self, late: &mut Late, edge: LateEdge) {
        let Some(kind) = self.catalog.kind(edge.key.tenant, edge.key.kind) else {
            return;
        };
        for (row, delta) in [(&edge.standing, -1), (&edge.current, 1)] {
            for counted in contribution(kind, &edge.key, row.as_ref()) {
                // The source's side is current.
                if let CountedTally::Node { node, kind, which } = counted
                    && !matches!(which, Which::Outgoing | Which::PendingOutgoing)
                {
                    late.off.entry(node).or_default().add(kind, which, delta);
                }
            }
        }
        late.edges.push(edge);
    }
}

impl Late {
    pub fn adjust(&self, node: &NodeKey, tallies: &mut TallyRow) {
        if let Some(off) = self.off.get(node) {
            for (kind, which, delta) in off.entries() {
                tallies.add(kind, which, delta);
            }
        }
    }

    /// What is laid over this part of a list.
    pub fn over(&self, list: &Timeline, range: &TimeRange) -> Over {
        let mut over = Over { gone: Vec::new(), come: Vec::new(), order: range.order };
        if list.direction == Direction::Outgoing {
            return over;
        }
        for LateEdge { key, standing, current } in &self.edges {
            if (key.tenant, key.kind, key.target.0) != (list.tenant, list.kind, list.id) {
                continue;
            }
            let place = |row: &EdgeRow| {
                let place = PagePlace { since: row.since, id: key.source.0 };
                (row.state == list.state).then_some(place)
            };
            over.gone.extend(standing.as_ref().and_then(place));
            let comes = current.as_ref().and_then(place);
            over.come.extend(comes.filter(|place| within(*place, range)));
        }
        // The next one to come stands last.
        over.come.sort_unstable();
        if range.order == Order::Oldest {
            over.come.reverse();
        }
        over
    }
}

fn within(place: PagePlace, range: &TimeRange) -> bool {
    range.since.is_none_or(|since| place.since >= since)
        && range.until.is_none_or(|until| place.since < until)
        && range.after.is_none_or(|after| place.is_after(after, range.order))
}

/// Changes of one list, taken up along a walk.
#[derive(Debug, Default)]
pub(super) struct Over {
    gone: Vec<PagePlace>,
    come: Vec<PagePlace>,
    order: Order,
}

impl Over {
    /// The late place that comes before this one of the list, or before its end.
    pub fn before(&mut self, next: Option<PagePlace>) -> Option<PagePlace> {
        let first = *self.come.last()?;
        let comes = next.is_none_or(|next| next.is_after(first, self.order));
        if comes { self.come.pop() } else { None }
    }

    /// Whether a place of the list is to be left out: it is gone, or was shown as a late one.
    pub fn hides(&self, place: PagePlace) -> bool {
        self.gone.contains(&place)
    }
}
