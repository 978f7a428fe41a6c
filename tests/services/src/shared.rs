//! One server of each sort for all tests of a process, started by the first that asks. Tests
//! share the server, not what it keeps: [`crate::fresh_database`] and [`crate::topic_name`]. A test that stops
//! or pauses its server starts one of its own.
//!
//! These servers die with the process; the next start of any server removes their directories.

use std::sync::OnceLock;

use crate::programs::or_skip;
use crate::{Kafka, MariaDb, Redis, TiDb};

pub fn mariadb() -> &'static MariaDb {
    static SHARED: OnceLock<MariaDb> = OnceLock::new();
    SHARED.get_or_init(MariaDb::start)
}

pub fn tidb() -> &'static TiDb {
    static SHARED: OnceLock<TiDb> = OnceLock::new();
    SHARED.get_or_init(TiDb::start)
}

pub fn kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(Kafka::start)
}

pub fn redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(Redis::start)
}

pub fn mariadb_or_skip(test: &str) -> Option<&'static MariaDb> {
    or_skip(test, "MariaDB", MariaDb::missing(), mariadb)
}

pub fn tidb_or_skip(test: &str) -> Option<&'static TiDb> {
    or_skip(test, "TiDB", TiDb::missing(), tidb)
}

pub fn kafka_or_skip(test: &str) -> Option<&'static Kafka> {
    or_skip(test, "Kafka", Kafka::missing(), kafka)
}

pub fn redis_or_skip(test: &str) -> Option<&'static Redis> {
    or_skip(test, "Redis", Redis::missing(), redis)
}
