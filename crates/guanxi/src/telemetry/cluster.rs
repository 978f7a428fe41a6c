//! Numbers of a cluster's instance, read from its status whenever somebody asks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use guanxi_cluster::instance::{Cluster, ClusterStatus};
use guanxi_cluster::memory::tallies::TallyFigures;
use guanxi_cluster::memory::{ListFigures, MemoryFigures};
use guanxi_cluster::read_budget::BudgetFigures;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Gauges;

/// Of the tallies in Redis.
#[derive(Debug, Default)]
struct TallyNumbers {
    followed: Gauge,
    follower_lag: Gauge,
    hits: Counter,
    misses: Counter,
    unknown: Counter,
    fills: Counter,
    fills_dropped: Counter,
    forgotten: Counter,
}

impl TallyNumbers {
    fn register(&self, registry: &mut Registry) {
        let gauges = [
            (
                "tallies_followed",
                "1 while tallies may come from Redis, because someone keeps them right there; -1 \
                 where no Redis is set",
                &self.followed,
            ),
            (
                "follower_lag_records",
                "Applied records that the tallies in Redis do not contain; -1 where another \
                 instance follows",
                &self.follower_lag,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let counters = [
            ("tally_hits", "Nodes whose tallies Redis knew", &self.hits),
            ("tally_misses", "Nodes whose tallies the database was asked for", &self.misses),
            (
                "tally_unknown",
                "Nodes asked about while Redis was away or not to be believed",
                &self.unknown,
            ),
            ("tally_fills", "Nodes whose tallies were put into Redis", &self.fills),
            (
                "tally_fills_dropped",
                "Nodes whose tallies found no room on the way there, or came too late",
                &self.fills_dropped,
            ),
            (
                "follower_forgotten",
                "How often all tallies in Redis had to be forgotten, while this instance followed",
                &self.forgotten,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    fn set(&self, figures: Option<&TallyFigures>) {
        let Some(figures) = figures else {
            self.followed.set(-1);
            self.follower_lag.set(-1);
            return;
        };
        self.followed.set(i64::from(figures.followed));
        let lag = figures.follower.map(|follower| follower.lag_records);
        self.follower_lag.set(lag.map_or(-1, |lag| i64::try_from(lag).unwrap_or(i64::MAX)));
        raise(&self.hits, figures.hits);
        raise(&self.misses, figures.misses);
        raise(&self.unknown, figures.unknown);
        raise(&self.fills, figures.fills);
        raise(&self.fills_dropped, figures.dropped);
        raise(&self.forgotten, figures.follower.map_or(0, |follower| follower.forgotten));
    }
}

/// Of lists in Redis, of one direction.
#[derive(Debug, Default)]
struct ListNumbers {
    found: Counter,
    missed: Counter,
    filled: Counter,
    overtaken: Counter,
}

impl ListNumbers {
    fn register(&self, registry: &mut Registry, name: &str, what: &str) {
        for (end, help, counter) in [
            ("found", "in Redis that were asked for and there", &self.found),
            ("missed", "asked for that were not in Redis", &self.missed),
            ("filled", "that this instance put into Redis", &self.filled),
            ("overtaken", "read for Redis that a write overtook", &self.overtaken),
        ] {
            registry.register(format!("{name}_{end}"), format!("{what} {help}"), counter.clone());
        }
    }

    fn set(&self, figures: &ListFigures) {
        let ListFigures { found, missed, filled, overtaken } = figures;
        raise(&self.found, *found);
        raise(&self.missed, *missed);
        raise(&self.filled, *filled);
        raise(&self.overtaken, *overtaken);
    }
}

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
    applier_rebuilds: Counter,
    redis: Gauge,
    redis_unanswered: Counter,
    filter_serves: Gauge,
    filter_surely_not: Counter,
    filter_maybe: Counter,
    filter_unknown: Counter,
    lists_serve: Gauge,
    outgoing_lists: ListNumbers,
    incoming_lists: ListNumbers,
    hot_pinned: Gauge,
    tallies: TallyNumbers,
    reads: Gauge,
    reads_max: Gauge,
    reads_waiting: Gauge,
    lists: Gauge,
    lists_max: Gauge,
    lists_waiting: Gauge,
    overloaded: Gauge,
    reads_refused: Counter,
    reads_unanswered: Counter,
    reads_degraded: Counter,
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
                "Records of the log that the target's side does not have, of the whole cluster; \
                 -1 while this instance does not know",
                &self.applier_lag,
            ),
            ("redis_reachable", "1 when Redis answers; -1 where none is set", &self.redis),
            ("filter_serves", "1 while checks may end in the filter", &self.filter_serves),
            ("lists_serve", "1 while checks may end in the lists in Redis", &self.lists_serve),
            ("hot_keys_pinned", "Hot keys whose answers are kept in the process", &self.hot_pinned),
            ("database_reads", "Quick reads that the database has at this moment", &self.reads),
            ("database_reads_max", "The bound of these", &self.reads_max),
            ("database_reads_waiting", "Quick reads that wait for a place", &self.reads_waiting),
            ("database_lists", "Lists, large reads and exports that it has", &self.lists),
            ("database_lists_max", "The bound of these", &self.lists_max),
            ("database_lists_waiting", "Lists that wait for a place", &self.lists_waiting),
            (
                "database_overloaded",
                "1 when reads found no place or no answer in the last seconds",
                &self.overloaded,
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
            ("applier_rebuilds", "Partitions that were rebuilt", &self.applier_rebuilds),
            (
                "database_reads_refused",
                "Reads and lists that found no place in time",
                &self.reads_refused,
            ),
            (
                "database_reads_unanswered",
                "Reads and lists that the database did not answer in time",
                &self.reads_unanswered,
            ),
            (
                "reads_degraded",
                "Answers in which something unknown was said by default",
                &self.reads_degraded,
            ),
            ("redis_unanswered", "Commands that Redis left unanswered", &self.redis_unanswered),
            (
                "filter_surely_not",
                "Edges that the filter said surely do not stand",
                &self.filter_surely_not,
            ),
            ("filter_maybe", "Edges that the filter said may stand", &self.filter_maybe),
            (
                "filter_unknown",
                "Edges asked about while the filter was away or not to be believed",
                &self.filter_unknown,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        self.outgoing_lists.register(registry, "lists", "Outgoing lists");
        self.incoming_lists.register(registry, "incoming_lists", "Incoming lists");
        self.tallies.register(registry);
    }

    fn set(&self, status: &ClusterStatus) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.database.set(i64::from(status.database.reachable));
        self.log.set(i64::from(status.log.reachable));
        self.clock_offset.set(status.clock_offset_ms as f64 / 1_000.0);
        self.relay_lag.set(status.relay_lag_ms as f64 / 1_000.0);
        self.applier_lag.set(status.applier_lag_records.map_or(-1, number));
        self.hot_pinned.set(number(status.hot_pinned as u64));
        self.dead_letters.set(number(status.dead_letters));
        self.queue.set(number(status.queue_len as u64));
        self.queue_max.set(number(status.queue_max as u64));
        raise(&self.batches, status.batches);
        if let Some(applier) = &status.applier {
            raise(&self.applied_records, applier.records);
            raise(&self.applied_batches, applier.batches);
            raise(&self.applied_stale, applier.stale);
            raise(&self.applier_retries, applier.retries);
            raise(&self.applier_rebuilds, applier.rebuilt);
        }
        if status.memory.is_none() {
            self.redis.set(-1);
            self.tallies.set(None);
        }
        if let Some(memory) = &status.memory {
            let MemoryFigures { tier, filter, serves, lists, lists_serve, tallies, incoming } =
                memory;
            self.redis.set(i64::from(tier.reachable));
            self.filter_serves.set(i64::from(*serves));
            raise(&self.redis_unanswered, tier.unanswered);
            raise(&self.filter_surely_not, filter.surely_not);
            raise(&self.filter_maybe, filter.maybe);
            raise(&self.filter_unknown, filter.unknown);
            self.lists_serve.set(i64::from(*lists_serve));
            self.outgoing_lists.set(lists);
            self.incoming_lists.set(incoming);
            self.tallies.set(tallies.as_ref());
        }
        if let Some(reads) = &status.reads {
            self.set_reads(reads);
        }
        if let Some(verdict) = status.audited {
            self.audit_drift.set(number(verdict.drift));
            self.audit_finished.set(number(verdict.at.0 / 1_000));
        }
    }

    fn set_reads(&self, figures: &BudgetFigures) {
        let BudgetFigures { reads, lists, unanswered, degraded, overloaded } = figures;
        self.overloaded.set(i64::from(*overloaded));
        for (gauge, value) in [
            (&self.reads, reads.taken),
            (&self.reads_max, reads.places_max),
            (&self.reads_waiting, reads.waiting),
            (&self.lists, lists.taken),
            (&self.lists_max, lists.places_max),
            (&self.lists_waiting, lists.waiting),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        raise(&self.reads_refused, reads.turned_away + lists.turned_away);
        raise(&self.reads_unanswered, *unanswered);
        raise(&self.reads_degraded, *degraded);
    }
}

/// The gauges of this instance.
#[derive(Debug)]
pub struct ClusterNumbers(pub ClusterGauges, pub Arc<Cluster>);

impl Gauges for ClusterNumbers {
    fn refresh(&self) {
        self.0.set(&self.1.status());
    }
}

/// Two who ask at the same moment must not count the same twice.
fn raise(counter: &Counter, to: u64) {
    counter.inner().fetch_max(to, std::sync::atomic::Ordering::Relaxed);
}
