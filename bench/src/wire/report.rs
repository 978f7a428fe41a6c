//! What was found, as it is kept in files, from which the page is written.

use serde::{Deserialize, Serialize};

use crate::wire::plot::figure;

/// The median of some values, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    /// Name and version of each program.
    pub versions: Vec<(String, String)>,
    /// What the disk does by itself, before anything else runs, in milliseconds.
    pub fsync_ms: Fsync,
}

#[derive(Serialize, Deserialize)]
pub struct Fsync {
    pub p50: f64,
    pub p99: f64,
    pub longest: f64,
}

/// A run of all works.
#[derive(Serialize, Deserialize)]
pub struct Whole {
    pub date: String,
    pub machine: Machine,
    /// A short run, whose figures say little.
    pub quick: bool,
    /// Of all kinds together.
    pub edges: u64,
    pub users: u32,
    pub connections: usize,
    pub rounds: usize,
    pub seconds: f64,
    pub works: Vec<WorkRow>,
    pub held: Vec<Held>,
    pub open: Vec<OpenRow>,
    pub starts: Vec<StartRow>,
    pub imports: Vec<ImportRow>,
}

/// A work at a server, over all rounds.
#[derive(Serialize, Deserialize)]
pub struct WorkRow {
    pub work: String,
    pub server: String,
    pub rate: Spread,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub longest_ms: f64,
    /// Processor time of the server for each request.
    pub cpu_us: Spread,
    /// The same, and the rate, over those of others in the same round.
    pub over: Vec<Over>,
}

#[derive(Serialize, Deserialize)]
pub struct Over {
    pub server: String,
    pub cpu: Spread,
    pub rate: Spread,
}

/// What holding the graph takes.
#[derive(Clone, Serialize, Deserialize)]
pub struct Held {
    pub server: String,
    pub edges: u64,
    /// Edges that were loaded in a second, if this run loaded them.
    pub load_rate: f64,
    pub resident_bytes: u64,
    pub disk_bytes: u64,
}

/// Hydrates at a steady rate, half of what the closed loop reached.
#[derive(Serialize, Deserialize)]
pub struct OpenRow {
    pub server: String,
    pub rate: f64,
    pub p50_ms: Spread,
    pub p99_ms: Spread,
    pub p999_ms: Spread,
}

/// From the start of the process to the first right answer.
#[derive(Serialize, Deserialize)]
pub struct StartRow {
    pub server: String,
    pub after_kill: bool,
    pub seconds: Spread,
}

/// A file of follows that Guanxi imported.
#[derive(Serialize, Deserialize)]
pub struct ImportRow {
    pub how: String,
    pub lines: u64,
    /// Lines a second.
    pub rate: f64,
}

/// The same at several sizes.
#[derive(Serialize, Deserialize)]
pub struct Growth {
    pub date: String,
    pub machine: Machine,
    pub rounds: usize,
    pub seconds: f64,
    pub sizes: Vec<SizeRow>,
}

#[derive(Serialize, Deserialize)]
pub struct SizeRow {
    pub held: Held,
    /// Work and processor time for each request.
    pub cpu_us: Vec<(String, Spread)>,
    /// Over that at the smallest size in the same round.
    pub over_smallest: Vec<(String, Spread)>,
    pub clean_start_s: Spread,
    pub killed_start_s: Spread,
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
        let [median, lowest, highest] = [self.median, self.lowest, self.highest].map(figure);
        // One round has no spread.
        if lowest == highest {
            return f.write_str(&median);
        }
        write!(f, "{median} ({lowest}–{highest})")
    }
}

impl Whole {
    pub fn row(&self, work: &str, server: &str) -> Option<&WorkRow> {
        self.works.iter().find(|row| row.work == work && row.server == server)
    }
}

impl WorkRow {
    pub fn over(&self, server: &str) -> Option<&Over> {
        self.over.iter().find(|over| over.server == server)
    }
}

impl Held {
    pub fn resident_each(&self) -> f64 {
        self.resident_bytes as f64 / self.edges as f64
    }

    pub fn disk_each(&self) -> f64 {
        self.disk_bytes as f64 / self.edges as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_in_the_middle() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).to_string(), "2.00 (1.00–3.00)");
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).to_string(), "2.50 (1.00–4.00)");
        assert_eq!(Spread::of(&[1.0]).to_string(), "1.00");
    }
}
