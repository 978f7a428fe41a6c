//! How many puts a second the commit path takes, beside a plain transaction of seven statements
//! per put. A measurement, run by hand in an optimised build:
//! `cargo test --profile checked -p guanxi-moving --test cluster_commit load -- --ignored --nocapture`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::change::Put;
use guanxi_model::{Change, Request};
use guanxi_services::shared;
use mysql::prelude::Queryable;
use mysql::{Conn, Opts};

use crate::bench::{FOLLOW, Instance, PATIENCE, TENANT, databases, edge};

const CONNECTIONS: usize = 64;
const IDS: u64 = 1 << 40;

fn seconds() -> Duration {
    let asked = std::env::var("LOAD_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(5))
}

#[test]
#[ignore = "a measurement"]
fn puts_a_second() {
    for (server, url) in databases("puts_a_second") {
        let pid = match server {
            "MariaDB" => shared::mariadb().pid(),
            _ => shared::tidb().pid(),
        };
        let plain = measured(pid, || seven_statements(&url));
        println!("{server}: seven statements {plain}");
        for in_flight in [64, 256] {
            let grouped = measured(pid, || grouped(&url, in_flight));
            let (faster, cheaper) = (grouped.rate / plain.rate, plain.server / grouped.server);
            println!("{server}: {in_flight} in flight {grouped}");
            println!("{server}:   × {faster:.1} puts/s, ÷ {cheaper:.1} server CPU");
        }
    }
}

/// Puts a second, and microseconds of CPU per put: on a shared machine the fairer measure.
struct Measured {
    rate: f64,
    server: f64,
    own: f64,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Measured { rate, server, own } = self;
        write!(f, "{rate:.0}/s, CPU per put {server:.0} µs there, {own:.0} µs here")
    }
}

fn measured(pid: u32, run: impl FnOnce() -> (u64, Duration)) -> Measured {
    let (server, own) = (cpu_micros(pid), cpu_micros(std::process::id()));
    let (done, took) = run();
    let each = |before: f64, pid| (cpu_micros(pid) - before) / done as f64;
    let rate = done as f64 / took.as_secs_f64();
    Measured { rate, server: each(server, pid), own: each(own, std::process::id()) }
}

/// User and system time of a process, in ticks of 10 ms.
fn cpu_micros(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    ticks.sum::<u64>() as f64 * 10_000.0
}

fn grouped(url: &str, in_flight: usize) -> (u64, Duration) {
    let instance = Arc::new(Instance::start(url));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let (done, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let until = begun + seconds();
    let mut tasks = Vec::new();
    for seed in 0..in_flight {
        let (instance, done) = (instance.clone(), done.clone());
        tasks.push(runtime.spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed as u64);
            while Instant::now() < until {
                let edge = edge(FOLLOW, random.u64(1..IDS), random.u64(1..IDS));
                let request = Request::one(TENANT, Change::Put(Put::plain(edge)));
                let written = instance.committer.write(request, Instant::now() + PATIENCE).await;
                written.unwrap().answers.pop().unwrap().unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    (done.load(Ordering::Relaxed), begun.elapsed())
}

/// What one would write first: each put a transaction of its own, both directions and both tallies.
fn seven_statements(url: &str) -> (u64, Duration) {
    let opts = Opts::from_url(url).unwrap();
    let mut setup = Conn::new(opts.clone()).unwrap();
    for statement in [
        "CREATE TABLE plain_tally (node BIGINT UNSIGNED PRIMARY KEY, outgoing BIGINT NOT NULL, \
         incoming BIGINT NOT NULL)",
        "CREATE TABLE plain_outgoing (source BIGINT UNSIGNED, target BIGINT UNSIGNED, \
         since BIGINT UNSIGNED, PRIMARY KEY (source, target), KEY (source, since))",
        "CREATE TABLE plain_incoming (target BIGINT UNSIGNED, source BIGINT UNSIGNED, \
         since BIGINT UNSIGNED, PRIMARY KEY (target, source), KEY (target, since))",
    ] {
        setup.query_drop(statement).unwrap();
    }
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut threads = Vec::new();
    for seed in 0..CONNECTIONS {
        let (stop, done, opts) = (stop.clone(), done.clone(), opts.clone());
        threads.push(std::thread::spawn(move || {
            let mut connection = Conn::new(opts).unwrap();
            let level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
            connection.query_drop(level).unwrap();
            let mut random = fastrand::Rng::with_seed(1_000 + seed as u64);
            while !stop.load(Ordering::Relaxed) {
                let (source, target) = (random.u64(1..IDS), random.u64(1..IDS));
                match plain_put(&mut connection, source, target) {
                    Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                    Err(_) => {
                        connection.query_drop("ROLLBACK").unwrap();
                        continue;
                    }
                };
            }
        }));
    }
    let begun = Instant::now();
    std::thread::sleep(seconds());
    let measured = (done.load(Ordering::Relaxed), begun.elapsed());
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    measured
}

fn plain_put(connection: &mut Conn, source: u64, target: u64) -> mysql::Result<()> {
    connection.query_drop("BEGIN")?;
    connection.exec_drop("SELECT outgoing FROM plain_tally WHERE node=? FOR UPDATE", (source,))?;
    for table in ["plain_outgoing", "plain_incoming"] {
        let upsert = format!(
            "INSERT INTO {table} (source,target,since) VALUES (?,?,1) \
             ON DUPLICATE KEY UPDATE since=1"
        );
        connection.exec_drop(upsert, (source, target))?;
    }
    for (column, node) in [("outgoing", source), ("incoming", target)] {
        let upsert = format!(
            "INSERT INTO plain_tally (node,outgoing,incoming) VALUES (?,0,0) \
             ON DUPLICATE KEY UPDATE {column}={column}+1"
        );
        connection.exec_drop(upsert, (node,))?;
    }
    connection.query_drop("COMMIT")
}
