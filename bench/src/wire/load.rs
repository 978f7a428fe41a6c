//! The load that every server is put under.

mod connection;
mod generator;
mod requests;

pub use generator::{Load, Outcome};
pub use requests::{Requests, Supply};
