//! Lists: pages of outgoing and incoming edges, what two nodes have in common, and whole scans.
//!
//! A page costs what it shows. Outgoing lists of kinds with a small limit are read whole and
//! sorted; all others walk an index by time from the cursor. Walks that drop edges (mutual, known,
//! common, group) look at a bounded number of them per page, so a page may be short while `next`
//! says that the list goes on.

use std::ops::ControlFlow;
use std::sync::Arc;

use guanxi_model::codec::Encoder;
use guanxi_model::hash::hash64;
use guanxi_model::limits::WALK_EDGES_MAX;
use guanxi_model::page::{Cursor, Order, Place};
use guanxi_model::{
    Code, EdgeKey, EdgeRow, Error, GroupId, GroupName, GroupSet, GroupsKey, Kind, Millis, NodeKey,
    SourceId, State, TargetId, TenantId, Which,
};

use super::{Reader, unreadable};
use crate::store::{Ahead, Direction, TimeRange, Timeline, Wanted};

#[derive(Debug, Clone)]
pub struct ListQuery {
    pub tenant: TenantId,
    pub kind: Arc<Kind>,
    /// Whose list.
    pub id: u64,
    pub direction: Direction,
    pub limit: usize,
    pub cursor: Option<String>,
    /// Counted from 1, instead of a cursor.
    pub page: Option<u64>,
    pub order: Order,
    pub since: Option<Millis>,
    pub until: Option<Millis>,
    pub group: Option<GroupFilter>,
    pub state: State,
    /// Adds to each item whether the relation is mutual.
    pub mutual: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupFilter {
    Ungrouped,
    Named(GroupName),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub items: Vec<Item>,
    pub total: Option<i64>,
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub id: u64,
    pub state: State,
    pub since: Millis,
    pub group: Option<GroupName>,
    pub owner: Option<u64>,
    pub data: Option<Box<str>>,
    pub expires_at: Option<Millis>,
    pub mutual: Option<bool>,
}

/// An edge on a walk; the row only where it is at hand.
#[derive(Debug, Clone)]
struct Step {
    place: Place,
    row: Option<EdgeRow>,
}

/// How far one walk goes.
#[derive(Debug, Clone, Copy)]
struct Bound {
    kept: usize,
    looked: usize,
}

/// The edge that must be live beside the one to an id.
type Beside<'a> = dyn Fn(u64) -> EdgeKey + 'a;

/// Places that a walk which drops many reads at once, where they are far away.
const WALK_AHEAD: usize = 256;

/// One page of a walk: what was kept, and where it stopped if it did.
struct Walked {
    steps: Vec<Step>,
    stopped_at: Option<Place>,
}

impl ListQuery {
    /// A name for everything that decides which list this is; a cursor is bound to it.
    fn call(&self, name: &str, other: Option<u64>) -> u64 {
        let mut out = Encoder::with_capacity(96);
        out.str(name);
        out.varint(u64::from(self.tenant.0));
        out.varint(u64::from(self.kind.id.0));
        out.fixed_u64(self.id);
        out.option(other, Encoder::fixed_u64);
        out.u8(self.direction as u8);
        out.u8(self.order as u8);
        out.option(self.since, |out, since| out.varint(since.0));
        out.option(self.until, |out, until| out.varint(until.0));
        out.option(self.group.as_ref(), |out, group| match group {
            GroupFilter::Ungrouped => out.str(""),
            GroupFilter::Named(name) => out.str(name.as_str()),
        });
        out.u8(self.state as u8);
        hash64(&out.into_bytes())
    }

    fn cursor(&self, call: u64) -> Result<Option<Cursor>, Error> {
        self.cursor.as_deref().map(|text| Cursor::parse(text, call)).transpose()
    }

    fn range(&self, after: Option<Place>) -> TimeRange {
        TimeRange { since: self.since, until: self.until, after, order: self.order }
    }

    fn within(&self, since: Millis) -> bool {
        self.since.is_none_or(|from| since >= from) && self.until.is_none_or(|to| since < to)
    }

    fn edge_to(&self, target: u64) -> EdgeKey {
        EdgeKey {
            tenant: self.tenant,
            kind: self.kind.id,
            source: SourceId(self.id),
            target: TargetId(target),
        }
    }

    /// The edge of one of the list's items.
    fn edge_of(&self, id: u64) -> EdgeKey {
        match self.direction {
            Direction::Outgoing => self.edge_to(id),
            Direction::Incoming => {
                EdgeKey { source: SourceId(id), target: TargetId(self.id), ..self.edge_to(id) }
            }
        }
    }

    /// The node whose tally is the list's total, where one is kept.
    fn tallied_node(&self) -> Option<NodeKey> {
        let fixed = &self.kind.fixed;
        let (node_type, kept) = match self.direction {
            Direction::Outgoing => (fixed.source_type, fixed.outgoing_tally),
            Direction::Incoming => (fixed.target_type, fixed.incoming_tally),
        };
        let (tenant, id) = (self.tenant, self.id);
        kept.then_some(NodeKey { tenant, node_type, id })
    }

    /// Whether each item needs a look at the edge back.
    fn asks_back(&self) -> bool {
        self.mutual && self.state == State::Live
    }

    fn require_list(&self) -> Result<(), Error> {
        self.kind.require_edges()?;
        let (kept, name) = match self.direction {
            Direction::Outgoing => (self.kind.fixed.outgoing_list, "outgoing"),
            Direction::Incoming => (self.kind.fixed.incoming_list, "incoming"),
        };
        if kept {
            return Ok(());
        }
        Err(Error::invalid(format!("kind {} keeps no {name} list", self.kind.name)))
    }
}

impl Reader {
    /// A page of outgoing or incoming edges.
    pub fn list(&self, query: &ListQuery) -> Result<Page, Error> {
        query.require_list()?;
        if query.mutual {
            query.kind.require_same_type("mutual=true")?;
        }
        match query.direction {
            Direction::Outgoing => self.outgoing(query),
            Direction::Incoming => self.incoming(query),
        }
    }

    fn outgoing(&self, query: &ListQuery) -> Result<Page, Error> {
        if query.page.is_some() {
            return self.numbered_page(query);
        }
        let mut page = self.filtered(query, "outgoing", None, None)?;
        page.total = self.total(query)?;
        Ok(page)
    }

    /// A page by its number: for lists short enough to be counted through.
    fn numbered_page(&self, query: &ListQuery) -> Result<Page, Error> {
        if query.kind.rules.outgoing_max.is_none() {
            return Err(Error::invalid(format!(
                "page: kind {} has no outgoing limit; walk its lists with cursor",
                query.kind.name
            )));
        }
        if query.cursor.is_some() {
            return Err(Error::invalid("page: give either page or cursor, not both"));
        }
        let number = query.page.unwrap_or(1).max(1);
        let skipped = (number - 1).saturating_mul(query.limit as u64);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let groups = self.groups_for(query)?;
        let bound = Bound { kept: skipped.saturating_add(query.limit), looked: usize::MAX };
        let walked = self.walk(query, &groups, None, bound, None)?;
        let steps = walked.steps.into_iter().skip(skipped).collect();
        let call = query.call("outgoing", None);
        Ok(Page {
            items: self.items(query, &groups, steps)?,
            total: self.total(query)?,
            next: walked.stopped_at.map(|place| Cursor { place, depth: 0 }.to_text(call)),
        })
    }

    fn incoming(&self, query: &ListQuery) -> Result<Page, Error> {
        if query.group.is_some() {
            return Err(Error::invalid(
                "group: groups belong to the source, so only outgoing lists have them",
            ));
        }
        if query.page.is_some() {
            return Err(Error::invalid("page: incoming lists are walked with cursor"));
        }
        let call = query.call("incoming", None);
        let cursor = query.cursor(call)?;
        let depth = cursor.map_or(0, |cursor| cursor.depth);
        let limit = self.depth_left(query, depth)?;
        let list = timeline(query, Direction::Incoming);
        let mut steps = Vec::with_capacity(limit.min(query.limit));
        let mut more = false;
        let range = query.range(cursor.map(|cursor| cursor.place));
        self.prefetch(|wanted| self.begin_list(query, wanted))?;
        let mut visit = |place| {
            if steps.len() == limit {
                more = true;
                return ControlFlow::Break(());
            }
            steps.push(Step { place, row: None });
            ControlFlow::Continue(())
        };
        let ahead = Ahead { places: limit.saturating_add(1), wants: &|_, _| () };
        let walk = self.snapshot.timeline_ahead(&list, &range, &ahead, &mut visit);
        walk.map_err(unreadable)?;
        let last = steps.last().map(|step| step.place).filter(|_| more);
        let depth = depth + steps.len() as u64;
        let next = last.map(|place| Cursor { place, depth }.to_text(call));
        let items = self.items(query, &GroupSet::default(), steps)?;
        Ok(Page { items, total: self.total(query)?, next })
    }

    /// How many items this page may still show under the kind's depth bound.
    fn depth_left(&self, query: &ListQuery, depth: u64) -> Result<usize, Error> {
        let max = query.kind.rules.list_depth_max;
        if max == 0 {
            return Ok(query.limit);
        }
        if query.until.is_some() || query.order == Order::Oldest {
            return Err(Error::invalid(format!(
                "kind {} shows the newest {max} incoming edges only, so neither until nor \
                 order=oldest; scan reads them all",
                query.kind.name
            )));
        }
        let left = max.saturating_sub(depth);
        if left == 0 {
            return Err(Error::new(
                Code::DepthExceeded,
                format!(
                    "kind {} shows the first {max} incoming edges; scan reads them all",
                    query.kind.name
                ),
            ));
        }
        Ok(query.limit.min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    /// Outgoing edges whose reverse stands too.
    pub fn mutual(&self, query: &ListQuery) -> Result<Page, Error> {
        query.require_list()?;
        query.kind.require_same_type("mutual")?;
        self.filtered(query, "mutual", None, Some(&|id| query.edge_to(id).reversed()))
    }

    /// Those whom both relate to.
    pub fn common(&self, query: &ListQuery, other: u64) -> Result<Page, Error> {
        query.require_list()?;
        if query.kind.rules.outgoing_max.is_none() {
            return Err(Error::invalid(format!(
                "common needs a kind with an outgoing limit, which {} is not",
                query.kind.name
            )));
        }
        let source = SourceId(other);
        let edge = |id| EdgeKey { source, ..query.edge_to(id) };
        self.filtered(query, "common", Some(other), Some(&edge))
    }

    /// Those whom the source relates to and who relate to `other`.
    pub fn known(&self, query: &ListQuery, other: u64) -> Result<Page, Error> {
        query.require_list()?;
        query.kind.require_same_type("known")?;
        let edge = |id| {
            let (source, target) = (SourceId(id), TargetId(other));
            EdgeKey { source, target, ..query.edge_to(id) }
        };
        self.filtered(query, "known", Some(other), Some(&edge))
    }

    /// The whole list in the order of the store, without any bound of depth.
    pub fn scan(&self, query: &ListQuery) -> Result<Page, Error> {
        query.require_list()?;
        let call = query.call("scan", None);
        let after = query.cursor(call)?.map(|cursor| cursor.place);
        let mut steps = Vec::new();
        let mut more = false;
        let mut keep = |step: Step| {
            if steps.len() == query.limit {
                more = true;
                return ControlFlow::Break(());
            }
            steps.push(step);
            ControlFlow::Continue(())
        };
        match query.direction {
            Direction::Incoming => {
                let list = timeline(query, Direction::Incoming);
                let visit = &mut |place| keep(Step { place, row: None });
                let ahead = Ahead { places: query.limit.saturating_add(1), wants: &|_, _| () };
                self.snapshot.timeline_ahead(&list, &query.range(after), &ahead, visit)
            }
            Direction::Outgoing => self.snapshot.edges_of_source(
                query.tenant,
                query.kind.id,
                SourceId(query.id),
                after.map(|place| TargetId(place.id)),
                &mut |target, row| match row.state == query.state {
                    true => keep(Step {
                        place: Place { since: row.since, id: target.0 },
                        row: Some(row),
                    }),
                    false => ControlFlow::Continue(()),
                },
            ),
        }
        .map_err(unreadable)?;
        let last = steps.last().map(|step: &Step| step.place).filter(|_| more);
        let next = last.map(|place| Cursor { place, depth: 0 }.to_text(call));
        let groups = self.groups_for(query)?;
        let items = self.items(query, &groups, steps)?;
        Ok(Page { items, total: self.total(query)?, next })
    }

    /// A page of outgoing edges, of those beside which another edge is live if one is asked for.
    fn filtered(
        &self,
        query: &ListQuery,
        name: &str,
        other: Option<u64>,
        beside: Option<&Beside<'_>>,
    ) -> Result<Page, Error> {
        let call = query.call(name, other);
        let after = query.cursor(call)?.map(|cursor| cursor.place);
        let groups = self.groups_for(query)?;
        let bound = Bound { kept: query.limit, looked: WALK_EDGES_MAX };
        let walked = self.walk(query, &groups, after, bound, beside)?;
        let next = walked.stopped_at.map(|place| Cursor { place, depth: 0 }.to_text(call));
        Ok(Page { items: self.items(query, &groups, walked.steps)?, total: None, next })
    }

    /// Walks outgoing edges in order, within a bound of those kept and those looked at.
    fn walk(
        &self,
        query: &ListQuery,
        groups: &GroupSet,
        after: Option<Place>,
        bound: Bound,
        beside: Option<&Beside<'_>>,
    ) -> Result<Walked, Error> {
        let wanted = wanted_group(query, groups)?;
        let keep = |id: u64| beside.map_or(Ok(true), |edge| self.is_live(&edge(id)));
        let mut walked = Walked { steps: Vec::new(), stopped_at: None };
        let mut last = None;
        let mut looked = 0;
        let mut look = |step: Step| {
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
            let wants = |place: Place, rows: &mut Wanted| {
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
        after: Option<Place>,
        ahead: &Ahead<'_>,
        look: &mut dyn FnMut(Step) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let mut failed = None;
        let list = timeline(query, Direction::Outgoing);
        let mut visit = |place| {
            look(Step { place, row: None }).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            })
        };
        let walk = self.snapshot.timeline_ahead(&list, &query.range(after), ahead, &mut visit);
        walk.map_err(unreadable)?;
        failed.map_or(Ok(()), Err)
    }

    /// The whole rest of a short list, sorted in memory.
    fn sorted_after(&self, query: &ListQuery, after: Option<Place>) -> Result<Vec<Step>, Error> {
        let mut steps = Vec::new();
        let (tenant, kind, source) = (query.tenant, query.kind.id, SourceId(query.id));
        let walk = self.snapshot.edges_of_source(tenant, kind, source, None, &mut |target, row| {
            let place = Place { since: row.since, id: target.0 };
            let comes = after.is_none_or(|after| place.is_after(after, query.order));
            if row.state == query.state && query.within(row.since) && comes {
                steps.push(Step { place, row: Some(row) });
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

    fn with_row(&self, query: &ListQuery, step: Step, wanted: bool) -> Result<Step, Error> {
        if step.row.is_some() || !wanted {
            return Ok(step);
        }
        let row = self.edge(&query.edge_of(step.place.id))?;
        Ok(Step { row, ..step })
    }

    fn items(
        &self,
        query: &ListQuery,
        groups: &GroupSet,
        steps: Vec<Step>,
    ) -> Result<Vec<Item>, Error> {
        let outgoing = query.direction == Direction::Outgoing;
        self.prefetch(|wanted| {
            for Step { place, row } in &steps {
                let edge = query.edge_of(place.id);
                wanted.edges.extend((outgoing && row.is_none()).then_some(edge));
                wanted.edges.extend(query.asks_back().then(|| edge.reversed()));
            }
        })?;
        let item = |step: Step| {
            let Step { place, row } = self.with_row(query, step, outgoing)?;
            let row = row.filter(|_| outgoing);
            let mutual = match query.mutual {
                true => Some(self.is_mutual(query, place.id)?),
                false => None,
            };
            Ok(Item {
                id: place.id,
                state: query.state,
                since: place.since,
                group: row.as_ref().and_then(|row| groups.name_of(row.group).cloned()),
                owner: row.as_ref().and_then(|row| row.owner),
                expires_at: row.as_ref().and_then(|row| row.expires_at),
                data: row.and_then(|row| row.data),
                mutual,
            })
        };
        steps.into_iter().map(item).collect()
    }

    fn is_mutual(&self, query: &ListQuery, id: u64) -> Result<bool, Error> {
        Ok(query.asks_back() && self.is_live(&query.edge_of(id).reversed())?)
    }

    /// What a page shows beside its items; their rows are of the same moment.
    fn begin_list(&self, query: &ListQuery, wanted: &mut Wanted) {
        wanted.more = true;
        wanted.nodes.extend(query.tallied_node());
        if query.direction == Direction::Outgoing {
            wanted.groups.push(GroupsKey::of(&query.edge_to(0)));
        }
    }

    /// The source's groups, for the names of outgoing items; a kind without groups costs nothing.
    fn groups_for(&self, query: &ListQuery) -> Result<GroupSet, Error> {
        if query.direction == Direction::Incoming {
            return Ok(GroupSet::default());
        }
        self.prefetch(|wanted| self.begin_list(query, wanted))?;
        self.groups(&GroupsKey::of(&query.edge_to(0)))
    }

    /// The tally behind a list: of the same snapshot as its items.
    fn total(&self, query: &ListQuery) -> Result<Option<i64>, Error> {
        if query.since.is_some() || query.until.is_some() {
            return Ok(None);
        }
        let which = match (query.direction, query.state) {
            (Direction::Outgoing, State::Pending) => Which::PendingOutgoing,
            (Direction::Outgoing, _) => Which::Outgoing,
            (Direction::Incoming, State::Pending) => Which::PendingIncoming,
            (Direction::Incoming, _) => Which::Incoming,
        };
        let tallied = || match query.tallied_node() {
            None => Ok(None),
            Some(node) => Ok(Some(self.tallies(&node)?.get(query.kind.id, which))),
        };
        match &query.group {
            None => tallied(),
            Some(_) if query.state != State::Live => Ok(None),
            Some(GroupFilter::Named(name)) => {
                let groups = self.groups_for(query)?;
                Ok(groups.by_name(name.as_str()).map(|group| group.size))
            }
            Some(GroupFilter::Ungrouped) => {
                let grouped: i64 = self.groups_for(query)?.groups.iter().map(|g| g.size).sum();
                Ok(tallied()?.map(|all| all - grouped))
            }
        }
    }
}

fn timeline(query: &ListQuery, direction: Direction) -> Timeline {
    Timeline {
        tenant: query.tenant,
        kind: query.kind.id,
        direction,
        id: query.id,
        state: query.state,
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
fn in_group(step: &Step, wanted: Option<Option<GroupId>>, groups: &GroupSet) -> bool {
    let Some(wanted) = wanted else {
        return true;
    };
    let id = step.row.as_ref().and_then(|row| row.group);
    id.filter(|id| groups.by_id(*id).is_some()) == wanted
}
