//! What the rounds gave, for each work and server, and the ratio of each to the first server in
//! the same round.

use super::generator::Outcome;
use super::question::Work;

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
    pub fn add(&mut self, work: Work, server: &'static str, outcome: Outcome) {
        match self.rows.iter_mut().find(|row| row.work == work && row.server == server) {
            Some(row) => row.outcomes.push(outcome),
            None => self.rows.push(Row { work, server, outcomes: vec![outcome] }),
        }
    }

    pub fn print_last(&self, work: Work) {
        for row in self.rows.iter().filter(|row| row.work == work) {
            if let Some(last) = row.outcomes.last() {
                let (rate, cpu) = (last.rate(), last.cpu_each_us());
                eprintln!("  {:<16} {:<12} {rate:>8.0}/s {cpu:>8.1} us", work.name(), row.server);
            }
        }
    }

    pub fn print(&self) {
        println!(
            "{:<16} {:<12} {:>9} {:>8} {:>8} {:>8} {:>8}  {:<20} {:<20}",
            "work",
            "server",
            "req/s",
            "p50 ms",
            "p99 ms",
            "p99.9",
            "cpu us",
            "cpu / redis",
            "req/s / redis"
        );
        for row in &self.rows {
            let base = self.rows.iter().find(|base| base.work == row.work);
            let over = |of: fn(&Outcome) -> f64| match base {
                Some(base) if base.server != row.server => {
                    let pairs = row.outcomes.iter().zip(&base.outcomes);
                    let ratios: Vec<f64> = pairs.map(|(one, base)| of(one) / of(base)).collect();
                    Spread::of(&ratios).to_string()
                }
                _ => String::new(),
            };
            let median = |of: &dyn Fn(&Outcome) -> f64| {
                Spread::of(&row.outcomes.iter().map(of).collect::<Vec<f64>>()).median
            };
            let ms = |quantile: f64| {
                median(&|it: &Outcome| it.latencies.value_at_quantile(quantile) as f64 / 1_000.0)
            };
            println!(
                "{:<16} {:<12} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>8.1}  {:<20} {:<20}",
                row.work.name(),
                row.server,
                median(&Outcome::rate),
                ms(0.5),
                ms(0.99),
                ms(0.999),
                median(&Outcome::cpu_each_us),
                over(Outcome::cpu_each_us),
                over(Outcome::rate),
            );
        }
    }
}

/// The median of values, the lowest and the highest.
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl Spread {
    pub fn of(values: &[f64]) -> Spread {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let median = (at(last / 2) + at(values.len() / 2)) / 2.0;
        Spread { median, lowest: at(0), highest: at(last) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}-{:.2})", self.median, self.lowest, self.highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_in_the_middle() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).to_string(), "2.00 (1.00-3.00)");
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).to_string(), "2.50 (1.00-4.00)");
        assert_eq!(Spread::of(&[1.0]).to_string(), "1.00 (1.00-1.00)");
    }
}
