//! Settings: `guanxi.toml`, environment variables that mirror its paths, and flags, the later
//! over the earlier. Every setting of the embedded service has a default, so that none of it is
//! needed; `cluster` has those of the cluster.

#[cfg(feature = "cluster")]
mod cluster;
mod environment;
mod mode;
mod resp_address;
mod wrong;

#[cfg(feature = "cluster")]
pub use cluster::roles_named;
pub use mode::{
    ALL_ROLES, Address, LogPassword, LogSasl, LogSource, Mode, TlsUse, refuse_half_password,
    without_passwords,
};
pub use wrong::ConfigError;

use guanxi_model::Region;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use guanxi_api::kinds::KindCreation;
use guanxi_core::AuditSettings;
use guanxi_embedded::{
    CommitSettings, LogSettings, ResidentSettings, ShippingSettings, StoreSettings,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use self::wrong::{wrong, wrong_text};

/// hyper reads heads into a buffer of at least this size.
const HEADER_BYTES_MIN: usize = 8 * 1024;
/// The longest answers, thousands of rejected lines, have a few megabytes; each finds room alone.
const ANSWERS_BYTES_MIN: usize = 8 * 1024 * 1024;
/// A write that waits for more disks than these is slower than anyone wants.
const STANDBYS_REQUIRED_MAX: usize = 8;
/// How much of a wrong value an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub mode: Mode,
    pub roles: String,
    pub data_dir: PathBuf,
    pub region: u8,
    pub clock_may_be_behind: bool,
    pub clock_may_have_jumped: bool,
    pub http: HttpSection,
    pub resp: RespSection,
    pub commit: CommitSection,
    pub log: LogSection,
    pub store: StoreSection,
    pub cache: CacheSection,
    pub standby: StandbySection,
    pub audit: AuditSection,
    pub telemetry: TelemetrySection,
    pub kinds: Vec<KindCreation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSection {
    pub listen: SocketAddr,
    pub allow_unauthenticated: bool,
    pub names: Vec<String>,
    pub workers: usize,
    pub connections_max: usize,
    pub requests_in_flight_max: usize,
    pub blocking_reads_max: usize,
    pub streams_per_connection_max: u32,
    pub streams_max: usize,
    pub header_bytes_max: usize,
    pub body_bytes_max: usize,
    pub bodies_bytes_max: usize,
    pub answers_bytes_max: usize,
    pub header_timeout_ms: u64,
    pub body_timeout_ms: u64,
    pub request_timeout_ms: u64,
    pub write_timeout_ms: u64,
    pub stream_stall_timeout_ms: u64,
    pub stream_bytes_per_second_min: u64,
    pub watch_heartbeat_ms: u64,
    pub idle_timeout_ms: u64,
    pub drain_timeout_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RespSection {
    #[serde(with = "resp_address")]
    pub listen: Option<SocketAddr>,
    pub idle_timeout_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommitSection {
    pub queue_max: usize,
    pub batch_changes_max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    pub segment_bytes: u64,
    pub retention_ms: u64,
    pub retention_bytes: u64,
    pub source: LogSource,
    pub brokers: String,
    pub topic: String,
    pub dead_letter_topic: String,
    pub ticdc_topic: String,
    pub partitions: u32,
    pub tls: TlsUse,
    pub tls_ca: String,
    pub sasl: LogSasl,
    pub sasl_user: String,
    pub sasl_password: LogPassword,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSection {
    pub cache_bytes: u64,
    pub memtable_bytes: u64,
    pub rows_bytes_max: u64,
    pub filter_bytes_max: u64,
    pub url: Address,
    pub tls: TlsUse,
    pub tls_ca: PathBuf,
    pub connections_max: usize,
    pub reads_max: usize,
    pub lists_max: usize,
    pub reads_waiting_max: usize,
    pub reads_wait_ms: u64,
    pub reads_timeout_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheSection {
    pub redis: Address,
    pub filter_redis: Address,
    pub tally_redis: Address,
    pub list_redis: Address,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StandbySection {
    pub follow: String,
    pub required: usize,
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSection {
    pub scrub_rows_per_second: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetrySection {
    pub level: Level,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mode: Mode::Embedded,
            roles: ALL_ROLES.to_owned(),
            data_dir: PathBuf::from("guanxi-data"),
            region: 0,
            clock_may_be_behind: false,
            clock_may_have_jumped: false,
            http: HttpSection::default(),
            resp: RespSection::default(),
            commit: CommitSection::default(),
            log: LogSection::default(),
            store: StoreSection::default(),
            cache: CacheSection::default(),
            standby: StandbySection::default(),
            audit: AuditSection::default(),
            telemetry: TelemetrySection::default(),
            kinds: Vec::new(),
        }
    }
}

impl Default for HttpSection {
    fn default() -> HttpSection {
        HttpSection {
            listen: SocketAddr::from(([127, 0, 0, 1], 7420)),
            allow_unauthenticated: false,
            names: Vec::new(),
            workers: 0,
            connections_max: 4_096,
            requests_in_flight_max: 4_096,
            blocking_reads_max: 16,
            streams_per_connection_max: 128,
            streams_max: 1_000,
            header_bytes_max: 32 * 1024,
            body_bytes_max: 1024 * 1024,
            bodies_bytes_max: 64 * 1024 * 1024,
            answers_bytes_max: 128 * 1024 * 1024,
            header_timeout_ms: 10_000,
            body_timeout_ms: 10_000,
            request_timeout_ms: 10_000,
            write_timeout_ms: 20_000,
            stream_stall_timeout_ms: 30_000,
            stream_bytes_per_second_min: 32 * 1024,
            watch_heartbeat_ms: 10_000,
            idle_timeout_ms: 75_000,
            drain_timeout_ms: 10_000,
        }
    }
}

impl Default for RespSection {
    fn default() -> RespSection {
        RespSection { listen: None, idle_timeout_ms: 600_000 }
    }
}

impl Default for CommitSection {
    fn default() -> CommitSection {
        let CommitSettings { queue_max, batch_changes_max, .. } = CommitSettings::default();
        CommitSection { queue_max, batch_changes_max }
    }
}

impl Default for LogSection {
    fn default() -> LogSection {
        let LogSettings { segment_bytes, retention_ms, retention_bytes, .. } =
            LogSettings::default();
        LogSection {
            segment_bytes,
            retention_ms,
            retention_bytes,
            source: LogSource::Outbox,
            brokers: String::new(),
            topic: "guanxi.records".to_owned(),
            dead_letter_topic: "guanxi.dead-letters".to_owned(),
            ticdc_topic: String::new(),
            partitions: 16,
            tls: TlsUse::Off,
            tls_ca: String::new(),
            sasl: LogSasl::Off,
            sasl_user: String::new(),
            sasl_password: LogPassword::default(),
        }
    }
}

impl Default for StoreSection {
    fn default() -> StoreSection {
        let StoreSettings { cache_bytes, memtable_bytes, .. } = StoreSettings::default();
        let ResidentSettings { rows_bytes_max, filter_bytes_max, .. } = ResidentSettings::default();
        StoreSection {
            cache_bytes,
            memtable_bytes,
            rows_bytes_max,
            filter_bytes_max,
            url: Address::default(),
            tls: TlsUse::Off,
            tls_ca: PathBuf::new(),
            connections_max: 32,
            reads_max: 0,
            lists_max: 0,
            reads_waiting_max: 1_024,
            reads_wait_ms: 1_000,
            reads_timeout_ms: 3_000,
        }
    }
}

impl Default for StandbySection {
    fn default() -> StandbySection {
        let ShippingSettings { required, timeout, .. } = ShippingSettings::default();
        StandbySection { follow: String::new(), required, timeout_ms: timeout.as_millis() as u64 }
    }
}

impl Default for AuditSection {
    fn default() -> AuditSection {
        let AuditSettings { scrub_rows_per_second } = AuditSettings::default();
        AuditSection { scrub_rows_per_second }
    }
}

impl Default for TelemetrySection {
    fn default() -> TelemetrySection {
        TelemetrySection { level: Level::Info, format: LogFormat::Text }
    }
}

/// The settings, and what the environment says that no setting understands.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    pub unknown_variables: Vec<String>,
}

/// File over defaults, environment over file.
pub fn load(
    file: Option<&Path>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Loaded, ConfigError> {
    let mut table = Table::new();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        // Parsed whole first, so that an error shows its line.
        let origin = path.display().to_string();
        parse(&text, &origin)?;
        table = text.parse().map_err(|error| wrong_text(&origin, &text, &error))?;
    }
    let unknown_variables = environment::lay_over(&mut table, environment)?;
    let config: Config = table.try_into().map_err(|error| wrong("the settings", &error))?;
    config.check()?;
    Ok(Loaded { config, unknown_variables })
}

/// A file's text alone, over the defaults.
pub fn parse(text: &str, origin: &str) -> Result<Config, ConfigError> {
    toml::from_str(text).map_err(|error| wrong_text(origin, text, &error))
}

impl Config {
    /// Refuses what cannot work, before anything is opened.
    pub fn check(&self) -> Result<(), ConfigError> {
        let HttpSection {
            connections_max,
            requests_in_flight_max,
            blocking_reads_max,
            streams_max,
            header_bytes_max,
            body_bytes_max,
            bodies_bytes_max,
            answers_bytes_max,
            header_timeout_ms,
            body_timeout_ms,
            request_timeout_ms,
            write_timeout_ms,
            stream_stall_timeout_ms,
            stream_bytes_per_second_min,
            watch_heartbeat_ms,
            idle_timeout_ms,
            ..
        } = self.http;
        let at_least = [
            ("http.connections_max", connections_max, 1),
            ("http.requests_in_flight_max", requests_in_flight_max, 1),
            ("http.blocking_reads_max", blocking_reads_max, 1),
            ("http.streams_max", streams_max, 1),
            ("http.header_bytes_max", header_bytes_max, HEADER_BYTES_MIN),
            ("http.body_bytes_max", body_bytes_max, 1),
            // The longest body there may be finds room when it is alone.
            ("http.bodies_bytes_max", bodies_bytes_max, body_bytes_max),
            ("http.answers_bytes_max", answers_bytes_max, ANSWERS_BYTES_MIN),
            ("http.header_timeout_ms", header_timeout_ms as usize, 1),
            ("http.body_timeout_ms", body_timeout_ms as usize, 1),
            ("http.request_timeout_ms", request_timeout_ms as usize, 1),
            ("http.write_timeout_ms", write_timeout_ms as usize, 1),
            ("http.stream_stall_timeout_ms", stream_stall_timeout_ms as usize, 1),
            ("http.stream_bytes_per_second_min", stream_bytes_per_second_min as usize, 1),
            ("http.watch_heartbeat_ms", watch_heartbeat_ms as usize, 1),
            ("http.idle_timeout_ms", idle_timeout_ms as usize, 1),
            ("resp.idle_timeout_ms", self.resp.idle_timeout_ms as usize, 1),
            ("commit.queue_max", self.commit.queue_max, 1),
            ("commit.batch_changes_max", self.commit.batch_changes_max, 1),
        ];
        match at_least.into_iter().find(|(_, value, min)| value < min) {
            None => {
                self.region()?;
                self.check_names()?;
                self.check_standby()?;
                self.check_mode()
            }
            Some((setting, value, min)) => Err(ConfigError::Wrong {
                origin: setting.to_owned(),
                message: format!("it is {value} and must be at least {min}"),
            }),
        }
    }

    pub fn region(&self) -> Result<Region, ConfigError> {
        Region::new(self.region).ok_or_else(|| ConfigError::Wrong {
            origin: "region".to_owned(),
            message: format!("it is {} and must be at most {}", self.region, Region::MAX.number()),
        })
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        let is_name = |name: &str| {
            name == "*"
                || name.parse::<IpAddr>().is_ok()
                || name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        match self.http.names.iter().find(|name| name.is_empty() || !is_name(name)) {
            None => Ok(()),
            Some(name) => {
                let shown: String = without_passwords(name).chars().take(SHOWN_CHARS_MAX).collect();
                let message = format!(
                    "'{shown}' is no name; give names without scheme and port, such as \
                     guanxi.example, or \"*\" for any"
                );
                Err(ConfigError::Wrong { origin: "http.names".to_owned(), message })
            }
        }
    }

    fn check_standby(&self) -> Result<(), ConfigError> {
        let StandbySection { follow, required, timeout_ms } = &self.standby;
        let wrong = |setting: &str, message: String| {
            Err(ConfigError::Wrong { origin: setting.to_owned(), message })
        };
        if *required > STANDBYS_REQUIRED_MAX {
            let message = format!("it is {required} and must be at most {STANDBYS_REQUIRED_MAX}");
            return wrong("standby.required", message);
        }
        if *timeout_ms == 0 {
            return wrong("standby.timeout_ms", "it is 0 and must be at least 1".to_owned());
        }
        if !follow.is_empty() && !is_address(follow) {
            let message =
                "it is not the address of a service, such as http://10.0.0.1:7420".to_owned();
            return wrong("standby.follow", message);
        }
        Ok(())
    }
}

/// `http://host:port` and nothing behind it.
fn is_address(text: &str) -> bool {
    let host = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@".contains(&b))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::environment::{Setting, gather, known_settings};
    use super::*;

    const FILE: &str = include_str!("../../../guanxi.toml");

    fn from_environment(pairs: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
        load(None, pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn the_file_parses_to_the_defaults_and_has_every_setting() {
        assert_eq!(parse(FILE, "guanxi.toml").unwrap(), Config::default());
        let written: Table = FILE.parse().unwrap();
        let mut known = Vec::new();
        gather(&written, &mut Vec::new(), &mut known);
        let variables = |settings: &[Setting]| -> std::collections::BTreeSet<String> {
            settings.iter().map(|s| s.variable.clone()).collect()
        };
        assert_eq!(variables(&known), variables(&known_settings().unwrap()));
    }

    #[test]
    fn every_setting_has_a_sentence() {
        let lines: Vec<&str> = FILE.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if line.contains(" = ") && !line.starts_with('#') {
                assert!(lines[at - 1].starts_with("# "), "{line}");
                assert!(lines[at - 1].ends_with('.'), "{line}");
            }
        }
    }

    #[test]
    fn the_environment_mirrors_the_paths() {
        let loaded = from_environment(&[
            ("GUANXI_DATA_DIR", "/somewhere"),
            ("GUANXI_HTTP_LISTEN", "127.0.0.1:0"),
            ("GUANXI_HTTP_BODY_BYTES_MAX", "2048"),
            ("GUANXI_CLOCK_MAY_BE_BEHIND", "true"),
            ("GUANXI_TELEMETRY_FORMAT", "json"),
            ("GUANXI_SERVER", "http://elsewhere"),
            ("GUANXI_HTTP_LISTENS", "typo"),
            ("PATH", "/bin"),
        ])
        .unwrap();
        assert_eq!(loaded.config.data_dir, PathBuf::from("/somewhere"));
        assert_eq!(loaded.config.http.listen.port(), 0);
        assert_eq!(loaded.config.http.body_bytes_max, 2048);
        assert!(loaded.config.clock_may_be_behind);
        assert_eq!(loaded.config.telemetry.format, LogFormat::Json);
        assert_eq!(loaded.unknown_variables, ["GUANXI_HTTP_LISTENS"]);
    }

    #[test]
    fn what_is_no_text_is_refused_by_name_and_not_shown() {
        let broken = OsString::from_vec(b"hush\xff".to_vec());
        let load = |name: &[u8]| {
            load(None, [(OsString::from_vec(name.to_vec()), broken.clone())].into_iter())
        };
        for name in ["GUANXI_LOG_SASL_PASSWORD", "GUANXI_NOTHING"] {
            let error = load(name.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: ")), "{error}");
            assert!(!error.contains("hush"), "{error}");
        }
        let error = load(b"GUANXI_\xff").unwrap_err().to_string();
        assert!(error.starts_with("GUANXI_") && !error.contains("hush"), "{error}");
        // What is not ours, or for the commands that read it themselves.
        for name in [&b"PATH"[..], b"\xff", b"GUANXI_KEY", b"GUANXI_FROM_PASSWORD"] {
            assert!(load(name).unwrap().unknown_variables.is_empty());
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (pairs, part) in [
            (("GUANXI_HTTP_WORKERS", "many"), "GUANXI_HTTP_WORKERS"),
            (("GUANXI_HTTP_LISTEN", "nowhere"), "listen"),
            (("GUANXI_HTTP_HEADER_BYTES_MAX", "10"), "at least 8192"),
            (("GUANXI_TELEMETRY_LEVEL", "loud"), "loud"),
            (("GUANXI_STANDBY_REQUIRED", "9"), "at most 8"),
            (("GUANXI_STANDBY_TIMEOUT_MS", "0"), "at least 1"),
            (("GUANXI_STANDBY_FOLLOW", "10.0.0.1:7420"), "http://10.0.0.1:7420"),
            (("GUANXI_STANDBY_FOLLOW", "http://"), "standby.follow"),
            (("GUANXI_STANDBY_FOLLOW", "http://a/b"), "standby.follow"),
        ] {
            let error = from_environment(&[pairs]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        for (text, part) in [
            ("listen = 1", "listen"),
            ("[http]\nlistens = \"x\"", "listens"),
            ("[http]\nworkers = \"x\"", "workers"),
        ] {
            let error = parse(text, "guanxi.toml").unwrap_err().to_string();
            assert!(error.starts_with("guanxi.toml: "), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn kinds_are_read_as_the_admin_call_reads_them() {
        let text = "[[kinds]]\nname = \"subscribe\"\nsource_type = \"user\"\n\
                    target_type = \"channel\"\noutgoing_max = 500\n";
        let config = parse(text, "guanxi.toml").unwrap();
        let spec = config.kinds[0].clone().into_spec().unwrap();
        assert_eq!(spec.outgoing_max, Some(500));
        assert!(spec.incoming_list);
    }
}
