//! Backup: makes an archive of a running engine, piece by piece, without holding anybody up.
//!
//! A full backup is all rows at one position and the frames of the log from there to its end when
//! the rows were done; one that continues another holds frames only. As long as it runs, the log
//! keeps what it still needs.

use std::sync::Arc;

use guanxi_core::clock::Clock;
use guanxi_model::{Code, Epoch, Error, Millis, Position, Secret};

use crate::archive::{ArchiveBase, ArchiveHeader, ArchiveWriter, BLOCK_BYTES, LogPlace, Trailer};
use crate::log::{Lineage, Log, LogError};
use crate::log_holds::{Hold, Holds};
use crate::store::EmbeddedStore;
use crate::transfer::Copy;

/// What a backup reads from.
#[derive(Clone)]
pub(crate) struct BackupOrigin {
    pub log: Arc<dyn Log>,
    pub store: Arc<dyn EmbeddedStore>,
    pub clock: Arc<dyn Clock>,
    pub holds: Arc<Holds>,
    pub secret: Arc<Secret>,
}

/// An archive in the making.
pub struct Backup {
    origin: BackupOrigin,
    writer: ArchiveWriter,
    stage: BackupStage,
    header: ArchiveHeader,
    /// Counts so far, and the place that was reached.
    trailer: Trailer,
}

enum BackupStage {
    Beginning(BackupSource),
    Rows(Copy),
    Frames { hold: Hold, until: Position },
    Done,
}

/// Where what follows the header comes from.
enum BackupSource {
    Rows(Copy),
    Log(Hold),
}

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Backup {
    /// A backup of everything.
    pub(crate) fn full(origin: BackupOrigin) -> Result<Backup, Error> {
        let copy = Copy::begin(origin.log.as_ref(), origin.store.as_ref(), &origin.holds)?;
        let applied = copy.applied();
        let (epoch, position, commit) = (applied.epoch, applied.position, applied.commit);
        let lineage = copy.lineage().clone();
        let end = LogPlace { epoch, position, commit };
        Ok(Backup::new(origin, ArchiveBase::Rows(applied), lineage, end, BackupSource::Rows(copy)))
    }

    /// A backup of what came after this position, which another backup ended at. The epoch is
    /// that in which the position was given out.
    pub(crate) fn after(
        origin: BackupOrigin,
        epoch: Option<Epoch>,
        position: Position,
    ) -> Result<Backup, Error> {
        let expired = |what: String| {
            let message = format!("{what}; make a full backup, and continue that one");
            Error::new(Code::PositionExpired, message)
        };
        let lineage = origin.log.lineage();
        let applied = origin.store.applied().position;
        if epoch.is_some_and(|epoch| !lineage.accepts(epoch, position)) || position > applied {
            return Err(expired(format!(
                "position {} is not of the history that this service has now, which is at position \
                 {}",
                position.0, applied.0
            )));
        }
        let hold = origin.holds.take(origin.log.as_ref(), Position(position.0 + 1));
        let hold = hold.map_err(|error| match error.code {
            Code::PositionExpired => expired(error.message),
            _ => error,
        })?;
        let commit = commit_at(origin.log.as_ref(), position)?;
        let epoch = lineage.epoch_at(position);
        let place = LogPlace { epoch, position, commit };
        Ok(Backup::new(origin, ArchiveBase::After(place), lineage, place, BackupSource::Log(hold)))
    }

    fn new(
        origin: BackupOrigin,
        base: ArchiveBase,
        lineage: Lineage,
        end: LogPlace,
        source: BackupSource,
    ) -> Backup {
        let created = Millis(origin.clock.now_ms());
        let secret = Secret::clone(&origin.secret);
        let header = ArchiveHeader { created, base, lineage: lineage.clone(), secret };
        let trailer = Trailer { rows: 0, frames: 0, records: 0, end, lineage, ended: created };
        let (writer, stage) = (ArchiveWriter::default(), BackupStage::Beginning(source));
        Backup { origin, writer, stage, header, trailer }
    }

    pub fn header(&self) -> &ArchiveHeader {
        &self.header
    }

    /// Where the archive ends so far; its end once there are no more pieces.
    pub fn reached(&self) -> LogPlace {
        self.trailer.end
    }

    /// The next piece of the archive; `None` after the last. It blocks while it reads.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match std::mem::replace(&mut self.stage, BackupStage::Done) {
            BackupStage::Beginning(source) => {
                self.stage = match source {
                    BackupSource::Rows(copy) => BackupStage::Rows(copy),
                    BackupSource::Log(hold) => self.begin_frames(hold),
                };
                Ok(Some(self.writer.header(&self.header)))
            }
            BackupStage::Rows(mut copy) => {
                let rows = copy.next_rows(BLOCK_BYTES)?;
                if rows.is_empty() {
                    self.stage = self.begin_frames(copy.into_hold());
                    return self.next_piece();
                }
                self.trailer.rows += rows.len() as u64;
                self.stage = BackupStage::Rows(copy);
                Ok(Some(self.writer.rows(&rows)))
            }
            BackupStage::Frames { hold, until } if self.trailer.end.position < until => {
                let piece = self.frames(&hold, until)?;
                self.stage = BackupStage::Frames { hold, until };
                Ok(Some(piece))
            }
            BackupStage::Frames { .. } => {
                let writer = std::mem::take(&mut self.writer);
                Ok(Some(writer.trailer(&self.trailer)))
            }
            BackupStage::Done => Ok(None),
        }
    }

    /// Only what readers have seen goes into a backup, up to where they are now.
    fn begin_frames(&mut self, hold: Hold) -> BackupStage {
        self.trailer.ended = Millis(self.origin.clock.now_ms());
        let until = self.origin.store.applied().position;
        self.trailer.lineage = self.origin.log.lineage().up_to(until);
        BackupStage::Frames { hold, until }
    }

    fn frames(&mut self, hold: &Hold, until: Position) -> Result<Vec<u8>, Error> {
        hold.check()?;
        let from = Position(self.trailer.end.position.0 + 1);
        let frames = self.origin.log.read(from, BLOCK_BYTES).map_err(unreadable)?;
        let frames: Vec<_> = frames.into_iter().take_while(|frame| frame.last() <= until).collect();
        let Some(last) = frames.last() else {
            let message = format!("the log ends before position {}", until.0);
            return Err(Error::new(Code::Internal, message));
        };
        self.trailer.frames += frames.len() as u64;
        self.trailer.records += frames.iter().map(|frame| frame.records.len() as u64).sum::<u64>();
        self.trailer.end =
            LogPlace { epoch: last.epoch, position: last.last(), commit: Millis(last.commit_ms) };
        hold.advance(Position(last.last().0 + 1));
        Ok(self.writer.frames(&frames))
    }
}

/// When the frame at this position was committed; 0 when the log no longer has it.
fn commit_at(log: &dyn Log, position: Position) -> Result<Millis, Error> {
    if position == log.last() {
        return Ok(Millis(log.last_commit_ms()));
    }
    if position == Position(0) {
        return Ok(Millis(0));
    }
    match log.read(position, 1) {
        Ok(frames) => Ok(Millis(frames.first().map_or(0, |frame| frame.commit_ms))),
        Err(LogError::Trimmed { .. }) => Ok(Millis(0)),
        Err(error) => Err(unreadable(error)),
    }
}

fn unreadable(error: LogError) -> Error {
    tracing::error!(%error, "a backup could not read the log");
    Error::new(Code::Internal, "the log could not be read; the service's own log says why")
}
