//! The log for watchers: every record from a place on, at least once, in order per partition.
//!
//! A place is a vector of positions, one per partition. One thread reads the log's tip for all
//! watchers and keeps the last records in rings (`tip`); a watcher that is further behind reads with
//! a client of its own until it has caught up. A place that has been trimmed, or is of another topic
//! or another history of this one, is an error.
//!
//! The log is the cluster's own topic, or a changefeed's (`log`).

mod log;
mod tip;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::kafka::{
    BEYOND_AFTER, BrokerError, KafkaSettings, LogPosition, LogReader, Offsets, PartitionEnds,
    ReadError, TopicId,
};
use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_model::Millis;
use guanxi_model::record::EdgeRecord;
pub use log::FeedLog;
use log::LoggedEvent;
use parking_lot::Mutex;
use tip::TopicTip;

/// Watchers that read with clients of their own at a time: each holds megabytes and threads.
const CATCHING_UP_MAX: usize = 16;

/// Between two looks at an end that lies before a watcher's place.
const BEYOND_LOOK: Duration = Duration::from_millis(500);

/// After an error that may pass.
const RETRY: Duration = Duration::from_millis(100);

/// Where a watcher begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedFrom {
    Now,
    Earliest,
    /// One position per partition.
    At(Vec<LogPosition>),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// The log no longer has what comes next, or is another: begin anew.
    #[error("partition {partition} no longer has offset {wanted}")]
    Expired { partition: u32, wanted: u64 },
    /// The place is not one of this log.
    #[error("the place names {found} partitions, the log has {partitions}")]
    Foreign { found: usize, partitions: u32 },
    #[error("{CATCHING_UP_MAX} watchers are reading old records; try again later")]
    Busy,
    #[error(transparent)]
    Log(#[from] BrokerError),
}

impl FeedError {
    /// Whether the same reader may go on later.
    fn may_pass(&self) -> bool {
        match self {
            FeedError::Expired { .. } | FeedError::Foreign { .. } => false,
            FeedError::Busy => true,
            FeedError::Log(error) => error.may_pass(),
        }
    }
}

/// A change of an edge, and when it was committed.
#[derive(Debug, PartialEq, Eq)]
pub struct FeedEvent {
    pub record: Box<EdgeRecord>,
    pub time: Millis,
}

#[derive(Debug, Clone)]
pub struct FeedRecord {
    pub event: Arc<FeedEvent>,
    pub partition: u32,
    pub offset: u64,
    /// The place after it: to read on, begin at it.
    pub after: Arc<[LogPosition]>,
}

#[derive(Debug)]
pub struct Feed {
    settings: KafkaSettings,
    log: FeedLog,
    tip: Arc<TopicTip>,
    offsets: Mutex<Option<Offsets>>,
    catching_up: Arc<AtomicUsize>,
    workers: Workers,
}

/// One watcher's reading.
#[derive(Debug)]
pub struct FeedReader {
    settings: KafkaSettings,
    log: FeedLog,
    tip: Arc<TopicTip>,
    positions: Vec<LogPosition>,
    /// While some partitions are behind the tip's rings.
    own: Option<Own>,
    catching_up: Arc<AtomicUsize>,
    /// What ended it, while there are records to be given out before it is told.
    trouble: Option<FeedError>,
    /// The partition to begin with changes, so that none is always last.
    turn: usize,
}

#[derive(Debug)]
struct Own {
    reader: LogReader,
    _permit: Permit,
}

#[derive(Debug)]
struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Feed {
    /// Starts the thread; it reads nothing until someone watches.
    pub fn start(crew: &Crew, settings: KafkaSettings, log: FeedLog) -> io::Result<Feed> {
        let workers = crew.workers();
        let tip = Arc::new(TopicTip::new(settings.partitions, workers.signal().clone()));
        let (runs, at, of) = (tip.clone(), settings.clone(), log.clone());
        let (trouble, mut reader) = ("the log's tip cannot be read", None);
        workers.repeat("guanxi-feed", trouble, Backoff::default(), move |_| {
            tip::turn(&runs, &mut reader, &at, &of)
        })?;
        let offsets = Mutex::new(None);
        Ok(Feed { settings, log, tip, offsets, catching_up: Arc::default(), workers })
    }

    /// Begins to read. Blocks while the broker is asked.
    pub fn begin(&self, from: FeedFrom) -> Result<FeedReader, FeedError> {
        let partitions = self.settings.partitions;
        if let FeedFrom::At(offsets) = &from
            && offsets.len() != partitions as usize
        {
            return Err(FeedError::Foreign { found: offsets.len(), partitions });
        }
        let (topic, ends) = self.ends_for(&from)?;
        let positions = match from {
            FeedFrom::Now => ends.iter().map(|ends| LogPosition::at(ends.end, topic)).collect(),
            FeedFrom::Earliest => {
                ends.iter().map(|ends| LogPosition::at(ends.first, topic)).collect()
            }
            FeedFrom::At(positions) => {
                for ((partition, PartitionEnds { first, end }), at) in
                    (0..).zip(&ends).zip(&positions)
                {
                    if !(*first..=*end).contains(&at.next) || !at.topic.may_be(topic) {
                        return Err(expired(partition, at));
                    }
                }
                positions
            }
        };
        self.tip.enter();
        let (settings, log) = (self.settings.clone(), self.log.clone());
        let (tip, catching_up) = (self.tip.clone(), self.catching_up.clone());
        let (own, trouble) = (None, None);
        Ok(FeedReader { settings, log, tip, positions, own, catching_up, trouble, turn: 0 })
    }

    /// A place past the end must stay so for a while: a broker that has just started may tell of an
    /// end that lies before what it has.
    fn ends_for(&self, from: &FeedFrom) -> Result<(TopicId, Vec<PartitionEnds>), BrokerError> {
        let deadline = Instant::now() + BEYOND_AFTER;
        loop {
            let (topic, ends) = self.ends()?;
            let is_beyond = match from {
                FeedFrom::At(positions) => {
                    let mut both = positions.iter().zip(&ends);
                    let is_same = positions.iter().all(|at| at.topic.may_be(topic));
                    is_same && both.any(|(at, ends)| at.next > ends.end)
                }
                FeedFrom::Now | FeedFrom::Earliest => false,
            };
            if !is_beyond || Instant::now() >= deadline || self.tip.is_closing() {
                return Ok((topic, ends));
            }
            std::thread::sleep(BEYOND_LOOK);
        }
    }

    fn ends(&self) -> Result<(TopicId, Vec<PartitionEnds>), BrokerError> {
        let mut offsets = self.offsets.lock();
        let client = match &mut *offsets {
            Some(client) => client,
            None => offsets.insert(Offsets::open(&self.settings)?),
        };
        let topic = self.log.topic(&self.settings);
        let ends = client
            .topic_id(topic)
            .and_then(|id| Ok((id, client.all(topic, self.settings.partitions)?)));
        if ends.is_err() {
            *offsets = None;
        }
        ends
    }

    pub fn close(&self) {
        self.tip.close();
        self.workers.stop();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.close();
    }
}

impl FeedReader {
    /// Records as they come: waits up to `wait` for the first. None is not the end; `positions` may
    /// have moved, past what is not for watchers.
    pub fn next(
        &mut self,
        records_max: usize,
        wait: Duration,
    ) -> Result<Vec<FeedRecord>, FeedError> {
        let deadline = Instant::now() + wait;
        if let Some(error) = &self.trouble {
            return Err(error.clone());
        }
        loop {
            let mut found = Vec::new();
            self.turn = self.turn.wrapping_add(1);
            let behind = self.tip.take(&mut self.positions, self.turn, records_max, &mut found)?;
            if behind.is_empty() {
                self.own = None;
            } else {
                // With something in hand, what is behind is only looked at.
                let until = if found.is_empty() { deadline } else { Instant::now() };
                let caught_up = self.catch_up(&behind, records_max, until, &mut found);
                // What is in hand goes first. Of what may pass, nobody need hear.
                match caught_up {
                    Err(error) if found.is_empty() => return Err(error),
                    Err(error) if !error.may_pass() => self.trouble = Some(error),
                    Ok(()) | Err(_) => {}
                }
            }
            if !found.is_empty() || self.tip.is_closing() {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                return Ok(found);
            }
            if behind.is_empty() {
                self.tip.wait(&self.positions, deadline);
            }
        }
    }

    /// The place after all that was given out.
    pub fn positions(&self) -> &[LogPosition] {
        &self.positions
    }

    fn catch_up(
        &mut self,
        behind: &[u32],
        records_max: usize,
        deadline: Instant,
        found: &mut Vec<FeedRecord>,
    ) -> Result<(), FeedError> {
        let from: Vec<(u32, LogPosition)> =
            behind.iter().map(|part| (*part, self.positions[*part as usize])).collect();
        let own = match &mut self.own {
            Some(own) => {
                own.reader.assign(from)?;
                own
            }
            None => {
                let permit = permit(&self.catching_up).ok_or(FeedError::Busy)?;
                let topic = self.log.topic(&self.settings);
                let reader = LogReader::open(&self.settings, topic, from)?;
                self.own.insert(Own { reader, _permit: permit })
            }
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let taken = match own.reader.next(records_max, left) {
            Ok(taken) => taken,
            Err(ReadError::Log(error)) if error.may_pass() => {
                tracing::debug!(%error, "a watcher waits for the log");
                std::thread::sleep(left.min(RETRY));
                return Ok(());
            }
            Err(error) => {
                self.own = None;
                return Err(match error {
                    ReadError::Trimmed { partition, wanted, .. }
                    | ReadError::Beyond { partition, wanted, .. }
                    | ReadError::Broken { partition, wanted, .. } => {
                        FeedError::Expired { partition, wanted }
                    }
                    ReadError::Log(error) => FeedError::Log(error),
                });
            }
        };
        let told = match self.log.read(&taken) {
            Ok(told) => told,
            // The place has not moved: what was taken is taken again.
            Err(error) => {
                tracing::warn!(%error, "a watcher waits for the database");
                std::thread::sleep(left.min(RETRY));
                return Ok(());
            }
        };
        for LoggedEvent { partition, after, event, .. } in told {
            give(&mut self.positions, partition, after, event, found);
        }
        Ok(())
    }
}

impl Drop for FeedReader {
    fn drop(&mut self) {
        self.tip.leave();
    }
}

fn permit(catching_up: &Arc<AtomicUsize>) -> Option<Permit> {
    let taken = catching_up.fetch_add(1, Ordering::SeqCst);
    let permit = Permit(catching_up.clone());
    (taken < CATCHING_UP_MAX).then_some(permit)
}

fn expired(partition: u32, at: &LogPosition) -> FeedError {
    FeedError::Expired { partition, wanted: at.next }
}

fn give(
    positions: &mut [LogPosition],
    partition: u32,
    after: LogPosition,
    event: Option<Arc<FeedEvent>>,
    found: &mut Vec<FeedRecord>,
) {
    positions[partition as usize] = after;
    if let Some(event) = event {
        let offset = after.next - 1;
        found.push(FeedRecord { event, partition, offset, after: Arc::from(&*positions) });
    }
}
