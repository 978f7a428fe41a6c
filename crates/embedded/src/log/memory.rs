//! A log in memory, for tests and simulations that do not look at files. It forgets everything
//! when it is dropped.

use std::collections::VecDeque;

use guanxi_model::Position;
use parking_lot::RwLock;

use super::{Epoch, Frame, Lineage, Log, LogError, LogTip, frame};

pub struct MemoryLog(RwLock<MemoryFrames>);

struct MemoryFrames {
    frames: VecDeque<Frame>,
    tip: LogTip,
    lineage: Lineage,
}

impl MemoryFrames {
    fn first(&self) -> Position {
        self.frames.front().map_or(self.tip.next(), |frame| frame.first)
    }
}

impl MemoryLog {
    pub fn new() -> Self {
        Self(RwLock::new(MemoryFrames {
            frames: VecDeque::new(),
            tip: LogTip::start(),
            lineage: Lineage::start(),
        }))
    }
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self::new()
    }
}

impl Log for MemoryLog {
    fn append(&self, frame: &Frame) -> Result<(), LogError> {
        let mut kept = self.0.write();
        kept.tip = kept.tip.after(frame)?;
        kept.frames.push_back(frame.clone());
        Ok(())
    }

    fn last(&self) -> Position {
        self.0.read().tip.last
    }

    fn first(&self) -> Position {
        self.0.read().first()
    }

    fn epoch(&self) -> Epoch {
        self.0.read().tip.epoch
    }

    fn last_commit_ms(&self) -> u64 {
        self.0.read().tip.commit_ms
    }

    fn read(&self, from: Position, bytes_max: usize) -> Result<Vec<Frame>, LogError> {
        let kept = self.0.read();
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
        let mut kept = self.0.write();
        while kept.frames.front().is_some_and(|frame| frame.last() < keep_from) {
            kept.frames.pop_front();
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.read().frames.iter().map(|frame| frame::encoded_bytes(frame) as u64).sum()
    }

    fn lineage(&self) -> Lineage {
        self.0.read().lineage.clone()
    }

    fn begin_epoch(&self, epoch: Epoch) -> Result<(), LogError> {
        let mut kept = self.0.write();
        kept.lineage = kept.lineage.with(epoch, kept.tip.last)?;
        kept.tip.epoch = epoch;
        Ok(())
    }
}
