//! Reading the log as it grows: its records in order, up to what readers of the store see and
//! never beyond. Whoever writes neither knows of tails nor waits for them.
//!
//! Many tails at the end of the log want the same frames at the same moment: one of them reads
//! and decodes, the others find the frames in memory. A tail that is far behind reads for itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use guanxi_model::codec::decode_record;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{Code, Epoch, Error, EventId, Millis, Position, Record};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::log::{Frame, Log, LogError};

/// Log bytes that a tail is given at once, unless one frame has more. It is what each of a
/// thousand readers who stall holds on to, decoded.
const READ_BYTES_MAX: usize = 64 << 10;
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
    pub edges: Vec<Arc<TailRecord>>,
    bytes: usize,
}

/// One edge record, shared by all tails that read it.
#[derive(Debug)]
pub struct TailRecord {
    pub position: Position,
    pub edge: EdgeRecord,
    /// The record as a server sends it, made by the first that does: with a hundred watchers,
    /// writing each record for each of them is most of the work.
    pub sent_as: OnceLock<Box<[u8]>>,
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
            *self.tails.recent.lock() = Recent::default();
        }
    }
}

impl TailFrame {
    /// The edge records at this position and after it.
    pub fn edges_from(&self, from: Position) -> &[Arc<TailRecord>] {
        let start = self.edges.partition_point(|record| record.position < from);
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
                let (position, edge) = (Position(position), *edge);
                edges.push(Arc::new(TailRecord { position, edge, sent_as: OnceLock::new() }));
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

enum TailFrames {
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
        if matches!(found, TailFrames::Ahead) {
            let _reads_for_all = self.reads_end.lock().await;
            // Another may have read it while this one waited.
            found = self.find(next);
            if matches!(found, TailFrames::Ahead) {
                let frames = self.read(next, applied).await?;
                self.recent.lock().extend(&frames);
                return Ok(frames);
            }
        }
        if let TailFrames::Frames(frames) = found {
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

    fn find(&self, next: Position) -> TailFrames {
        self.recent.lock().find(next)
    }
}

impl Recent {
    fn find(&self, next: Position) -> TailFrames {
        let (Some(oldest), Some(newest)) = (self.frames.front(), self.frames.back()) else {
            return TailFrames::Ahead;
        };
        if next < oldest.first {
            return TailFrames::Behind;
        }
        if next > newest.last {
            return TailFrames::Ahead;
        }
        let start = self.frames.partition_point(|frame| frame.last < next);
        let mut bytes = 0;
        let fitting = self.frames.range(start..).take_while(|frame| {
            let fits = bytes == 0 || bytes + frame.bytes <= READ_BYTES_MAX;
            bytes += frame.bytes;
            fits
        });
        TailFrames::Frames(fitting.cloned().collect())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guanxi_model::codec::encode_record;
    use guanxi_model::{
        EdgeKey, EdgeRow, KindId, Origin, SourceId, State, TargetId, TenantId, Version,
    };

    use super::*;
    use crate::log::MemoryLog;

    const TENANT: TenantId = TenantId::DEFAULT;

    fn edge(position: u64) -> Vec<u8> {
        let key = EdgeKey {
            tenant: TENANT,
            kind: KindId(1),
            source: SourceId(position),
            target: TargetId(1),
        };
        let new = EdgeRow {
            version: Version(position),
            state: State::Live,
            since: Millis(position),
            group: None,
            owner: None,
            data: None,
            expires_at: None,
        };
        let edge = EdgeRecord::of(key, new);
        encode_record(&Record::Edge(Box::new(edge)), &Origin::default())
    }

    /// A log whose last frames may not be applied yet.
    struct Rig {
        log: Arc<MemoryLog>,
        tails: Arc<Tails>,
        applied: watch::Sender<Position>,
    }

    impl Rig {
        fn new() -> Rig {
            let log = Arc::new(MemoryLog::new());
            let tails = Tails::new(log.clone());
            Rig { log, tails, applied: watch::Sender::new(Position(0)) }
        }

        fn append(&self, records: u64) {
            let first = Position(self.log.last().0 + 1);
            let records = (first.0..first.0 + records).map(edge).collect();
            let epoch = self.log.epoch();
            self.log.append(&Frame { epoch, first, commit_ms: 5, records }).unwrap();
        }

        fn apply(&self) {
            self.applied.send_replace(self.log.last());
        }

        fn tail(&self, from: TailFrom) -> Result<Tail, Error> {
            self.tails.begin(from, self.applied.subscribe())
        }

        fn after(&self, epoch: u32, position: u64) -> Result<Tail, Error> {
            let (epoch, position) = (Epoch(epoch), Position(position));
            self.tail(TailFrom::After(EventId { tenant: TENANT, epoch, position }))
        }
    }

    /// The positions of all that can be read now.
    async fn positions(tail: &mut Tail) -> Vec<u64> {
        let mut found = Vec::new();
        loop {
            let from = Position(tail.position().0 + 1);
            let next = tokio::time::timeout(Duration::from_millis(100), tail.next());
            let Ok(frames) = next.await else { return found };
            for frame in frames.unwrap() {
                found.extend(frame.edges_from(from).iter().map(|record| record.position.0));
            }
        }
    }

    #[tokio::test]
    async fn nothing_is_read_before_it_is_applied() {
        let rig = Rig::new();
        rig.append(2);
        rig.apply();
        rig.append(3);
        let mut tail = rig.tail(TailFrom::Earliest).unwrap();
        let mut from_now = rig.tail(TailFrom::Now).unwrap();
        assert_eq!(positions(&mut tail).await, [1, 2]);
        assert_eq!(positions(&mut from_now).await, [0; 0]);
        rig.apply();
        assert_eq!(positions(&mut tail).await, [3, 4, 5]);
        assert_eq!(positions(&mut from_now).await, [3, 4, 5]);
    }

    #[tokio::test]
    async fn an_event_in_the_middle_of_a_frame_is_a_place() {
        let rig = Rig::new();
        rig.append(4);
        rig.append(1);
        rig.apply();
        for position in 0..=5 {
            let expected: Vec<u64> = (position + 1..=5).collect();
            let mut tail = rig.after(1, position).unwrap();
            assert_eq!(positions(&mut tail).await, expected);
        }
    }

    #[tokio::test]
    async fn what_is_gone_foreign_or_not_yet_here_is_refused() {
        let rig = Rig::new();
        rig.append(2);
        rig.append(2);
        rig.apply();
        let code = |tail: Result<Tail, Error>| tail.unwrap_err().code;
        assert_eq!(code(rig.after(1, 5)), Code::Unavailable);
        assert_eq!(code(rig.after(2, 3)), Code::PositionExpired);
        rig.log.begin_epoch(Epoch(2)).unwrap();
        rig.append(2);
        rig.apply();
        assert!(rig.after(1, 4).is_ok(), "an ancestor is good up to the fork");
        assert_eq!(code(rig.after(1, 5)), Code::PositionExpired);
        let mut late = rig.after(1, 0).unwrap();
        rig.log.trim(Position(3)).unwrap();
        assert_eq!(code(rig.after(1, 1)), Code::PositionExpired);
        assert_eq!(late.next().await.unwrap_err().code, Code::PositionExpired);
        let mut tail = rig.after(1, 2).unwrap();
        assert_eq!(positions(&mut tail).await, [3, 4, 5, 6]);
        let mut earliest = rig.tail(TailFrom::Earliest).unwrap();
        assert_eq!(positions(&mut earliest).await, [3, 4, 5, 6]);
    }

    #[tokio::test]
    async fn tails_at_the_end_share_what_one_of_them_read() {
        let rig = Rig::new();
        let mut tails: Vec<Tail> = (0..3).map(|_| rig.tail(TailFrom::Now).unwrap()).collect();
        rig.append(2);
        rig.apply();
        let mut frames = Vec::new();
        for tail in &mut tails {
            frames.extend(tail.next().await.unwrap());
        }
        assert!(frames.iter().all(|frame| Arc::ptr_eq(frame, &frames[0])));
        // One that is behind what is kept reads for itself and leaves it as it is.
        rig.append(1);
        rig.apply();
        *rig.tails.recent.lock() = Recent::default();
        assert_eq!(positions(&mut tails[0]).await, [3]);
        let mut behind = rig.tail(TailFrom::Earliest).unwrap();
        assert_eq!(positions(&mut behind).await, [1, 2, 3]);
        assert_eq!(rig.tails.recent.lock().frames.len(), 1);
        tails.clear();
        assert_eq!(rig.tails.recent.lock().frames.len(), 1, "one is still open");
        drop(behind);
        assert_eq!(rig.tails.recent.lock().frames.len(), 0, "nobody is left to read them");
    }

    #[test]
    fn recent_frames_are_bounded_and_without_a_gap() {
        let frame = |first: u64, bytes: usize| {
            Arc::new(TailFrame {
                epoch: Epoch(1),
                first: Position(first),
                last: Position(first),
                time: Millis(1),
                edges: Vec::new(),
                bytes,
            })
        };
        let mut recent = Recent::default();
        for first in 1..=10 {
            recent.extend(&[frame(first, RECENT_BYTES_MAX / 4)]);
        }
        assert_eq!(recent.frames.len(), 4);
        assert!(matches!(recent.find(Position(6)), TailFrames::Behind));
        assert!(matches!(recent.find(Position(11)), TailFrames::Ahead));
        let TailFrames::Frames(frames) = recent.find(Position(9)) else { panic!("it is kept") };
        assert_eq!(frames.len(), 1, "a large one at a time");
        recent.extend(&[frame(20, 1)]);
        assert_eq!((recent.frames.len(), recent.bytes), (1, 1), "a gap begins anew");
        recent.extend(&[frame(21, RECENT_BYTES_MAX * 2)]);
        assert_eq!(recent.frames.len(), 1, "the newest stays, however large");
    }
}
