//! `guanxi serve`: reads the settings, opens the engine or joins the cluster, and serves it until a
//! signal says stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use guanxi_cluster::budget::ReadBudgetSettings;
use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_cluster::instance::{Cluster, ClusterError, ClusterSettings};
use guanxi_cluster::kafka::KafkaSettings;
use guanxi_core::AuditSettings;
use guanxi_core::crew::{Crew, Lost};
use guanxi_embedded::{
    CommitSettings, Engine, LogSettings, MoveState, Settings, ShippingSettings, StoreSettings,
};
use guanxi_model::{Change, Code, Request, TenantId};

use crate::config::{self, Config, LogSource, Mode, without_passwords};
use crate::deployment::Deployment;
use crate::failure::{Exit, Failure};
use crate::service::OPERATOR_THREADS;
use crate::telemetry::{self, Metrics};
use crate::{follow, server};

/// How long the kinds of the file may take to be created.
const KINDS_DEADLINE: Duration = Duration::from_secs(30);
/// Threads for blocking work beside the bounded reads: signals, files, the engine's end.
const SPARE_BLOCKING_THREADS: usize = 4;

/// Between two looks whether a move into the cluster has ended; writes pause meanwhile.
const MOVING_LOOK: Duration = Duration::from_millis(100);

/// Threads on which tokens wait for their barriers in a cluster, so that they take no read's place.
const TOKEN_THREADS: usize = 64;

/// After a thread was lost: leases are given back meanwhile, and whoever asks hears why.
const LOST_GRACE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  guanxi serve
  guanxi serve --config guanxi.toml
  guanxi serve --data-dir /var/lib/guanxi --listen 127.0.0.1:7421
  guanxi serve --config cluster.toml --roles api";

/// Runs the service.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// The settings; guanxi.toml shows them all with their defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where everything is kept.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The primary to keep a read-only copy of, such as http://10.0.0.1:7420.
    #[arg(long, value_name = "URL")]
    follow: Option<String>,
    /// In a cluster, the parts that this instance plays: any of api, relay, applier and upkeep.
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// Allows an address that other machines can reach, although nobody is asked for a key.
    #[arg(long)]
    allow_unauthenticated: bool,
}

pub fn serve(flags: Serve) -> Result<(), Failure> {
    let config = settings(flags)?;
    server::raise_open_files_limit();
    let metrics = Arc::new(Metrics::new(config.mode));
    let served = match config.mode {
        Mode::Embedded => serve_embedded(&config, metrics),
        Mode::Cluster => serve_cluster(&config, metrics),
    };
    served?;
    tracing::info!("stopped");
    Ok(())
}

fn serve_embedded(config: &Config, metrics: Arc<Metrics>) -> Result<(), Failure> {
    let settings = engine_settings(config, &metrics);
    if let Some(primary) = &settings.follow {
        follow::take_first_copy(primary, &settings)?;
    }
    let engine = Engine::open(settings).map_err(|error| Failure::failed(error.to_string()))?;
    end_when_lost(engine.crew());
    let served = runtime(config).and_then(|runtime| {
        runtime.block_on(async {
            if engine.is_standby() {
                follow::start(&config.standby.follow, &engine)?;
            } else if !matches!(engine.move_state(), MoveState::Moved(_)) {
                create_missing_kinds(&Deployment::Embedded(engine.clone()), config).await?;
                engine.require_standbys();
            }
            server::serve(&config.http, Deployment::Embedded(engine.clone()), metrics)
                .await
                .map_err(|error| Failure::failed(error.to_string()))
        })
    });
    engine.close();
    let served = served.and_then(|()| none_lost(engine.crew()));
    // Everything is durable; to take the store apart would only delay the end.
    std::mem::forget(engine);
    served
}

fn serve_cluster(config: &Config, metrics: Arc<Metrics>) -> Result<(), Failure> {
    let runtime = runtime(config)?;
    let memory = config.cache.memory(runtime.handle());
    let settings = ClusterSettings { memory, ..cluster_settings(config)? };
    let cluster = open_cluster(&settings)?;
    end_when_lost(cluster.crew());
    let deployment = Deployment::Cluster(cluster.clone());
    let served = runtime.block_on(async {
        if deployment.takes_calls() {
            create_missing_kinds(&deployment, config).await?;
        }
        server::serve(&config.http, deployment, metrics)
            .await
            .map_err(|error| Failure::failed(error.to_string()))
    });
    // What it waits for at its end may be asked on the runtime.
    cluster.close();
    served.and_then(|()| none_lost(cluster.crew()))
}

/// Ends the process, and with it all that hangs, when one of the threads is lost.
fn end_when_lost(crew: &Crew) {
    crew.when_lost(|lost| {
        std::thread::sleep(LOST_GRACE);
        tracing::error!("{lost}: the process ends without a clean stop");
        let _said = failure(lost).report(false);
        std::process::exit(Exit::Lost as i32);
    });
}

/// A thread that was lost while everything stopped.
fn none_lost(crew: &Crew) -> Result<(), Failure> {
    crew.lost().map_or(Ok(()), |lost| Err(failure(lost)))
}

fn failure(lost: &Lost) -> Failure {
    Failure::new(Exit::Lost, lost.to_string())
        .next("start it again: nothing acknowledged is lost; the log says where the thread failed")
}

/// Joins the cluster; one that a service is moving into, as soon as all of it is there. Whoever
/// starts instances before the end of a move has them serve a moment after it.
fn open_cluster(settings: &ClusterSettings) -> Result<Arc<Cluster>, Failure> {
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
pub fn cluster_settings(config: &Config) -> Result<ClusterSettings, Failure> {
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
        region: config.region,
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

/// File, environment and flags, checked, with the logs set up as they say.
fn settings(flags: Serve) -> Result<Config, Failure> {
    let loaded = config::load(flags.config.as_deref(), std::env::vars_os())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let mut config = loaded.config;
    config.data_dir = flags.data_dir.unwrap_or(config.data_dir);
    config.roles = flags.roles.unwrap_or(config.roles);
    config.http.listen = flags.listen.unwrap_or(config.http.listen);
    config.http.allow_unauthenticated |= flags.allow_unauthenticated;
    config.standby.follow = flags.follow.unwrap_or(config.standby.follow);
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    let Config { http, .. } = &config;
    if !http.listen.ip().is_loopback() && !http.allow_unauthenticated {
        return Err(Failure::usage(format!(
            "{} can be reached from other machines, and nobody is asked for a key yet; listen on \
             127.0.0.1, or give --allow-unauthenticated if the network keeps strangers out",
            http.listen
        )));
    }
    telemetry::start_logs(&config.telemetry);
    for variable in loaded.unknown_variables {
        tracing::warn!(variable, "there is no setting of this name; it is ignored");
    }
    Ok(config)
}

fn engine_settings(config: &Config, metrics: &Arc<Metrics>) -> Settings {
    Settings {
        region: config.region,
        clock_may_be_behind: config.clock_may_be_behind,
        clock_may_have_jumped: config.clock_may_have_jumped,
        commit: CommitSettings {
            queue_max: config.commit.queue_max,
            batch_changes_max: config.commit.batch_changes_max,
        },
        log: LogSettings {
            segment_bytes: config.log.segment_bytes,
            retention_ms: config.log.retention_ms,
            retention_bytes: config.log.retention_bytes,
        },
        store: StoreSettings {
            cache_bytes: config.store.cache_bytes,
            memtable_bytes: config.store.memtable_bytes,
            open_tables_max: server::open_tables_max(),
            ..StoreSettings::default()
        },
        shipping: ShippingSettings {
            required: config.standby.required,
            timeout: Duration::from_millis(config.standby.timeout_ms),
        },
        follow: Some(config.standby.follow.clone()).filter(|primary| !primary.is_empty()),
        audit: AuditSettings { scrub_rows_per_second: config.audit.scrub_rows_per_second },
        meter: metrics.clone(),
        ..Settings::new(config.data_dir.clone())
    }
}

fn runtime(config: &Config) -> Result<tokio::runtime::Runtime, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // The committer's threads need cores too; more workers than that only queue behind them.
    let workers = match config.http.workers {
        0 => cores.div_ceil(2),
        workers => workers,
    };
    let spare = match config.mode {
        Mode::Embedded => SPARE_BLOCKING_THREADS + OPERATOR_THREADS,
        Mode::Cluster => {
            let ReadBudgetSettings { reads_max, lists_max, .. } = config.store.reads();
            SPARE_BLOCKING_THREADS + TOKEN_THREADS + reads_max + lists_max
        }
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(config.http.blocking_reads_max + spare)
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))
}

/// The file creates kinds that are missing; what the store has stays as it is.
async fn create_missing_kinds(deployment: &Deployment, config: &Config) -> Result<(), Failure> {
    let tenant = TenantId::DEFAULT;
    for kind in &config.kinds {
        let wrong = |message: &str| Failure::usage(format!("kind {}: {message}", kind.name));
        let spec = kind.clone().into_spec().map_err(|e| wrong(&e.message))?;
        if deployment.catalog().find(tenant, spec.name.as_str()).is_some() {
            continue;
        }
        let change = Change::CreateKind { tenant, spec: Box::new(spec) };
        let request = Request::one(tenant, change);
        let written = deployment.write(request, Instant::now() + KINDS_DEADLINE).await;
        let answers = written.map_err(|error| Failure::failed(error.to_string()))?;
        for answer in answers.answers {
            match answer {
                // Another instance that started at the same time was first.
                Err(error) if error.code == Code::Conflict && config.mode == Mode::Cluster => {}
                answer => drop(answer.map_err(|error| wrong(&error.message))?),
            }
        }
        tracing::info!(kind = kind.name, "created the kind that the settings name");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
