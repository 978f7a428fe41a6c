//! The reference: all edges of a kind between some ids, read one by one, and plain filters.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use guanxi_core::{Direction, GroupFilter, ListQuery, ListedEdge, Reader};
use guanxi_model::page::Order;
use guanxi_model::{EdgeKey, EdgeRow, GroupName, Kind, SourceId, State, TargetId};

use super::bench::TENANT;

pub struct Plain {
    edges: BTreeMap<(u64, u64), (EdgeRow, Option<GroupName>)>,
}

impl Plain {
    pub fn of(reader: &Reader, kind: &Arc<Kind>, ids: RangeInclusive<u64>) -> Plain {
        let mut edges = BTreeMap::new();
        for source in ids.clone() {
            for target in ids.clone() {
                let key = EdgeKey {
                    tenant: TENANT,
                    kind: kind.id,
                    source: SourceId(source),
                    target: TargetId(target),
                };
                if let Some(row) = reader.edge(&key).unwrap() {
                    let group = reader.group_name(&key, &row).unwrap();
                    edges.insert((source, target), (row, group));
                }
            }
        }
        Plain { edges }
    }

    pub fn is_live(&self, source: u64, target: u64) -> bool {
        let edge = self.edges.get(&(source, target));
        edge.is_some_and(|(row, _)| row.state == State::Live)
    }

    /// The whole list that a query is about, in its order.
    pub fn list(&self, query: &ListQuery) -> Vec<ListedEdge> {
        let outgoing = query.direction == Direction::Outgoing;
        let mut items = Vec::new();
        for ((source, target), (row, group)) in &self.edges {
            let (whose, id) = match outgoing {
                true => (*source, *target),
                false => (*target, *source),
            };
            let in_group = match &query.group {
                None => true,
                Some(GroupFilter::Ungrouped) => group.is_none(),
                Some(GroupFilter::Named(name)) => group.as_ref() == Some(name),
            };
            let in_time = query.since.is_none_or(|since| row.since >= since)
                && query.until.is_none_or(|until| row.since < until);
            if whose != query.id || row.state != query.state || !in_group || !in_time {
                continue;
            }
            let both = self.is_live(*source, *target) && self.is_live(*target, *source);
            // What belongs to the source is shown to the source alone.
            items.push(ListedEdge {
                id,
                state: row.state,
                since: row.since,
                group: group.clone().filter(|_| outgoing),
                owner: row.owner.filter(|_| outgoing),
                data: row.data.clone().filter(|_| outgoing),
                expires_at: row.expires_at.filter(|_| outgoing),
                mutual: query.mutual.then_some(both),
            });
        }
        items.sort_by_key(|item| (item.since, item.id));
        if query.order == Order::Newest {
            items.reverse();
        }
        items
    }

    /// The ids of a list that a further condition keeps.
    pub fn ids(&self, query: &ListQuery, keep: impl Fn(u64) -> bool) -> Vec<u64> {
        let items = self.list(query).into_iter();
        items.map(|item| item.id).filter(|id| keep(*id)).collect()
    }
}
