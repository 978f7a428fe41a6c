//! The cluster's log on real servers: the broker's clients, leases, the relay, barriers and the
//! feed for watchers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_log/bench.rs"]
mod bench;
#[path = "cluster_log/changefeed.rs"]
mod changefeed;
#[path = "cluster_log/feed.rs"]
mod feed;
#[path = "cluster_log/handover.rs"]
mod handover;
#[path = "cluster_log/kafka.rs"]
mod kafka;
#[path = "cluster_log/leases.rs"]
mod leases;
#[path = "cluster_parts/lost_end.rs"]
mod lose;
#[path = "cluster_log/lost_end.rs"]
mod lost_end;
#[path = "cluster_parts/made_anew.rs"]
mod made_anew;
#[path = "cluster_log/order.rs"]
mod order;
#[path = "cluster_parts/player.rs"]
mod player;
#[path = "cluster_log/relay.rs"]
mod relay;
#[path = "cluster_log/started_without.rs"]
mod started_without;
