//! One of many instances over a database and a log.

use std::sync::Arc;
use std::time::Duration;

use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_cluster::instance::{Cluster, ClusterError, ClusterSettings, ServedCluster};
use guanxi_cluster::kafka::KafkaSettings;
use guanxi_cluster::read_budget::ReadBudgetSettings;
use guanxi_core::AuditSettings;
use guanxi_core::deployment::Deployment;
use tokio::runtime::Builder;

use super::{
    blocking_threads, create_missing_kinds, end_when_lost, no_runtime, none_lost, region,
    serving_threads,
};
use crate::config::{self, Config, LogSource, without_passwords};
use crate::failure::Failure;
use crate::server;
use crate::server::ServingThreads;
use crate::service::Served;
use crate::telemetry::Metrics;
use crate::telemetry::cluster::{ClusterGauges, ClusterNumbers};

/// Between two looks whether a move into the cluster has ended; writes pause meanwhile.
const MOVING_LOOK: Duration = Duration::from_millis(100);

/// Threads on which tokens wait for their barriers, so that they take no read's place.
const TOKEN_THREADS: usize = 64;

pub fn serve(config: &Config) -> Result<(), Failure> {
    let ReadBudgetSettings { reads_max, lists_max, .. } = config.store.reads();
    let blocking_max = blocking_threads(config, reads_max + lists_max + TOKEN_THREADS);
    // What an instance asks of Redis is asked on it, beside requests and before and after them.
    let runtime = Builder::new_multi_thread()
        .worker_threads(serving_threads(config))
        .max_blocking_threads(blocking_max)
        .enable_all()
        .build()
        .map_err(no_runtime)?;
    let memory = config.cache.memory(runtime.handle());
    let settings = ClusterSettings { memory, ..self::settings(config)? };
    let cluster = open(&settings)?;
    end_when_lost(cluster.crew());
    let gauges = ClusterGauges::default();
    let metrics = Arc::new(Metrics::new(|registry| gauges.register(registry)));
    metrics.show(ClusterNumbers(gauges, cluster.clone()));
    let deployment: Arc<dyn Deployment> = Arc::new(ServedCluster::new(cluster.clone()));
    let served = runtime.block_on(async {
        if deployment.takes_calls().is_ok() {
            create_missing_kinds(&*deployment, config).await?;
        }
        let threads = ServingThreads::only_own(cluster.crew());
        let served = Served { deployment, engine: None, metrics };
        server::serve(&config.http, &config.resp, served, threads)
            .await
            .map_err(|error| Failure::failed(error.to_string()))
    });
    // What it waits for at its end may be asked on the runtime.
    cluster.close();
    served.and_then(|()| none_lost(cluster.crew()))
}

/// Joins the cluster; one that a service is moving into, as soon as all of it is there. Whoever
/// starts instances before the end of a move has them serve a moment after it.
fn open(settings: &ClusterSettings) -> Result<Arc<Cluster>, Failure> {
    let mut told = false;
    loop {
        match Cluster::open(settings.clone()) {
            Ok(cluster) => return Ok(cluster),
            Err(error @ ClusterError::Moving) => {
                if !told {
                    tracing::warn!("waiting to serve: {error}");
                    told = true;
                }
                std::thread::sleep(MOVING_LOOK);
            }
            Err(error) => return Err(Failure::failed(without_passwords(&error.to_string()))),
        }
    }
}

/// What the settings say of a cluster.
pub fn settings(config: &Config) -> Result<ClusterSettings, Failure> {
    let roles = config::roles_named(&config.roles);
    let commit = SqlCommitSettings::default();
    Ok(ClusterSettings {
        url: config.store.url.as_str().to_owned(),
        tls: config.store.tls(),
        connections_max: config.store.connections_max,
        reads: config.store.reads(),
        kafka: KafkaSettings {
            brokers: config.log.brokers.clone(),
            topic: config.log.topic.clone(),
            dead_letter_topic: config.log.dead_letter_topic.clone(),
            partitions: config.log.partitions,
            security: config.log.security(),
        },
        ticdc_topic: (config.log.source == LogSource::Ticdc)
            .then(|| config.log.ticdc_topic.clone()),
        roles: roles.map_err(|error| Failure::usage(error.to_string()))?,
        region: region(config)?,
        commit: SqlCommitSettings {
            queue_max: config.commit.queue_max,
            batch_changes_max: config.commit.batch_changes_max.min(commit.batch_changes_max),
            ..commit
        },
        audit: AuditSettings { scrub_rows_per_second: config.audit.scrub_rows_per_second },
        memory: None,
        clock_may_have_jumped: config.clock_may_have_jumped,
    })
}
