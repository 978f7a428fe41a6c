//! Lists over two nodes' edges (mutual, common, known) and whole-list scans.

use std::collections::BTreeSet;

use guanxi_tests::{
    edge, edge_call, ids_of, node_run, nodes, page_of, put_all, put_followers, shared, walk,
    walk_ids,
};
use serde_json::json;

fn set(ids: &[u64]) -> BTreeSet<u64> {
    ids.iter().copied().collect()
}

#[test]
fn mutual_lists_those_who_follow_back() {
    let server = shared();
    let [own] = nodes();
    let (mutual, outgoing_only, incoming_only) = (node_run(25), node_run(30), node_run(10));
    let mut edges = Vec::new();
    for id in &mutual {
        edges.extend([(own, *id), (*id, own)]);
    }
    edges.extend(outgoing_only.iter().map(|id| (own, *id)));
    edges.extend(incoming_only.iter().map(|id| (*id, own)));
    put_all(&server, "follow", &edges);
    // One asks back and waits: not mutual.
    server
        .put_json(edge("follow", outgoing_only[0], own), json!({"approval": true}))
        .expect_change(true, "pending");

    let path = edge_call("follow", own, "mutual");
    let newest = walk(&server, &path, 7, |_, page| assert!(page.total.is_null()));
    assert_eq!(set(&ids_of(&newest)), set(&mutual));
    let oldest = walk(&server, &format!("{path}?order=oldest"), 7, |_, _| ());
    assert!(newest.iter().eq(oldest.iter().rev()));
    let outgoing = walk_ids(&server, &edge_call("follow", own, "outgoing"), 1000);
    let expected: Vec<u64> = outgoing.into_iter().filter(|id| mutual.contains(id)).collect();
    assert_eq!(ids_of(&newest), expected, "the order of the outgoing list");

    for direction in ["outgoing", "incoming"] {
        let flagged = walk(
            &server,
            &edge_call("follow", own, &format!("{direction}?mutual=true")),
            9,
            |_, _| (),
        );
        for item in &flagged {
            let id = ids_of(std::slice::from_ref(item))[0];
            assert_eq!(item["mutual"], json!(mutual.contains(&id)), "{direction} {item}");
        }
        assert!(flagged.len() >= mutual.len());
    }
    server.delete(edge("follow", mutual[3], own)).ok();
    assert_eq!(walk_ids(&server, &path, 1000).len(), 24);
}

#[test]
fn mutual_takes_groups_and_time_ranges() {
    let server = shared();
    let [own] = nodes();
    let others = node_run(6);
    server.post_json(format!("/v1/groups/follow/{own}"), json!({"name": "g"})).expect_status(201);
    for (index, other) in others.iter().enumerate() {
        let group = if index % 2 == 0 { json!("g") } else { json!(null) };
        server.put_json(edge("follow", own, *other), json!({"group": group})).ok();
        if index < 4 {
            server.put(edge("follow", *other, own)).ok();
        }
    }
    let path = edge_call("follow", own, "mutual");
    assert_eq!(
        set(&walk_ids(&server, &format!("{path}?group=g"), 1)),
        set(&[others[0], others[2]])
    );
    assert_eq!(set(&walk_ids(&server, &format!("{path}?group="), 1)), set(&[others[1], others[3]]));
    let later = walk_ids(&server, &format!("{path}?since=2100-01-01T00:00:00.000Z"), 5);
    assert!(later.is_empty());
}

#[test]
fn common_lists_whom_both_relate_to() {
    let server = shared();
    let [a, b] = nodes();
    let (both, only_a, only_b) = (node_run(30), node_run(20), node_run(40));
    let of_a = both.iter().chain(&only_a).map(|id| (a, *id));
    let of_b = both.iter().chain(&only_b).map(|id| (b, *id));
    put_all(&server, "follow", &of_a.chain(of_b).collect::<Vec<_>>());
    for (one, other) in [(a, b), (b, a)] {
        let path = edge_call("follow", one, &format!("common/{other}"));
        for limit in [1, 7, 1000] {
            let found = walk(&server, &path, limit, |_, page| assert!(page.total.is_null()));
            assert_eq!(set(&ids_of(&found)), set(&both));
        }
    }
    // A pending edge is no relation.
    let [asked] = nodes();
    server.put(edge("follow", a, asked)).ok();
    server.put_json(edge("follow", b, asked), json!({"approval": true})).ok();
    let path = edge_call("follow", a, &format!("common/{b}"));
    assert_eq!(set(&walk_ids(&server, &path, 1000)), set(&both));
    server.get(edge_call("like", a, &format!("common/{b}"))).expect_error(400, "invalid_argument");
}

#[test]
fn known_lists_followings_who_follow_the_other() {
    let server = shared();
    let [viewer, celebrity] = nodes();
    let (known, mine, theirs) = (node_run(30), node_run(50), node_run(60));
    let mut edges: Vec<(u64, u64)> = known.iter().chain(&mine).map(|id| (viewer, *id)).collect();
    edges.extend(known.iter().chain(&theirs).map(|id| (*id, celebrity)));
    put_all(&server, "follow", &edges);
    let path = edge_call("follow", viewer, &format!("known/{celebrity}"));
    for limit in [1, 8, 1000] {
        let found = walk(&server, &path, limit, |_, page| assert!(page.total.is_null()));
        assert_eq!(set(&ids_of(&found)), set(&known), "limit {limit}");
    }
    server.delete(edge("follow", known[0], celebrity)).ok();
    server.delete(edge("follow", viewer, known[1])).ok();
    assert_eq!(set(&walk_ids(&server, &path, 10)), set(&known[2..]));
}

#[test]
fn calls_about_one_node_type_refuse_other_kinds() {
    let server = shared();
    let [a, b] = nodes();
    for call in ["mutual".to_owned(), format!("known/{b}"), "outgoing?mutual=true".to_owned()] {
        server.get(edge_call("like", a, &call)).expect_error(400, "invalid_argument");
    }
}

#[test]
fn the_two_ends_of_a_join_may_be_the_same_node() {
    let server = shared();
    let [own, other] = nodes();
    put_all(&server, "follow", &[(own, other), (other, own)]);
    assert_eq!(walk_ids(&server, &edge_call("follow", own, &format!("common/{own}")), 10), [other]);
    assert_eq!(walk_ids(&server, &edge_call("follow", own, &format!("known/{own}")), 10), [other]);
}

#[test]
fn a_scan_gives_the_whole_list_in_a_stable_order() {
    let server = shared();
    let [source, target] = nodes();
    let others = node_run(2_500);
    put_followers(&server, "follow", target, &others);
    put_all(&server, "like", &others.iter().map(|id| (source, *id)).collect::<Vec<_>>());
    let lists = [("follow", target, "incoming"), ("like", source, "outgoing")];
    for (kind, id, direction) in lists {
        let path = edge_call(kind, id, &format!("{direction}/scan"));
        let whole = walk_ids(&server, &path, 1000);
        assert_eq!(set(&whole), set(&others), "{path}");
        assert_eq!(
            walk_ids(&server, &path, 333),
            whole,
            "{path}: the order does not depend on pages"
        );
        let first = page_of(&server, &path);
        assert_eq!(first.items.len(), 1000, "the default limit of a scan");
        assert!(first.items[0]["since"].is_string());
    }
    let bounded: Vec<u64> = others[..300].to_vec();
    put_all(&server, "follow", &bounded.iter().map(|id| (source, *id)).collect::<Vec<_>>());
    let path = edge_call("follow", source, "outgoing/scan");
    assert_eq!(set(&walk_ids(&server, &path, 70)), set(&bounded));

    // Untouched edges appear exactly once while others come and go.
    let path = edge_call("follow", target, "incoming/scan");
    let fresh = node_run(20);
    let seen = walk(&server, &path, 250, |number, _| {
        put_followers(&server, "follow", target, &fresh[number..=number]);
        server.delete(edge("follow", others[number], target)).ok();
    });
    let seen = set(&ids_of(&seen));
    assert!(others[20..].iter().all(|id| seen.contains(id)));

    let cursor = page_of(&server, &path).next.expect("more pages");
    for wrong in ["incoming", "outgoing/scan"] {
        let path = edge_call("follow", target, &format!("{wrong}?cursor={cursor}"));
        server.get(path).expect_error(400, "invalid_argument");
    }
}
