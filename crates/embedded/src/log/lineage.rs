//! The epochs of a log: which came from which, and where they forked off.
//!
//! Positions never restart. An id or token of an ancestor is good up to the position at which the
//! next epoch forked off; beyond it, the two histories differ.

use guanxi_model::Position;

use super::{Epoch, LogError, LogTip};

/// The most epochs in a lineage: each restore or promotion adds one.
pub(super) const FORKS_MAX: usize = 10_000;

/// The widest step to the next epoch's number, as a share of all numbers that are left: tens of
/// millions at first, and room for thousands of such steps.
const STEP_SHARE: u32 = 64;

/// The begin of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    pub epoch: Epoch,
    /// `Epoch(0)` for the first one.
    pub parent: Epoch,
    /// The last position that it shares with its parent.
    pub at: Position,
}

/// All epochs of a log, oldest first; there is always one, and each is the parent of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage(Vec<Fork>);

impl Lineage {
    /// The lineage of a new log.
    pub(super) fn start() -> Self {
        Self(vec![Fork { epoch: LogTip::start().epoch, parent: Epoch(0), at: Position(0) }])
    }

    /// A lineage from its rows, or `None` when they are not one.
    pub fn from_forks(forks: Vec<Fork>) -> Option<Self> {
        let first = forks.first()?;
        let chained = forks.windows(2).all(|pair| {
            pair[1].parent == pair[0].epoch
                && pair[1].epoch > pair[0].epoch
                && pair[1].at >= pair[0].at
        });
        let rooted = first.parent == Epoch(0) && first.epoch > Epoch(0) && first.at == Position(0);
        (chained && rooted && forks.len() <= FORKS_MAX).then_some(Self(forks))
    }

    pub fn forks(&self) -> &[Fork] {
        &self.0
    }

    /// The epoch that frames are written with now.
    pub fn current(&self) -> Epoch {
        self.0.last().map_or(Epoch(0), |fork| fork.epoch)
    }

    /// Whether a position that was given out in this epoch means the same record here: it is of
    /// the present epoch, or of an ancestor and at or below the fork.
    pub fn accepts(&self, epoch: Epoch, position: Position) -> bool {
        match self.0.iter().position(|fork| fork.epoch == epoch) {
            None => false,
            Some(index) => self.0.get(index + 1).is_none_or(|next| position <= next.at),
        }
    }

    /// The epoch whose frames hold this position.
    pub fn epoch_at(&self, position: Position) -> Epoch {
        let later = self.0.partition_point(|fork| fork.at < position);
        later.checked_sub(1).map_or(Epoch(0), |index| self.0[index].epoch)
    }

    /// Whether no epoch but the one that every log begins with has been.
    pub fn is_first(&self) -> bool {
        self.0.len() == 1
    }

    /// The number for an epoch that begins now: above the present one by a random step, so that
    /// two directories made from one backup, or two standbys that are promoted, do not take each
    /// other's tokens for their own, however soon after each other they begin.
    pub fn next_epoch(&self, random: u64) -> Epoch {
        let current = self.current().0;
        // What the epochs that a lineage may still have need in any case.
        let kept = FORKS_MAX.saturating_sub(self.0.len()) as u32;
        let room = (u32::MAX - current).saturating_sub(kept);
        let step = 1 + random % u64::from(room / STEP_SHARE).max(1);
        // A step is never wider than the room.
        Epoch(current.saturating_add(step as u32))
    }

    /// The epochs that had begun when the log stood at this position.
    pub fn up_to(&self, position: Position) -> Self {
        let begun = self.0.partition_point(|fork| fork.at <= position);
        Self(self.0[..begun.max(1)].to_vec())
    }

    /// Whether what this lineage says of positions up to this one, the other says too.
    pub fn agrees_with(&self, other: &Lineage, position: Position) -> bool {
        let begun = |lineage: &Lineage| {
            let before = lineage.0.partition_point(|fork| fork.at < position);
            lineage.0[..before.max(1)].to_vec()
        };
        begun(self) == begun(other)
    }

    /// This lineage with one more epoch.
    pub fn with(&self, epoch: Epoch, at: Position) -> Result<Self, LogError> {
        let current = self.current();
        if epoch <= current || self.0.len() >= FORKS_MAX {
            return Err(LogError::WrongEpoch { current, found: epoch });
        }
        let mut forks = self.0.clone();
        forks.push(Fork { epoch, parent: current, at });
        Ok(Self(forks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_are_good_up_to_the_fork() {
        let lineage = Lineage::start()
            .with(Epoch(2), Position(10))
            .unwrap()
            .with(Epoch(7), Position(15))
            .unwrap();
        let cases = [
            (1, 0, true),
            (1, 10, true),
            (1, 11, false),
            (2, 10, true),
            (2, 15, true),
            (2, 16, false),
            (7, 16, true),
            (7, 1 << 40, true),
            (3, 1, false),
            (0, 1, false),
        ];
        for (epoch, position, good) in cases {
            let found = lineage.accepts(Epoch(epoch), Position(position));
            assert_eq!(found, good, "epoch {epoch}, position {position}");
        }
        let cases = [(1, 1), (10, 1), (11, 2), (15, 2), (16, 7), (99, 7)];
        for (position, epoch) in cases {
            assert_eq!(lineage.epoch_at(Position(position)), Epoch(epoch), "{position}");
        }
    }

    #[test]
    fn two_epochs_may_fork_at_the_same_place() {
        let lineage = Lineage::start()
            .with(Epoch(2), Position(5))
            .unwrap()
            .with(Epoch(3), Position(5))
            .unwrap();
        assert_eq!(lineage.epoch_at(Position(5)), Epoch(1));
        assert_eq!(lineage.epoch_at(Position(6)), Epoch(3));
        assert!(lineage.accepts(Epoch(2), Position(5)));
        assert!(!lineage.accepts(Epoch(2), Position(6)));
    }

    #[test]
    fn numbers_are_random_and_last_for_every_fork() {
        // Numbers of directories that were made when they were seconds of the clock.
        for first in [1, 1_800_000_000] {
            let forks = vec![Fork { epoch: Epoch(first), parent: Epoch(0), at: Position(0) }];
            let mut lineage = Lineage::from_forks(forks).unwrap();
            let mut seen = std::collections::BTreeSet::new();
            let mut random = 1_u64;
            for _ in 0..1_000 {
                random = guanxi_model::hash::hash64(&random.to_be_bytes());
                assert!(lineage.next_epoch(random) > lineage.current());
                seen.insert(lineage.next_epoch(random).0);
            }
            assert!(seen.len() > 990, "{} of 1,000 differ", seen.len());
            for step in 1..FORKS_MAX as u64 {
                let epoch = lineage.next_epoch(u64::MAX - step);
                lineage.0.push(Fork { epoch, parent: lineage.current(), at: Position(step) });
            }
            assert!(Lineage::from_forks(lineage.0).is_some());
        }
    }

    #[test]
    fn an_epoch_must_grow() {
        let lineage = Lineage::start();
        assert!(matches!(
            lineage.with(Epoch(1), Position(3)),
            Err(LogError::WrongEpoch { current: Epoch(1), found: Epoch(1) })
        ));
    }
}
