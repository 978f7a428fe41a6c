//! How long after its acknowledgement a put is visible at the target's side.

use std::fmt::Write;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use guanxi_model::EdgeKey;
use hdrhistogram::Histogram;
use mysql::prelude::Queryable;
use mysql::{Conn, Opts};

/// Between looks at the rows that are waited for: what a lag may be too long by.
const LOOK: Duration = Duration::from_millis(4);
/// Rows that one look asks for.
const ASKED_MAX: usize = 128;
/// A put that is not visible by then never will be.
const LAG_MAX: Duration = Duration::from_secs(60);

pub struct Lags(Histogram<u64>);

impl Lags {
    fn at(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1_000.0
    }

    pub fn p50(&self) -> f64 {
        self.at(0.5)
    }

    pub fn p99(&self) -> f64 {
        self.at(0.99)
    }
}

impl std::fmt::Display for Lags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (p50, p95, p99, max) = (self.p50(), self.at(0.95), self.p99(), self.at(1.0));
        let samples = self.0.len();
        write!(f, "p50 {p50:.0} p95 {p95:.0} p99 {p99:.0} max {max:.0} ms of {samples} samples")
    }
}

/// Looks for rows until whoever sends them has gone and all were seen.
pub struct Sampler(JoinHandle<anyhow::Result<Lags>>);

impl Sampler {
    pub fn start(url: &str, samples: Receiver<(EdgeKey, Instant)>) -> anyhow::Result<Sampler> {
        let connection = Conn::new(Opts::from_url(url)?)?;
        Ok(Sampler(std::thread::spawn(move || look(connection, &samples))))
    }

    pub fn end(self) -> anyhow::Result<Lags> {
        self.0.join().map_err(|_| anyhow!("the sampler panicked"))?
    }
}

fn look(mut connection: Conn, samples: &Receiver<(EdgeKey, Instant)>) -> anyhow::Result<Lags> {
    let mut lags = Histogram::<u64>::new(3)?;
    let mut waiting: Vec<(EdgeKey, Instant)> = Vec::new();
    let mut over = false;
    while !over || !waiting.is_empty() {
        loop {
            match samples.try_recv() {
                Ok(sample) => waiting.push(sample),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    over = true;
                    break;
                }
            }
        }
        // The youngest ones too: those of a slow partition must not keep them from being seen.
        if waiting.len() > ASKED_MAX {
            fastrand::shuffle(&mut waiting);
        }
        let asked = &waiting[..waiting.len().min(ASKED_MAX)];
        let seen = visible(&mut connection, asked)?;
        let (now, mut found) = (Instant::now(), Vec::new());
        waiting.retain(|(edge, at)| {
            let visible = seen.contains(&(edge.source.0, edge.target.0));
            if visible {
                found.push(now.duration_since(*at).as_micros() as u64);
            }
            !visible
        });
        for lag in found {
            lags.record(lag)?;
        }
        if waiting.iter().any(|(_, at)| at.elapsed() > LAG_MAX) {
            bail!("a put did not become visible within {LAG_MAX:?}");
        }
        std::thread::sleep(LOOK);
    }
    Ok(Lags(lags))
}

fn visible(conn: &mut Conn, asked: &[(EdgeKey, Instant)]) -> anyhow::Result<Vec<(u64, u64)>> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = String::new();
    for (index, (edge, _)) in asked.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let EdgeKey { tenant, kind, source, target } = edge;
        write!(list, "{comma}({},{},{},{})", tenant.0, kind.0, target.0, source.0)?;
    }
    Ok(conn.query(format!(
        "SELECT source,target FROM incoming FORCE INDEX (PRIMARY) \
         WHERE (tenant,kind,target,source) IN ({list})"
    ))?)
}
