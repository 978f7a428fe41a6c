//! The tests of the model: a reference that keeps every row in plain maps (`reference`), a world
//! that decides changes against it on a virtual clock (`world`), and scripts of changes with the
//! answers that they must get (`script`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod reference;
mod script;
mod world;

mod codec;
mod counters;
mod edges;
mod erase;
mod exclusion;
mod filter;
mod filter_histories;
mod filter_world;
mod footprint;
mod golden;
mod groups;
mod histories;
mod idempotency;
mod import;
mod kinds;
mod names;
mod orders;
mod repair;
mod requests;
mod strategies;
