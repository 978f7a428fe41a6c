//! What may be asked of which kind, and what a page promises.

use std::collections::BTreeMap;

use guanxi_core::{Direction, GroupFilter, ListQuery};
use guanxi_model::change::Put;
use guanxi_model::{Change, Code, GroupName, GroupsKey};

use super::bench::{Bench, all_pages, query, spec};

#[test]
fn page_numbers_show_what_cursors_show() {
    let bench = Bench::new();
    let follow = bench.kind("follow");
    for first in [2, 20, 40] {
        let targets = first..first + 15;
        let puts = targets.map(|target| Change::Put(Put::plain(bench.edge(&follow, 1, target))));
        bench.write(puts.collect());
    }
    let reader = bench.reader();
    let mut query = query(&follow, 1, Direction::Outgoing);
    query.limit = 10;
    let by_cursor = all_pages(&query, |query| reader.list(query));
    for (number, expected) in (1..).zip(&by_cursor) {
        query.page = Some(number);
        assert_eq!(&reader.list(&query).unwrap(), expected, "page {number}");
    }
    for past in [6, 1_000] {
        query.page = Some(past);
        let page = reader.list(&query).unwrap();
        assert_eq!((page.items.len(), page.next), (0, None));
        assert_eq!(page.total, Some(45));
    }
    for beyond in [1_001, u64::MAX] {
        query.page = Some(beyond);
        assert_eq!(reader.list(&query).unwrap_err().code, Code::DepthExceeded, "page {beyond}");
    }
}

#[test]
fn an_incoming_list_ends_at_its_depth_and_a_scan_does_not() {
    let bench = Bench::new();
    let mut shallow = spec("shallow", "user", "user");
    shallow.list_depth_max = 5;
    let shallow = bench.create(shallow);
    let puts = (2..=9).map(|source| Change::Put(Put::plain(bench.edge(&shallow, source, 1))));
    bench.write(puts.collect());
    let reader = bench.reader();
    let mut query = query(&shallow, 1, Direction::Incoming);
    query.limit = 3;
    let mut shown = Vec::new();
    for items in [3, 2] {
        let page = reader.list(&query).unwrap();
        assert_eq!((page.items.len(), page.total), (items, Some(8)));
        shown.extend(page.items.iter().map(|item| item.id));
        query.cursor = page.next;
        assert!(query.cursor.is_some(), "the list goes on");
    }
    assert_eq!(shown, [9, 8, 7, 6, 5]);
    let refused = reader.list(&query).unwrap_err();
    assert_eq!(refused.code, Code::DepthExceeded);
    query.cursor = None;
    let scanned = all_pages(&query, |query| reader.scan(query));
    let scanned: usize = scanned.iter().map(|page| page.items.len()).sum();
    assert_eq!(scanned, 8);
    // A list that is no deeper than the bound ends as any other.
    bench.write(
        (7..=9)
            .map(|source| Change::Delete { edge: bench.edge(&shallow, source, 1), strict: true })
            .collect(),
    );
    let reader = bench.reader();
    let pages = all_pages(&query, |query| reader.list(query));
    assert_eq!(pages.len(), 2);
}

#[test]
fn what_a_kind_does_not_keep_is_refused_or_null() {
    let bench = Bench::new();
    let mut bare = spec("bare", "user", "user");
    bare.outgoing_list = false;
    bare.incoming_list = false;
    bench.create(bare);
    let mut untold = spec("untold", "user", "user");
    untold.outgoing_tally = false;
    untold.incoming_tally = false;
    let untold = bench.create(untold);
    let put = |kind: &str| Change::Put(Put::plain(bench.edge(&bench.kind(kind), 1, 2)));
    bench.write(vec![put("untold"), put("bare")]);
    let reader = bench.reader();
    for (id, direction) in [(1, Direction::Outgoing), (2, Direction::Incoming)] {
        let page = reader.list(&query(&untold, id, direction)).unwrap();
        assert_eq!((page.items.len(), page.total), (1, None));
        for kind in ["bare", "view"] {
            let query = query(&bench.kind(kind), id, direction);
            for refused in [reader.list(&query), reader.scan(&query)] {
                assert_eq!(refused.unwrap_err().code, Code::InvalidArgument, "{kind}");
            }
        }
    }
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let bench = Bench::new();
    let (follow, like) = (bench.kind("follow"), bench.kind("like"));
    let reader = bench.reader();
    let followed = query(&follow, 1, Direction::Outgoing);
    let followers = query(&follow, 1, Direction::Incoming);
    let liked = query(&like, 1, Direction::Outgoing);
    let group = Some(GroupFilter::Named(GroupName::new("nobody").unwrap()));
    let with = |query: &ListQuery, change: &dyn Fn(&mut ListQuery)| {
        let mut query = query.clone();
        change(&mut query);
        query
    };
    let cursor = Some("AAAA".to_owned());
    let cases = [
        (
            "a number and a cursor",
            with(&followed, &|query| {
                query.page = Some(1);
                query.cursor = cursor.clone();
            }),
        ),
        ("a cursor of nobody", with(&followed, &|query| query.cursor = cursor.clone())),
        ("a number without a limit", with(&liked, &|query| query.page = Some(1))),
        ("a number of followers", with(&followers, &|query| query.page = Some(1))),
        (
            "a group of followers",
            with(&followers, &|query| {
                query.group = Some(GroupFilter::Ungrouped);
            }),
        ),
        ("mutual likes", with(&liked, &|query| query.mutual = true)),
    ];
    for (what, query) in cases {
        let refused = reader.list(&query).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{what}");
    }
    let refused = reader.list(&with(&followed, &|query| query.group = group.clone()));
    assert_eq!(refused.unwrap_err().code, Code::UnknownGroup);
    for refused in [reader.mutual(&liked), reader.known(&liked, 2), reader.common(&liked, 2)] {
        assert_eq!(refused.unwrap_err().code, Code::InvalidArgument);
    }
}

#[test]
fn a_cursor_is_good_for_its_own_list_only() {
    let bench = Bench::new();
    let follow = bench.kind("follow");
    let puts = (2..6).map(|target| Change::Put(Put::plain(bench.edge(&follow, 1, target))));
    bench.write(puts.collect());
    let reader = bench.reader();
    let mut first = query(&follow, 1, Direction::Outgoing);
    first.limit = 2;
    first.cursor = reader.list(&first).unwrap().next;
    assert!(reader.list(&first).is_ok());
    for strange in [
        ListQuery { id: 2, ..first.clone() },
        ListQuery { direction: Direction::Incoming, ..first.clone() },
        ListQuery { group: Some(GroupFilter::Ungrouped), ..first.clone() },
    ] {
        assert!(reader.list(&strange).is_err(), "{strange:?}");
    }
    assert!(reader.mutual(&first).is_err());
    assert!(reader.common(&first, 2).is_err());
    assert!(reader.scan(&first).is_err());
}

#[test]
fn a_deleted_group_reads_as_ungrouped_and_never_comes_back() {
    let bench = Bench::new();
    let follow = bench.kind("follow");
    let edge = bench.edge(&follow, 1, 2);
    let (groups, name) = (GroupsKey::of(&edge), GroupName::new("friends").unwrap());
    let create = || Change::CreateGroup { groups, name: name.clone() };
    bench.write(vec![
        create(),
        Change::Put(Put::plain(edge)),
        Change::AddMember { edge, group: name.clone() },
    ]);
    let list = |group| {
        let query = ListQuery { group: Some(group), ..query(&follow, 1, Direction::Outgoing) };
        let page = bench.reader().list(&query);
        page.map(|page| (page.items.len(), page.total))
    };
    let named = || GroupFilter::Named(name.clone());
    assert_eq!(list(named()).unwrap(), (1, Some(1)));
    assert_eq!(list(GroupFilter::Ungrouped).unwrap(), (0, Some(0)));
    bench.write(vec![Change::DeleteGroup { groups, name: name.clone() }]);
    assert_eq!(list(named()).unwrap_err().code, Code::UnknownGroup);
    assert_eq!(list(GroupFilter::Ungrouped).unwrap(), (1, Some(1)));
    bench.write(vec![create()]);
    assert_eq!(list(named()).unwrap(), (0, Some(0)));
    assert_eq!(list(GroupFilter::Ungrouped).unwrap(), (1, Some(1)));
}

/// Each page is read from the present, while edges come, go and come back between two pages.
#[test]
fn an_edge_untouched_during_a_walk_appears_exactly_once() {
    let bench = Bench::new();
    let mut random = fastrand::Rng::with_seed(7);
    for (name, direction) in [
        ("follow", Direction::Outgoing),
        ("follow", Direction::Incoming),
        ("like", Direction::Outgoing),
    ] {
        let kind = bench.kind(name);
        let edge = |id: u64| match direction {
            Direction::Outgoing => bench.edge(&kind, 1, id),
            Direction::Incoming => bench.edge(&kind, id, 1),
        };
        let (untouched, restless) = (100..200, 200..300);
        for id in untouched.clone().zip(restless.clone()) {
            let puts = [id.0, id.1].map(|id| Change::Put(Put::plain(edge(id))));
            bench.write(puts.into());
        }
        let mut query = query(&kind, 1, direction);
        query.limit = 9;
        let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
        loop {
            let page = bench.reader().list(&query).unwrap();
            for item in page.items {
                *seen.entry(item.id).or_default() += 1;
            }
            query.cursor = page.next;
            if query.cursor.is_none() {
                break;
            }
            let changes = (0..10).map(|_| {
                let edge = edge(random.u64(restless.clone()));
                match random.bool() {
                    true => Change::Put(Put::plain(edge)),
                    false => Change::Delete { edge, strict: false },
                }
            });
            bench.write(changes.collect());
        }
        for id in untouched {
            assert_eq!(seen.get(&id), Some(&1), "{name} {direction:?} {id}");
        }
    }
}
