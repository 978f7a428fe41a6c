//! The cluster: the same state machine over a SQL database (the truth) and Kafka (the log).
//!
//! A write is one transaction on the source's side, under the heads of its sources (`commit`); it
//! leaves records in the outbox, which the `relay` moves into the log and the `applier` brings to
//! the target's side. Every instance is stateless; what only one may do at a time is leased.

pub mod barrier;
pub mod catalog;
pub mod commit;
mod ending;
pub mod feed;
pub mod kafka;
pub mod leases;
pub mod places;
pub mod relay;
pub mod rows;
pub mod schema;
pub mod sql;
pub mod value;
