//! The cluster's memory, on real servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_memory/filter.rs"]
mod filter;
#[path = "cluster_memory/hot.rs"]
mod hot;
#[path = "cluster_memory/lists.rs"]
mod lists;
#[path = "cluster_memory/stage.rs"]
mod stage;
#[path = "cluster_memory/tier.rs"]
mod tier;
#[path = "cluster_parts/world.rs"]
mod world;
