//! What operators see: metrics in the Prometheus text form, and structured logs on stderr.

#[cfg(feature = "cluster")]
pub mod cluster;
pub mod embedded;

use std::fmt::{Debug, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guanxi_embedded::Meter;
use guanxi_model::{Code, Kind};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Level, LogFormat, TelemetrySection};
use crate::service::table::{CALLS, Call};

/// Kinds that have their own label values; those created later share one, so that the number of
/// series stays bounded.
const LABELLED_KINDS_MAX: u16 = 64;

/// Logs go to stderr: stdout carries the ready line alone.
pub fn start_logs(settings: &TelemetrySection) {
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
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
        LogFormat::Text => logs.with_ansi(false).try_init(),
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

/// What is counted of requests with the same labels.
#[derive(Debug)]
struct RequestSeries {
    latency: Histogram,
    requests: Counter,
}

impl RequestSeries {
    fn note(&self, took: Duration) {
        self.latency.observe(took.as_secs_f64());
        self.requests.inc();
    }
}

/// The series of requests that went well, by call and kind. Found by their labels they would take a
/// request longer than all else that is counted of it.
#[derive(Debug)]
struct WentWell(Box<[OnceLock<RequestSeries>]>);

impl WentWell {
    /// The labels of kinds: none, another, and each that has its own.
    const KINDS: usize = LABELLED_KINDS_MAX as usize + 3;

    fn new() -> WentWell {
        WentWell((0..CALLS.len() * WentWell::KINDS).map(|_| OnceLock::new()).collect())
    }

    fn get(&self, call: Call, kind: &KindLabel) -> Option<&OnceLock<RequestSeries>> {
        let kind = match kind {
            KindLabel::None => 0,
            KindLabel::Other => 1,
            KindLabel::Kind(kind) => 2 + usize::from(kind.id.0),
        };
        self.0.get(call as usize * WentWell::KINDS + kind)
    }
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    went_well: WentWell,
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
    resident_bytes: Gauge,
    served: OnceLock<Box<dyn Gauges>>,
}

/// Numbers of whatever is served, read from it whenever somebody asks.
pub trait Gauges: Debug + Send + Sync {
    fn refresh(&self);
}

/// From 50 µs to about 26 s.
fn latency_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_05, 2.0, 20))
}

impl Metrics {
    /// The numbers that both modes have, and those that this registers.
    pub fn new(register: impl FnOnce(&mut Registry)) -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("guanxi"),
            went_well: WentWell::new(),
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
            resident_bytes: Gauge::default(),
            served: OnceLock::new(),
        };
        metrics.register();
        register(&mut metrics.registry);
        metrics
    }

    /// Reads these whenever somebody asks, from here on.
    pub fn show(&self, gauges: impl Gauges + 'static) {
        // What a process serves it serves to its end.
        let _shown_before = self.served.set(Box::new(gauges));
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

    /// What only an embedded service does.
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
        registry.register(
            "backup_finished_timestamp_seconds",
            "When a backup was last sent to its end; 0 when there was none since the start",
            self.backup_finished.clone(),
        );
        let counters = [
            ("backups", "Backups that were sent to their end", &self.backups),
            ("backup_bytes", "Bytes of these backups", &self.backup_bytes),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    /// A request was answered: with an error of this code, or with none.
    pub fn answered(
        &self,
        call: Option<Call>,
        kind: KindLabel,
        code: Option<Code>,
        took: Duration,
    ) {
        let series = |kind: KindLabel| self.series(call, kind, code);
        let found = match (call, code) {
            (Some(call), None) => self.went_well.get(call, &kind),
            _ => None,
        };
        match found {
            Some(kept) => kept.get_or_init(|| series(kind)).note(took),
            None => series(kind).note(took),
        }
    }

    fn series(&self, call: Option<Call>, kind: KindLabel, code: Option<Code>) -> RequestSeries {
        let call = call.map_or("none", |call| call.entry().name);
        let labels = CallLabels { call, kind: kind.clone() };
        let latency = self.latency.get_or_create(&labels).clone();
        let labels = RequestLabels { call, kind, code: code.map_or("ok", Code::name) };
        RequestSeries { latency, requests: self.requests.get_or_create(&labels).clone() }
    }

    /// A backup of so many bytes was sent to its end.
    pub fn backed_up(&self, bytes: u64) {
        self.backups.inc();
        self.backup_bytes.inc_by(bytes);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.backup_finished.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    }

    /// The text form of everything, with the numbers of this moment.
    pub fn to_text(&self) -> String {
        if let Some(gauges) = self.served.get() {
            gauges.refresh();
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
        let metrics = Metrics::new(|_| {});
        let took = Duration::from_micros(80);
        metrics.answered(Some(Call::PutEdge), KindLabel::Other, None, took);
        metrics.answered(Some(Call::PutEdge), KindLabel::Other, Some(Code::UnknownKind), took);
        for _ in 0..2 {
            metrics.answered(Some(Call::Healthz), KindLabel::None, None, took);
        }
        metrics.answered(None, KindLabel::None, Some(Code::NotFound), took);
        let mut out = String::new();
        text::encode(&mut out, &metrics.registry).unwrap();
        for line in [
            "guanxi_requests_total{call=\"put_edge\",kind=\"other\",code=\"unknown_kind\"} 1",
            "guanxi_request_seconds_count{call=\"put_edge\",kind=\"other\"} 2",
            "guanxi_requests_total{call=\"healthz\",kind=\"\",code=\"ok\"} 2",
            "guanxi_request_seconds_count{call=\"healthz\",kind=\"\"} 2",
            "guanxi_requests_total{call=\"none\",kind=\"\",code=\"not_found\"} 1",
        ] {
            assert!(out.contains(line), "{out}");
        }
    }
}
