//! Follows through the cluster's engine, on real servers that it starts, held against seven
//! statements by hand on the same database.

mod seven;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use guanxi_engine::Request;
use guanxi_engine::clock::SystemClock;
use guanxi_engine::cluster::catalog::SharedCatalog;
use guanxi_engine::cluster::commit::{SqlCommitSettings, SqlCommitter, SqlCommitterParts};
use guanxi_engine::cluster::schema;
use guanxi_engine::cluster::sql::Database;
use guanxi_engine::cluster::value;
use guanxi_model::change::Put;
use guanxi_model::{Change, EdgeKey, KindId, SourceId, TargetId, TenantId};
use guanxi_services::{MariaDb, fresh_database};
use hdrhistogram::Histogram;

use crate::commit::random_id;

const TENANT: TenantId = TenantId::DEFAULT;
const DEADLINE: Duration = Duration::from_secs(30);
/// Those who follow and are followed.
const PEOPLE: usize = 100_000;
const CONNECTIONS_MAX: usize = 64;

#[derive(clap::Args)]
pub struct Arguments {
    /// Callers that wait at once; several are measured one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256])]
    in_flight: Vec<usize>,
    /// Length of each measurement.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// Ids as long as real ones; everybody may follow anybody.
pub struct People(Vec<u64>);

impl People {
    fn new() -> People {
        People((0..PEOPLE).map(|_| random_id()).collect())
    }

    pub fn all(&self) -> &[u64] {
        &self.0
    }

    /// Who follows whom: a random target, or this one.
    pub fn pair(&self, target: Option<u64>) -> (u64, u64) {
        let any = || self.0[fastrand::usize(..self.0.len())];
        (any(), target.unwrap_or_else(any))
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let time = Duration::from_secs(arguments.seconds);
    let people = Arc::new(People::new());
    let server = MariaDb::start();
    let by_hand = fresh_database(&server);
    seven::prepare(&by_hand, &people)?;
    let ours = fresh_database(&server);
    let database = Database::open(&ours, CONNECTIONS_MAX)?;
    schema::migrate(&database)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let committer = Arc::new(SqlCommitter::start(SqlCommitterParts {
        catalog: SharedCatalog::open(&database)?,
        database,
        clock: Arc::new(SystemClock),
        settings: SqlCommitSettings::default(),
        region: 0,
        committed: Arc::new(|| {}),
        instance: random_id(),
        encode: value::encode,
    })?);
    for in_flight in &arguments.in_flight {
        let seven = seven::rate(&by_hand, &people, None, time)?;
        let ours = runtime.block_on(acknowledged(&committer, &people, None, *in_flight, time))?;
        println!("{in_flight} in flight: seven statements {seven:.0}/s, acknowledged {ours:.0}/s, ratio {:.2}", ours / seven);
    }
    committer.close();
    Ok(())
}

async fn acknowledged(
    committer: &Arc<SqlCommitter>,
    people: &Arc<People>,
    target: Option<u64>,
    in_flight: usize,
    time: Duration,
) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let end = begun + time;
    let callers: Vec<_> = (0..in_flight)
        .map(|_| {
            let (committer, people) = (committer.clone(), people.clone());
            tokio::spawn(async move {
                let mut latencies = Histogram::<u64>::new(3)?;
                while Instant::now() < end {
                    let begun = Instant::now();
                    let (source, target) = people.pair(target);
                    let edge = EdgeKey {
                        tenant: TENANT,
                        kind: KindId(1),
                        source: SourceId(source),
                        target: TargetId(target),
                    };
                    let request = Request::one(TENANT, Change::Put(Put::plain(edge)));
                    let written = committer.write(request, begun + DEADLINE).await?;
                    let _refused = written.answers.into_iter().next().context("no answer")?;
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
    println!("p50 {} us p99 {} us", latencies.value_at_quantile(0.5), latencies.value_at_quantile(0.99));
    Ok(latencies.len() as f64 / begun.elapsed().as_secs_f64())
}
