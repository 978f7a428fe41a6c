//! A sketch of a stream of keys: the keys that come often, and about how often, in fixed memory.
//! Pure: time is an argument.
//!
//! It counts up to `KEYS_MAX` keys. When there are more, the median of the counts is taken from all
//! of them, and those that have nothing left go. Half of the counts lose the median each time, so
//! all that was ever taken from one count is at most `2 / KEYS_MAX` of the stream: a key with a
//! larger share is always there, and no count is ever too large. Counts halve every `HALF_LIFE_MS`,
//! the stream's weight and the error alike, so that yesterday's celebrity goes.

use rustc_hash::FxHashMap;

use super::{Rates, ReadKey};

/// Keys of one sketch: about 40 bytes each.
pub const KEYS_MAX: usize = 1_024;
/// A burst of seconds shows, and the noise of one second does not.
pub const HALF_LIFE_MS: u64 = 5_000;
/// Counts are brought up to date in steps of this: often enough that a step changes them by a
/// thirtieth.
const DECAY_STEP_MS: u64 = 250;
/// A count below is none: it is of minutes ago.
const DUST: f64 = 1e-3;

#[derive(Debug, Default)]
pub struct HotSketch {
    counts: FxHashMap<ReadKey, f64>,
    /// What may have been taken from any count.
    error: f64,
    /// The weight of the whole stream.
    total: f64,
    decayed_ms: u64,
}

impl HotSketch {
    /// Adds a key's weight.
    pub fn add(&mut self, key: ReadKey, weight: f64, now_ms: u64) {
        self.decay(now_ms);
        self.total += weight;
        *self.counts.entry(key).or_default() += weight;
        if self.counts.len() > KEYS_MAX {
            self.thin_out();
        }
    }

    /// The weight a second of each key that is there.
    pub fn rates(&mut self, now_ms: u64) -> Rates {
        self.decay(now_ms);
        self.counts.iter().map(|(key, count)| (*key, count * per_second())).collect()
    }

    /// How much of a key's weight a second may be missing.
    pub fn error_rate(&self) -> f64 {
        self.error * per_second()
    }

    /// The weight a second of the whole stream.
    pub fn total_rate(&self) -> f64 {
        self.total * per_second()
    }

    pub fn len(&self) -> usize {
        self.counts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    fn decay(&mut self, now_ms: u64) {
        let steps = now_ms.saturating_sub(self.decayed_ms) / DECAY_STEP_MS;
        if steps == 0 {
            return;
        }
        self.decayed_ms += steps * DECAY_STEP_MS;
        let factor = (-((steps * DECAY_STEP_MS) as f64) / HALF_LIFE_MS as f64).exp2();
        self.total *= factor;
        self.error *= factor;
        self.counts.retain(|_, count| {
            *count *= factor;
            *count >= DUST
        });
    }

    fn thin_out(&mut self) {
        let mut counts: Vec<f64> = self.counts.values().copied().collect();
        let middle = counts.len() / 2;
        let median = *counts.select_nth_unstable_by(middle, f64::total_cmp).1;
        self.error += median;
        self.counts.retain(|_, count| {
            *count -= median;
            *count > 0.0
        });
    }
}

/// What a decayed count is of the rate that keeps it up: a rate of one makes a count of half-life ÷
/// ln 2.
fn per_second() -> f64 {
    std::f64::consts::LN_2 * 1_000.0 / HALF_LIFE_MS as f64
}

#[cfg(test)]
mod tests {
    use guanxi_model::{NodeTypeId, TenantId};

    use super::super::What;
    use super::*;

    fn key(id: u64) -> ReadKey {
        ReadKey { tenant: TenantId::DEFAULT, what: What::Tallies(NodeTypeId(1)), id }
    }

    /// A number from 0 that is `n` about as often as 1 in `n^power`.
    fn zipf(random: &mut fastrand::Rng, ids: u64, power: f64) -> u64 {
        let place = random.f64();
        let top = (ids as f64).powf(1.0 - power);
        let id = (1.0 + place * (top - 1.0)).powf(1.0 / (1.0 - power));
        id as u64
    }

    #[test]
    fn every_frequent_key_is_found_and_no_count_is_too_large() {
        for seed in 0..30 {
            let mut random = fastrand::Rng::with_seed(seed);
            let power = 0.3 + random.f64();
            let power = if (power - 1.0).abs() < 0.02 { 1.05 } else { power };
            let ids = 1 << random.u64(8..24);
            let mut sketch = HotSketch::default();
            let mut exact: FxHashMap<u64, f64> = FxHashMap::default();
            let mut total = 0.0;
            for _ in 0..random.usize(1_000..200_000) {
                let (id, weight) = (zipf(&mut random, ids, power), f64::from(random.u8(1..9)));
                sketch.add(key(id), weight, 0);
                *exact.entry(id).or_default() += weight;
                total += weight;
                assert!(sketch.len() <= KEYS_MAX);
            }
            let error_max = 2.0 * total / KEYS_MAX as f64;
            assert!(sketch.error <= error_max, "seed {seed}: {} > {error_max}", sketch.error);
            for (id, count) in exact {
                let found = sketch.counts.get(&key(id)).copied().unwrap_or_default();
                assert!(found <= count, "seed {seed}: {id} has {found} of {count}");
                let missing = count - found;
                assert!(missing <= sketch.error, "seed {seed}: {id} lacks {missing} of {count}");
            }
        }
    }

    #[test]
    fn a_steady_rate_is_told_and_what_is_over_goes() {
        let mut sketch = HotSketch::default();
        let mut now_ms = 0;
        // 200 a second for a minute, among others.
        for n in 0..12_000 {
            now_ms = n * 5;
            sketch.add(key(1), 1.0, now_ms);
            sketch.add(key(100 + n), 1.0, now_ms);
        }
        let rate = |sketch: &mut HotSketch, id, now_ms| {
            let rates = sketch.rates(now_ms);
            rates.iter().find(|(found, _)| *found == key(id)).map_or(0.0, |(_, rate)| *rate)
        };
        let steady = rate(&mut sketch, 1, now_ms);
        assert!((180.0..=210.0).contains(&steady), "{steady}");
        assert!((380.0..=420.0).contains(&sketch.total_rate()), "{}", sketch.total_rate());
        let later = rate(&mut sketch, 1, now_ms + HALF_LIFE_MS);
        assert!((later - steady / 2.0).abs() < steady * 0.05, "{later} of {steady}");
        // Another takes its place.
        for n in 0..4_000 {
            sketch.add(key(2), 1.0, now_ms + n * 5);
        }
        now_ms += 20_000;
        assert!(rate(&mut sketch, 2, now_ms) > 10.0 * rate(&mut sketch, 1, now_ms));
        assert!(sketch.error_rate() <= 2.0 * 420.0 / KEYS_MAX as f64);
        sketch.rates(now_ms + 600_000);
        assert!(sketch.is_empty(), "{} are left", sketch.len());
    }
}
