//! Loads many edges through the batch call.

use serde_json::{Value, json};

use crate::client::Client;

pub const BATCH_CHANGES_MAX: usize = 1000;

/// Puts edges (source, target) of one kind; each must be accepted.
#[track_caller]
pub fn put_all(client: &Client, kind: &str, edges: &[(u64, u64)]) {
    for chunk in edges.chunks(BATCH_CHANGES_MAX) {
        let changes: Vec<Value> = chunk
            .iter()
            .map(|(source, target)| {
                json!({"op": "put", "kind": kind,
                    "source": source.to_string(), "target": target.to_string()})
            })
            .collect();
        let answer = client.post_json("/v1/edges/batch", json!({"changes": changes}));
        let results = answer.ok()["results"].as_array().expect("results");
        assert_eq!(results.len(), chunk.len());
        for (result, edge) in results.iter().zip(chunk) {
            assert_eq!(result["state"], "live", "{kind} {edge:?}: {result}");
        }
    }
}

/// Lets `sources` relate to `target`, in this order.
#[track_caller]
pub fn put_followers(client: &Client, kind: &str, target: u64, sources: &[u64]) {
    let edges: Vec<_> = sources.iter().map(|source| (*source, target)).collect();
    put_all(client, kind, &edges);
}
