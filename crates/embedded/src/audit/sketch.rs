//! A sketch of a difference: what rows imply is added, what lies there is taken away, and a bucket
//! that is not 0 at the end holds something wrong. Its size does not depend on how much there is,
//! and the order in which things come does not matter.

use guanxi_model::hash::hash128;
use guanxi_model::{KindId, NodeKey, Which};

use crate::store::inventory;

/// So many buckets take 1 MiB. What is looked at again, when one is wrong, is this part of all.
const BUCKETS: usize = 1 << 16;

/// An index entry, or one of the edges that a tally counts, as a number that nothing else has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element(u128);

impl Element {
    pub fn entry(key: &[u8]) -> Element {
        Element(hash128(key))
    }

    pub fn tally(node: &NodeKey, kind: KindId, which: Which) -> Element {
        let mut key = inventory::node_key(node);
        key.extend_from_slice(&kind.0.to_be_bytes());
        key.push(which as u8);
        Element(hash128(&key))
    }

    fn bucket(self) -> usize {
        (self.0 >> 64) as usize % BUCKETS
    }
}

#[derive(Debug)]
pub(super) struct DifferenceSketch {
    sums: Vec<u128>,
}

impl DifferenceSketch {
    pub fn new() -> DifferenceSketch {
        DifferenceSketch { sums: vec![0; BUCKETS] }
    }

    /// So many times more, or fewer, of an element.
    pub fn add(&mut self, element: Element, times: i64) {
        let sum = &mut self.sums[element.bucket()];
        *sum = sum.wrapping_add(element.0.wrapping_mul(i128::from(times) as u128));
    }

    pub fn suspects(&self) -> Suspects {
        let wrong = self.sums.iter().enumerate().filter(|(_, sum)| **sum != 0);
        Suspects { buckets: wrong.map(|(bucket, _)| bucket).collect() }
    }
}

/// The buckets in which something is wrong, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Suspects {
    buckets: Vec<usize>,
}

impl Suspects {
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    pub fn have(&self, element: Element) -> bool {
        self.buckets.binary_search(&element.bucket()).is_ok()
    }

    /// Keeps the first half and returns the others; nothing when there is but one left.
    pub fn halve(&mut self) -> Option<Suspects> {
        let half = self.buckets.len().div_ceil(2);
        let rest = self.buckets.split_off(half);
        (!rest.is_empty()).then_some(Suspects { buckets: rest })
    }
}

#[cfg(test)]
mod tests {
    use guanxi_model::{NodeTypeId, TenantId};

    use super::*;

    fn tally(id: u64) -> Element {
        let node = NodeKey { tenant: TenantId(1), node_type: NodeTypeId(1), id };
        Element::tally(&node, KindId(1), Which::Incoming)
    }

    #[test]
    fn what_is_added_and_taken_away_leaves_nothing() {
        let mut sketch = DifferenceSketch::new();
        for id in 0..1_000 {
            (0..id).for_each(|_| sketch.add(tally(id), 1));
        }
        for id in (0..1_000).rev() {
            sketch.add(tally(id), -(id as i64));
        }
        assert!(sketch.suspects().is_empty());
    }

    #[test]
    fn one_too_many_is_seen_and_found_again() {
        for times in [1, -1, 2, i64::MAX, i64::MIN] {
            let mut sketch = DifferenceSketch::new();
            sketch.add(tally(7), times);
            let mut suspects = sketch.suspects();
            assert!(suspects.have(tally(7)), "{times} times");
            assert!(suspects.halve().is_none());
        }
    }

    #[test]
    fn halves_are_the_whole() {
        let mut sketch = DifferenceSketch::new();
        (0..9).for_each(|id| sketch.add(tally(id), 1));
        let mut first = sketch.suspects();
        let rest = first.halve().unwrap();
        for id in 0..9 {
            assert!(first.have(tally(id)) != rest.have(tally(id)));
        }
    }
}
