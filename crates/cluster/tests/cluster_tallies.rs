//! Tallies and incoming lists in Redis and the follower that keeps them, on real servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_tallies/bad_days.rs"]
mod bad_days;
#[path = "cluster_tallies/changefeed.rs"]
mod changefeed;
#[path = "cluster_tallies/following.rs"]
mod following;
#[path = "cluster_tallies/incoming.rs"]
mod incoming;
#[path = "cluster_tallies/lost_threads.rs"]
mod lost_threads;
#[path = "cluster_parts/made_anew.rs"]
mod made_anew;
#[path = "cluster_tallies/merge.rs"]
mod merge;
#[path = "cluster_tallies/pages.rs"]
mod pages;
#[path = "cluster_parts/player.rs"]
mod player;
#[path = "cluster_tallies/stage.rs"]
mod stage;
#[path = "cluster_tallies/strangers.rs"]
mod strangers;
#[path = "cluster_parts/world.rs"]
mod world;
