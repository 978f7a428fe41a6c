//! Which keys are pinned, and until when. Pure: time is an argument.

use rustc_hash::FxHashMap;

use super::{ReadKey, What};

/// A key that is read so often, over all instances, is hot: with fewer reads a kept answer of less
/// than a second saves too little.
pub const HOT_PER_SECOND: f64 = 100.0;
/// How long a key stays pinned after it was hot last.
pub const PINNED_MS: u64 = 30_000;
/// Keys pinned at once. Each is read again about once a second, so this bounds what pins cost the
/// database.
pub const PINNED_KEYS_MAX: usize = 128;

/// Until when each key is pinned, in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Pins {
    until_ms: FxHashMap<ReadKey, u64>,
}

impl Pins {
    /// What is pinned from now on: the hottest of what is hot, or was so recently.
    pub fn turned(&self, now_ms: u64, rates: &[(ReadKey, f64)]) -> Pins {
        let mut pinned: Vec<(ReadKey, f64, u64)> = Vec::new();
        let mut before = self.until_ms.clone();
        before.retain(|_, until_ms| *until_ms > now_ms);
        for (key, rate) in rates.iter().filter(|(key, _)| can_be_pinned(key)) {
            let before = before.remove(key);
            let until_ms = if *rate >= HOT_PER_SECOND { Some(now_ms + PINNED_MS) } else { before };
            pinned.extend(until_ms.map(|until_ms| (*key, *rate, until_ms)));
        }
        // Those that nobody asks for any more come last.
        pinned.extend(before.into_iter().map(|(key, until_ms)| (key, 0.0, until_ms)));
        pinned.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        pinned.truncate(PINNED_KEYS_MAX);
        Pins { until_ms: pinned.into_iter().map(|(key, _, until_ms)| (key, until_ms)).collect() }
    }

    pub fn contains(&self, key: &ReadKey) -> bool {
        self.until_ms.contains_key(key)
    }

    pub fn len(&self) -> usize {
        self.until_ms.len()
    }

    pub fn is_empty(&self) -> bool {
        self.until_ms.is_empty()
    }
}

/// Whether an answer about it may be kept at all: the source's side is always read as it stands.
fn can_be_pinned(key: &ReadKey) -> bool {
    matches!(key.what, What::Tallies(_) | What::Incoming(_))
}

#[cfg(test)]
mod tests {
    use guanxi_model::{KindId, NodeTypeId, TenantId};

    use super::*;

    fn key(what: What, id: u64) -> ReadKey {
        ReadKey { tenant: TenantId::DEFAULT, what, id }
    }

    #[test]
    fn a_key_stays_pinned_for_a_while_after_it_was_hot() {
        let list = key(What::Incoming(KindId(1)), 7);
        let (hot, cool) = (HOT_PER_SECOND, HOT_PER_SECOND - 1.0);
        let pins = Pins::default().turned(0, &[(list, cool)]);
        assert!(pins.is_empty());
        let pins = pins.turned(1_000, &[(list, hot)]);
        assert!(pins.contains(&list));
        let pins = pins.turned(10_000, &[(list, hot)]).turned(20_000, &[(list, cool)]);
        assert!(pins.turned(10_000 + PINNED_MS - 1, &[]).contains(&list));
        assert!(pins.turned(10_000 + PINNED_MS - 1, &[(list, cool)]).contains(&list));
        assert!(pins.turned(10_000 + PINNED_MS, &[(list, cool)]).is_empty());
        assert!(pins.turned(10_000 + PINNED_MS, &[]).is_empty());
    }

    #[test]
    fn only_the_hottest_are_pinned_and_nothing_of_the_source_s_side() {
        let tallies = |id| key(What::Tallies(NodeTypeId(1)), id);
        let many = 3 * PINNED_KEYS_MAX as u64;
        let mut rates: Vec<_> =
            (0..many).map(|id| (tallies(id), HOT_PER_SECOND + id as f64)).collect();
        rates.push((key(What::Outgoing(KindId(1)), 1), 1e9));
        rates.push((key(What::Checks(NodeTypeId(1)), 1), 1e9));
        let pins = Pins::default().turned(0, &rates);
        assert_eq!(pins.len(), PINNED_KEYS_MAX);
        assert!(pins.contains(&tallies(many - 1)) && !pins.contains(&tallies(0)));
        // A hotter one takes the place of the coolest.
        rates.push((tallies(many), 1e9));
        let pins = pins.turned(1, &rates);
        assert_eq!(pins.len(), PINNED_KEYS_MAX);
        assert!(pins.contains(&tallies(many)));
    }
}
