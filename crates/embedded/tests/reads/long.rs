//! Lists too long to be read whole: bounded work per page, however deep.

use std::time::{Duration, Instant};

use guanxi_core::{Direction, ListQuery, Reader};
use guanxi_model::Change;
use guanxi_model::change::{KindSpec, Put};
use guanxi_model::limits::WALK_EDGES_MAX;

use super::bench::{Bench, all_pages, query, spec};

/// A page of a filtered walk may be short, but says that the list goes on.
#[test]
fn a_filtered_walk_stops_after_its_share_of_work() {
    const TARGETS: u64 = 2 * WALK_EDGES_MAX as u64 + 500;
    let bench = Bench::new();
    let fan = bench.create(spec("fan", "user", "user"));
    let targets: Vec<u64> = (2..2 + TARGETS).collect();
    for some in targets.chunks(1_000) {
        let puts = some.iter().map(|target| Change::Put(Put::plain(bench.edge(&fan, 1, *target))));
        bench.write(puts.collect());
    }
    // Two of them fan back: the very first and one in the middle.
    let mutual = [2, 2 + TARGETS / 2];
    let puts = mutual.map(|target| Change::Put(Put::plain(bench.edge(&fan, target, 1))));
    bench.write(puts.into());
    let reader = bench.reader();
    let query = query(&fan, 1, Direction::Outgoing);
    let pages = all_pages(&query, |query| reader.mutual(query));
    let shown: Vec<usize> = pages.iter().map(|page| page.items.len()).collect();
    assert_eq!(shown, [0, 1, 1], "newest first, a share each");
    let ids: Vec<u64> = pages.iter().flat_map(|page| &page.items).map(|item| item.id).collect();
    assert_eq!(ids, [mutual[1], mutual[0]]);
    let known = all_pages(&query, |query| reader.known(query, 1));
    assert_eq!(known.len(), 3);
    assert_eq!(known.iter().map(|page| page.items.len()).sum::<usize>(), 2);
}

/// Requests stand where live edges do, and are looked at as they are passed.
#[test]
fn a_scan_stops_after_its_share_of_edges_in_another_state() {
    const REQUESTS: u64 = 2 * WALK_EDGES_MAX as u64 + 500;
    let bench = Bench::new();
    let fan = bench.create(KindSpec { approval: true, ..spec("fan", "user", "user") });
    let put = |target| Put::plain(bench.edge(&fan, 1, target));
    let requests: Vec<u64> = (2..2 + REQUESTS).collect();
    for some in requests.chunks(1_000) {
        let request = |target: &u64| Change::Put(Put { approval: true, ..put(*target) });
        bench.write(some.iter().map(request).collect());
    }
    // One in the middle and one behind them all.
    let live = [2 + REQUESTS / 2, 2 + REQUESTS];
    bench.write(vec![
        Change::Approve { edge: bench.edge(&fan, 1, live[0]) },
        Change::Put(put(live[1])),
    ]);
    let reader = bench.reader();
    let query = query(&fan, 1, Direction::Outgoing);
    let pages = all_pages(&query, |query| reader.scan(query));
    let shown: Vec<usize> = pages.iter().map(|page| page.items.len()).collect();
    assert_eq!(shown, [0, 1, 1], "a share each");
    let ids: Vec<u64> = pages.iter().flat_map(|page| &page.items).map(|item| item.id).collect();
    assert_eq!(ids, live);
    // A page that is full at the end of a share goes on behind what was passed.
    let pages = all_pages(&ListQuery { limit: 1, ..query }, |query| reader.scan(query));
    let ids: Vec<u64> = pages.iter().flat_map(|page| &page.items).map(|item| item.id).collect();
    assert_eq!(ids, live);
}

#[test]
fn a_page_deep_in_a_list_of_a_hundred_thousand_costs_what_the_first_costs() {
    const FOLLOWERS: u64 = 100_000;
    let bench = Bench::new();
    let follow = bench.kind("follow");
    let sources: Vec<u64> = (2..2 + FOLLOWERS).collect();
    for some in sources.chunks(1_000) {
        let puts =
            some.iter().map(|source| Change::Put(Put::plain(bench.edge(&follow, *source, 1))));
        bench.write(puts.collect());
    }
    let reader = bench.reader();
    let mut walk = query(&follow, 1, Direction::Incoming);
    walk.limit = 1_000;
    let pages = all_pages(&walk, |query| reader.list(query));
    let mut ids: Vec<u64> = pages.iter().flat_map(|page| &page.items).map(|item| item.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, sources, "every follower once");
    assert!(pages.iter().all(|page| page.total == Some(FOLLOWERS as i64)));
    let at =
        |number: usize| ListQuery { limit: 20, cursor: pages[number].next.clone(), ..walk.clone() };
    let (early, late) = (cost(&reader, &at(0)), cost(&reader, &at(pages.len() - 2)));
    assert!(
        late < 10 * early + Duration::from_millis(2),
        "an early page takes {early:?}, a late one {late:?}"
    );
}

/// The median of many tries.
fn cost(reader: &Reader, query: &ListQuery) -> Duration {
    let mut costs: Vec<Duration> = (0..51)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(reader.list(query).unwrap().items.len(), query.limit);
            start.elapsed()
        })
        .collect();
    costs.sort();
    costs[costs.len() / 2]
}
