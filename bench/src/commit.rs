//! Durable puts through the whole commit path, in process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use guanxi_engine::{Engine, Meter, Request, Settings};
use guanxi_model::change::Put;
use guanxi_model::{Change, EdgeKey, KindId, SourceId, TargetId, TenantId};
use hdrhistogram::Histogram;

const TENANT: TenantId = TenantId::DEFAULT;
/// Changes per request while loading.
const LOAD_CHANGES: usize = 500;
const LOAD_IN_FLIGHT: u64 = 8;
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub struct Arguments {
    /// Data directory; new or of an earlier run.
    #[arg(long)]
    dir: PathBuf,
    /// Edges to load before measuring.
    #[arg(long, default_value_t = 5_000_000)]
    edges: u64,
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    #[arg(long, default_value = "follow")]
    kind: String,
    /// All puts on one target.
    #[arg(long)]
    celebrity: bool,
    /// Threads of the callers' runtime.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// The longest time between two batches' ends while work waits.
#[derive(Default)]
struct Stalls {
    longest_fsync_us: AtomicU64,
    longest_apply_us: AtomicU64,
    batches: AtomicU64,
    changes: AtomicU64,
}

impl Stalls {
    /// Forgets what the load did.
    fn clear(&self) {
        for number in [&self.longest_fsync_us, &self.longest_apply_us, &self.batches, &self.changes]
        {
            number.store(0, Ordering::Relaxed);
        }
    }
}

impl Meter for Stalls {
    fn batch(&self, changes: usize, _: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.changes.fetch_add(changes as u64, Ordering::Relaxed);
    }
    fn decide(&self, _: Duration) {}
    fn fsync(&self, took: Duration) {
        self.longest_fsync_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
    }
    fn apply(&self, took: Duration) {
        self.longest_apply_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let stalls = Arc::new(Stalls::default());
    let settings = Settings { meter: stalls.clone(), ..Settings::new(&arguments.dir) };
    let begun = Instant::now();
    let engine = Engine::open(settings)?;
    println!("opened in {:.3} s", begun.elapsed().as_secs_f64());
    let kind = engine.catalog().named(TENANT, &arguments.kind)?.id;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.threads)
        .enable_time()
        .build()?;
    runtime.block_on(async {
        load(&engine, kind, arguments.edges).await?;
        stalls.clear();
        measure(&engine, kind, arguments, &stalls).await
    })?;
    let begun = Instant::now();
    engine.close();
    println!("closed in {:.3} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// A random id of the length that real ones have.
pub fn random_id() -> u64 {
    fastrand::u64(1_000_000_000_000_000_000..u64::MAX)
}

pub fn put(kind: KindId, target: Option<u64>) -> Change {
    let target = TargetId(target.unwrap_or_else(random_id));
    let edge = EdgeKey { tenant: TENANT, kind, source: SourceId(random_id()), target };
    Change::Put(Put::plain(edge))
}

async fn load(engine: &Arc<Engine>, kind: KindId, edges: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let share = edges / LOAD_IN_FLIGHT;
    let loaders: Vec<_> = (0..LOAD_IN_FLIGHT)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut left = share;
                while left > 0 {
                    let count = left.min(LOAD_CHANGES as u64);
                    let changes = (0..count).map(|_| put(kind, None)).collect();
                    let request = Request { tenant: TENANT, changes, key: None };
                    engine.write(request, Instant::now() + DEADLINE).await?;
                    left -= count;
                }
                Ok::<_, guanxi_model::Error>(())
            })
        })
        .collect();
    for loader in loaders {
        loader.await??;
    }
    let took = begun.elapsed().as_secs_f64();
    println!("loaded {edges} edges in {took:.1} s ({:.0}/s)", edges as f64 / took);
    Ok(())
}

async fn measure(
    engine: &Arc<Engine>,
    kind: KindId,
    arguments: &Arguments,
    stalls: &Stalls,
) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let target = arguments.celebrity.then_some(7);
    let begun = Instant::now();
    let callers: Vec<_> = (0..arguments.in_flight)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut latencies = Histogram::<u64>::new(3)?;
                while Instant::now() < end {
                    let begun = Instant::now();
                    let request = Request::one(TENANT, put(kind, target));
                    let written = engine.write(request, begun + DEADLINE).await?;
                    written.answers.into_iter().next().context("no answer")??;
                    latencies.record(begun.elapsed().as_micros() as u64)?;
                }
                Ok::<_, anyhow::Error>(latencies)
            })
        })
        .collect();
    let mut latencies = Histogram::<u64>::new(3)?;
    for caller in callers {
        latencies.add(caller.await??).map_err(|error| anyhow!("{error}"))?;
    }
    let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    let ms = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
    println!(
        "{} in flight, {} s: {rate:.0} durable puts/s; latency ms p50 {:.1} p99 {:.1} p99.9 {:.1} longest {:.1}",
        arguments.in_flight,
        arguments.seconds,
        ms(0.5),
        ms(0.99),
        ms(0.999),
        ms(1.0),
    );
    let batches = stalls.batches.load(Ordering::Relaxed).max(1);
    println!(
        "batches {batches}, {:.0} changes each; longest fsync {:.1} ms, longest apply {:.1} ms; store {} MiB, log {} MiB",
        stalls.changes.load(Ordering::Relaxed) as f64 / batches as f64,
        stalls.longest_fsync_us.load(Ordering::Relaxed) as f64 / 1_000.0,
        stalls.longest_apply_us.load(Ordering::Relaxed) as f64 / 1_000.0,
        engine.status().store_bytes >> 20,
        engine.status().log_bytes >> 20,
    );
    Ok(())
}
