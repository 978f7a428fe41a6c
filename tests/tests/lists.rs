//! Lists: order, cursors, totals, filters and pages. Walks over two nodes' lists (mutual,
//! common, known) and scans stand in list_joins.rs.

use std::time::{Duration, Instant};

use guanxi_tests::{
    Server, assert_keys, edge, edge_call, node_run, nodes, page_of, parse_millis, put_all,
    put_followers, rfc3339, shared, walk, walk_ids,
};
use serde_json::{Value, json};

/// The three ways that a list is kept: a bounded outgoing list, one with a time index, and an
/// incoming one. Each case relates `own` with others so that they stand in the list.
const LISTS: [(&str, &str); 4] = [
    ("follow", "outgoing"),
    ("like", "outgoing"),
    ("follow", "incoming"),
    ("favorite", "incoming"),
];

fn related(direction: &str, own: u64, other: u64) -> (u64, u64) {
    if direction == "outgoing" { (own, other) } else { (other, own) }
}

fn relate(server: &Server, kind: &str, direction: &str, own: u64, others: &[u64]) {
    let edges: Vec<_> = others.iter().map(|other| related(direction, own, *other)).collect();
    put_all(server, kind, &edges);
}

/// The order of the contract: (since, id) descending, ids as numbers.
fn assert_newest_first(items: &[Value]) {
    let keys: Vec<(u64, u64)> = items
        .iter()
        .map(|item| {
            (parse_millis(&item["since"]), guanxi_tests::ids_of(std::slice::from_ref(item))[0])
        })
        .collect();
    for pair in keys.windows(2) {
        assert!(pair[0] > pair[1], "{:?} stands before {:?}", pair[0], pair[1]);
    }
}

#[test]
fn items_have_their_fields() {
    let server = shared();
    let [source, target, owner, post] = nodes();
    server.put(edge("follow", source, target)).ok();
    server.put_json(edge("like", source, post), json!({"owner": owner, "data": "!"})).ok();
    let outgoing = page_of(&server, &edge_call("follow", source, "outgoing"));
    assert_eq!((outgoing.total, outgoing.next), (json!(1), None));
    assert_keys(
        &outgoing.items[0],
        &["data", "expires_at", "group", "id", "owner", "since", "state"],
    );
    let liked = page_of(&server, &edge_call("like", source, "outgoing"));
    assert_eq!(liked.items[0]["owner"], json!(owner.to_string()));
    assert_eq!(liked.items[0]["data"], "!");
    let incoming = page_of(&server, &edge_call("follow", target, "incoming"));
    assert_keys(&incoming.items[0], &["id", "since", "state"]);
    assert_eq!(incoming.items[0]["id"], json!(source.to_string()));
    assert_eq!(incoming.items[0]["state"], "live");
    assert_eq!(incoming.items[0]["since"], outgoing.items[0]["since"]);
}

#[test]
fn an_empty_list_is_a_list() {
    let server = shared();
    let [nobody] = nodes();
    for (kind, direction) in LISTS {
        let page = page_of(&server, &edge_call(kind, nobody, direction));
        assert!(page.items.is_empty() && page.next.is_none());
        assert_eq!(page.total, 0);
    }
}

#[test]
fn newest_first_and_its_exact_reverse() {
    let server = shared();
    for (kind, direction) in LISTS {
        let [own] = nodes();
        let mut others = node_run(25);
        // Twenty digits: order by text and order by number differ.
        others.extend([u64::MAX, u64::MAX - 1, 10, 9]);
        for chunk in others.chunks(10) {
            relate(&server, kind, direction, own, chunk);
        }
        let path = edge_call(kind, own, direction);
        let newest = walk(&server, &path, 7, |_, _| ());
        assert_eq!(newest.len(), others.len(), "{path}");
        assert_newest_first(&newest);
        let oldest = walk(&server, &format!("{path}?order=oldest"), 7, |_, _| ());
        assert!(newest.iter().eq(oldest.iter().rev()), "{path}: oldest is the exact reverse");
        let explicit = walk(&server, &format!("{path}?order=newest"), 1000, |_, _| ());
        assert_eq!(explicit, newest);

        let page = page_of(&server, &path);
        assert_eq!(page.items.len(), 20, "the default limit of {path}");
        assert_eq!(page.total, json!(others.len()));
    }
}

#[test]
fn edges_of_one_millisecond_are_ordered_by_id() {
    let server = shared();
    for (kind, direction) in LISTS {
        let [own] = nodes();
        let others = node_run(600);
        relate(&server, kind, direction, own, &others);
        let path = edge_call(kind, own, direction);
        // Pages of an odd size end inside runs of the same since.
        let items = walk(&server, &path, 13, |_, _| ());
        assert_eq!(items.len(), others.len());
        assert_newest_first(&items);
        let ties = items.windows(2).filter(|pair| pair[0]["since"] == pair[1]["since"]).count();
        assert!(ties > 0, "a batch of 600 has edges of one millisecond");
        let oldest = walk(&server, &format!("{path}?order=oldest"), 13, |_, _| ());
        assert!(items.iter().eq(oldest.iter().rev()), "{path}");
    }
}

#[test]
fn an_untouched_edge_appears_exactly_once_whatever_happens_around_it() {
    let server = shared();
    for (kind, direction) in LISTS {
        for order in ["newest", "oldest"] {
            let [own] = nodes();
            let (untouched, removed) = (node_run(60), node_run(60));
            let mut all: Vec<u64> = Vec::new();
            for (index, other) in untouched.iter().enumerate() {
                all.push(*other);
                all.extend(removed.get(index));
            }
            for chunk in all.chunks(15) {
                relate(&server, kind, direction, own, chunk);
            }
            let fresh = node_run(60);
            let path = format!("{}?order={order}", edge_call(kind, own, direction));
            let items = walk(&server, &path, 9, |number, page| {
                let inserted: Vec<u64> = fresh.iter().skip(number * 2).take(2).copied().collect();
                relate(&server, kind, direction, own, &inserted);
                let mut leaving: Vec<u64> =
                    removed.iter().skip(number * 3).take(3).copied().collect();
                // The anchor of the next page goes: the walk must not notice.
                leaving.extend(page.ids().last().filter(|last| removed.contains(last)));
                for other in leaving {
                    let (source, target) = related(direction, own, other);
                    server.delete(edge(kind, source, target)).ok();
                }
            });
            let seen = guanxi_tests::ids_of(&items);
            for other in &untouched {
                let times = seen.iter().filter(|id| *id == other).count();
                assert_eq!(times, 1, "{other} in {path}");
            }
        }
    }
}

#[test]
fn time_ranges_include_their_begin_and_exclude_their_end() {
    let server = shared();
    for (kind, direction) in LISTS {
        let [own] = nodes();
        // One write each, so that they differ in since.
        for other in node_run(8) {
            relate(&server, kind, direction, own, &[other]);
            std::thread::sleep(Duration::from_millis(3));
        }
        let path = edge_call(kind, own, direction);
        let all = walk(&server, &path, 100, |_, _| ());
        let times: Vec<u64> = all.iter().map(|item| parse_millis(&item["since"])).collect();
        let (since, until) = (times[6], times[2]);
        let cases = [
            (Some(since), None),
            (None, Some(until)),
            (Some(since), Some(until)),
            (Some(since), Some(since)),
            (Some(since + 1), Some(until + 1)),
        ];
        for (since, until) in cases {
            let mut query = String::from("?order=newest");
            if let Some(since) = since {
                query.push_str(&format!("&since={}", rfc3339(since)));
            }
            if let Some(until) = until {
                query.push_str(&format!("&until={}", rfc3339(until)));
            }
            let range = since.unwrap_or(0)..until.unwrap_or(u64::MAX);
            let expected: Vec<&Value> =
                all.iter().filter(|item| range.contains(&parse_millis(&item["since"]))).collect();
            let found = walk(&server, &format!("{path}{query}"), 2, |_, page| {
                assert!(page.total.is_null(), "no total of a time range");
            });
            assert!(found.iter().eq(expected.iter().copied()), "{path}{query}");
            let reversed = query.replace("newest", "oldest");
            let found = walk(&server, &format!("{path}{reversed}"), 2, |_, _| ());
            assert!(found.iter().eq(expected.into_iter().rev()), "{path}{reversed}");
        }
    }
}

#[test]
fn a_group_is_a_list_of_its_own() {
    let server = shared();
    let [source] = nodes();
    let groups = format!("/v1/groups/follow/{source}");
    for name in ["friends", "close friends 关系", "empty"] {
        server.post_json(&groups, json!({"name": name})).expect_status(201);
    }
    let targets = node_run(30);
    for (index, target) in targets.iter().enumerate() {
        let group = [json!("friends"), json!("close friends 关系"), Value::Null][index % 3].clone();
        server
            .put_json(edge("follow", source, *target), json!({"group": group}))
            .expect_change(true, "live");
    }
    let path = edge_call("follow", source, "outgoing");
    let cases = [
        ("group=friends", 0, json!("friends")),
        ("group=close%20friends%20%E5%85%B3%E7%B3%BB", 1, json!("close friends 关系")),
        ("group=", 2, Value::Null),
    ];
    for (query, remainder, group) in cases {
        let mut expected: Vec<u64> = targets.iter().skip(remainder).step_by(3).copied().collect();
        let oldest = walk(&server, &format!("{path}?{query}&order=oldest"), 4, |_, _| ());
        assert_eq!(guanxi_tests::ids_of(&oldest), expected, "{query}");
        assert!(oldest.iter().all(|item| item["group"] == group));
        expected.reverse();
        assert_eq!(walk_ids(&server, &format!("{path}?{query}"), 4), expected, "{query}");
    }
    assert_eq!(page_of(&server, &format!("{path}?group=friends")).total, 10);
    let empty = page_of(&server, &format!("{path}?group=empty"));
    assert!(empty.items.is_empty());
    assert_eq!(empty.total, 0);
    server.get(format!("{path}?group=strangers")).expect_error(404, "unknown_group");
}

#[test]
fn pending_edges_are_listed_apart() {
    let server = shared();
    let [target] = nodes();
    let (live, waiting) = (node_run(5), node_run(7));
    put_followers(&server, "follow", target, &live);
    for source in &waiting {
        server
            .put_json(edge("follow", *source, target), json!({"approval": true}))
            .expect_change(true, "pending");
    }
    let path = edge_call("follow", target, "incoming");
    let mut expected = waiting.clone();
    assert_eq!(walk_ids(&server, &format!("{path}?state=pending&order=oldest"), 3), expected);
    expected.reverse();
    assert_eq!(walk_ids(&server, &format!("{path}?state=pending"), 3), expected);
    assert_eq!(page_of(&server, &format!("{path}?state=pending")).total, 7);
    assert_eq!(walk_ids(&server, &format!("{path}?state=live"), 3).len(), 5);
    assert_eq!(page_of(&server, &path).total, 5);
}

#[test]
fn bounded_outgoing_lists_have_numbered_pages() {
    let server = shared();
    let [source, target] = nodes();
    let targets = node_run(25);
    put_all(&server, "follow", &targets.iter().map(|id| (source, *id)).collect::<Vec<_>>());
    let path = edge_call("follow", source, "outgoing");
    let all = walk(&server, &path, 100, |_, _| ());
    for (page, expected) in [(1, &all[..10]), (2, &all[10..20]), (3, &all[20..]), (4, &all[25..])] {
        let found = page_of(&server, &format!("{path}?limit=10&page={page}"));
        assert_eq!(found.items, expected, "page {page}");
        assert_eq!(found.total, 25);
    }
    let oldest: Vec<Value> = all.iter().rev().skip(10).take(10).cloned().collect();
    assert_eq!(page_of(&server, &format!("{path}?limit=10&page=2&order=oldest")).items, oldest);

    let cursor = page_of(&server, &format!("{path}?limit=10")).next.expect("a next page");
    let refused = [
        format!("{path}?page=0"),
        format!("{path}?page=-1"),
        format!("{path}?page=x"),
        format!("{path}?page=2&cursor={cursor}&limit=10"),
        edge_call("follow", target, "incoming?page=1"),
        edge_call("like", source, "outgoing?page=1"),
    ];
    for path in refused {
        server.get(&path).expect_error(400, "invalid_argument");
    }
}

/// However long a list may get, a page by its number costs a bounded walk.
#[test]
fn pages_by_number_reach_only_so_far() {
    let server = shared();
    let [source] = nodes();
    let kind = "lists.paged";
    let spec = json!({
        "name": kind, "source_type": "user", "target_type": "user", "outgoing_max": 1_000_000,
    });
    server.post_json("/v1/admin/kinds", spec).expect_status(201);
    let targets = node_run(25);
    put_all(&server, kind, &targets.iter().map(|id| (source, *id)).collect::<Vec<_>>());
    let path = edge_call(kind, source, "outgoing");
    assert!(page_of(&server, &format!("{path}?limit=1000&page=10")).items.is_empty());
    assert!(page_of(&server, &format!("{path}?limit=1&page=10000")).items.is_empty());
    for deep in ["limit=1000&page=11", "limit=1&page=10001", "limit=1000&page=4294967295"] {
        let refused = server.get(format!("{path}?{deep}"));
        let message = refused.expect_error(422, "depth_exceeded");
        assert!(message.contains("10000 edges") && message.contains("cursor"), "{message}");
    }
}

#[test]
fn a_cursor_serves_only_its_own_call() {
    let server = shared();
    let [own, other, post] = nodes();
    let others = node_run(12);
    for (kind, direction) in LISTS {
        relate(&server, kind, direction, own, &others);
    }
    server.put(edge("like", own, post)).ok();
    let groups = format!("/v1/groups/follow/{own}");
    server.post_json(groups, json!({"name": "g"})).expect_status(201);
    let call = |kind: &str, id: u64, rest: &str| edge_call(kind, id, rest);
    let cursor = page_of(&server, &call("follow", own, "outgoing?limit=5")).next.expect("more");
    page_of(&server, &call("follow", own, &format!("outgoing?limit=5&cursor={cursor}")));

    let mut damaged = cursor.clone();
    let middle = damaged.len() / 2;
    let replacement = if damaged.as_bytes()[middle] == b'A' { "B" } else { "A" };
    damaged.replace_range(middle..=middle, replacement);
    let shortened = &cursor[..cursor.len() - 1];
    let refused = [
        call("follow", own, &format!("outgoing?limit=5&cursor={damaged}")),
        call("follow", own, &format!("outgoing?limit=5&cursor={shortened}")),
        call("follow", own, &format!("outgoing?limit=5&cursor={cursor}{cursor}")),
        call("follow", own, "outgoing?limit=5&cursor=AAAA"),
        call("follow", own, "outgoing?limit=5&cursor=%00"),
        call("follow", own, "outgoing?limit=5&cursor=%F0%9F%A6%80"),
        call("follow", other, &format!("outgoing?limit=5&cursor={cursor}")),
        call("like", own, &format!("outgoing?limit=5&cursor={cursor}")),
        call("follow", own, &format!("incoming?limit=5&cursor={cursor}")),
        call("follow", own, &format!("mutual?limit=5&cursor={cursor}")),
        call("follow", own, &format!("common/{other}?limit=5&cursor={cursor}")),
        call("follow", own, &format!("outgoing/scan?limit=5&cursor={cursor}")),
        call("follow", own, &format!("outgoing?limit=5&order=oldest&cursor={cursor}")),
        call("follow", own, &format!("outgoing?limit=5&state=pending&cursor={cursor}")),
        call("follow", own, &format!("outgoing?limit=5&group=g&cursor={cursor}")),
    ];
    for path in refused {
        let answer = server.get(&path);
        let message = answer.expect_error(400, "invalid_argument");
        assert!(message.contains("cursor"), "{path}: {message}");
    }
}

#[test]
fn list_parameters_are_checked() {
    let server = shared();
    let [own] = nodes();
    let refused = [
        ("follow", "outgoing?limit=0", "limit"),
        ("follow", "outgoing?limit=1001", "limit"),
        ("follow", "outgoing?limit=-1", "limit"),
        ("follow", "outgoing?limit=x", "limit"),
        ("follow", "outgoing?limit=", "limit"),
        ("follow", "outgoing?order=random", "order"),
        ("follow", "outgoing?state=removed", "state"),
        ("follow", "outgoing?since=yesterday", "since"),
        ("follow", "incoming?until=1", "until"),
        ("follow", "outgoing?mutual=maybe", "mutual"),
        ("follow", "outgoing?limits=5", "limits"),
        ("follow", "outgoing?limit=5&limit=6", "limit"),
        ("follow", "incoming?group=friends", "group"),
        ("like", "outgoing?mutual=true", "mutual"),
        ("follow", "mutual?state=pending", "state"),
        ("follow", "common/7?order=oldest", "order"),
        ("follow", "known/7?since=2026-01-01T00:00:00.000Z", "since"),
        ("follow", "outgoing/scan?order=oldest", "order"),
    ];
    for (kind, call, named) in refused {
        let answer = server.get(edge_call(kind, own, call));
        let message = answer.expect_error(400, "invalid_argument");
        assert!(message.contains(named), "{call}: {message}");
    }
    for limit in [1, 1000] {
        page_of(&server, &edge_call("follow", own, &format!("outgoing?limit={limit}")));
    }
    server.get(edge_call("view", own, "outgoing")).expect_error(400, "invalid_argument");
}

#[test]
fn a_celebritys_followers_page_in_constant_time() {
    let server = shared();
    let [celebrity] = nodes();
    let followers = node_run(20_000);
    put_followers(&server, "follow", celebrity, &followers);
    let path = edge_call("follow", celebrity, "incoming");

    let mut deep = String::new();
    let items = walk(&server, &path, 100, |_, page| {
        assert_eq!(page.total, 20_000);
        deep = page.next.clone().expect("a page but the last has a cursor");
    });
    assert_newest_first(&items);
    let mut ids = guanxi_tests::ids_of(&items);
    ids.sort_unstable();
    assert_eq!(ids, followers);
    // The median of the deepest page beside that of the first: a walk that reads from the top each
    // time would be a hundred times slower there. Both are asked for in turn, so that what else the
    // machine does slows both, and again where it did not.
    let first = format!("{path}?limit=100");
    let deep = format!("{first}&cursor={deep}");
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let mut rounds = Vec::new();
    let is_constant =
        |(first, deep): &(Duration, Duration)| *deep < *first * 5 + Duration::from_millis(2);
    while rounds.len() < 3 && !rounds.iter().any(is_constant) {
        let timed = |path: &str| {
            let begun = Instant::now();
            page_of(&server, path);
            begun.elapsed()
        };
        let times = (0..40).map(|_| (timed(&first), timed(&deep)));
        let (firsts, deeps) = times.unzip();
        rounds.push((median(firsts), median(deeps)));
    }
    assert!(rounds.iter().any(is_constant), "the first page, and a deep one: {rounds:?}");
}
