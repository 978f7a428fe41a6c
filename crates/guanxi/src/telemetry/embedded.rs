//! Numbers of an embedded engine, read from its status whenever somebody asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guanxi_embedded::{Engine, EngineStatus, ResidentStatus};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Gauges, Metrics};

impl Metrics {
    pub fn of_embedded(gauges: &EngineGauges) -> Metrics {
        let mut metrics = Metrics::new(|registry| gauges.register(registry));
        metrics.register_embedded();
        metrics
    }
}

#[derive(Debug, Default)]
pub struct EngineGauges {
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
    rows: Gauge,
    rows_bytes: Gauge,
    lists: Gauge,
    lists_bytes: Gauge,
    filter_whole: Gauge,
    filter_bytes: Gauge,
    filter_edges: Gauge,
    filter_edges_max: Gauge,
    answered: Family<AnsweredLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnsweredLabels {
    /// What was asked for.
    of: &'static str,
    /// Where the answer came from.
    by: &'static str,
}

impl EngineGauges {
    pub fn register(&self, registry: &mut Registry) {
        let gauges = [
            ("position_durable", "The last durable position", &self.durable),
            ("position_applied", "The last applied position", &self.applied),
            ("position_persisted", "The last position that the store has on disk", &self.persisted),
            ("position_log_first", "The log's first position", &self.log_first),
            ("queue_changes", "Changes that wait for a batch", &self.queue),
            ("queue_changes_max", "The bound of that queue", &self.queue_max),
            ("log_bytes", "Size of the log on disk", &self.log_bytes),
            ("store_bytes", "Size of the store on disk", &self.store_bytes),
            (
                "refusing_writes",
                "1 while no writes are taken, for what /readyz says",
                &self.refusing_writes,
            ),
            ("standby", "1 on a standby, 0 on a primary", &self.standby),
            (
                "standby_lag_positions",
                "Positions that this standby is behind its primary",
                &self.standby_lag_positions,
            ),
            ("standbys", "Standbys that follow this service", &self.standbys),
            (
                "audit_drift",
                "What differed from the edges when all was compared the last time",
                &self.audit_drift,
            ),
            (
                "audit_position",
                "The position that audit_drift is true of; 0 before the first time",
                &self.audit_position,
            ),
            (
                "audit_finished_timestamp_seconds",
                "When all was compared the last time; 0 before the first time",
                &self.audit_finished,
            ),
            ("resident_rows", "Rows at hand in memory", &self.rows),
            ("resident_rows_bytes", "What they take", &self.rows_bytes),
            ("resident_lists", "Incoming lists at hand in memory", &self.lists),
            ("resident_lists_bytes", "What they take", &self.lists_bytes),
            (
                "filter_whole",
                "1 when the filter of edges is asked, 0 while the first one is built",
                &self.filter_whole,
            ),
            ("filter_bytes", "Size of the filter of edges in memory", &self.filter_bytes),
            ("filter_edges", "Edges in it, with those removed since", &self.filter_edges),
            (
                "filter_edges_max",
                "Edges that it is meant for; beyond, it grows or asks the store more often",
                &self.filter_edges_max,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "rows_answered",
            "Edges, nodes and lists asked for, by where the answer came from",
            self.answered.clone(),
        );
        let delays = [
            ("standby_lag", "How far this standby is behind its primary", &self.standby_lag),
            (
                "standby_silence",
                "Time since this standby heard of its primary, -1 before the first time",
                &self.standby_silence,
            ),
        ];
        for (name, help, gauge) in delays {
            registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
        }
    }

    fn set(&self, status: &EngineStatus) {
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
        self.set_resident(&status.resident);
        if let Some(verdict) = status.audited {
            self.audit_drift.set(number(verdict.drift));
            self.audit_position.set(number(verdict.position.0));
            self.audit_finished.set(number(verdict.at.0 / 1_000));
        }
    }
}

impl EngineGauges {
    fn set_resident(&self, resident: &ResidentStatus) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let ResidentStatus { rows, lists, filter, answered } = *resident;
        self.rows.set(number(rows.entries));
        self.rows_bytes.set(number(rows.bytes));
        self.lists.set(number(lists.entries));
        self.lists_bytes.set(number(lists.bytes));
        self.filter_whole.set(i64::from(filter.is_some()));
        self.filter_bytes.set(filter.map_or(0, |filter| number(filter.bytes)));
        self.filter_edges.set(filter.map_or(0, |filter| number(filter.edges)));
        self.filter_edges_max.set(filter.map_or(0, |filter| number(filter.edges_max)));
        for (of, by, count) in [
            ("edge", "filter", answered.by_filter),
            ("edge", "memory", answered.edges_at_hand),
            ("edge", "store", answered.edges_read),
            ("node", "memory", answered.nodes_at_hand),
            ("node", "store", answered.nodes_read),
            ("list", "memory", answered.lists_at_hand),
            ("list", "store", answered.lists_read),
        ] {
            let counter = self.answered.get_or_create_owned(&AnsweredLabels { of, by });
            counter.inner().store(count, Ordering::Relaxed);
        }
    }
}

/// The gauges of this engine.
#[derive(Debug)]
pub struct EngineNumbers(pub EngineGauges, pub Arc<Engine>);

impl Gauges for EngineNumbers {
    fn refresh(&self) {
        self.0.set(&self.1.status());
    }
}
