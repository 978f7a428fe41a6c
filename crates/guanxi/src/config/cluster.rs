//! Settings of the cluster, and which settings belong to which mode.

use std::time::Duration;

use guanxi_cluster::budget::ReadBudgetSettings;
use guanxi_cluster::instance::Roles;
use guanxi_cluster::memory::tier;
use guanxi_cluster::sql::tls::Tls;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{Cache, Config, ConfigError, Store};

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

/// The roles of a list of names.
pub fn roles_named(text: &str) -> Result<Roles, ConfigError> {
    let mut roles = Roles::NONE;
    for name in text.split(',').map(str::trim) {
        let role = match name {
            "api" => &mut roles.api,
            "relay" => &mut roles.relay,
            "applier" => &mut roles.applier,
            "upkeep" => &mut roles.upkeep,
            other => {
                let shown = without_passwords(other);
                let shown: String = shown.chars().take(SHOWN_CHARS_MAX).collect();
                let message = format!("'{shown}' is no role; it may be any of {ALL_ROLES}");
                return Err(wrong("roles", message));
            }
        };
        if std::mem::replace(role, true) {
            return Err(wrong("roles", format!("'{name}' is named twice; name each role once")));
        }
    }
    Ok(roles)
}

/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 40;
const URL_EXAMPLE: &str = "mysql://guanxi:password@10.0.0.1:4000/guanxi";
const REDIS_EXAMPLE: &str = "redis://10.0.0.1:6379";
/// A name of a topic has no more bytes than the column that keeps it.
const TOPIC_BYTES_MAX: usize = 249;
/// The outbox has so many shards; a partition has the same number of them as any other.
const PARTITIONS_MAX: u32 = 64;
/// The commit path, the log's parts and a few reads need this many at least.
const CONNECTIONS_MIN: usize = 8;
/// Of those, what reads must leave to writes and the log's parts.
const CONNECTIONS_BESIDE_READS_MIN: usize = 2;

/// Settings that only the embedded service has, by the beginning of their paths.
const EMBEDDED_ONLY: [&str; 8] = [
    "data_dir",
    "clock_may_be_behind",
    "log.segment_bytes",
    "log.retention_ms",
    "log.retention_bytes",
    "store.cache_bytes",
    "store.memtable_bytes",
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
        roles_named(&self.roles)?;
        match self.mode {
            Mode::Embedded => Ok(()),
            Mode::Cluster => self.check_cluster(),
        }
    }

    fn check_cluster(&self) -> Result<(), ConfigError> {
        let (store, log) = (&self.store, &self.log);
        if let Some(message) = wrong_address(store.url.as_str()) {
            return Err(wrong("store.url", format!("{message}, such as {URL_EXAMPLE}")));
        }
        if store.connections_max < CONNECTIONS_MIN {
            let message =
                format!("it is {} and must be at least {CONNECTIONS_MIN}", store.connections_max);
            return Err(wrong("store.connections_max", message));
        }
        if store.tls == TlsUse::Off && !store.tls_ca.as_os_str().is_empty() {
            let message =
                "it does nothing without store.tls = \"required\"; set that, or take it out";
            return Err(wrong("store.tls_ca", message.to_owned()));
        }
        store.check_reads()?;
        let Cache { redis, filter_redis, tally_redis, list_redis } = &self.cache;
        for (setting, address) in [
            ("cache.redis", redis),
            ("cache.filter_redis", filter_redis),
            ("cache.tally_redis", tally_redis),
            ("cache.list_redis", list_redis),
        ] {
            let address = Some(address.as_str()).filter(|address| !address.is_empty());
            let wrong_with = |address: &str| match refuse_half_password(address) {
                Ok(()) => tier::wrong_address(address),
                Err(message) => Some(message.to_owned()),
            };
            if let Some(message) = address.and_then(wrong_with) {
                return Err(wrong(setting, format!("{message}; such as {REDIS_EXAMPLE}")));
            }
        }
        if log.brokers.is_empty() {
            let message = "a cluster needs its log, such as 10.0.0.1:9092,10.0.0.2:9092";
            return Err(wrong("log.brokers", message.to_owned()));
        }
        log.check_security()?;
        let divides = log.partitions > 0 && PARTITIONS_MAX.is_multiple_of(log.partitions);
        if !divides {
            let message = format!(
                "it is {} and must divide {PARTITIONS_MAX}: 1, 2, 4, 8, 16, 32 or 64",
                log.partitions
            );
            return Err(wrong("log.partitions", message));
        }
        let ticdc =
            (log.source == LogSource::Ticdc).then_some(("log.ticdc_topic", &log.ticdc_topic));
        let topics = [("log.topic", &log.topic), ("log.dead_letter_topic", &log.dead_letter_topic)];
        if ticdc.is_some() && log.ticdc_topic.is_empty() {
            let message = "log.source = \"ticdc\" needs the topic that the changefeed writes, \
                           such as guanxi.outgoing";
            return Err(wrong("log.ticdc_topic", message.to_owned()));
        }
        for (setting, topic) in topics.into_iter().chain(ticdc) {
            let named = topic.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            if topic.is_empty() || topic.len() > TOPIC_BYTES_MAX || !named {
                let message = format!(
                    "'{topic}' is no name of a topic: 1 to {TOPIC_BYTES_MAX} letters, digits, \
                     '.', '_' and '-'"
                );
                return Err(wrong(setting, message));
            }
        }
        if ticdc.is_some() && topics.iter().any(|(_, topic)| **topic == log.ticdc_topic) {
            let message = "a changefeed writes a topic of its own, which no other setting names";
            return Err(wrong("log.ticdc_topic", message.to_owned()));
        }
        Ok(())
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

impl Store {
    pub fn tls(&self) -> Tls {
        let ca = Some(&self.tls_ca).filter(|path| !path.as_os_str().is_empty()).cloned();
        match self.tls {
            TlsUse::Off => Tls::Off,
            TlsUse::Required => Tls::Required { ca },
        }
    }

    /// What reads may ask of the database at a moment; a number of 0 follows from the connections.
    pub fn reads(&self) -> ReadBudgetSettings {
        let derived = ReadBudgetSettings::of_connections(self.connections_max);
        let or = |given: usize, derived: usize| if given == 0 { derived } else { given };
        ReadBudgetSettings {
            reads_max: or(self.reads_max, derived.reads_max),
            lists_max: or(self.lists_max, derived.lists_max),
            waiting_max: self.reads_waiting_max,
            wait: Duration::from_millis(self.reads_wait_ms),
            answer: Duration::from_millis(self.reads_timeout_ms),
        }
    }

    fn check_reads(&self) -> Result<(), ConfigError> {
        let ReadBudgetSettings { reads_max, lists_max, .. } = self.reads();
        let most = self.connections_max - CONNECTIONS_BESIDE_READS_MIN;
        if reads_max.saturating_add(lists_max) > most {
            let message = format!(
                "it is {reads_max}, and with store.lists_max ({lists_max}) at most {most} of \
                 store.connections_max ({}) may be for reads; lower these, or raise that",
                self.connections_max
            );
            return Err(wrong("store.reads_max", message));
        }
        if self.reads_timeout_ms == 0 {
            let message = "it is 0 and must be at least 1".to_owned();
            return Err(wrong("store.reads_timeout_ms", message));
        }
        Ok(())
    }
}

/// What is wrong with a database's address; never repeats it, as it may hold a password.
fn wrong_address(url: &str) -> Option<String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some("a cluster needs its database's address".to_owned());
    };
    if scheme != "mysql" {
        let shown: String = scheme.chars().take(SHOWN_CHARS_MAX).collect();
        return Some(format!(
            "a cluster runs on TiDB, MariaDB or MySQL, not on '{shown}'; it needs an address that \
             begins with mysql://"
        ));
    }
    if let Err(message) = refuse_half_password(url) {
        return Some(message.to_owned());
    }
    let (_, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    let database = place.split_once('/').map_or("", |(_, name)| name);
    match database.split('?').next() {
        None | Some("") => Some("it names no database after the host".to_owned()),
        Some(_) => None,
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
    use super::super::{load, parse};
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
    fn a_cluster_has_what_it_needs() {
        let check = |text: &str| parse(text, "file").unwrap().check();
        check(CLUSTER).unwrap();
        for (from, to, part) in [
            ("mysql://", "postgres://", "store.url: a cluster runs on TiDB, MariaDB or MySQL"),
            ("mysql://u:secret@h:1/d", "", "store.url: a cluster needs its database"),
            ("@h:1/d", "@h:1", "store.url: it names no database"),
            ("u:secret@", "u:12/sec@ret@", "store.url: before its last @ stands"),
            ("u:secret@", "u:12?sec@", "store.url: before its last @ stands"),
            ("u:secret@", "u:12#sec@", "store.url: before its last @ stands"),
            (
                "[log]",
                "[cache]\nredis = \"redis://:12/sec@h\"\n[log]",
                "cache.redis: before its last @",
            ),
            ("@h:1/d", "@h:1/?x=y", "store.url: it names no database"),
            ("brokers = \"h:2\"", "brokers = \"\"", "log.brokers"),
            ("[log]", "[log]\npartitions = 3", "log.partitions: it is 3 and must divide 64"),
            ("[log]", "[log]\ntopic = \"a b\"", "log.topic"),
            ("[log]", "[log]\nsource = \"ticdc\"", "log.ticdc_topic: log.source = \"ticdc\" needs"),
            (
                "[log]",
                "[log]\nsource = \"ticdc\"\ntopic = \"a\"\nticdc_topic = \"a\"",
                "log.ticdc_topic",
            ),
            ("[store]", "[store]\nconnections_max = 1", "store.connections_max"),
            ("[store]", "[store]\ntls_ca = \"ca.pem\"", "store.tls_ca: it does nothing without"),
            ("[store]", "[store]\nreads_max = 23", "store.reads_max: it is 23, and with store"),
            ("[store]", "[store]\nlists_max = 15", "store.reads_max: it is 16, and with store"),
            ("[store]", "[store]\nreads_timeout_ms = 0", "store.reads_timeout_ms: it is 0"),
            ("[log]", "[cache]\nredis = \"http://x\"\n[log]", "cache.redis: it is not the address"),
            ("[log]", "[cache]\nlist_redis = \"x\"\n[log]", "cache.list_redis: it is not"),
        ] {
            let error = check(&CLUSTER.replace(from, to)).unwrap_err().to_string();
            assert!(error.starts_with(part), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn reads_have_their_share_of_the_connections() {
        for (lines, reads_max, lists_max) in [
            ("", 16, 8),
            ("connections_max = 8\n", 4, 2),
            ("connections_max = 24\n", 12, 6),
            ("reads_max = 3\nlists_max = 1\n", 3, 1),
            ("reads_max = 22\n", 22, 8),
        ] {
            let text = CLUSTER.replace("[store]\n", &format!("[store]\n{lines}"));
            let config = parse(&text, "file").unwrap();
            config.check().unwrap();
            let reads = config.store.reads();
            assert_eq!((reads.reads_max, reads.lists_max), (reads_max, lists_max), "{lines}");
        }
    }

    #[test]
    fn the_example_is_a_cluster_s_file() {
        const EXAMPLE: &str = include_str!("../../../../deploy/cluster.toml");
        let config = parse(EXAMPLE, "deploy/cluster.toml").unwrap();
        config.check().unwrap();
        assert_eq!(config.mode, Mode::Cluster);
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

    #[test]
    fn roles_are_those_that_are_named() {
        let roles = roles_named("applier, relay").unwrap();
        assert_eq!(roles.names(), ["relay", "applier"]);
        assert_eq!(roles_named(ALL_ROLES).unwrap().names().join(","), ALL_ROLES);
        for wrong in ["", "api,", "committer", "api,relay,api"] {
            assert!(roles_named(wrong).is_err(), "{wrong}");
        }
        let variables = [("GUANXI_MODE", "cluster"), ("GUANXI_ROLES", "api")];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let error = load(None, variables.into_iter()).unwrap_err().to_string();
        assert!(error.starts_with("store.url"), "{error}");
    }
}
