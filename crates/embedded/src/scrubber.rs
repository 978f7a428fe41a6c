//! The scrubber: goes over everything again and again, slowly, and says how much drift there is. It
//! takes a new picture of the store for every slice, so that none is held for long, and moves what
//! it has read along the log, so that at the end of a pass all of it is of one position.

use std::time::{Duration, Instant};

use guanxi_core::audit::{AuditError, AuditVerdict};
use guanxi_core::backoff::Backoff;
use guanxi_core::signal::Next;
use guanxi_core::snapshot::StoreError;
use guanxi_model::Position;
use guanxi_model::codec::decode_record;

use crate::audit::{AuditPass, Auditor, Overtaken};
use crate::log::LogError;
use crate::store::EmbeddedSnapshot;

/// The pace of slices: short enough that none is felt.
const SLICE_INTERVAL: Duration = Duration::from_millis(100);
const SLICES_PER_SECOND: u64 = 10;
/// The pause between two passes, which small stores would otherwise begin all the time.
const PASS_INTERVAL: Duration = Duration::from_secs(5);
/// The pauses after something could not be read.
const RETRY_FIRST: Duration = Duration::from_secs(60);
const RETRY_LAST: Duration = Duration::from_secs(600);
/// Log bytes that are held in memory at once.
const FOLLOW_BYTES_MAX: usize = 1 << 20;

/// Why a pass has no verdict.
enum BrokenPass {
    /// The engine stops.
    Stopped,
    /// The pass cannot be moved along the log; the next one can.
    Overtaken,
    Failed(String),
}

pub(crate) fn backoff() -> Backoff {
    Backoff::new(RETRY_FIRST, RETRY_LAST)
}

pub(crate) fn turn(auditor: &Auditor, rows_per_second: u64) -> Result<Next, String> {
    match pass(auditor, rows_per_second) {
        Ok(verdict) => {
            auditor.board.publish(verdict);
            auditor.board.scrubbed(|scrubbing| scrubbing.passes += 1);
        }
        Err(BrokenPass::Stopped | BrokenPass::Overtaken) => {}
        Err(BrokenPass::Failed(error)) => return Err(error),
    }
    Ok(Next::After(PASS_INTERVAL))
}

fn pass(auditor: &Auditor, rows_per_second: u64) -> Result<AuditVerdict, BrokenPass> {
    let snapshot = auditor.bench.store.picture_as_it_lies();
    let mut pass = AuditPass::new(None, snapshot.catalog());
    let mut position = snapshot.applied()?.position;
    drop(snapshot);
    auditor.board.scrubbed(|scrubbing| scrubbing.rows = 0);
    let slice_rows = (rows_per_second / SLICES_PER_SECOND).max(1);
    loop {
        let begun = Instant::now();
        let snapshot = auditor.bench.store.picture_as_it_lies();
        position = follow(auditor, &mut pass, snapshot.as_ref(), position)?;
        let rows = pass.take(snapshot.as_ref(), slice_rows)?;
        drop(snapshot);
        auditor.board.scrubbed(|scrubbing| scrubbing.rows += rows);
        if pass.is_done() {
            break;
        }
        // A slice that had to read more than its share is followed by a longer pause.
        let share = Duration::from_secs_f64(rows as f64 / rows_per_second as f64);
        if auditor.bench.signal.wait(share.max(SLICE_INTERVAL).saturating_sub(begun.elapsed())) {
            return Err(BrokenPass::Stopped);
        }
    }
    if pass.is_clean() {
        return Ok(AuditVerdict { drift: 0, position, at: auditor.board.now() });
    }
    // Something seems wrong: one close look, in one picture, says what is.
    auditor.look().map_err(BrokenPass::from)
}

/// Tells the pass every record up to where the snapshot is.
fn follow(
    auditor: &Auditor,
    pass: &mut AuditPass,
    snapshot: &dyn EmbeddedSnapshot,
    from: Position,
) -> Result<Position, BrokenPass> {
    let until = snapshot.applied()?.position;
    let mut next = Position(from.0 + 1);
    while next <= until {
        let frames = auditor.bench.log.read(next, FOLLOW_BYTES_MAX)?;
        if frames.is_empty() {
            return Err(BrokenPass::Overtaken);
        }
        for frame in frames.iter().filter(|frame| frame.last() <= until) {
            let known = next.0.saturating_sub(frame.first.0) as usize;
            for encoded in frame.records.iter().skip(known) {
                let record = decode_record(encoded).map_err(|error| BrokenPass::Failed(error.0))?;
                pass.follow(&record, snapshot.catalog())?;
            }
            next = Position(frame.last().0 + 1);
        }
        if frames.iter().any(|frame| frame.last() > until) {
            break;
        }
    }
    Ok(until)
}

impl From<StoreError> for BrokenPass {
    fn from(error: StoreError) -> BrokenPass {
        BrokenPass::Failed(error.to_string())
    }
}

impl From<LogError> for BrokenPass {
    fn from(error: LogError) -> BrokenPass {
        match error {
            LogError::Trimmed { .. } => BrokenPass::Overtaken,
            other => BrokenPass::Failed(other.to_string()),
        }
    }
}

impl From<Overtaken> for BrokenPass {
    fn from(_: Overtaken) -> BrokenPass {
        BrokenPass::Overtaken
    }
}

impl From<AuditError> for BrokenPass {
    fn from(error: AuditError) -> BrokenPass {
        match error {
            AuditError::Stopped => BrokenPass::Stopped,
            other => BrokenPass::Failed(other.to_string()),
        }
    }
}
