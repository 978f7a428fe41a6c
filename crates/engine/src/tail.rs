//! Reading the log as it grows: its records in order, up to what readers of the store see and
//! never beyond. Whoever writes neither knows of tails nor waits for them.
//!
//! Many tails at the end of the log want the same frames at the same moment: one of them reads
//! and decodes, the others find the frames in memory. A tail that is far behind reads for itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guanxi_model::codec::decode_record;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{Code, Epoch, Error, EventId, Millis, Position, Record};
use tokio::sync::{Semaphore, watch};

use crate::log::{Frame, Log, LogError};

/// Log bytes that one read takes: large enough to be fast, small enough to be held per tail.
const READ_BYTES_MAX: usize = 1 << 20;
/// Log bytes of recent frames that are kept for tails at the end; about as much again decoded.
const RECENT_BYTES_MAX: usize = 4 << 20;
/// Tails that read far behind the end at the same time. With the one at the end they take fewer
/// threads than are set aside for blocking work.
const READS_BEHIND_MAX: usize = 2;

/// Where a tail begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailFrom {
    /// After what readers see now.
    Now,
    /// With the oldest record that the log has.
    Earliest,
    /// After what this event stands for.
    After(EventId),
}

/// The edge records of one frame of the log.
#[derive(Debug)]
pub struct TailFrame {
    pub epoch: Epoch,
    pub first: Position,
    pub last: Position,
    /// When it was committed.
    pub time: Millis,
    pub edges: Vec<(Position, Arc<EdgeRecord>)>,
    bytes: usize,
}

/// A place in the log that moves on with it.
#[derive(Debug)]
pub struct Tail {
    tails: Arc<Tails>,
    applied: watch::Receiver<Position>,
    next: Position,
}

impl Tail {
    /// The frames that come next; waits until there are some. The first may hold records from
    /// before the tail's place: `edges_from` passes over them. May be dropped while it waits.
    pub async fn next(&mut self) -> Result<Vec<Arc<TailFrame>>, Error> {
        let next = self.next;
        let applied = self.applied.wait_for(|applied| *applied >= next).await;
        let applied = *applied.map_err(|_closed| {
            Error::new(Code::Unavailable, "the service stopped; read on when it is back")
        })?;
        let frames = self.tails.frames(next, applied).await?;
        if let Some(frame) = frames.last() {
            self.next = Position(frame.last.0 + 1);
        }
        Ok(frames)
    }

    /// Everything up to here has been given out.
    pub fn position(&self) -> Position {
        Position(self.next.0 - 1)
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        if self.tails.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            *self.tails.recent() = Recent::default();
        }
    }
}

impl TailFrame {
    /// The edge records at this position and after it.
    pub fn edges_from(&self, from: Position) -> &[(Position, Arc<EdgeRecord>)] {
        let start = self.edges.partition_point(|(position, _)| *position < from);
        &self.edges[start..]
    }

    fn decode(frame: &Frame) -> Result<TailFrame, Error> {
        let mut edges = Vec::with_capacity(frame.records.len());
        for (position, bytes) in (frame.first.0..).zip(&frame.records) {
            let record = decode_record(bytes).map_err(|error| {
                tracing::error!(position, %error, "a record of the log cannot be read");
                unreadable()
            })?;
            if let Record::Edge(edge) = record {
                edges.push((Position(position), Arc::from(edge)));
            }
        }
        Ok(TailFrame {
            epoch: frame.epoch,
            first: frame.first,
            last: frame.last(),
            time: Millis(frame.commit_ms),
            edges,
            bytes: frame.records.iter().map(Vec::len).sum(),
        })
    }
}

/// What the tails of one log share.
pub(crate) struct Tails {
    log: Arc<dyn Log>,
    open: AtomicUsize,
    recent: Mutex<Recent>,
    /// Held by the one that reads at the log's end for all.
    reads_end: tokio::sync::Mutex<()>,
    reads_behind: Semaphore,
}

impl std::fmt::Debug for Tails {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tails").field("open", &self.open).finish_non_exhaustive()
    }
}

/// The last frames that were read at the end, without a gap.
#[derive(Debug, Default)]
struct Recent {
    frames: VecDeque<Arc<TailFrame>>,
    bytes: usize,
}

enum Found {
    Frames(Vec<Arc<TailFrame>>),
    /// Older than what is kept.
    Behind,
    /// Newer than what is kept.
    Ahead,
}

impl Tails {
    pub fn new(log: Arc<dyn Log>) -> Arc<Tails> {
        Arc::new(Tails {
            log,
            open: AtomicUsize::new(0),
            recent: Mutex::default(),
            reads_end: tokio::sync::Mutex::default(),
            reads_behind: Semaphore::new(READS_BEHIND_MAX),
        })
    }

    /// A tail from there on, if the log still has what follows.
    pub fn begin(
        self: &Arc<Tails>,
        from: TailFrom,
        mut applied: watch::Receiver<Position>,
    ) -> Result<Tail, Error> {
        let now = *applied.borrow_and_update();
        let next = match from {
            TailFrom::Now => Position(now.0 + 1),
            TailFrom::Earliest => self.log.first(),
            TailFrom::After(id) => self.after(id, now)?,
        };
        self.open.fetch_add(1, Ordering::AcqRel);
        Ok(Tail { tails: self.clone(), applied, next })
    }

    fn after(&self, id: EventId, now: Position) -> Result<Position, Error> {
        if !self.log.lineage().accepts(id.epoch, id.position) {
            return Err(Error::new(
                Code::PositionExpired,
                "the event is of another history of this service than the one it has now; read \
                 the present state and begin anew",
            ));
        }
        if id.position > now {
            return Err(Error::new(
                Code::Unavailable,
                "the event has not come here yet; try again shortly",
            ));
        }
        let next = Position(id.position.0 + 1);
        if next < self.log.first() {
            return Err(expired());
        }
        Ok(next)
    }

    /// Frames from the one that holds `next` on, none of them beyond `applied`, at least one.
    async fn frames(
        &self,
        next: Position,
        applied: Position,
    ) -> Result<Vec<Arc<TailFrame>>, Error> {
        let mut found = self.find(next);
        if matches!(found, Found::Ahead) {
            let _reads_for_all = self.reads_end.lock().await;
            // Another may have read it while this one waited.
            found = self.find(next);
            if matches!(found, Found::Ahead) {
                let frames = self.read(next, applied).await?;
                self.recent().extend(&frames);
                return Ok(frames);
            }
        }
        if let Found::Frames(frames) = found {
            return Ok(frames);
        }
        let _place = self.reads_behind.acquire().await.map_err(|_closed| unreadable())?;
        self.read(next, applied).await
    }

    async fn read(&self, next: Position, applied: Position) -> Result<Vec<Arc<TailFrame>>, Error> {
        let log = self.log.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let frames = log.read(next, READ_BYTES_MAX).map_err(|error| match error {
                LogError::Trimmed { .. } => expired(),
                error => {
                    tracing::error!(%error, "the log cannot be read");
                    unreadable()
                }
            })?;
            // What is durable and not yet applied, no reader has seen.
            let visible = frames.iter().take_while(|frame| frame.last() <= applied);
            visible.map(|frame| TailFrame::decode(frame).map(Arc::new)).collect()
        });
        reading.await.unwrap_or_else(|_panicked| Err(unreadable()))
    }

    fn find(&self, next: Position) -> Found {
        self.recent().find(next)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    fn find(&self, next: Position) -> Found {
        let (Some(oldest), Some(newest)) = (self.frames.front(), self.frames.back()) else {
            return Found::Ahead;
        };
        if next < oldest.first {
            return Found::Behind;
        }
        if next > newest.last {
            return Found::Ahead;
        }
        let start = self.frames.partition_point(|frame| frame.last < next);
        Found::Frames(self.frames.range(start..).cloned().collect())
    }

    /// Adds what was read behind the newest; what does not join it takes its place.
    fn extend(&mut self, frames: &[Arc<TailFrame>]) {
        let joins = match (self.frames.back(), frames.first()) {
            (Some(newest), Some(first)) => first.first.0 == newest.last.0 + 1,
            _ => true,
        };
        if !joins {
            *self = Recent::default();
        }
        for frame in frames {
            self.bytes += frame.bytes;
            self.frames.push_back(frame.clone());
        }
        while self.bytes > RECENT_BYTES_MAX && self.frames.len() > 1 {
            self.bytes -= self.frames.pop_front().map_or(0, |oldest| oldest.bytes);
        }
    }
}

fn expired() -> Error {
    Error::new(
        Code::PositionExpired,
        "what follows this event is no longer in the log; read the present state and begin anew",
    )
}

fn unreadable() -> Error {
    Error::new(Code::Internal, "the log could not be read; the service's own log says why")
}
