//! Delivery: records of edges may come twice, late, or not at all. As long as the last one of
//! each edge comes, rows and tallies end the same.

use std::collections::BTreeMap;

use guanxi_model::record::EdgeRecord;
use guanxi_model::tally::apply_edge;
use guanxi_model::{EdgeKey, EdgeRow, GroupId, Millis, Record, State, TargetId, Version, Which};
use proptest::prelude::*;

use crate::reference::Rows;
use crate::world::{
    Deployment, FOLLOW, LIKE, TENANT, USER, World, edge, group_name, groups_of, node,
};

/// Rows without edges, where every group that a record may name is there.
fn empty() -> Rows {
    let mut rows = World::new(Deployment::Cluster).rows;
    for id in 1..=2 {
        rows.apply(&Record::Group {
            groups: groups_of(FOLLOW, 1),
            id: GroupId(id),
            name: Some(group_name(&format!("group {id}"))),
        });
    }
    rows
}

fn put(version: u64, owner: Option<u64>) -> EdgeRow {
    EdgeRow { state: State::Live, owner, ..EdgeRow::removed(Version(version), Millis(version)) }
}

fn remove(version: u64) -> EdgeRow {
    EdgeRow::removed(Version(version), Millis(version))
}

/// What a record says stood before is for readers of the log; `apply` does not look at it.
fn record(key: EdgeKey, new: EdgeRow) -> EdgeRecord {
    EdgeRecord::of(key, new)
}

#[test]
fn late_and_skipped_records() {
    let like = edge(LIKE, 1, 11);
    let check = |delivered: &[EdgeRow], outgoing, owned_by_77, owned_by_78| {
        let mut rows = empty();
        for row in delivered {
            rows.apply_edge(&record(like, row.clone()));
            rows.assert_tallies();
        }
        let tally = |id, which| rows.tally(&node(USER, id), LIKE, which);
        let tallies = (tally(1, Which::Outgoing), tally(77, Which::Owned), tally(78, Which::Owned));
        assert_eq!(tallies, (outgoing, owned_by_77, owned_by_78), "{delivered:?}");
    };
    let (of_77, of_78) = (Some(77), Some(78));
    check(&[put(1, None), remove(2)], 0, 0, 0);
    check(&[remove(2), put(1, None)], 0, 0, 0);
    check(&[put(1, None), put(3, None), remove(2)], 1, 0, 0);
    check(&[put(3, None), remove(2), put(1, None)], 1, 0, 0);
    check(&[put(1, of_77), put(1, of_77)], 1, 1, 0);
    check(&[put(1, of_77), remove(2), put(3, of_78)], 1, 0, 1);
    check(&[put(1, of_77), put(3, of_78)], 1, 0, 1);
    check(&[put(3, of_78), put(1, of_77), remove(2)], 1, 0, 1);
    check(&[put(1, of_77), put(3, of_78), remove(4), put(3, of_78)], 0, 0, 0);
}

#[test]
fn a_record_of_the_same_or_an_older_version_does_nothing() {
    let rows = empty();
    let like = edge(LIKE, 1, 11);
    let check = |version: u64, nothing: bool| {
        let record = record(like, put(version, Some(78)));
        let effect = apply_edge(rows.kind(TENANT, LIKE), &record, Some(&put(5, Some(77))));
        assert_eq!(effect.is_none(), nothing, "version {version}");
    };
    check(4, true);
    check(5, true);
    check(6, false);
}

/// Four edges of two kinds, so that ends, owners and groups are shared.
fn keys() -> impl Strategy<Value = EdgeKey> {
    prop_oneof![
        Just(edge(FOLLOW, 1, 2)),
        Just(edge(FOLLOW, 1, 3)),
        Just(edge(FOLLOW, 2, 1)),
        Just(edge(LIKE, 1, 2)),
    ]
}

fn states() -> impl Strategy<Value = State> {
    prop_oneof![
        3 => Just(State::Live),
        2 => Just(State::Pending),
        2 => Just(State::Removed),
    ]
}

/// Records in the order of their decisions: versions grow.
fn decided() -> impl Strategy<Value = Vec<EdgeRecord>> {
    let one = (keys(), states(), proptest::option::of(1..=2u32), proptest::option::of(77..=78u64));
    proptest::collection::vec(one, 1..16).prop_map(|all| {
        let record = |(at, (key, state, group, owner)): (usize, (EdgeKey, _, _, _))| {
            let mut new = remove(Version::ZERO.plus(at as u64 + 1).0);
            if state != State::Removed {
                let group: Option<u32> = group;
                new.state = state;
                new.group = group.filter(|_| key.kind == FOLLOW).map(GroupId);
                new.owner = owner;
            }
            record(key, new)
        };
        all.into_iter().enumerate().map(record).collect()
    })
}

/// How often a record comes, and where among the others each time.
pub type Comings = Vec<u64>;

/// A choice per record for `delivered`; a history has fewer records than this.
pub fn choices() -> impl Strategy<Value = Vec<Comings>> {
    let comings = proptest::collection::vec(any::<u64>(), 0..=3);
    proptest::collection::vec(comings, 200)
}

/// These records as they come: twice, late or never, but the last one of each edge at least once.
pub fn delivered<'a>(decided: &'a [EdgeRecord], choices: &[Comings]) -> Vec<&'a EdgeRecord> {
    let numbered = || decided.iter().enumerate();
    let last: BTreeMap<EdgeKey, usize> = numbered().map(|(at, record)| (record.key, at)).collect();
    let mut comings: Vec<(u64, &EdgeRecord)> = Vec::new();
    for (at, record) in numbered() {
        let places = choices.get(at).map_or(&[][..], Vec::as_slice);
        comings.extend(places.iter().map(|place| (*place, record)));
        if places.is_empty() && last[&record.key] == at {
            comings.push((at as u64, record));
        }
    }
    comings.sort_by_key(|(place, _)| *place);
    comings.into_iter().map(|(_, record)| record).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_delivery_ends_in_the_same_rows_and_tallies(
        decided in decided(),
        choices in choices(),
    ) {
        let mut in_order = empty();
        for record in &decided {
            in_order.apply_edge(record);
            in_order.assert_tallies();
        }
        let mut rows = empty();
        for record in delivered(&decided, &choices) {
            rows.apply_edge(record);
            rows.assert_tallies();
        }
        prop_assert_eq!(rows, in_order);
    }

    /// Contributions are about the two rows alone: who else stands does not matter.
    #[test]
    fn edges_do_not_disturb_each_other(target in 1..u64::MAX, version in 1..u64::MAX) {
        let mut rows = empty();
        let like = edge(LIKE, 1, target);
        rows.apply_edge(&record(like, put(version, Some(77))));
        let other = EdgeKey { target: TargetId(target ^ 1), ..like };
        rows.apply_edge(&record(other, put(1, Some(77))));
        rows.apply_edge(&record(other, remove(2)));
        prop_assert_eq!(rows.tally(&node(USER, 77), LIKE, Which::Owned), 1);
        rows.assert_tallies();
    }
}
