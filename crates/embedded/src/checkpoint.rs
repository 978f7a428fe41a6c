//! Checkpoints: makes the store durable now and then, so that a start after a crash has little to
//! replay, and gives back log segments that nobody needs any more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::Position;

use crate::background::Workbench;
use crate::disk_room::DiskRoom;
use crate::engine::LogSettings;
use crate::log::{Log, LogError};
use crate::log_holds::Holds;

/// Bounds what a crash leaves to replay.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(2);
/// Trimming looks into the log to find its place, which is not worth it more often.
const TRIM_INTERVAL: Duration = Duration::from_secs(30);
/// So many times what the log keeps by its size a copy may keep of it: one whose reader is slower
/// would fill the disk until writes are refused. On a small disk the log has a quarter (`fitted`), so
/// this leaves half of it to the store.
const HELD_RETENTIONS_MAX: u64 = 2;
/// How long past twice the retention a record may stay: a segment is sealed at one look and goes
/// at another, each as late as an interval and the wait before it.
pub(crate) const TRIM_LATE_MS: u64 =
    2 * (TRIM_INTERVAL.as_millis() + CHECKPOINT_INTERVAL.as_millis()) as u64;

/// The position that a power cut cannot take from the store.
#[derive(Debug, Default)]
pub(crate) struct Persisted(AtomicU64);

impl Persisted {
    pub fn new(position: Position) -> Persisted {
        Persisted(AtomicU64::new(position.0))
    }

    pub fn get(&self) -> Position {
        Position(self.0.load(Ordering::Acquire))
    }

    pub fn set(&self, position: Position) {
        self.0.fetch_max(position.0, Ordering::AcqRel);
    }
}

/// `note_clock` is done as often as the log is trimmed: what is believed of the clock may change.
pub(crate) fn run(
    bench: &Workbench,
    persisted: &Persisted,
    holds: &Holds,
    settings: &LogSettings,
    room: &DiskRoom,
    note_clock: impl Fn(),
) {
    let mut trimmed = Instant::now();
    while !bench.signal.wait(CHECKPOINT_INTERVAL) {
        if bench.store.applied().position > persisted.get() {
            match bench.store.persist() {
                Ok(position) => persisted.set(position),
                Err(error) => {
                    tracing::error!(%error, "the store could not be made durable; the log is kept");
                }
            }
        }
        if let Err(error) = bench.log.prepare() {
            tracing::warn!(%error, "no log segment could be prepared");
        }
        if trimmed.elapsed() >= TRIM_INTERVAL {
            trimmed = Instant::now();
            note_clock();
            // Where the log begins is written over what stands, for which some file systems want room.
            let trimmed = room
                .with_reserve(LogError::is_full, || trim(bench, persisted.get(), holds, settings));
            if let Err(error) = trimmed {
                tracing::error!(%error, "the log could not be trimmed");
            }
        }
    }
}

/// Drops what is older or more than is to be kept, never what the durable store lacks or what
/// somebody still reads.
pub(crate) fn trim(
    bench: &Workbench,
    persisted: Position,
    holds: &Holds,
    settings: &LogSettings,
) -> Result<(), LogError> {
    let log = bench.log.as_ref();
    let oldest_ms = bench.clock.past_ms().saturating_sub(settings.retention_ms);
    let by_age = first_since(log, oldest_ms)?;
    let by_size = first_within(log, settings.retention_bytes);
    // The record after the last durable one is the first that a replay would ask for.
    let needed = Position(persisted.0 + 1);
    let held_from = first_within(log, settings.retention_bytes.saturating_mul(HELD_RETENTIONS_MAX));
    holds.trim(log, by_age.max(by_size).min(needed), held_from)?;
    // A segment that fills slowly is ended, so that nothing stays much longer than twice the retention.
    log.seal(oldest_ms)
}

/// The first position whose frame is not older than that, by halving.
fn first_since(log: &dyn Log, oldest_ms: u64) -> Result<Position, LogError> {
    let (mut kept, mut end) = (log.first().0, log.last().0 + 1);
    while kept < end {
        let middle = kept + (end - kept) / 2;
        let frames = log.read(Position(middle), 1)?;
        let Some(frame) = frames.first() else { break };
        if frame.commit_ms < oldest_ms {
            kept = frame.last().0 + 1;
        } else {
            end = middle;
        }
    }
    Ok(Position(kept))
}

/// Where the log would have to begin to take about so many bytes.
fn first_within(log: &dyn Log, bytes_max: u64) -> Position {
    let (first, last, bytes) = (log.first().0, log.last().0, log.bytes());
    if bytes <= bytes_max {
        return Position(first);
    }
    let surplus = (bytes - bytes_max) as f64 / bytes as f64;
    Position(first + ((last + 1 - first) as f64 * surplus) as u64)
}
