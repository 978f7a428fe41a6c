//! One process or many: what belongs to which mode, and words that both share.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toml::{Table, Value};

use super::{Config, ConfigError};

/// One process with a data directory, or many over a database and a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Embedded,
    Cluster,
}

/// Where the records of the log come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogSource {
    /// Our relay moves the outbox into the topic.
    Outbox,
    /// TiCDC writes the changes of the table `outgoing`.
    Ticdc,
}

/// Whether connections to the database, or to the brokers, are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsUse {
    Off,
    Required,
}

/// How an instance logs in to the brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogSasl {
    #[serde(rename = "off")]
    Off,
    #[serde(rename = "plain")]
    Plain,
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// A password: it is never shown.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct LogPassword(String);

impl LogPassword {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for LogPassword {
    fn from(text: String) -> LogPassword {
        LogPassword(text)
    }
}

impl<'de> Deserialize<'de> for LogPassword {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LogPassword, D::Error> {
        // What it says of a number, say, would show it.
        let read = String::deserialize(deserializer).map(LogPassword);
        read.map_err(|_| D::Error::custom("a password is a text in quotes"))
    }
}

impl std::fmt::Debug for LogPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.as_str().is_empty() { "\"\"" } else { "***" })
    }
}

/// An address that may hold a password: it is never shown whole.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Address(String);

impl Address {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Address {
    fn from(text: String) -> Address {
        Address(text)
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", without_passwords(&self.0))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&without_passwords(&self.0))
    }
}

/// A text in which nothing stands between the first `://user:` and the last `@` any more, nor behind
/// the first `?` of what is left, as a password may be one of the parameters. It may hold anything,
/// quotes, blanks and further `@` too, so no sign could end it sooner; what stands between two
/// addresses, or behind one with parameters, goes with them.
pub fn without_passwords(text: &str) -> String {
    let Some((before, after)) = text.split_once("://") else {
        return text.to_owned();
    };
    let hidden = after.rsplit_once('@').and_then(|(user, host)| {
        let (user, _) = user.split_once(':')?;
        Some(format!("{user}:***@{host}"))
    });
    let after = hidden.as_deref().unwrap_or(after);
    match after.split_once('?') {
        Some((after, _)) => format!("{before}://{after}?***"),
        None => format!("{before}://{after}"),
    }
}

/// Refuses an address whose user or password has what ends them for whoever parses it: half of the
/// password would be taken for a host, and shown.
pub fn refuse_half_password(address: &str) -> Result<(), &'static str> {
    let (_, rest) = address.split_once("://").unwrap_or(("", address));
    match rest.rsplit_once('@') {
        Some((user, _)) if user.contains(['/', '?', '#']) => Err(
            "before its last @ stands a /, ? or #: percent-encode the password (%2F, %3F, %23), and \
             an @ in a parameter (%40)",
        ),
        _ => Ok(()),
    }
}

pub const ALL_ROLES: &str = "api,relay,applier,upkeep";

/// Settings that only the embedded service has, by the beginning of their paths.
const EMBEDDED_ONLY: [&str; 10] = [
    "data_dir",
    "clock_may_be_behind",
    "log.segment_bytes",
    "log.retention_ms",
    "log.retention_bytes",
    "store.cache_bytes",
    "store.memtable_bytes",
    "store.rows_bytes_max",
    "store.filter_bytes_max",
    "standby.",
];

/// Settings that only the cluster has.
const CLUSTER_ONLY: [&str; 22] = [
    "roles",
    "store.url",
    "store.tls",
    "store.tls_ca",
    "store.connections_max",
    "store.reads_max",
    "store.lists_max",
    "store.reads_waiting_max",
    "store.reads_wait_ms",
    "store.reads_timeout_ms",
    "log.source",
    "log.brokers",
    "log.topic",
    "log.dead_letter_topic",
    "log.ticdc_topic",
    "log.partitions",
    "log.tls",
    "log.tls_ca",
    "log.sasl",
    "log.sasl_user",
    "log.sasl_password",
    "cache.",
];

impl Config {
    /// Refuses settings of the other mode, which would do nothing, and what the mode lacks.
    pub(super) fn check_mode(&self) -> Result<(), ConfigError> {
        let (others, mode, other) = match self.mode {
            Mode::Embedded => (&CLUSTER_ONLY[..], "embedded", "cluster"),
            Mode::Cluster => (&EMBEDDED_ONLY[..], "cluster", "embedded"),
        };
        if let Some(path) = self.changed()?.into_iter().find(|path| {
            others.iter().any(|known| match known.strip_suffix('.') {
                Some(_) => path.starts_with(known),
                None => path == known,
            })
        }) {
            let message = format!(
                "this setting is for mode = \"{other}\", and the mode is \"{mode}\"; take it out, \
                 or change the mode"
            );
            return Err(wrong(&path, message));
        }
        match self.mode {
            Mode::Embedded => Ok(()),
            #[cfg(feature = "cluster")]
            Mode::Cluster => self.check_cluster(),
            #[cfg(not(feature = "cluster"))]
            Mode::Cluster => Err(wrong("mode", crate::LACKS_CLUSTER.to_owned())),
        }
    }

    /// The paths of all settings that differ from their defaults.
    fn changed(&self) -> Result<Vec<String>, ConfigError> {
        let table = |config: &Config| {
            Table::try_from(config).map_err(|error| wrong("the settings", error.to_string()))
        };
        let (mine, defaults) = (table(self)?, table(&Config::default())?);
        let mut changed = Vec::new();
        compare(&mine, &defaults, "", &mut changed);
        Ok(changed)
    }
}

fn compare(mine: &Table, defaults: &Table, prefix: &str, changed: &mut Vec<String>) {
    for (name, value) in mine {
        let path = format!("{prefix}{name}");
        match (value, defaults.get(name)) {
            (Value::Table(mine), Some(Value::Table(defaults))) => {
                compare(mine, defaults, &format!("{path}."), changed);
            }
            (value, default) if Some(value) != default => changed.push(path),
            _ => {}
        }
    }
}

pub(super) fn wrong(origin: &str, message: String) -> ConfigError {
    ConfigError::Wrong { origin: origin.to_owned(), message: without_passwords(&message) }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const CLUSTER: &str = "mode = \"cluster\"\n[store]\nurl = \"mysql://u:secret@h:1/d\"\n\
                           [log]\nbrokers = \"h:2\"\n";

    #[test]
    fn a_password_is_never_shown() {
        for (text, shown) in [
            ("mysql://root@h:1/d", "mysql://root@h:1/d"),
            ("mysql://u:se:cr@et@h:1/d", "mysql://u:***@h:1/d"),
            ("url = \"mysql://u:secret@h/d\" and more", "url = \"mysql://u:***@h/d\" and more"),
            ("a://b:c@d e://f:g@h", "a://b:***@h"),
            ("'mysql://u:se\"cr'e\nt `x@h/d' is wrong", "'mysql://u:***@h/d' is wrong"),
            ("mysql://u:se/cr?et#@h/d", "mysql://u:***@h/d"),
            ("mysql://db/app?user=u&password=secret", "mysql://db/app?***"),
            ("mysql://db/app?user=u&password=se@cret", "mysql://db/app?***"),
            ("mysql://u:secret@h/d?password=cret' is wrong", "mysql://u:***@h/d?***"),
            ("is 'x' right? mysql://h/d is", "is 'x' right? mysql://h/d is"),
            ("redis://:secret@h", "redis://:***@h"),
            ("http://h:1/x", "http://h:1/x"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
        let config = parse(CLUSTER, "file").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        let unquoted = CLUSTER.replace("\"mysql", "mysql");
        let error = parse(&unquoted, "file").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn settings_of_the_other_mode_are_refused() {
        for (text, part) in [
            ("data_dir = \"x\"", "data_dir"),
            ("[log]\nretention_ms = 1", "log.retention_ms"),
            ("[standby]\nrequired = 1", "standby.required"),
        ] {
            let cluster = match text.strip_prefix("[log]") {
                Some(line) => CLUSTER.replace("[log]", &format!("[log]{line}")),
                None if text.starts_with('[') => format!("{CLUSTER}{text}"),
                None => format!("{text}\n{CLUSTER}"),
            };
            let error = parse(&cluster, "file").unwrap().check().unwrap_err().to_string();
            assert!(error.starts_with(part) && error.contains("embedded"), "{error}");
        }
        for (text, part) in [
            ("roles = \"api\"", "roles"),
            ("[store]\nurl = \"mysql://h/d\"", "store.url"),
            ("[store]\nreads_max = 3", "store.reads_max"),
            ("[store]\ntls = \"required\"", "store.tls"),
            ("[log]\nbrokers = \"h:1\"", "log.brokers"),
            ("[cache]\nredis = \"redis://h:1\"", "cache.redis"),
        ] {
            let error = parse(text, "file").unwrap().check().unwrap_err().to_string();
            assert!(error.starts_with(part) && error.contains("cluster"), "{error}");
        }
    }

    #[cfg(not(feature = "cluster"))]
    #[test]
    fn a_cluster_that_was_not_built_is_refused() {
        let error = parse(CLUSTER, "file").unwrap().check().unwrap_err().to_string();
        assert!(error.starts_with("mode: ") && error.contains("--features cluster"), "{error}");
    }
}
