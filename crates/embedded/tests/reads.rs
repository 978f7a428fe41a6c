//! What readers are told, on a real engine: every list against a plain filter over all edges, read
//! one by one from the same snapshot.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "reads/bench.rs"]
mod bench;
#[path = "reads/hydrated.rs"]
mod hydrated;
#[path = "reads/long.rs"]
mod long;
#[path = "reads/plain.rs"]
mod plain;
#[path = "reads/rules.rs"]
mod rules;

use std::sync::Arc;

use bench::{Bench, TENANT, all_pages, query, spec};
use guanxi_core::{Direction, GroupFilter, ListQuery, Reader};
use guanxi_model::change::{Field, KindPatch, Put};
use guanxi_model::kind::TimeIndex;
use guanxi_model::page::Order;
use guanxi_model::{Change, GroupName, GroupsKey, Kind, Millis, SourceId, State};
use plain::Plain;

const IDS: std::ops::RangeInclusive<u64> = 1..=12;
const GROUPS: [&str; 3] = ["friends", "work", "old"];

#[test]
fn lists_equal_a_plain_filter_of_all_edges() {
    let bench = Bench::new();
    let kinds = ["follow", "like", "favorite"].map(|name| bench.kind(name));
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..4 {
        for _ in 0..12 {
            bench.write(random_changes(&bench, &kinds, &mut random));
        }
        let reader = bench.reader();
        for kind in &kinds {
            check_lists(&reader, kind, &mut random);
        }
    }
}

/// Puts, removals, approvals and group moves; a request is one batch, so its edges tie.
fn random_changes(bench: &Bench, kinds: &[Arc<Kind>], random: &mut fastrand::Rng) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..random.usize(5..40) {
        let kind = &kinds[random.usize(..kinds.len())];
        let edge = bench.edge(kind, random.u64(IDS), random.u64(IDS));
        let name = GroupName::new(GROUPS[random.usize(..GROUPS.len())]).unwrap();
        let groups = GroupsKey::of(&edge);
        let mut put = Put::plain(edge);
        changes.push(match random.u8(..20) {
            0..10 => {
                put.approval = kind.rules.approval && random.u8(..4) == 0;
                if random.bool() {
                    put.data = Field::Set(format!("{}", random.u8(..)).into());
                }
                Change::Put(put)
            }
            10..13 => Change::Delete { edge, strict: false },
            13 => Change::Approve { edge },
            14 | 15 => Change::CreateGroup { groups, name },
            16..19 => Change::AddMember { edge, group: name },
            _ => Change::DeleteGroup { groups, name },
        });
    }
    changes
}

/// Every list of a kind, in every way to ask for it.
fn check_lists(reader: &Reader, kind: &Arc<Kind>, random: &mut fastrand::Rng) {
    let plain = Plain::of(reader, kind, IDS);
    for id in IDS {
        for direction in [Direction::Outgoing, Direction::Incoming] {
            for state in [State::Live, State::Pending] {
                let mut query = query(kind, id, direction);
                query.state = state;
                query.mutual = kind.same_type();
                query.order = [Order::Newest, Order::Oldest][random.usize(..2)];
                query.limit = [1, 3, 1_000][random.usize(..3)];
                check_list(reader, &plain, &query);
                check_range(reader, &plain, &query, random);
                if direction == Direction::Outgoing {
                    check_groups(reader, &plain, &query);
                }
            }
        }
    }
}

fn check_list(reader: &Reader, plain: &Plain, query: &ListQuery) {
    let expected = plain.list(query);
    let pages = all_pages(query, |query| reader.list(query));
    for page in &pages {
        let counted = query.since.is_none() && query.until.is_none();
        let total = counted.then_some(expected.len() as i64);
        if query.group.is_none() || query.state == State::Live {
            assert_eq!(page.total, total, "{query:?}");
        }
        assert!(page.items.len() <= query.limit);
    }
    let items: Vec<_> = pages.into_iter().flat_map(|page| page.items).collect();
    assert_eq!(items, expected, "{query:?}");
}

fn check_range(reader: &Reader, plain: &Plain, query: &ListQuery, random: &mut fastrand::Rng) {
    let whole = plain.list(query);
    if whole.is_empty() {
        return;
    }
    let mut pick = |near: u64| Some(Millis(whole[random.usize(..whole.len())].since.0 + near));
    let (one, other) = (pick(0), pick(1));
    for (since, until) in [(one, None), (None, one), (one, other), (other, one)] {
        let query = ListQuery { since, until, ..query.clone() };
        check_list(reader, plain, &query);
    }
}

fn check_groups(reader: &Reader, plain: &Plain, query: &ListQuery) {
    let standing = reader.groups(&GroupsKey {
        tenant: TENANT,
        kind: query.kind.id,
        source: SourceId(query.id),
    });
    let standing = standing.unwrap().groups;
    let named = standing.into_iter().map(|group| GroupFilter::Named(group.name));
    for group in named.chain([GroupFilter::Ungrouped]) {
        let query = ListQuery { group: Some(group), ..query.clone() };
        check_list(reader, plain, &query);
    }
}

#[test]
fn mutual_common_and_known_equal_a_plain_filter() {
    let bench = Bench::new();
    let kinds = [bench.kind("follow")];
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..30 {
        bench.write(random_changes(&bench, &kinds, &mut random));
    }
    let reader = bench.reader();
    let plain = Plain::of(&reader, &kinds[0], IDS);
    for id in IDS {
        let mut query = query(&kinds[0], id, Direction::Outgoing);
        query.order = [Order::Newest, Order::Oldest][id as usize % 2];
        query.limit = 1 + id as usize % 4;
        let ids_of = |call: &dyn Fn(&ListQuery) -> _| -> Vec<u64> {
            let pages = all_pages(&query, call);
            assert!(pages.iter().all(|page| page.total.is_none()));
            let items = pages.into_iter().flat_map(|page| page.items);
            items.map(|item| item.id).collect()
        };
        let mutual = plain.ids(&query, |other| plain.is_live(other, id));
        assert_eq!(ids_of(&|query| reader.mutual(query)), mutual);
        for other in IDS {
            let common = plain.ids(&query, |target| plain.is_live(other, target));
            assert_eq!(ids_of(&|query| reader.common(query, other)), common);
            let known = plain.ids(&query, |source| plain.is_live(source, other));
            assert_eq!(ids_of(&|query| reader.known(query, other)), known);
        }
    }
}

#[test]
fn a_scan_shows_every_edge_once() {
    let bench = Bench::new();
    let kinds = ["follow", "like"].map(|name| bench.kind(name));
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..20 {
        bench.write(random_changes(&bench, &kinds, &mut random));
    }
    let reader = bench.reader();
    for kind in &kinds {
        let plain = Plain::of(&reader, kind, IDS);
        for (id, direction) in IDS.flat_map(|id| {
            [Direction::Outgoing, Direction::Incoming].map(|direction| (id, direction))
        }) {
            let mut query = query(kind, id, direction);
            query.limit = 3;
            let pages = all_pages(&query, |query| reader.scan(query));
            let mut found: Vec<_> = pages.into_iter().flat_map(|page| page.items).collect();
            let mut expected = plain.list(&query);
            found.sort_by_key(|item| item.id);
            expected.sort_by_key(|item| item.id);
            assert_eq!(found, expected);
        }
    }
}

/// A limit raised past what is sorted in memory: the lists are right before the job, while it
/// fills the index beside writes, and after.
#[test]
fn lists_stay_right_while_their_index_is_built() {
    const SOURCES: u64 = 60;
    const TARGETS: u64 = 40;
    let bench = Bench::new();
    let mut ring = spec("ring", "user", "user");
    ring.outgoing_max = Some(100);
    ring.data_bytes_max = 16;
    let limited = bench.create(ring);
    assert_eq!(limited.time_index, TimeIndex::Absent);
    for source in 1..=SOURCES {
        let targets = (1..=TARGETS).filter(|target| *target != source);
        let puts =
            targets.map(|target| Change::Put(Put::plain(bench.edge(&limited, source, target))));
        bench.write(puts.collect());
    }
    let patch = KindPatch { outgoing_max: Field::Set(5_000), ..KindPatch::default() };
    bench.write(vec![Change::SetKind { tenant: TENANT, kind: limited.id, patch: Box::new(patch) }]);
    let mut random = fastrand::Rng::with_seed(4);
    let mut looks = 0;
    loop {
        let (source, target) = (random.u64(1..=SOURCES), random.u64(1..=TARGETS));
        if source != target {
            let edge = bench.edge(&limited, source, target);
            let mut put = Put::plain(edge);
            put.data = Field::Set(format!("{looks}").into());
            let delete = Change::Delete { edge, strict: false };
            bench.write(match looks % 3 {
                0 => vec![delete],
                1 => vec![delete, Change::Put(put)],
                _ => vec![Change::Put(put)],
            });
        }
        // The reader first: the kind that a caller holds may be newer than what it reads.
        let reader = bench.reader();
        let kind = bench.kind("ring");
        let query = query(&kind, source, Direction::Outgoing);
        let plain = Plain::of(&reader, &kind, 1..=SOURCES.max(TARGETS));
        check_list(&reader, &plain, &query);
        looks += 1;
        if kind.time_index == TimeIndex::Ready {
            break;
        }
        assert!(looks < 10_000, "the index is never ready");
    }
    let (reader, kind) = (bench.reader(), bench.kind("ring"));
    let plain = Plain::of(&reader, &kind, 1..=SOURCES.max(TARGETS));
    for source in 1..=SOURCES {
        for order in [Order::Newest, Order::Oldest] {
            let mut query = query(&kind, source, Direction::Outgoing);
            query.order = order;
            query.limit = 7;
            check_list(&reader, &plain, &query);
        }
    }
}
