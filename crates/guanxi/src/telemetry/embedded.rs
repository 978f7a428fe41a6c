//! Numbers of an embedded engine, read from its status whenever somebody asks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use guanxi_embedded::{Engine, EngineStatus};
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
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
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
        if let Some(verdict) = status.audited {
            self.audit_drift.set(number(verdict.drift));
            self.audit_position.set(number(verdict.position.0));
            self.audit_finished.set(number(verdict.at.0 / 1_000));
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
