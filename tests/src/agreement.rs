//! The invariant behind most suites: both directions and all tallies tell the same story.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::Client;
use crate::paths::edge_call;
use crate::walk::{page_of, walk_ids};

const PAGE_ITEMS: usize = 1000;
const TALLIED_IDS_MAX: usize = 1000;

/// The tallies of one node and kind, as `{"outgoing":…}`.
#[track_caller]
pub fn tally(client: &Client, kind: &str, id: u64) -> Value {
    let asked = json!({"ids": [id.to_string()], "kinds": [kind]});
    client.post_json("/v1/tallies", asked).ok()["results"][0]["tallies"][kind].clone()
}

/// Checks the live edges of `kind` among these nodes: outgoing and incoming lists mirror each
/// other, and the tallies and totals are the lengths of the lists. Returns the edges. The nodes'
/// edges must all be among `sources` × `targets`.
#[track_caller]
pub fn assert_lists_and_tallies_agree(
    client: &Client,
    kind: &str,
    sources: &[u64],
    targets: &[u64],
) -> BTreeSet<(u64, u64)> {
    let mut outgoing = BTreeSet::new();
    for &source in sources {
        for target in checked_list(client, kind, source, "outgoing") {
            outgoing.insert((source, target));
        }
    }
    let mut incoming = BTreeSet::new();
    for &target in targets {
        for source in checked_list(client, kind, target, "incoming") {
            incoming.insert((source, target));
        }
    }
    assert_eq!(outgoing, incoming, "both directions of {kind}");
    assert_tallies(client, kind, "outgoing", sources, |id| {
        outgoing.iter().filter(|edge| edge.0 == id).count()
    });
    assert_tallies(client, kind, "incoming", targets, |id| {
        incoming.iter().filter(|edge| edge.1 == id).count()
    });
    outgoing
}

#[track_caller]
fn checked_list(client: &Client, kind: &str, id: u64, direction: &str) -> Vec<u64> {
    let path = edge_call(kind, id, direction);
    let ids = walk_ids(client, &path, PAGE_ITEMS);
    let total = page_of(client, &path).total;
    assert_eq!(total, json!(ids.len()), "total of {path}");
    ids
}

#[track_caller]
fn assert_tallies(
    client: &Client,
    kind: &str,
    which: &str,
    ids: &[u64],
    expected: impl Fn(u64) -> usize,
) {
    for chunk in ids.chunks(TALLIED_IDS_MAX) {
        let asked: Vec<String> = chunk.iter().map(u64::to_string).collect();
        let answer = client.post_json("/v1/tallies", json!({"ids": asked, "kinds": [kind]}));
        let results = answer.ok()["results"].as_array().expect("results");
        for (result, &id) in results.iter().zip(chunk) {
            assert_eq!(
                result["tallies"][kind][which],
                json!(expected(id)),
                "{which} tally of {kind} {id}"
            );
        }
    }
}
