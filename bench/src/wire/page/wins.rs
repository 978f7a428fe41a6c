//! Where Redis still wins, from the figures: wherever the best of Guanxi's protocols takes more
//! than Redis, by the median of the rounds. What lies within the rounds' spread is called even.

use std::fmt::Write as _;

use super::{Part, shown};
use crate::wire::plot::figure;
use crate::wire::report::{Spread, Whole, WorkRow};

const GUANXI: &str = "guanxi";
const REDIS: &str = "redis";
/// Works whose rate is what matters, as they wait for the disk.
const DURABLE: [&str; 4] = ["follow64", "follow256", "celebrity64", "celebrity256"];

/// What was compared, Guanxi's figure over that of Redis, and both in words. More is worse.
struct Contest {
    what: String,
    over: Spread,
    figures: String,
}

pub fn part(whole: &Whole) -> Part {
    let contests = contests(whole);
    let is_even = |it: &&Contest| it.over.lowest <= 1.0 && it.over.highest >= 1.0;
    let lost = contests.iter().filter(|it| it.over.median > 1.0 && !is_even(it));
    let even = contests.iter().filter(is_even);
    let won = contests.iter().filter(|it| it.over.median <= 1.0 && !is_even(it));
    let mut text = "## Where Redis still wins\n\nThe best of Guanxi's protocols over Redis; more is worse.\n\n".to_owned();
    list(lost, "In nothing that was measured here.", &mut text);
    text.push_str(
        "\nBeyond figures: Redis does whatever one composes of its structures, Guanxi only what is \
         asked of relations; Redis has clients, hosts and people who know it everywhere.\n\n",
    );
    text.push_str("Even, as the rounds differ more than the two do:\n\n");
    list(even, "Nothing.", &mut text);
    text.push_str("\nWhere Guanxi takes less:\n\n");
    list(won, "Nothing.", &mut text);
    Part { text, plots: Vec::new() }
}

fn list<'a>(contests: impl Iterator<Item = &'a Contest>, none: &str, to: &mut String) {
    let mut contests: Vec<&Contest> = contests.collect();
    contests.sort_by(|one, other| other.over.median.total_cmp(&one.over.median));
    if contests.is_empty() {
        let _written = writeln!(to, "{none}");
    }
    for Contest { what, over, figures } in contests {
        let _written = writeln!(to, "- **{what}**: {over} times ({figures}).");
    }
}

fn contests(whole: &Whole) -> Vec<Contest> {
    let mut contests: Vec<Contest> = Vec::new();
    for redis in whole.works.iter().filter(|row| row.server == REDIS) {
        let own = || {
            let is_own = |row: &&WorkRow| row.work == redis.work && row.server.starts_with(GUANXI);
            whole.works.iter().filter(is_own)
        };
        let cpu = own().filter_map(|row| Some((row, row.over(REDIS)?.cpu)));
        contests.extend(best(cpu).map(|(row, over)| Contest {
            what: format!("{}, processor time", row.work),
            over,
            figures: format!(
                "{} µs over {}, Redis {}",
                figure(row.cpu_us.median),
                protocol(row),
                figure(redis.cpu_us.median)
            ),
        }));
        if DURABLE.contains(&redis.work.as_str()) {
            // Over its own rate, that of Redis: more is worse here, too.
            let slower = own().filter_map(|row| {
                let rate = row.over(REDIS)?.rate;
                let [lowest, median, highest] =
                    [rate.highest, rate.median, rate.lowest].map(f64::recip);
                Some((row, Spread { median, lowest, highest }))
            });
            contests.extend(best(slower).map(|(row, over)| Contest {
                what: format!("{}, time for as many", row.work),
                over,
                figures: format!(
                    "{} a second over {}, Redis {}",
                    figure(row.rate.median),
                    protocol(row),
                    figure(redis.rate.median)
                ),
            }));
        }
    }
    contests.extend(beside_works(whole));
    contests
}

fn beside_works(whole: &Whole) -> Vec<Contest> {
    let mut contests = Vec::new();
    let mut add = |what: &str, unit: &str, own: f64, redis: f64| {
        contests.push(Contest {
            what: what.to_owned(),
            over: Spread::of(&[own / redis]),
            figures: format!("{} {unit}, Redis {}", figure(own), figure(redis)),
        });
    };
    let held = |server: &str| whole.held.iter().find(|held| held.server == server);
    if let Some((own, redis)) = held(GUANXI).zip(held(REDIS)) {
        add("memory", "bytes an edge", own.resident_each(), redis.resident_each());
        add("disk", "bytes an edge", own.disk_each(), redis.disk_each());
    }
    for (after_kill, what) in [(false, "start after a stop"), (true, "start after kill -9")] {
        let start = |server: &str| {
            whole.starts.iter().find(|row| row.server == server && row.after_kill == after_kill)
        };
        if let Some((own, redis)) = start(GUANXI).zip(start(REDIS)) {
            add(what, "s", own.seconds.median, redis.seconds.median);
        }
    }
    let redis = whole.open.iter().find(|row| row.server == REDIS);
    let own = whole.open.iter().filter(|row| row.server.starts_with(GUANXI));
    let own = own.min_by(|one, other| one.p99_ms.median.total_cmp(&other.p99_ms.median));
    if let Some((own, redis)) = own.zip(redis) {
        let unit = format!("ms over {}", shown(&own.server).trim_start_matches("Guanxi, "));
        add(
            "p99 of hydrate at half of the own peak",
            &unit,
            own.p99_ms.median,
            redis.p99_ms.median,
        );
    }
    contests
}

fn best<'a>(rows: impl Iterator<Item = (&'a WorkRow, Spread)>) -> Option<(&'a WorkRow, Spread)> {
    rows.min_by(|one, other| one.1.median.total_cmp(&other.1.median))
}

fn protocol(row: &WorkRow) -> &str {
    shown(&row.server).trim_start_matches("Guanxi, ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::report::{Fsync, Machine, Over};

    fn row(work: &str, server: &str, over: Option<[f64; 3]>) -> WorkRow {
        let spread = |[lowest, median, highest]: [f64; 3]| Spread { median, lowest, highest };
        let over = over.map(|over| Over {
            server: REDIS.to_owned(),
            cpu: spread(over),
            rate: spread(over),
        });
        WorkRow {
            work: work.to_owned(),
            server: server.to_owned(),
            rate: Spread::of(&[1.0]),
            p50_ms: 0.0,
            p99_ms: 0.0,
            p999_ms: 0.0,
            longest_ms: 0.0,
            cpu_us: Spread::of(&[1.0]),
            over: over.into_iter().collect(),
        }
    }

    #[test]
    fn the_best_protocol_counts_and_a_spread_over_one_is_even() {
        let works = vec![
            row("hydrate", "redis", None),
            row("hydrate", "guanxi-http", Some([1.5, 2.0, 2.5])),
            row("hydrate", "guanxi-resp", Some([0.4, 0.5, 0.6])),
            row("check", "redis", None),
            row("check", "guanxi-http", Some([1.1, 1.2, 1.3])),
            row("empty", "redis", None),
            row("empty", "guanxi-http", Some([0.9, 1.2, 1.3])),
            row("follow64", "redis", None),
            row("follow64", "guanxi-http", Some([2.0, 4.0, 5.0])),
        ];
        let machine = Machine {
            processor: String::new(),
            cores: 2,
            memory_gib: 1,
            kernel: String::new(),
            versions: Vec::new(),
            fsync_ms: Fsync { p50: 0.0, p99: 0.0, longest: 0.0 },
        };
        let whole = Whole {
            date: String::new(),
            machine,
            quick: false,
            edges: 1,
            users: 1,
            connections: 1,
            rounds: 1,
            seconds: 1.0,
            works,
            held: Vec::new(),
            open: Vec::new(),
            starts: Vec::new(),
            imports: Vec::new(),
        };
        let text = part(&whole).text;
        let [lost, rest] = text.split("Even").collect::<Vec<_>>()[..] else { panic!("{text}") };
        let [even, won] = rest.split("takes less").collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert!(
            lost.contains("check, processor time**: 1.20") && !lost.contains("hydrate"),
            "{text}"
        );
        assert!(lost.contains("follow64, processor time**: 4.00"), "{text}");
        assert!(even.contains("empty") && !even.contains("check"), "{text}");
        assert!(won.contains("hydrate, processor time**: 0.50"), "{text}");
        assert!(won.contains("follow64, time for as many**: 0.25 (0.20–0.50)"), "{text}");
    }
}
