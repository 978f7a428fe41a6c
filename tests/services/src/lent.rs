//! Servers that one program starts once for many: it lends them to the programs that it runs, by
//! ports in their environment. Whoever was lent none starts its own.

use std::ffi::OsStr;
use std::process::{Command, ExitStatus};

use crate::{Kafka, MariaDb, SqlServer, fresh_database, shared};

const MARIADB_PORT: &str = "GUANXI_TEST_MARIADB_PORT";
const KAFKA_PORT: &str = "GUANXI_TEST_KAFKA_PORT";

/// A MariaDB that another process runs.
struct Lent(u16);

impl SqlServer for Lent {
    fn port(&self) -> u16 {
        self.0
    }
}

/// The URL of an empty database, on the lent MariaDB or on this process's own.
pub fn mariadb_database() -> String {
    match port(MARIADB_PORT) {
        Some(port) => fresh_database(&Lent(port)),
        None => fresh_database(shared::mariadb()),
    }
}

/// For `bootstrap.servers`: the lent Kafka or this process's own.
pub fn kafka_brokers() -> String {
    match port(KAFKA_PORT) {
        Some(port) => format!("127.0.0.1:{port}"),
        None => shared::kafka().brokers(),
    }
}

/// Runs a program to its end that may use these servers.
pub fn run(
    mariadb: &MariaDb,
    kafka: &Kafka,
    program: &OsStr,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> std::io::Result<ExitStatus> {
    Command::new(program)
        .args(arguments)
        .env(MARIADB_PORT, mariadb.port().to_string())
        .env(KAFKA_PORT, kafka.port().to_string())
        .status()
}

fn port(variable: &str) -> Option<u16> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a port, not {text}")))
}
