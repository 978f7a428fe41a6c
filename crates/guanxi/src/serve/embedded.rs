//! An embedded service: one process, one data directory.

use std::sync::Arc;
use std::time::Duration;

use guanxi_core::AuditSettings;
use guanxi_core::deployment::Deployment;
use guanxi_embedded::{
    CommitSettings, Engine, LogSettings, MoveState, ResidentSettings, ServedEngine, Settings,
    ShippingSettings, StoreSettings,
};
use tokio::runtime::Builder;

use super::{
    blocking_threads, create_missing_kinds, end_when_lost, no_runtime, none_lost, region,
    serving_threads,
};
use crate::config::Config;
use crate::failure::Failure;
use crate::server::ServingThreads;
use crate::service::{OPERATOR_THREADS, Served};
use crate::telemetry::Metrics;
use crate::telemetry::embedded::{EngineGauges, EngineNumbers};
use crate::{follow, server};

pub fn serve(config: &Config) -> Result<(), Failure> {
    let gauges = EngineGauges::default();
    let metrics = Arc::new(Metrics::of_embedded(&gauges));
    let settings = engine_settings(config, &metrics)?;
    if let Some(primary) = &settings.follow {
        follow::take_first_copy(primary, &settings)?;
    }
    let engine = Engine::open(settings).map_err(|error| Failure::failed(error.to_string()))?;
    end_when_lost(engine.crew());
    metrics.show(EngineNumbers(gauges, engine.clone()));
    let long_reads_max = config.http.blocking_reads_max;
    let deployment: Arc<dyn Deployment> =
        Arc::new(ServedEngine::new(engine.clone(), long_reads_max));
    let blocking_max = blocking_threads(config, OPERATOR_THREADS);
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(blocking_max).enable_all().build();
    let served = runtime.map_err(no_runtime).and_then(|runtime| {
        let threads = ServingThreads::start(engine.crew(), serving_threads(config), blocking_max);
        let threads = threads.map_err(no_runtime)?;
        runtime.block_on(async {
            if engine.is_standby() {
                follow::start(&config.standby.follow, &engine)?;
            } else if !matches!(engine.move_state(), MoveState::Moved(_)) {
                create_missing_kinds(&*deployment, config).await?;
                engine.require_standbys();
            }
            let engine = Some(engine.clone());
            let served = Served { deployment, engine, metrics };
            server::serve(&config.http, &config.resp, served, threads)
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

fn engine_settings(config: &Config, metrics: &Arc<Metrics>) -> Result<Settings, Failure> {
    Ok(Settings {
        region: region(config)?,
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
        resident: ResidentSettings {
            rows_bytes_max: config.store.rows_bytes_max,
            filter_bytes_max: config.store.filter_bytes_max,
            ..ResidentSettings::default()
        },
        shipping: ShippingSettings {
            required: config.standby.required,
            timeout: Duration::from_millis(config.standby.timeout_ms),
        },
        follow: Some(config.standby.follow.clone()).filter(|primary| !primary.is_empty()),
        audit: AuditSettings { scrub_rows_per_second: config.audit.scrub_rows_per_second },
        meter: metrics.clone(),
        ..Settings::new(config.data_dir.clone())
    })
}
