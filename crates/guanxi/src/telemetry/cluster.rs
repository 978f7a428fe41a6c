//! Numbers of a cluster's instance, read from its status whenever somebody asks.

use std::sync::atomic::AtomicU64;

use guanxi_engine::cluster::instance::ClusterStatus;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Default)]
pub struct ClusterGauges {
    database: Gauge,
    log: Gauge,
    clock_offset: Gauge<f64, AtomicU64>,
    relay_lag: Gauge<f64, AtomicU64>,
    applier_lag: Gauge,
    dead_letters: Gauge,
    queue: Gauge,
    queue_max: Gauge,
    batches: Counter,
    applied_records: Counter,
    applied_batches: Counter,
    applied_stale: Counter,
    applier_retries: Counter,
    audit_drift: Gauge,
    audit_finished: Gauge,
}

impl ClusterGauges {
    pub fn register(&self, registry: &mut Registry) {
        let gauges = [
            ("database_reachable", "1 when the database answers", &self.database),
            ("log_reachable", "1 when the log's brokers answer", &self.log),
            (
                "applier_lag_records",
                "Records of the log that the target's side does not have, of the whole cluster",
                &self.applier_lag,
            ),
            ("dead_letters", "Records that could not be applied", &self.dead_letters),
            ("queue_changes", "Changes that wait for a batch", &self.queue),
            ("queue_changes_max", "The bound of that queue", &self.queue_max),
            (
                "audit_drift",
                "What differed from the edges when all was compared the last time",
                &self.audit_drift,
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
        let times = [
            ("clock_offset", "The database's clock less that of this instance", &self.clock_offset),
            (
                "relay_lag",
                "Age of the oldest record that the log does not have, of the whole cluster",
                &self.relay_lag,
            ),
        ];
        for (name, help, gauge) in times {
            registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
        }
        let counters = [
            ("commit_batches", "Transactions committed by this instance", &self.batches),
            ("applied_records", "Records applied by this instance", &self.applied_records),
            ("applied_batches", "Transactions of this instance's applier", &self.applied_batches),
            ("applied_stale", "Records that came late or twice", &self.applied_stale),
            ("applier_retries", "The applier's transactions tried again", &self.applier_retries),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    pub fn set(&self, status: &ClusterStatus) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.database.set(i64::from(status.database.reachable));
        self.log.set(i64::from(status.log.reachable));
        self.clock_offset.set(status.clock_offset_ms as f64 / 1_000.0);
        self.relay_lag.set(status.relay_lag_ms as f64 / 1_000.0);
        self.applier_lag.set(number(status.applier_lag_records));
        self.dead_letters.set(number(status.dead_letters));
        self.queue.set(number(status.queue_len as u64));
        self.queue_max.set(number(status.queue_max as u64));
        raise(&self.batches, status.batches);
        if let Some(applier) = &status.applier {
            raise(&self.applied_records, applier.records);
            raise(&self.applied_batches, applier.batches);
            raise(&self.applied_stale, applier.stale);
            raise(&self.applier_retries, applier.retries);
        }
        if let Some(verdict) = status.audited {
            self.audit_drift.set(number(verdict.drift));
            self.audit_finished.set(number(verdict.at.0 / 1_000));
        }
    }
}

/// Two who ask at the same moment must not count the same twice.
fn raise(counter: &Counter, to: u64) {
    counter.inner().fetch_max(to, std::sync::atomic::Ordering::Relaxed);
}
