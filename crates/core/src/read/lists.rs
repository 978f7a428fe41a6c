//! Lists: pages of outgoing and incoming edges, what two nodes have in common, and whole scans.
//!
//! A page costs what it shows. Outgoing lists of kinds with a small limit are read whole and
//! sorted; all others walk an index by time from the cursor. Walks that drop edges (mutual, known,
//! common, group, scans of outgoing edges) look at a bounded number of them per page, so a page may
//! be short while `next` says that the list goes on.

mod query;
mod walk;

pub use self::query::{GroupFilter, ListQuery};

use std::ops::ControlFlow;

use guanxi_model::limits::{NUMBERED_EDGES_MAX, WALK_EDGES_MAX};
use guanxi_model::page::{Cursor, Order, PagePlace};
use guanxi_model::{
    Code, EdgeKey, Error, GroupName, GroupSet, GroupsKey, Millis, NodeKey, SourceId, State,
    TargetId, Which,
};

use self::walk::{Beside, Bound, WalkStep};
use super::{Reader, unreadable};
use crate::snapshot::{Ahead, Direction, IncomingList, Wanted};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub items: Vec<ListedEdge>,
    pub total: Option<i64>,
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEdge {
    pub id: u64,
    pub state: State,
    pub since: Millis,
    pub group: Option<GroupName>,
    pub owner: Option<u64>,
    pub data: Option<Box<str>>,
    pub expires_at: Option<Millis>,
    pub mutual: Option<bool>,
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
            Direction::Incoming => self.snapshot.through_kept(query, &mut || self.incoming(query)),
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
        if skipped >= NUMBERED_EDGES_MAX {
            return Err(too_deep(query));
        }
        let groups = self.groups_for(query)?;
        let bound = Bound { kept: skipped + query.limit, looked: NUMBERED_EDGES_MAX };
        let walked = self.walk(query, &groups, None, bound, None)?;
        if walked.stopped_at.is_some() && walked.steps.len() <= skipped {
            return Err(too_deep(query));
        }
        let steps = walked.steps.into_iter().skip(skipped).collect();
        let call = query.call("outgoing", None);
        Ok(Page {
            items: self.items(query, &groups, steps)?,
            total: self.total(query)?,
            next: walked
                .stopped_at
                .map(|place| Cursor { place, depth: 0 }.to_text(call, &self.secret)),
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
        let cursor = query.cursor(call, &self.secret)?;
        let depth = cursor.map_or(0, |cursor| cursor.depth);
        let limit = self.depth_left(query, depth)?;
        let list = query.timeline(Direction::Incoming);
        let mut steps = Vec::with_capacity(limit.min(query.limit));
        let mut more = false;
        let range = query.range(cursor.map(|cursor| cursor.place));
        self.prefetch(|wanted| self.begin_list(query, wanted))?;
        let mut visit = |place| {
            if steps.len() == limit {
                more = true;
                return ControlFlow::Break(());
            }
            steps.push(WalkStep { place, row: None });
            ControlFlow::Continue(())
        };
        let ahead = Ahead { places: limit.saturating_add(1), wants: &|_, _| () };
        let walk = self.snapshot.timeline_ahead(&list, &range, &ahead, &mut visit);
        walk.map_err(unreadable)?;
        let last = steps.last().map(|step| step.place).filter(|_| more);
        let depth = depth + steps.len() as u64;
        let next = last.map(|place| Cursor { place, depth }.to_text(call, &self.secret));
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
        let after = query.cursor(call, &self.secret)?.map(|cursor| cursor.place);
        let mut steps = Vec::new();
        let (mut looked, mut last, mut stopped_at) = (0, None, None);
        let mut look = |step: WalkStep, is_of_list: bool| {
            let is_full = is_of_list && steps.len() == query.limit;
            if is_full || looked == WALK_EDGES_MAX {
                stopped_at = last;
                return ControlFlow::Break(());
            }
            looked += 1;
            last = Some(step.place);
            steps.extend(is_of_list.then_some(step));
            ControlFlow::Continue(())
        };
        match query.direction {
            Direction::Incoming => {
                let list = query.timeline(Direction::Incoming);
                let visit = &mut |place| look(WalkStep { place, row: None }, true);
                let ahead = Ahead { places: query.limit.saturating_add(1), wants: &|_, _| () };
                self.snapshot.timeline_ahead(&list, &query.range(after), &ahead, visit)
            }
            Direction::Outgoing => self.snapshot.edges_of_source(
                query.tenant,
                query.kind.id,
                SourceId(query.id),
                after.map(|place| TargetId(place.id)),
                // Requests stand among live edges, and there may be any number of either.
                &mut |target, row| {
                    let is_of_list = row.state == query.state;
                    let place = PagePlace { since: row.since, id: target.0 };
                    look(WalkStep { place, row: Some(row) }, is_of_list)
                },
            ),
        }
        .map_err(unreadable)?;
        let next = stopped_at.map(|place| Cursor { place, depth: 0 }.to_text(call, &self.secret));
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
        let after = query.cursor(call, &self.secret)?.map(|cursor| cursor.place);
        let groups = self.groups_for(query)?;
        let bound = Bound { kept: query.limit, looked: WALK_EDGES_MAX };
        let walked = self.walk(query, &groups, after, bound, beside)?;
        let next =
            walked.stopped_at.map(|place| Cursor { place, depth: 0 }.to_text(call, &self.secret));
        Ok(Page { items: self.items(query, &groups, walked.steps)?, total: None, next })
    }

    fn items(
        &self,
        query: &ListQuery,
        groups: &GroupSet,
        steps: Vec<WalkStep>,
    ) -> Result<Vec<ListedEdge>, Error> {
        let outgoing = query.direction == Direction::Outgoing;
        self.prefetch(|wanted| {
            for WalkStep { place, row } in &steps {
                let edge = query.edge_of(place.id);
                wanted.edges.extend((outgoing && row.is_none()).then_some(edge));
                wanted.edges.extend(query.asks_back().then(|| edge.reversed()));
            }
        })?;
        let item = |step: WalkStep| {
            let WalkStep { place, row } = self.with_row(query, step, outgoing)?;
            let row = row.filter(|_| outgoing);
            let mutual = match query.mutual {
                true => Some(self.is_mutual(query, place.id)?),
                false => None,
            };
            Ok(ListedEdge {
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
        match query.direction {
            Direction::Outgoing => {
                let list = GroupsKey::of(&query.edge_to(0));
                wanted.nodes.extend(query.tallied_node());
                wanted.groups.push(list);
                wanted.outgoing.push(list);
            }
            Direction::Incoming => {
                if let Some(node) = query.tallied_node().filter(|_| query.has_total()) {
                    wanted.targets.push(node);
                    wanted.kinds.push(query.kind.id);
                }
                let live = query.state == State::Live;
                wanted.incoming.extend(live.then(|| IncomingList::of(&query.edge_of(0))));
            }
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
        if !query.has_total() {
            return Ok(None);
        }
        let tallied = || query.tallied_node().map(|node| self.tally(query, &node)).transpose();
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

    /// How many edges the whole list of a node has.
    fn tally(&self, query: &ListQuery, node: &NodeKey) -> Result<i64, Error> {
        let (kind, snapshot) = (query.kind.id, &self.snapshot);
        let found = match (query.direction, query.state) {
            (Direction::Incoming, State::Pending) => snapshot
                .target_tallies(node, &[kind])
                .map(|tallies| tallies.get(kind, Which::PendingIncoming)),
            (Direction::Incoming, _) => snapshot.incoming_tally(node, kind),
            (Direction::Outgoing, state) => {
                let pending = state == State::Pending;
                let which = if pending { Which::PendingOutgoing } else { Which::Outgoing };
                snapshot.source_tallies(node, kind).map(|tallies| tallies.get(kind, which))
            }
        };
        found.map_err(unreadable)
    }
}

fn too_deep(query: &ListQuery) -> Error {
    let message = format!(
        "page: pages by number reach the first {NUMBERED_EDGES_MAX} edges of a list, and page {} of \
         {} items lies behind them; go on with cursor, the next of an earlier page",
        query.page.unwrap_or(1),
        query.limit
    );
    Error::new(Code::DepthExceeded, message)
}
