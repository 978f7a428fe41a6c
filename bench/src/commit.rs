//! Durable puts through the whole commit path, in process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use guanxi_embedded::{Engine, Meter, Settings};
use guanxi_model::change::Put;
use guanxi_model::{Change, EdgeKey, KindId, Request, SourceId, TargetId, TenantId};
use hdrhistogram::Histogram;

pub const TENANT: TenantId = TenantId::DEFAULT;
/// Changes per request while loading.
const LOAD_CHANGES: usize = 500;
const LOAD_IN_FLIGHT: u64 = 8;
const DEADLINE: Duration = Duration::from_secs(30);
/// The probe writes about what a batch does, into a file that has its blocks already.
const PROBE_WRITE_BYTES: usize = 8 << 10;
const PROBE_FILE_BYTES: usize = 64 << 20;
const PROBE_TIME: Duration = Duration::from_secs(10);

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

/// How long each stage took for each batch, in microseconds.
struct Stages {
    decide: Mutex<Histogram<u64>>,
    fsync: Mutex<Histogram<u64>>,
    apply: Mutex<Histogram<u64>>,
    changes: Mutex<Histogram<u64>>,
}

impl Stages {
    fn new() -> anyhow::Result<Stages> {
        let histogram = || Ok::<_, anyhow::Error>(Mutex::new(Histogram::new(3)?));
        Ok(Stages {
            decide: histogram()?,
            fsync: histogram()?,
            apply: histogram()?,
            changes: histogram()?,
        })
    }

    /// Forgets what the load did.
    fn clear(&self) {
        for histogram in [&self.decide, &self.fsync, &self.apply, &self.changes] {
            locked(histogram).reset();
        }
    }

    fn print(&self) {
        for (name, histogram) in
            [("decide", &self.decide), ("fsync", &self.fsync), ("apply", &self.apply)]
        {
            let histogram = locked(histogram);
            let ms = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
            let (p50, p99, p999, longest) = (ms(0.5), ms(0.99), ms(0.999), ms(1.0));
            println!(
                "{name:>7} ms: p50 {p50:.2} p99 {p99:.2} p99.9 {p999:.2} longest {longest:.1}"
            );
        }
        let changes = locked(&self.changes);
        println!("batches: {}, {:.0} changes each", changes.len(), changes.mean());
    }
}

fn locked(histogram: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    histogram.lock().unwrap_or_else(PoisonError::into_inner)
}

/// It grows with its values, so it takes each.
fn record(histogram: &Mutex<Histogram<u64>>, value: u64) {
    let _taken = locked(histogram).record(value);
}

fn note(histogram: &Mutex<Histogram<u64>>, took: Duration) {
    record(histogram, took.as_micros() as u64);
}

impl Meter for Stages {
    fn batch(&self, changes: usize, _: usize) {
        record(&self.changes, changes as u64);
    }
    fn decide(&self, took: Duration) {
        note(&self.decide, took);
    }
    fn fsync(&self, took: Duration) {
        note(&self.fsync, took);
    }
    fn apply(&self, took: Duration) {
        note(&self.apply, took);
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let stages = Arc::new(Stages::new()?);
    let settings = Settings { meter: stages.clone(), ..Settings::new(&arguments.dir) };
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
        probe(&arguments.dir)?;
        stages.clear();
        measure(&engine, kind, arguments, &stages).await
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

pub async fn load(engine: &Arc<Engine>, kind: KindId, edges: u64) -> anyhow::Result<()> {
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
                    let request = Request::new(TENANT, changes);
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

/// What the disk does by itself, with nobody else writing: a stall that it has alone is not the
/// commit path's.
fn probe(directory: &Path) -> anyhow::Result<()> {
    let path = directory.join("probe");
    let file = File::create(&path)?;
    file.write_all_at(&vec![0; PROBE_FILE_BYTES], 0)?;
    file.sync_all()?;
    let mut latencies = Histogram::<u64>::new(3)?;
    let begun = Instant::now();
    for offset in (0..PROBE_FILE_BYTES).step_by(PROBE_WRITE_BYTES).cycle() {
        if begun.elapsed() > PROBE_TIME {
            break;
        }
        let written = Instant::now();
        file.write_all_at(&[1; PROBE_WRITE_BYTES], offset as u64)?;
        file.sync_data()?;
        latencies.record(written.elapsed().as_micros() as u64)?;
    }
    std::fs::remove_file(&path)?;
    let ms = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
    let (p50, p999, longest) = (ms(0.5), ms(0.999), ms(1.0));
    println!(
        "the disk alone, {PROBE_WRITE_BYTES} B at a time: fdatasync ms p50 {p50:.2} p99.9 {p999:.1} longest {longest:.1}"
    );
    Ok(())
}

/// Puts for so long, so many at once: how many in a second, and how long each took, in
/// microseconds.
pub async fn puts(
    engine: &Arc<Engine>,
    kind: KindId,
    target: Option<u64>,
    in_flight: usize,
    time: Duration,
) -> anyhow::Result<(f64, Histogram<u64>)> {
    let begun = Instant::now();
    let end = begun + time;
    let callers: Vec<_> = (0..in_flight)
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
    Ok((latencies.len() as f64 / begun.elapsed().as_secs_f64(), latencies))
}

async fn measure(
    engine: &Arc<Engine>,
    kind: KindId,
    arguments: &Arguments,
    stages: &Stages,
) -> anyhow::Result<()> {
    let (time, target) = (Duration::from_secs(arguments.seconds), arguments.celebrity.then_some(7));
    let (rate, latencies) = puts(engine, kind, target, arguments.in_flight, time).await?;
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
    stages.print();
    probe(&arguments.dir)?;
    let status = engine.status();
    println!("store {} MiB, log {} MiB", status.store_bytes >> 20, status.log_bytes >> 20);
    Ok(())
}
