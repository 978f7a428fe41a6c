//! The cluster: the same state machine over a SQL database (the truth) and Kafka (the log).
//!
//! A write is one transaction on the source's side, under the heads of its sources (`commit`); it
//! leaves records in the outbox, which the `relay` moves into the log and the `applier` brings to
//! the target's side. Every instance is stateless; what only one may do at a time is leased.

pub(crate) mod acknowledged;
pub mod applier;
pub mod audit;
pub mod barrier;
pub mod cache;
pub mod canal_json;
pub mod catalog;
pub mod clock;
pub mod commit;
pub mod counters;
pub mod dead_letters;
pub mod feed;
pub mod hot;
pub(crate) mod idempotency;
pub mod instance;
pub mod kafka;
pub mod leases;
pub mod memory;
pub mod move_phase;
pub mod outbox;
pub mod read_budget;
pub mod relay;
pub mod rows;
pub mod schema;
pub mod secret;
pub mod snapshot;
pub mod sql;
pub mod token_edges;
pub mod upkeep;
pub mod value;
