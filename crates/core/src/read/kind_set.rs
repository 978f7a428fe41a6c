//! Some of the kinds that a call asks about, by their places in it: what a check says of each target
//! takes no memory of its own where they are few.

/// Kinds that fit the first word.
const NEAR: usize = u64::BITS as usize;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KindSet {
    near: u64,
    far: Vec<u64>,
}

impl KindSet {
    /// Adds the kind at this place of the call.
    pub fn insert(&mut self, place: usize) {
        let (word, bit) = (place / NEAR, 1 << (place % NEAR));
        if word == 0 {
            self.near |= bit;
            return;
        }
        if self.far.len() < word {
            self.far.resize(word, 0);
        }
        self.far[word - 1] |= bit;
    }

    pub fn contains(&self, place: usize) -> bool {
        let word = match place / NEAR {
            0 => self.near,
            word => self.far.get(word - 1).copied().unwrap_or_default(),
        };
        word >> (place % NEAR) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.near == 0 && self.far.iter().all(|word| *word == 0)
    }

    /// Their places, in order.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let words = std::iter::once(self.near).chain(self.far.iter().copied());
        words.enumerate().flat_map(|(number, mut word)| {
            std::iter::from_fn(move || {
                let place = word.trailing_zeros() as usize;
                // Takes the lowest bit away.
                word &= word.wrapping_sub(1);
                (place < NEAR).then_some(number * NEAR + place)
            })
        })
    }
}

impl FromIterator<usize> for KindSet {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> KindSet {
        let mut set = KindSet::default();
        places.into_iter().for_each(|place| set.insert(place));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_there_comes_out_in_order() {
        assert!(KindSet::default().is_empty() && KindSet::default().places().next().is_none());
        for places in [vec![0], vec![63], vec![64], vec![0, 1, 5, 63, 64, 65, 127, 128, 999]] {
            let mut set = KindSet::default();
            for place in places.iter().rev().chain(&places) {
                set.insert(*place);
            }
            assert_eq!(set.places().collect::<Vec<_>>(), places);
            assert!(!set.is_empty());
            for place in 0..1_100 {
                assert_eq!(set.contains(place), places.contains(&place), "{place}");
            }
        }
    }
}
