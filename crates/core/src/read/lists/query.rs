//! Which list is asked for, and what follows from that alone.

use std::sync::Arc;

use guanxi_model::codec::Encoder;
use guanxi_model::hash::hash64;
use guanxi_model::page::{Cursor, Order, PagePlace};
use guanxi_model::{
    EdgeKey, Error, GroupName, Kind, Millis, NodeKey, Secret, SourceId, State, TargetId, TenantId,
};

use crate::snapshot::{Direction, TimeRange, Timeline};

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

impl ListQuery {
    /// The newest live edges of a list, without any condition.
    pub fn newest(
        tenant: TenantId,
        kind: &Arc<Kind>,
        direction: Direction,
        id: u64,
        limit: usize,
    ) -> ListQuery {
        ListQuery {
            tenant,
            kind: kind.clone(),
            id,
            direction,
            limit,
            cursor: None,
            page: None,
            order: Order::Newest,
            since: None,
            until: None,
            group: None,
            state: State::Live,
            mutual: false,
        }
    }

    /// A name for everything that decides which list this is; a cursor is bound to it.
    pub(super) fn call(&self, name: &str, other: Option<u64>) -> u64 {
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

    pub(super) fn cursor(&self, call: u64, secret: &Secret) -> Result<Option<Cursor>, Error> {
        self.cursor.as_deref().map(|text| Cursor::parse(text, call, secret)).transpose()
    }

    pub(super) fn range(&self, after: Option<PagePlace>) -> TimeRange {
        TimeRange { since: self.since, until: self.until, after, order: self.order }
    }

    pub(super) fn within(&self, since: Millis) -> bool {
        self.since.is_none_or(|from| since >= from) && self.until.is_none_or(|to| since < to)
    }

    pub(super) fn edge_to(&self, target: u64) -> EdgeKey {
        EdgeKey {
            tenant: self.tenant,
            kind: self.kind.id,
            source: SourceId(self.id),
            target: TargetId(target),
        }
    }

    /// The edge of one of the list's items.
    pub(super) fn edge_of(&self, id: u64) -> EdgeKey {
        match self.direction {
            Direction::Outgoing => self.edge_to(id),
            Direction::Incoming => {
                EdgeKey { source: SourceId(id), target: TargetId(self.id), ..self.edge_to(id) }
            }
        }
    }

    /// The node whose tally is the list's total, where one is kept.
    pub(super) fn tallied_node(&self) -> Option<NodeKey> {
        let fixed = &self.kind.fixed;
        let (node_type, kept) = match self.direction {
            Direction::Outgoing => (fixed.source_type, fixed.outgoing_tally),
            Direction::Incoming => (fixed.target_type, fixed.incoming_tally),
        };
        let (tenant, id) = (self.tenant, self.id);
        kept.then_some(NodeKey { tenant, node_type, id })
    }

    /// Whether its page says how many there are: what lies between two times nobody counts.
    pub(super) fn has_total(&self) -> bool {
        self.since.is_none() && self.until.is_none()
    }

    /// Whether each item needs a look at the edge back.
    pub(super) fn asks_back(&self) -> bool {
        self.mutual && self.state == State::Live
    }

    pub(super) fn require_list(&self) -> Result<(), Error> {
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

    /// The list by time.
    pub(super) fn timeline(&self, direction: Direction) -> Timeline {
        Timeline {
            tenant: self.tenant,
            kind: self.kind.id,
            direction,
            id: self.id,
            state: self.state,
        }
    }
}
