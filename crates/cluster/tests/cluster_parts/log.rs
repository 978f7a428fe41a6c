//! A cluster's whole path from a write to its target's side: committer, relay, Kafka, applier; and
//! the audit and the chores on top.
#![allow(dead_code, reason = "each test program uses its part of it")]

use std::sync::Arc;
use std::time::Duration;

use guanxi_cluster::applier::{AppliedLog, Applier, ApplierParts};
use guanxi_cluster::audit::{SqlAuditor, SqlAuditorParts};
use guanxi_cluster::barrier;
use guanxi_cluster::kafka::{KafkaSettings, create_topics};
use guanxi_cluster::leases::Leases;
use guanxi_cluster::relay::Relay;
use guanxi_cluster::upkeep::{Upkeep, UpkeepParts, UpkeepSettings};
use guanxi_core::audit::AuditReport;
use guanxi_core::clock::{Clock, SteadyClock, SystemClock};
use guanxi_core::crew::Crew;
use guanxi_core::{AuditQuery, AuditSettings};
use guanxi_services::{shared, topic_name};

use crate::world::{Instance, soon};

const PARTITIONS: u32 = 4;

/// New topics on the shared broker; none where there is no Kafka.
pub fn topics(test: &str) -> Option<KafkaSettings> {
    let kafka = shared::kafka_or_skip(test)?;
    let settings = KafkaSettings {
        brokers: kafka.brokers(),
        topic: topic_name("records"),
        dead_letter_topic: topic_name("dead"),
        partitions: PARTITIONS,
        security: Default::default(),
    };
    create_topics(&settings).unwrap();
    Some(settings)
}

pub struct Node {
    pub instance: Instance,
    pub leases: Arc<Leases>,
    pub auditor: Arc<SqlAuditor>,
    pub kafka: KafkaSettings,
    relay: Option<Relay>,
    applier: Option<Applier>,
}

impl Node {
    pub fn start(url: &str, number: u64, kafka: &KafkaSettings) -> Node {
        Node::of(Instance::start(url, number), kafka)
    }

    pub fn of(instance: Instance, kafka: &KafkaSettings) -> Node {
        let number = instance.number;
        let leases = Leases::start(&Crew::default(), instance.database.clone(), number).unwrap();
        let auditor = Arc::new(SqlAuditor::new(SqlAuditorParts {
            database: instance.database.clone(),
            catalog: instance.catalog.clone(),
            leases: leases.clone(),
            clock: Arc::new(SystemClock),
            settings: AuditSettings { scrub_rows_per_second: 1_000_000 },
            topic: kafka.topic.clone(),
            partitions: kafka.partitions,
        }));
        let (database, catalog) = (instance.database.clone(), instance.catalog.clone());
        let relay = Some(
            Relay::start(&Crew::default(), database, catalog, kafka.clone(), &leases).unwrap(),
        );
        let mut node =
            Node { instance, leases, auditor, kafka: kafka.clone(), relay, applier: None };
        node.apply();
        node
    }

    pub fn apply(&mut self) {
        let applier = Applier::start(ApplierParts {
            crew: Crew::default(),
            database: self.instance.database.clone(),
            catalog: self.instance.catalog.clone(),
            clock: Arc::new(SystemClock),
            leases: self.leases.clone(),
            kafka: self.kafka.clone(),
            log: AppliedLog::Outbox,
            threads: 1,
        });
        self.applier = Some(applier.unwrap());
    }

    /// The target's side stands still from here on.
    pub fn stop_applying(&mut self) {
        if let Some(applier) = self.applier.take() {
            applier.close();
        }
    }

    /// Waits until all that was written has reached the target's side.
    pub fn settle(&self) {
        let id = barrier::raise(&self.instance.database, soon()).unwrap();
        assert!(
            barrier::wait(&self.instance.database, id, self.kafka.partitions, soon()).unwrap(),
            "the log stands still"
        );
    }

    pub fn begin_audit(&self, repair: bool) -> u64 {
        self.auditor.begin(AuditQuery { kind: None, repair }).unwrap()
    }

    pub fn audit_result(&self, number: u64) -> Result<AuditReport, guanxi_model::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let run = runtime.block_on(self.auditor.ended(number)).unwrap();
        run.ended.unwrap().result
    }

    pub fn audit(&self, repair: bool) -> AuditReport {
        self.audit_result(self.begin_audit(repair)).unwrap()
    }

    pub fn upkeep(&self, settings: UpkeepSettings) -> Upkeep {
        self.upkeep_by(Arc::new(SystemClock), settings)
    }

    pub fn upkeep_by(&self, clock: Arc<dyn Clock>, settings: UpkeepSettings) -> Upkeep {
        let upkeep = Upkeep::start(UpkeepParts {
            crew: Crew::default(),
            database: self.instance.database.clone(),
            catalog: self.instance.catalog.clone(),
            committer: self.instance.committer.clone(),
            leases: self.leases.clone(),
            clock: Arc::new(SteadyClock::new(clock)),
            auditor: self.auditor.clone(),
            kafka: self.kafka.clone(),
            changefeed: None,
            settings,
        });
        upkeep.unwrap()
    }
}

pub fn hasty() -> UpkeepSettings {
    UpkeepSettings { clean_rows_per_second: 1_000_000, clean_interval: Duration::from_millis(500) }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.auditor.close();
        self.stop_applying();
        if let Some(relay) = self.relay.take() {
            relay.close();
        }
        self.leases.close();
    }
}
