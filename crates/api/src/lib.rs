//! The wire contract: the JSON types and gRPC messages of every call, how ids and times are
//! written, and the tables from error codes to HTTP and gRPC. It knows no transport and does no work; `model` gives the meaning.

mod schema;

pub mod audit;
pub mod check;
pub mod counters;
pub mod dead_letters;
pub mod edges;
pub mod error;
pub mod field;
pub mod filters;
pub mod groups;
pub mod health;
pub mod hot;
pub mod hydrate;
pub mod id;
pub mod import;
pub mod jobs;
pub mod kinds;
pub mod line;
pub mod lists;
pub mod moving;
pub mod name;
pub mod nodes;
pub mod number;
pub mod object;
pub mod proto;
pub mod standby;
pub mod state;
pub mod tallies;
pub mod time;
pub mod watch;

pub use error::{Problem, grpc_status_of, status_of};
pub use id::Id;
pub use name::Name;
pub use object::Object;
pub use state::WireState;
pub use time::Time;
