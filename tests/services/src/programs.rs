//! Knows where the servers' programs are: on the PATH, or in the cache that
//! `scripts/services.sh` fills.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Both scripts and this file read the versions there.
const KAFKA_POM: &str = include_str!("../kafka/pom.xml");
const TIDB_MODULE: &str = include_str!("../tidb/go.mod");

/// Debian keeps some servers where a plain user's PATH does not look.
const SYSTEM_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// What is missing, for people.
pub type Missing = String;

pub fn on_path(name: &str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
        .ok_or_else(|| format!("no {name} on the PATH"))
}

/// The directory of Kafka's jars.
pub fn kafka_jars() -> Result<PathBuf, Missing> {
    let version = between(KAFKA_POM, "<artifactId>kafka_2.13</artifactId>", "</version>")
        .and_then(|found| found.split_once("<version>"))
        .map(|(_, version)| version)
        .expect("the pom names Kafka's version");
    existing(cache().join(format!("kafka-{version}")))
}

pub fn tidb_server() -> Result<PathBuf, Missing> {
    let version = between(TIDB_MODULE, "require github.com/pingcap/tidb v", "\n")
        .expect("go.mod names TiDB's version");
    existing(cache().join(format!("tidb-{version}")).join("tidb-server"))
}

/// A server, or `None` after a loud word that the test is skipped; where every server is
/// required, a missing one is a failure.
pub fn or_skip<T>(
    test: &str,
    server: &str,
    missing: Option<Missing>,
    get: impl FnOnce() -> T,
) -> Option<T> {
    let Some(missing) = missing else {
        return Some(get());
    };
    let required = std::env::var("GUANXI_REQUIRE_SERVICES").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "{test} needs {server}: {missing}; scripts/services.sh gets it \
         (GUANXI_REQUIRE_SERVICES=1 forbids to skip)"
    );
    // Not by eprintln, which the tests' runner keeps to itself when a test passes.
    let _ = writeln!(
        io::stderr(),
        "SKIPPED: {test} needs {server}: {missing}; scripts/services.sh gets it"
    );
    None
}

pub fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    rest.split_once(end).map(|(found, _)| found)
}

pub fn existing(path: PathBuf) -> Result<PathBuf, Missing> {
    if path.exists() { Ok(path) } else { Err(format!("no {}", path.display())) }
}

/// The same directory as in `scripts/places.sh`.
pub fn cache() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = from("GUANXI_CACHE") {
        return PathBuf::from(cache);
    }
    let caches = from("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
        Path::new(&from("HOME").expect("HOME, XDG_CACHE_HOME or GUANXI_CACHE is set"))
            .join(".cache")
    });
    caches.join("guanxi")
}
