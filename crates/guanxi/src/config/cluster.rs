//! Settings of the cluster: what they must be, and what its parts are told.

mod log_security;

use std::time::Duration;

use guanxi_cluster::instance::Roles;
use guanxi_cluster::memory::MemorySettings;
use guanxi_cluster::memory::tier;
use guanxi_cluster::read_budget::ReadBudgetSettings;
use guanxi_cluster::sql::tls::Tls;
use tokio::runtime::Handle;

use super::mode::wrong;
use super::{
    ALL_ROLES, Address, CacheSection, Config, ConfigError, LogSource, StoreSection, TlsUse,
    refuse_half_password, without_passwords,
};

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

impl Config {
    pub(super) fn check_cluster(&self) -> Result<(), ConfigError> {
        roles_named(&self.roles)?;
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
        let CacheSection { redis, filter_redis, tally_redis, list_redis } = &self.cache;
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
}

impl StoreSection {
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

impl CacheSection {
    /// Where the memory is, if it is anywhere.
    pub fn memory(&self, runtime: &Handle) -> Option<MemorySettings> {
        let of = |own: &Address| {
            let addresses = [own, &self.redis].map(Address::as_str);
            addresses.into_iter().find(|address| !address.is_empty()).map(str::to_owned)
        };
        let urls = [&self.filter_redis, &self.list_redis, &self.tally_redis].map(of);
        let there = urls.iter().any(Option::is_some);
        let [filter_url, list_url, tally_url] = urls;
        there.then(|| MemorySettings { filter_url, list_url, tally_url, runtime: runtime.clone() })
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

#[cfg(test)]
mod tests {
    use super::super::{load, parse};
    use super::*;

    const CLUSTER: &str = "mode = \"cluster\"\n[store]\nurl = \"mysql://u:secret@h:1/d\"\n\
                           [log]\nbrokers = \"h:2\"\n";

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
        let store = StoreSection::default();
        assert_eq!(store.reads(), ReadBudgetSettings::of_connections(store.connections_max));
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
        assert_eq!(config.mode, crate::config::Mode::Cluster);
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
