//! The cluster's commit path on real databases: the same answers as plain rows give on random
//! histories (`histories`), races of several instances (`races`), connections that are cut at
//! every statement (`cuts`), deletions that read no more than they must (`keys`), rows that are
//! written before they are decided (`foresight`), by instances whose catalog is old (`outdated`),
//! and TiDB with settings of others' (`tidb`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_commit/bench.rs"]
mod bench;
#[path = "cluster_commit/cuts.rs"]
mod cuts;
#[path = "cluster_commit/foresight.rs"]
mod foresight;
#[path = "cluster_commit/histories.rs"]
mod histories;
#[path = "cluster_commit/keys.rs"]
mod keys;
#[path = "cluster_commit/load.rs"]
mod load;
#[path = "cluster_commit/outdated.rs"]
mod outdated;
#[path = "../../cluster/tests/cluster_parts/proxy.rs"]
mod proxy;
#[path = "cluster_commit/races.rs"]
mod races;
#[path = "cluster_commit/rules.rs"]
mod rules;
#[path = "cluster_commit/tables.rs"]
mod tables;
#[path = "cluster_commit/tidb.rs"]
mod tidb;
