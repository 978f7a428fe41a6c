//! A log in memory, for tests and simulations that do not look at files. It forgets everything
//! when it is dropped.

use std::collections::VecDeque;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use guanxi_model::Position;

use super::{Epoch, Frame, Lineage, Log, LogError, Tip, frame};

pub struct MemoryLog(RwLock<Kept>);

struct Kept {
    frames: VecDeque<Frame>,
    tip: Tip,
    lineage: Lineage,
}

impl Kept {
    fn first(&self) -> Position {
        self.frames.front().map_or(self.tip.next(), |frame| frame.first)
    }
}

impl MemoryLog {
    pub fn new() -> Self {
        Self(RwLock::new(Kept {
            frames: VecDeque::new(),
            tip: Tip::start(),
            lineage: Lineage::start(),
        }))
    }

    fn kept(&self) -> RwLockReadGuard<'_, Kept> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept_mut(&self) -> RwLockWriteGuard<'_, Kept> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self::new()
    }
}

impl Log for MemoryLog {
    fn append(&self, frame: &Frame) -> Result<(), LogError> {
        let mut kept = self.kept_mut();
        kept.tip = kept.tip.after(frame)?;
        kept.frames.push_back(frame.clone());
        Ok(())
    }

    fn last(&self) -> Position {
        self.kept().tip.last
    }

    fn first(&self) -> Position {
        self.kept().first()
    }

    fn epoch(&self) -> Epoch {
        self.kept().tip.epoch
    }

    fn last_commit_ms(&self) -> u64 {
        self.kept().tip.commit_ms
    }

    fn read(&self, from: Position, bytes_max: usize) -> Result<Vec<Frame>, LogError> {
        let kept = self.kept();
        if from < kept.first() {
            return Err(LogError::Trimmed { from, first: kept.first() });
        }
        let start = kept.frames.partition_point(|frame| frame.last() < from);
        let mut frames = Vec::new();
        let mut bytes = 0;
        for frame in kept.frames.range(start..) {
            bytes += frame::encoded_bytes(frame);
            if bytes > bytes_max && !frames.is_empty() {
                break;
            }
            frames.push(frame.clone());
        }
        Ok(frames)
    }

    fn trim(&self, keep_from: Position) -> Result<(), LogError> {
        let mut kept = self.kept_mut();
        while kept.frames.front().is_some_and(|frame| frame.last() < keep_from) {
            kept.frames.pop_front();
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.kept().frames.iter().map(|frame| frame::encoded_bytes(frame) as u64).sum()
    }

    fn lineage(&self) -> Lineage {
        self.kept().lineage.clone()
    }

    fn begin_epoch(&self, epoch: Epoch) -> Result<(), LogError> {
        let mut kept = self.kept_mut();
        kept.lineage = kept.lineage.with(epoch, kept.tip.last)?;
        kept.tip.epoch = epoch;
        Ok(())
    }
}
