//! One suite of laws for everything that is kept in Redis, run whole by every part of the memory on
//! real servers, and failed by parts that were made wrong on purpose.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_laws/broken.rs"]
mod broken;
#[path = "cluster_laws/ground.rs"]
mod ground;
#[path = "cluster_laws/laws.rs"]
mod laws;
#[allow(dead_code, reason = "the tests of tallies use the rest of it")]
#[path = "cluster_tallies/pages.rs"]
mod pages;
#[path = "cluster_laws/parts.rs"]
mod parts;
#[allow(dead_code, reason = "the tests of tallies use the rest of it")]
#[path = "cluster_tallies/stage.rs"]
mod stage;
#[path = "cluster_parts/world.rs"]
mod world;
