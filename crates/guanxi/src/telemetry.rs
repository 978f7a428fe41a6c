//! What operators see: metrics in the Prometheus text form, and structured logs on stderr.

mod cluster;

use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guanxi_embedded::{Meter, Status};
use guanxi_model::Kind;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tracing_subscriber::filter::LevelFilter;

use self::cluster::ClusterGauges;
use crate::config::{Format, Level, Mode, Telemetry};
use crate::deployment::Deployment;

/// Kinds that have their own label values; those created later share one, so that the number of
/// series stays bounded.
const LABELLED_KINDS_MAX: u16 = 64;

/// Logs go to stderr: stdout carries the ready line alone.
pub fn start_logs(settings: &Telemetry) {
    let level = match settings.level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let logs = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level);
    // A second start in one process keeps the first one's logs.
    let _ = match settings.format {
        Format::Json => logs.json().flatten_event(true).try_init(),
        Format::Text => logs.with_ansi(false).try_init(),
    };
}

/// The kind that a request is about, as a label.
#[derive(Debug, Clone)]
pub enum KindLabel {
    /// The call names no single kind.
    None,
    /// A kind that does not exist, or one past the bound.
    Other,
    Kind(Arc<Kind>),
}

impl KindLabel {
    pub fn of(kind: &Arc<Kind>) -> KindLabel {
        match kind.id.0 {
            0..=LABELLED_KINDS_MAX => KindLabel::Kind(kind.clone()),
            _ => KindLabel::Other,
        }
    }

    fn number(&self) -> (u8, u16) {
        match self {
            KindLabel::None => (0, 0),
            KindLabel::Other => (1, 0),
            KindLabel::Kind(kind) => (2, kind.id.0),
        }
    }
}

impl PartialEq for KindLabel {
    fn eq(&self, other: &KindLabel) -> bool {
        self.number() == other.number()
    }
}

impl Eq for KindLabel {}

impl Hash for KindLabel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number().hash(state);
    }
}

impl EncodeLabelValue for KindLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            KindLabel::None => "",
            KindLabel::Other => "other",
            KindLabel::Kind(kind) => kind.name.as_str(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    call: &'static str,
    kind: KindLabel,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
    kind: KindLabel,
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    latency: Family<CallLabels, Histogram>,
    batch_changes: Histogram,
    batch_records: Histogram,
    fsync: Histogram,
    decide: Histogram,
    apply: Histogram,
    pub connections: Gauge,
    pub connections_closed: Counter,
    pub streams: Gauge,
    pub streams_stalled: Counter,
    pub watchers: Gauge,
    pub watchers_dropped: Counter,
    pub watch_records: Counter,
    backups: Counter,
    backup_bytes: Counter,
    backup_finished: Gauge,
    engine: EngineGauges,
    cluster: ClusterGauges,
    resident_bytes: Gauge,
}

/// Read from the engine's status whenever somebody asks.
#[derive(Debug, Default)]
struct EngineGauges {
    durable: Gauge,
    applied: Gauge,
    persisted: Gauge,
    log_first: Gauge,
    queue: Gauge,
    queue_max: Gauge,
    log_bytes: Gauge,
    store_bytes: Gauge,
    refusing_writes: Gauge,
    standby: Gauge,
    standby_lag_positions: Gauge,
    standby_lag: Gauge<f64, AtomicU64>,
    standby_silence: Gauge<f64, AtomicU64>,
    standbys: Gauge,
    audit_drift: Gauge,
    audit_position: Gauge,
    audit_finished: Gauge,
}

impl EngineGauges {
    fn set(&self, status: &Status) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.durable.set(number(status.durable.0));
        self.applied.set(number(status.applied.0));
        self.persisted.set(number(status.persisted.0));
        self.log_first.set(number(status.log_first.0));
        self.queue.set(number(status.queue_len as u64));
        self.queue_max.set(number(status.queue_max as u64));
        self.log_bytes.set(number(status.log_bytes));
        self.store_bytes.set(number(status.store_bytes));
        self.refusing_writes.set(i64::from(status.refusing.is_some()));
        self.standbys.set(number(status.standbys.len() as u64));
        let following = status.following.as_ref();
        self.standby.set(i64::from(following.is_some()));
        self.standby_lag_positions.set(following.map_or(0, |f| number(f.lag_positions)));
        let seconds = |ms: u64| ms as f64 / 1_000.0;
        self.standby_lag.set(following.map_or(0.0, |f| seconds(f.lag_ms)));
        let silent_ms = following.map_or(Some(0), |f| f.last_contact_ms_ago);
        self.standby_silence.set(silent_ms.map_or(-1.0, seconds));
        if let Some(verdict) = status.audited {
            self.audit_drift.set(number(verdict.drift));
            self.audit_position.set(number(verdict.position.0));
            self.audit_finished.set(number(verdict.at.0 / 1_000));
        }
    }
}

/// From 50 µs to about 26 s.
fn latency_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_05, 2.0, 20))
}

impl Metrics {
    /// The numbers that both modes have, and those of this one.
    pub fn new(mode: Mode) -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("guanxi"),
            requests: Family::default(),
            latency: Family::new_with_constructor(latency_histogram),
            batch_changes: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            batch_records: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            fsync: latency_histogram(),
            decide: latency_histogram(),
            apply: latency_histogram(),
            connections: Gauge::default(),
            connections_closed: Counter::default(),
            streams: Gauge::default(),
            streams_stalled: Counter::default(),
            watchers: Gauge::default(),
            watchers_dropped: Counter::default(),
            watch_records: Counter::default(),
            backups: Counter::default(),
            backup_bytes: Counter::default(),
            backup_finished: Gauge::default(),
            engine: EngineGauges::default(),
            cluster: ClusterGauges::default(),
            resident_bytes: Gauge::default(),
        };
        metrics.register();
        match mode {
            Mode::Embedded => metrics.register_embedded(),
            Mode::Cluster => metrics.cluster.register(&mut metrics.registry),
        }
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "requests",
            "Requests by call, kind and the error code they got, ok without one",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "request",
            "Time from a request's head to its answer",
            Unit::Seconds,
            self.latency.clone(),
        );
        let gauges = [
            ("connections", "Open connections", &self.connections),
            ("streams", "Open streams: watchers, exports, backups, standbys", &self.streams),
            ("watchers", "Open streams that watch the log", &self.watchers),
            ("process_resident_bytes", "Resident memory of the process", &self.resident_bytes),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let counters = [
            (
                "connections_closed",
                "Connections closed because they were slow, idle or too many",
                &self.connections_closed,
            ),
            (
                "streams_stalled",
                "Streams ended because their reader took nothing for too long",
                &self.streams_stalled,
            ),
            (
                "watchers_dropped",
                "Watchers ended because they were too slow for the queue or the log",
                &self.watchers_dropped,
            ),
            ("watch_records", "Records sent to watchers", &self.watch_records),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    fn register_embedded(&mut self) {
        let registry = &mut self.registry;
        let timings = [
            ("batch_fsync", "An fdatasync of the log", &self.fsync),
            ("batch_decide", "Deciding one batch", &self.decide),
            ("batch_apply", "Applying one batch to the store", &self.apply),
        ];
        for (name, help, histogram) in timings {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        let sizes = [
            ("batch_changes", "Changes in a batch", &self.batch_changes),
            ("batch_records", "Records in a batch", &self.batch_records),
        ];
        for (name, help, histogram) in sizes {
            registry.register(name, help, histogram.clone());
        }
        let engine = &self.engine;
        let gauges = [
            ("position_durable", "The last durable position", &engine.durable),
            ("position_applied", "The last applied position", &engine.applied),
            (
                "position_persisted",
                "The last position that the store has on disk",
                &engine.persisted,
            ),
            ("position_log_first", "The log's first position", &engine.log_first),
            ("queue_changes", "Changes that wait for a batch", &engine.queue),
            ("queue_changes_max", "The bound of that queue", &engine.queue_max),
            ("log_bytes", "Size of the log on disk", &engine.log_bytes),
            ("store_bytes", "Size of the store on disk", &engine.store_bytes),
            (
                "refusing_writes",
                "1 while no writes are taken, for what /readyz says",
                &engine.refusing_writes,
            ),
            ("standby", "1 on a standby, 0 on a primary", &engine.standby),
            (
                "standby_lag_positions",
                "Positions that this standby is behind its primary",
                &engine.standby_lag_positions,
            ),
            ("standbys", "Standbys that follow this service", &engine.standbys),
            (
                "audit_drift",
                "What differed from the edges when all was compared the last time",
                &engine.audit_drift,
            ),
            (
                "audit_position",
                "The position that audit_drift is true of; 0 before the first time",
                &engine.audit_position,
            ),
            (
                "audit_finished_timestamp_seconds",
                "When all was compared the last time; 0 before the first time",
                &engine.audit_finished,
            ),
            (
                "backup_finished_timestamp_seconds",
                "When a backup was last sent to its end; 0 when there was none since the start",
                &self.backup_finished,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let delays = [
            ("standby_lag", "How far this standby is behind its primary", &engine.standby_lag),
            (
                "standby_silence",
                "Time since this standby heard of its primary, -1 before the first time",
                &engine.standby_silence,
            ),
        ];
        for (name, help, gauge) in delays {
            registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
        }
        let counters = [
            ("backups", "Backups that were sent to their end", &self.backups),
            ("backup_bytes", "Bytes of these backups", &self.backup_bytes),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    pub fn answered(
        &self,
        call: &'static str,
        kind: KindLabel,
        code: &'static str,
        took: Duration,
    ) {
        let labels = CallLabels { call, kind };
        self.latency.get_or_create(&labels).observe(took.as_secs_f64());
        let CallLabels { call, kind } = labels;
        let labels = RequestLabels { call, kind, code };
        self.requests.get_or_create(&labels).inc();
    }

    /// A backup of so many bytes was sent to its end.
    pub fn backed_up(&self, bytes: u64) {
        self.backups.inc();
        self.backup_bytes.inc_by(bytes);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.backup_finished.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    }

    /// The text form of everything, with the numbers of this moment.
    pub fn to_text(&self, deployment: &Deployment) -> String {
        match deployment {
            Deployment::Embedded(engine) => self.engine.set(&engine.status()),
            Deployment::Cluster(cluster) => self.cluster.set(&cluster.status()),
        }
        let resident = resident_bytes().unwrap_or(0);
        self.resident_bytes.set(i64::try_from(resident).unwrap_or(i64::MAX));
        let mut out = String::new();
        match text::encode(&mut out, &self.registry) {
            Ok(()) => out,
            Err(_) => String::new(),
        }
    }
}

impl Meter for Metrics {
    fn batch(&self, changes: usize, records: usize) {
        self.batch_changes.observe(changes as f64);
        self.batch_records.observe(records as f64);
    }

    fn fsync(&self, took: Duration) {
        self.fsync.observe(took.as_secs_f64());
    }

    fn apply(&self, took: Duration) {
        self.apply.observe(took.as_secs_f64());
    }

    fn decide(&self, took: Duration) {
        self.decide.observe(took.as_secs_f64());
    }
}

/// Only Linux says it; elsewhere the gauge stays at 0.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_kinds_are_bounded() {
        let metrics = Metrics::new(Mode::Embedded);
        let took = Duration::from_micros(80);
        metrics.answered("put_edge", KindLabel::Other, "ok", took);
        metrics.answered("put_edge", KindLabel::Other, "unknown_kind", took);
        metrics.answered("healthz", KindLabel::None, "ok", took);
        let mut out = String::new();
        text::encode(&mut out, &metrics.registry).unwrap();
        for line in [
            "guanxi_requests_total{call=\"put_edge\",kind=\"other\",code=\"unknown_kind\"} 1",
            "guanxi_request_seconds_count{call=\"put_edge\",kind=\"other\"} 2",
            "guanxi_requests_total{call=\"healthz\",kind=\"\",code=\"ok\"} 1",
        ] {
            assert!(out.contains(line), "{out}");
        }
    }
}
