//! The applier on real servers: whatever order, repetition, cut connection or poison the records
//! meet, the target's side ends up as what `outgoing` contributes.

// A test may fail by it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_applier/changefeed.rs"]
mod changefeed;
#[path = "cluster_applier/cuts.rs"]
mod cuts;
#[path = "cluster_applier/foreseen.rs"]
mod foreseen;
#[path = "cluster_applier/history.rs"]
mod history;
#[path = "cluster_applier/letters.rs"]
mod letters;
#[path = "cluster_applier/lineage.rs"]
mod lineage;
#[path = "cluster_parts/lost_end.rs"]
mod lost_end;
#[path = "cluster_parts/made_anew.rs"]
mod made_anew;
#[path = "cluster_applier/measure.rs"]
mod measure;
#[path = "cluster_applier/orders.rs"]
mod orders;
#[path = "cluster_applier/proxy.rs"]
mod proxy;
#[path = "cluster_applier/rebuilds.rs"]
mod rebuilds;
#[path = "cluster_applier/storm.rs"]
mod storm;
#[path = "cluster_applier/topic.rs"]
mod topic;
#[path = "cluster_applier/trimmed.rs"]
mod trimmed;
#[path = "cluster_applier/world.rs"]
mod world;
