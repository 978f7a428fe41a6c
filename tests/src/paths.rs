//! Paths of the contract, and node ids that no other test of the same server uses.

use std::sync::atomic::{AtomicU64, Ordering};

/// Ids of at most seven digits beside such of twenty: order by number and order by text differ.
static NEXT_NODE: AtomicU64 = AtomicU64::new(900);

pub fn nodes<const N: usize>() -> [u64; N] {
    let count = N as u64;
    let first = NEXT_NODE.fetch_add(count, Ordering::Relaxed);
    std::array::from_fn(|index| first + index as u64)
}

/// A run of fresh ids.
pub fn node_run(count: usize) -> Vec<u64> {
    let count = count as u64;
    let first = NEXT_NODE.fetch_add(count, Ordering::Relaxed);
    (first..first + count).collect()
}

pub fn edge(kind: &str, source: u64, target: u64) -> String {
    format!("/v1/edges/{kind}/{source}/{target}")
}

/// A list or another call about one node's edges: `edge_call("follow", 7, "incoming?limit=5")`.
pub fn edge_call(kind: &str, id: u64, call: &str) -> String {
    format!("/v1/edges/{kind}/{id}/{call}")
}

pub fn node(node_type: &str, id: u64) -> String {
    format!("/v1/nodes/{node_type}/{id}")
}
