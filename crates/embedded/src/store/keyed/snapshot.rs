//! Rows as a snapshot shows them: one backend's view, read by the keys of `layout`.

use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use guanxi_core::snapshot::{Direction, IncomingList, Snapshot, StoreError, TimeRange, Timeline};
use guanxi_model::codec::{
    CodecError, Decoder, decode_edge_row, decode_edge_state, decode_group, decode_import,
    decode_job, decode_node, decode_node_numbers,
};
use guanxi_model::group::Group;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, GroupId, GroupSet, GroupsKey, IndexEntry, KindId, Millis,
    Node, NodeKey, NodeRow, NodeTypeId, SourceId, State, TallyRow, TargetId, TenantId, View, Which,
};

use super::moment::Moment;
use super::{KeyView, damaged, prefixed, read_answer, read_applied, read_parts};
use crate::resident::{AnswerCounts, AnsweredBy, Looked, NewestPlaces, Resident, RowKey};
use crate::store::inventory::{self, InventoryPiece, KeyOf};
use crate::store::layout::{self, Key};
use crate::store::{Applied, EmbeddedSnapshot, RawRow};

pub(super) struct KeyedSnapshot<V> {
    moment: Arc<Moment<V>>,
    /// Nothing is taken from memory, and nothing put there.
    as_it_lies: bool,
    answered: AnswerCounts,
}

impl<V> Drop for KeyedSnapshot<V> {
    fn drop(&mut self) {
        if let Some(resident) = &self.moment.resident {
            resident.count(&self.answered);
        }
    }
}

impl<V: KeyView> KeyedSnapshot<V> {
    pub fn new(moment: Arc<Moment<V>>) -> KeyedSnapshot<V> {
        KeyedSnapshot { moment, as_it_lies: false, answered: AnswerCounts::default() }
    }

    pub fn as_it_lies(moment: Arc<Moment<V>>) -> KeyedSnapshot<V> {
        KeyedSnapshot { moment, as_it_lies: true, answered: AnswerCounts::default() }
    }

    fn resident(&self) -> Option<&Resident> {
        self.moment.resident.as_deref().filter(|_| !self.as_it_lies)
    }

    fn view(&self) -> &V {
        &self.moment.view
    }

    /// Whether the filter says that there is no such edge.
    fn surely_none(&self, key: &EdgeKey) -> bool {
        let filter = self.moment.filter.as_ref().filter(|_| !self.as_it_lies);
        let none = filter.is_some_and(|filter| !filter.may_hold(key));
        if none {
            self.answered.count(AnsweredBy::Filter);
        }
        none
    }

    fn edge_as<T: Default>(
        &self,
        key: &EdgeKey,
        decode: impl Fn(&[u8]) -> Result<T, CodecError>,
    ) -> Result<T, StoreError> {
        if self.surely_none(key) {
            return Ok(T::default());
        }
        let (found, at_hand) = self.kept(&RowKey::edge(key), || layout::edge(key), decode)?;
        self.answered.count(match at_hand {
            true => AnsweredBy::EdgeAtHand,
            false => AnsweredBy::EdgeRead,
        });
        Ok(found)
    }

    fn node_as<T: Default>(
        &self,
        key: &NodeKey,
        decode: impl Fn(&[u8]) -> Result<T, CodecError>,
    ) -> Result<T, StoreError> {
        let (found, at_hand) = self.kept(&RowKey::node(key), || layout::node(key), decode)?;
        self.answered.count(match at_hand {
            true => AnsweredBy::NodeAtHand,
            false => AnsweredBy::NodeRead,
        });
        Ok(found)
    }

    /// A row that may be at hand, and whether it was; the default where there is none.
    fn kept<T: Default>(
        &self,
        row: &RowKey,
        key: impl FnOnce() -> Key,
        decode: impl Fn(&[u8]) -> Result<T, CodecError>,
    ) -> Result<(T, bool), StoreError> {
        let decoded = |bytes: Option<&[u8]>| bytes.map_or(Ok(T::default()), &decode);
        let (resident, at) = (self.resident(), self.moment.applied.position);
        let known = resident.and_then(|resident| resident.rows.read(row, at, decoded));
        if let Some(known) = known {
            return Ok((known?, true));
        }
        let value = self.view().get(&key())?;
        let bytes = value.as_ref().map(AsRef::as_ref);
        if let Some(resident) = resident {
            resident.rows.fill(row, at, bytes);
        }
        Ok((decoded(bytes)?, false))
    }

    fn row<T>(
        &self,
        key: Key,
        decode: impl FnOnce(&[u8]) -> Result<T, CodecError>,
    ) -> Result<Option<T>, StoreError> {
        let value = self.view().get(&key)?;
        Ok(value.map(|value| decode(value.as_ref())).transpose()?)
    }

    /// Edge rows of a range, by their ends.
    fn edges(
        &self,
        range: (Bound<Key>, Bound<Key>),
        visit: &mut dyn FnMut(Ends, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.view().range(range, false, &mut |key, value| {
            let ends = layout::ends(key).ok_or_else(|| damaged("an edge's key"))?;
            Ok(visit(ends, decode_edge_row(value)?))
        })
    }
}

/// Where a walk over what is at hand came to.
enum WalkEnd {
    Over,
    /// The rest must be read.
    GoesOn(Option<PagePlace>),
}

impl<V: KeyView> KeyedSnapshot<V> {
    /// Walks along the beginning of a list of live incoming edges, as far as that is at hand.
    fn walk_at_hand(
        &self,
        list: &Timeline,
        range: &TimeRange,
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
    ) -> Result<WalkEnd, StoreError> {
        let is_newest = list.direction == Direction::Incoming
            && list.state == State::Live
            && range.order == Order::Newest
            && range.until.is_none();
        let goes_on = Ok(WalkEnd::GoesOn(range.after));
        let Some(resident) = self.resident().filter(|_| is_newest) else {
            return goes_on;
        };
        let Timeline { tenant, kind, id, .. } = *list;
        let key = IncomingList { tenant, kind, target: TargetId(id) };
        let at = self.moment.applied.position;
        let newest = match resident.lists.look(&key, at) {
            Looked::Known(newest) => newest,
            Looked::Wanted if range.after.is_none() => {
                let newest = Arc::new(self.read_newest(list, resident.lists.places_max())?);
                resident.lists.fill(&key, at, newest.clone());
                newest
            }
            Looked::Wanted | Looked::Unknown => {
                self.answered.count(AnsweredBy::ListRead);
                return goes_on;
            }
        };
        let places = &newest.places;
        let from = range.after.map_or(0, |after| places.partition_point(|place| *place >= after));
        let since = range.since.unwrap_or_default();
        for place in &places[from..] {
            if place.since < since || visit(*place).is_break() {
                self.answered.count(AnsweredBy::ListAtHand);
                return Ok(WalkEnd::Over);
            }
        }
        if newest.is_whole {
            self.answered.count(AnsweredBy::ListAtHand);
            return Ok(WalkEnd::Over);
        }
        self.answered.count(AnsweredBy::ListRead);
        // A place that is behind all of them stays where the walk goes on.
        let last = places.last().copied();
        Ok(WalkEnd::GoesOn(match (range.after, last) {
            (Some(after), Some(last)) => Some(after.min(last)),
            (after, last) => after.or(last),
        }))
    }

    /// The first places of a list, as many as are kept.
    fn read_newest(&self, list: &Timeline, places_max: usize) -> Result<NewestPlaces, StoreError> {
        let (mut places, mut is_whole) = (Vec::new(), true);
        self.walk(list, &TimeRange::default(), &mut |place| {
            if places.len() == places_max {
                is_whole = false;
                return ControlFlow::Break(());
            }
            places.push(place);
            ControlFlow::Continue(())
        })?;
        Ok(NewestPlaces { places, is_whole })
    }

    /// Walks along a list as its index has it.
    fn walk(
        &self,
        list: &Timeline,
        range: &TimeRange,
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (mut from, mut to) = prefixed(layout::timeline_prefix(list));
        let entry = |since, id| layout::timeline_entry(list, PagePlace { since, id });
        // Keys run from the newest to the oldest, so `until` bounds their beginning.
        if let Some(until) = range.until {
            if until.0 == 0 {
                return Ok(());
            }
            from = Bound::Included(entry(Millis(until.0 - 1), u64::MAX));
        }
        if let Some(since) = range.since {
            to = Bound::Included(entry(since, 0));
        }
        match (range.after, range.order) {
            (Some(after), Order::Newest) => {
                let after = layout::timeline_entry(list, after);
                if bound_key(&from).is_none_or(|from| *from <= after) {
                    from = Bound::Excluded(after);
                }
            }
            (Some(after), Order::Oldest) => {
                let after = layout::timeline_entry(list, after);
                if bound_key(&to).is_none_or(|to| *to >= after) {
                    to = Bound::Excluded(after);
                }
            }
            (None, _) => {}
        }
        let empty = matches!((bound_key(&from), bound_key(&to)), (Some(a), Some(b)) if a > b
            || (a == b && !matches!((&from, &to), (Bound::Included(_), Bound::Included(_)))));
        if empty {
            return Ok(());
        }
        self.view().range((from, to), range.order == Order::Oldest, &mut |key, _| {
            Ok(visit(layout::timeline_place(key).ok_or_else(|| damaged("a list's key"))?))
        })
    }
}

impl<V: KeyView> View for KeyedSnapshot<V> {
    type Error = StoreError;

    fn catalog(&self) -> &Catalog {
        &self.moment.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        self.edge_as(key, |bytes| decode_edge_row(bytes).map(Some))
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, StoreError> {
        Ok(self.whole_node(node)?.tallies)
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, StoreError> {
        let next = self.row(layout::next_group(key), |bytes| {
            let mut input = Decoder::new(bytes);
            input.format()?;
            Ok(GroupId(input.varint_u32()?))
        })?;
        let Some(next) = next else {
            return Ok(GroupSet::default());
        };
        let mut groups = Vec::new();
        self.view().range(prefixed(layout::group_prefix(key)), false, &mut |key, value| {
            let id = layout::parse_group(key).ok_or_else(|| damaged("a group's key"))?;
            groups.push(decode_group(id, value)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(GroupSet { next, groups })
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, StoreError> {
        Ok(self.whole_node(node)?.settings)
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        read_answer(self.view(), tenant, key)
    }

    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, StoreError> {
        match read_parts(self.view(), layout::import_prefix(tenant, id))? {
            none if none.is_empty() => Ok(None),
            whole => Ok(Some(decode_import(&whole)?)),
        }
    }

    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, StoreError> {
        self.row(layout::job(tenant, id), decode_job)
    }
}

impl<V: KeyView> Snapshot for KeyedSnapshot<V> {
    fn whole_node(&self, node: &NodeKey) -> Result<Node, StoreError> {
        self.node_as(node, decode_node)
    }

    fn edge_state(&self, key: &EdgeKey) -> Result<Option<State>, StoreError> {
        self.edge_as(key, |bytes| decode_edge_state(bytes).map(Some))
    }

    fn target_numbers(
        &self,
        node: &NodeKey,
        wanted: &[(KindId, Which)],
        numbers: &mut [i64],
    ) -> Result<(), StoreError> {
        let numbers = RefCell::new(numbers);
        numbers.borrow_mut().fill(0);
        self.node_as(node, |bytes| decode_node_numbers(bytes, wanted, &mut numbers.borrow_mut()))
    }

    fn timeline(
        &self,
        list: &Timeline,
        range: &TimeRange,
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        match self.walk_at_hand(list, range, visit)? {
            WalkEnd::Over => Ok(()),
            WalkEnd::GoesOn(after) => self.walk(list, &TimeRange { after, ..*range }, visit),
        }
    }

    fn edges_of_source(
        &self,
        tenant: TenantId,
        kind: KindId,
        source: SourceId,
        after: Option<TargetId>,
        visit: &mut dyn FnMut(TargetId, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (mut from, to) = prefixed(layout::source_prefix(tenant, kind, source));
        if let Some(target) = after {
            from = Bound::Excluded(layout::edge(&EdgeKey { tenant, kind, source, target }));
        }
        self.edges((from, to), &mut |(_, target), row| visit(target, row))
    }

    fn edges_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        after: Option<Ends>,
        visit: &mut dyn FnMut(Ends, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (mut from, to) = prefixed(layout::kind_prefix(tenant, kind));
        if let Some((source, target)) = after {
            from = Bound::Excluded(layout::edge(&EdgeKey { tenant, kind, source, target }));
        }
        self.edges((from, to), visit)
    }

    fn groups_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        visit: &mut dyn FnMut(SourceId, Group) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let range = prefixed(layout::groups_of_kind_prefix(tenant, kind));
        self.view().range(range, false, &mut |key, value| {
            let parsed = layout::parse_group_source(key).zip(layout::parse_group(key));
            let (source, id) = parsed.ok_or_else(|| damaged("a group's key"))?;
            Ok(visit(source, decode_group(id, value)?))
        })
    }

    fn nodes_of_type(
        &self,
        tenant: TenantId,
        node_type: NodeTypeId,
        visit: &mut dyn FnMut(u64, Node) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let range = prefixed(layout::nodes_prefix(tenant, node_type));
        self.view().range(range, false, &mut |key, value| {
            let id = layout::parse_node(key).ok_or_else(|| damaged("a node's key"))?;
            Ok(visit(id, decode_node(value)?))
        })
    }

    fn due(&self, now: Millis, edges_max: usize) -> Result<Vec<(Millis, EdgeKey)>, StoreError> {
        let mut due = Vec::new();
        let (from, to) = layout::expiry_range(now);
        self.view().range((Bound::Included(from), Bound::Excluded(to)), false, &mut |key, _| {
            due.push(layout::parse_expiry(key).ok_or_else(|| damaged("an expiry's key"))?);
            Ok(if due.len() < edges_max {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        Ok(due)
    }

    fn jobs(
        &self,
        tenant: TenantId,
        before: Option<JobId>,
        visit: &mut dyn FnMut(Job) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (from, mut to) = prefixed(layout::jobs_prefix(tenant));
        if let Some(before) = before {
            to = Bound::Excluded(layout::job(tenant, before));
        }
        self.view().range((from, to), true, &mut |_, value| Ok(visit(decode_job(value)?)))
    }
}

impl<V: KeyView> EmbeddedSnapshot for KeyedSnapshot<V> {
    fn applied(&self) -> Result<Applied, StoreError> {
        read_applied(self.view())
    }

    fn raw_rows(&self, after: Option<&[u8]>, bytes_max: usize) -> Result<Vec<RawRow>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec()));
        let (mut rows, mut bytes) = (Vec::new(), 0);
        self.view().range((from, Bound::Unbounded), false, &mut |key, value| {
            bytes += key.len() + value.len();
            if bytes > bytes_max && !rows.is_empty() {
                return Ok(ControlFlow::Break(()));
            }
            rows.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(rows)
    }

    fn inventory(
        &self,
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], InventoryPiece) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let range = (Bound::Excluded(after.to_vec()), Bound::Excluded(inventory::END.to_vec()));
        self.view()
            .range(range, false, &mut |key, value| Ok(visit(key, InventoryPiece::read(key, value))))
    }

    fn edge_keys(
        &self,
        after: Option<&EdgeKey>,
        visit: &mut dyn FnMut(EdgeKey) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (mut from, to) = prefixed(inventory::EDGES.to_vec());
        if let Some(after) = after {
            from = Bound::Excluded(layout::edge(after));
        }
        self.view().range((from, to), false, &mut |key, _| match KeyOf::read(key) {
            Some(KeyOf::Edge(edge)) => Ok(visit(edge)),
            _ => Err(damaged("an edge's key")),
        })
    }

    fn holds(&self, entry: &IndexEntry) -> Result<bool, StoreError> {
        Ok(self.view().get(&layout::index_entry(entry))?.is_some())
    }
}

fn bound_key(bound: &Bound<Key>) -> Option<&Key> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}
