//! Callers of an instance: as many at once as are asked for, or so many puts a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use guanxi_cluster::instance::Cluster;
use guanxi_model::change::Put;
use guanxi_model::{Answer, Change, EdgeKey, KindId, Request, SourceId, TargetId, TenantId};
use tokio::runtime::Runtime;

use super::lag::{Lags, Sampler};
use super::stage::People;

pub const TENANT: TenantId = TenantId::DEFAULT;
pub const FOLLOW: KindId = KindId(1);
const DEADLINE: Duration = Duration::from_secs(30);
/// A rate counts as sustained while no more puts are acknowledged and not applied than it brings in
/// this time, or than this number where that is more.
const BEHIND_TIME: Duration = Duration::from_secs(1);
const BEHIND_LEAST: u64 = 4_096;
/// Between looks at how much has been applied.
const LOOK: Duration = Duration::from_millis(5);
/// How long a backlog may take to be applied.
const SETTLE_MAX: Duration = Duration::from_secs(120);
/// Puts of a steady pace are begun at these intervals.
const TICK: Duration = Duration::from_millis(5);
/// A steady pace samples every so many puts.
const SAMPLED: u64 = 16;

pub struct Load {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    people: Arc<People>,
    url: String,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Everybody follows in turn, so that no edge comes twice.
    turn: AtomicUsize,
    acknowledged: AtomicU64,
}

/// What a caller does.
#[derive(Clone)]
struct Caller {
    cluster: Arc<Cluster>,
    people: Arc<People>,
    counts: Arc<Counts>,
}

impl Caller {
    /// One put; the edge, once it is acknowledged, if it is new.
    async fn put(&self, target: Option<u64>) -> anyhow::Result<Option<EdgeKey>> {
        let turn = self.counts.turn.fetch_add(1, Ordering::Relaxed);
        let source = self.people.all()[turn % self.people.all().len()];
        let target = target.unwrap_or_else(|| self.people.any());
        let edge = EdgeKey {
            tenant: TENANT,
            kind: FOLLOW,
            source: SourceId(source),
            target: TargetId(target),
        };
        let request = Request::one(TENANT, Change::Put(Put::plain(edge)));
        let (answers, _token) = self.cluster.write(request, Instant::now() + DEADLINE).await?;
        // Hardly ever one follows himself or once more: that leaves no record.
        let answer = answers.into_iter().next().context("no answer")?;
        let new = matches!(answer, Ok(Answer::Edge(answer)) if answer.changed);
        if new {
            self.counts.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(new.then_some(edge))
    }

    fn applied(&self) -> u64 {
        self.cluster.status().applier.map_or(0, |figures| figures.records)
    }
}

impl Load {
    pub fn new(cluster: Arc<Cluster>, people: Arc<People>, url: &str) -> anyhow::Result<Load> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
        Ok(Load { runtime, cluster, people, url: url.to_owned(), counts: Arc::default() })
    }

    fn caller(&self) -> Caller {
        let Load { cluster, people, counts, .. } = self;
        Caller { cluster: cluster.clone(), people: people.clone(), counts: counts.clone() }
    }

    /// Puts acknowledged per second.
    pub fn acknowledged(
        &self,
        target: Option<u64>,
        in_flight: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let (begun, before) = (Instant::now(), self.counts.acknowledged.load(Ordering::Relaxed));
        let end = begun + time;
        self.call(in_flight, target, move || Instant::now() < end, &Arc::default())?;
        let done = self.counts.acknowledged.load(Ordering::Relaxed) - before;
        Ok(done as f64 / begun.elapsed().as_secs_f64())
    }

    /// Puts applied per second, while those that are acknowledged only stay few: when they become
    /// many, callers wait.
    pub fn keep_up(
        &self,
        target: Option<u64>,
        in_flight: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        self.settle()?;
        let (begun, caller) = (Instant::now(), self.caller());
        let (end, first) = (begun + time, caller.applied());
        let acknowledged = caller.counts.acknowledged.load(Ordering::Relaxed);
        let full = Arc::new(AtomicBool::new(false));
        let looks = {
            let full = full.clone();
            std::thread::spawn(move || {
                while Instant::now() < end {
                    let applied = caller.applied() - first;
                    let done = caller.counts.acknowledged.load(Ordering::Relaxed) - acknowledged;
                    let rate = applied as f64 / begun.elapsed().as_secs_f64();
                    let allowed = (rate * BEHIND_TIME.as_secs_f64()).max(BEHIND_LEAST as f64);
                    let behind = done.saturating_sub(applied);
                    full.store(behind as f64 > allowed, Ordering::Relaxed);
                    std::thread::sleep(LOOK);
                }
                full.store(false, Ordering::Relaxed);
                caller.applied() - first
            })
        };
        self.call(in_flight, target, move || Instant::now() < end, &full)?;
        let applied = looks.join().map_err(|_| anyhow!("the look at the applier panicked"))?;
        Ok(applied as f64 / time.as_secs_f64())
    }

    /// So many follows of one target, as fast as they are acknowledged.
    pub fn follow_one(&self, target: u64, follows: usize, in_flight: usize) -> anyhow::Result<()> {
        let left = Arc::new(AtomicUsize::new(follows));
        let more = move || {
            let take = |left: usize| left.checked_sub(1);
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        };
        self.call(in_flight, Some(target), more, &Arc::default())
    }

    fn call(
        &self,
        in_flight: usize,
        target: Option<u64>,
        more: impl Fn() -> bool + Clone + Send + 'static,
        full: &Arc<AtomicBool>,
    ) -> anyhow::Result<()> {
        let transactions = self.cluster.status().batches;
        let before = self.counts.acknowledged.load(Ordering::Relaxed);
        let callers: Vec<_> = (0..in_flight)
            .map(|_| {
                let (caller, more, full) = (self.caller(), more.clone(), full.clone());
                self.runtime.spawn(async move {
                    while more() {
                        while full.load(Ordering::Relaxed) {
                            tokio::time::sleep(LOOK).await;
                        }
                        caller.put(target).await?;
                    }
                    Ok::<_, anyhow::Error>(())
                })
            })
            .collect();
        for caller in callers {
            self.runtime.block_on(caller)??;
        }
        let transactions = (self.cluster.status().batches - transactions).max(1);
        let puts = self.counts.acknowledged.load(Ordering::Relaxed) - before;
        println!("  {:.1} puts a transaction", puts as f64 / transactions as f64);
        Ok(())
    }

    /// Waits until all that was acknowledged is applied.
    pub fn settle(&self) -> anyhow::Result<()> {
        if !self.cluster.roles().applier {
            return Ok(());
        }
        let end = Instant::now() + SETTLE_MAX;
        let caller = self.caller();
        loop {
            let before = caller.applied();
            std::thread::sleep(Duration::from_millis(500));
            if caller.applied() == before
                && before >= self.counts.acknowledged.load(Ordering::Relaxed)
            {
                return Ok(());
            }
            if Instant::now() > end {
                bail!(
                    "{before} records applied of {}",
                    self.counts.acknowledged.load(Ordering::Relaxed)
                );
            }
        }
    }

    pub fn close(&self) {
        self.cluster.close();
    }
}

/// Puts at a steady pace beside whatever else happens, with the lag of some of them.
pub struct Pace {
    ends: Arc<AtomicBool>,
    runs: tokio::task::JoinHandle<anyhow::Result<()>>,
    sampler: Sampler,
    handle: tokio::runtime::Handle,
}

impl Pace {
    pub fn begin(load: &Load, rate: f64) -> anyhow::Result<Pace> {
        let ends = Arc::new(AtomicBool::new(false));
        let (acknowledged, samples) = mpsc::channel();
        let sampler = Sampler::start(&load.url, samples)?;
        let (caller, stop) = (load.caller(), ends.clone());
        let runs = load.runtime.spawn(async move {
            let begun = Instant::now();
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                let due = (begun.elapsed().as_secs_f64() * rate) as u64;
                for number in done..due {
                    let (caller, acknowledged) = (caller.clone(), acknowledged.clone());
                    tokio::spawn(async move {
                        if let (Some(edge), 0) = (caller.put(None).await?, number % SAMPLED) {
                            // The sampler ends last.
                            let _gone = acknowledged.send((edge, Instant::now()));
                        }
                        Ok::<_, anyhow::Error>(())
                    });
                }
                done = due;
                tokio::time::sleep(TICK).await;
            }
            Ok(())
        });
        Ok(Pace { ends, runs, sampler, handle: load.runtime.handle().clone() })
    }

    pub fn end(self) -> anyhow::Result<Lags> {
        self.ends.store(true, Ordering::Relaxed);
        self.handle.block_on(self.runs)??;
        self.sampler.end()
    }
}
