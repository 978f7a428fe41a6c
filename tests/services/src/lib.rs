//! Starts real servers for tests: MariaDB, TiDB, Kafka and Redis, each in a directory of its own
//! on free ports of 127.0.0.1; a browser; and clients of Redis. `scripts/services.sh` gets the programs; this crate finds, starts,
//! stops, kills and pauses them. It knows nothing of Guanxi.
//!
//! A test that needs a server asks with `start_or_skip` or one of [`shared`]'s `_or_skip`: where
//! the programs are missing it is skipped loudly, or fails with `GUANXI_REQUIRE_SERVICES=1`.

mod chromium;
mod kafka;
pub mod lent;
mod mariadb;
mod place;
mod process;
mod programs;
mod redis;
mod resp_clients;
pub mod shared;
mod sql;
mod tidb;

pub use chromium::{Chromium, OpenPage};
pub use kafka::{Kafka, topic_name};
pub use mariadb::MariaDb;
pub use place::Port;
pub use process::Process;
pub use redis::Redis;
pub use resp_clients::RespClients;
pub use sql::{Row, SqlServer, fresh_database};
pub use tidb::TiDb;
