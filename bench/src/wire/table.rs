//! What the rounds gave, for each work and server, and what one server took over another in the
//! same round.

use crate::wire::load::Outcome;
use crate::wire::question::Work;
use crate::wire::report::{Over, Spread, WorkRow};

/// Those that others are held against.
const PEERS: [&str; 2] = ["redis", "mariadb"];

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

struct Row {
    work: Work,
    server: &'static str,
    outcomes: Vec<Outcome>,
}

impl Table {
    /// Of the next round.
    pub fn add(&mut self, work: Work, server: &'static str, outcome: Outcome) {
        let (rate, cpu) = (outcome.rate(), outcome.cpu_each_us());
        eprintln!("  {:<16} {server:<12} {rate:>8.0}/s {cpu:>8.1} us", work.name());
        match self.rows.iter_mut().find(|row| row.work == work && row.server == server) {
            Some(row) => row.outcomes.push(outcome),
            None => self.rows.push(Row { work, server, outcomes: vec![outcome] }),
        }
    }

    pub fn rows(&self) -> Vec<WorkRow> {
        self.rows.iter().map(|row| self.row(row)).collect()
    }

    fn row(&self, row: &Row) -> WorkRow {
        let spread = |of: &dyn Fn(&Outcome) -> f64| {
            Spread::of(&row.outcomes.iter().map(of).collect::<Vec<f64>>())
        };
        let peers = PEERS.iter().filter(|peer| **peer != row.server).filter_map(|peer| {
            let of_peer = |other: &&Row| other.work == row.work && other.server == *peer;
            let peer = self.rows.iter().find(of_peer)?;
            let over = |of: fn(&Outcome) -> f64| {
                let rounds = row.outcomes.iter().zip(&peer.outcomes);
                Spread::of(&rounds.map(|(own, its)| of(own) / of(its)).collect::<Vec<f64>>())
            };
            let (cpu, rate) = (over(Outcome::cpu_each_us), over(Outcome::rate));
            Some(Over { server: peer.server.to_owned(), cpu, rate })
        });
        WorkRow {
            work: row.work.name(),
            server: row.server.to_owned(),
            rate: spread(&Outcome::rate),
            p50_ms: spread(&|it| it.ms(0.5)).median,
            p99_ms: spread(&|it| it.ms(0.99)).median,
            p999_ms: spread(&|it| it.ms(0.999)).median,
            longest_ms: spread(&|it| it.ms(1.0)).highest,
            cpu_us: spread(&Outcome::cpu_each_us),
            over: peers.collect(),
        }
    }
}

pub fn print(rows: &[WorkRow]) {
    println!(
        "{:<16} {:<12} {:>9} {:>8} {:>8} {:>8} {:>8}  {:<20} {:<20} mariadb",
        "work", "server", "req/s", "p50 ms", "p99 ms", "p99.9", "cpu us", "cpu / redis's", "rate"
    );
    for row in rows {
        let over = |peer: &str, of: fn(&Over) -> Spread| {
            row.over(peer).map_or_else(String::new, |over| of(over).to_string())
        };
        println!(
            "{:<16} {:<12} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>8.1}  {:<20} {:<20} {}",
            row.work,
            row.server,
            row.rate.median,
            row.p50_ms,
            row.p99_ms,
            row.p999_ms,
            row.cpu_us.median,
            over("redis", |over| over.cpu),
            over("redis", |over| over.rate),
            over("mariadb", |over| over.cpu),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hdrhistogram::Histogram;

    use super::*;

    fn outcome(requests: u64, cpu_us: f64, latency_us: u64) -> Outcome {
        let Ok(mut latencies) = Histogram::new(3) else { panic!("a histogram") };
        for latency in [latency_us, 2 * latency_us, 3 * latency_us] {
            let _taken = latencies.record(latency);
        }
        Outcome { requests, took: Duration::from_secs(2), latencies, cpu_us }
    }

    /// Ratios are those of rounds: the machine may be slow in one, and then it is for all.
    #[test]
    fn a_server_is_held_against_another_in_the_same_round() {
        let mut table = Table::default();
        for slow in [1.0, 10.0, 3.0] {
            table.add(Work::Check, "redis", outcome(100, 1_000.0 * slow, 100));
            table.add(Work::Check, "guanxi-http", outcome(50, 1_000.0 * slow, 1_000));
        }
        let rows = table.rows();
        let [redis, guanxi] = rows.as_slice() else { panic!("two rows") };
        assert!(redis.over.is_empty());
        assert_eq!((redis.rate.median, redis.cpu_us.median), (50.0, 30.0));
        let Some(over) = guanxi.over("redis") else { panic!("a ratio") };
        assert_eq!(over.cpu, Spread { median: 2.0, lowest: 2.0, highest: 2.0 });
        assert_eq!(over.rate.median, 0.5);
        assert!((guanxi.p50_ms - 2.0).abs() < 0.01 && (guanxi.longest_ms - 3.0).abs() < 0.01);
    }
}
