//! From a data directory to a store that has all of the log: what is checked, and the replay.

use std::path::Path;

use guanxi_core::clock::Clock;
use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::decode_record;
use guanxi_model::{Millis, Position, Record, Version, absorb};

use super::{OpenError, Settings};
use crate::log::{Frame, Log};
use crate::overlay::{Dirty, Layers, ReadRows};
use crate::store::disk::{DiskBackend, StoreRemains};
use crate::store::{Applied, KeyedStore, Store};
use crate::transfer;

/// A clock behind the last frame by more than this is said loudly.
const CLOCK_BEHIND_WARN_MS: u64 = 5_000;
/// A clock behind the last frame by more than this is refused unless told otherwise.
const CLOCK_BEHIND_REFUSE_MS: u64 = 3_600_000;
/// Log bytes that replay holds in memory at once.
const REPLAY_BYTES_MAX: usize = 4 << 20;

pub(super) fn check_clock(
    clock: &dyn Clock,
    log: &dyn Log,
    may_be_behind: bool,
) -> Result<(), OpenError> {
    let behind_ms = log.last_commit_ms().saturating_sub(clock.now_ms());
    if behind_ms > CLOCK_BEHIND_REFUSE_MS && !may_be_behind {
        return Err(OpenError::Clock(behind_ms / 1_000));
    }
    if behind_ms > CLOCK_BEHIND_WARN_MS {
        tracing::warn!(
            behind_ms,
            "the clock is behind the last write; times stand still until it has caught up"
        );
    }
    Ok(())
}

/// Opens the store, or makes it where there is none and the log has everything from its start.
pub(super) fn open_store(
    settings: &Settings,
    log: &dyn Log,
) -> Result<KeyedStore<DiskBackend>, OpenError> {
    let directory = settings.data_dir.join(transfer::STORE);
    let found = crate::store::disk::find(&directory);
    let found = found.map_err(|error| StoreError::Io(error.to_string()))?;
    let backend = match found {
        StoreRemains::Ready => DiskBackend::open(&directory, &settings.store)
            .map_err(|error| not_opened(error, &directory, log.first()))?,
        StoreRemains::Nothing | StoreRemains::Unfinished if log.first() <= Position(1) => {
            if log.last() > Position(0) {
                tracing::warn!("there is no finished store; it is built anew from the log");
            }
            DiskBackend::create(&directory, &settings.store)?
        }
        StoreRemains::Nothing | StoreRemains::Unfinished => {
            return Err(OpenError::Damaged(format!(
                "{} is missing or unfinished, and the log begins at position {}: the data \
                 directory is damaged; restore it from a backup",
                directory.display(),
                log.first().0
            )));
        }
    };
    Ok(KeyedStore::open_with(backend, settings.resident)?)
}

/// What to do about a store that cannot be opened. On a full disk nothing is broken.
fn not_opened(error: StoreError, directory: &Path, log_first: Position) -> OpenError {
    if matches!(error, StoreError::Full | StoreError::Stopped) {
        return OpenError::Store(StoreError::Full);
    }
    // What the log has from its first record on, it can build again.
    let remedy = match log_first <= Position(1) {
        true => "remove that folder and start again: it is built anew from the log",
        false => "restore the data directory from a backup",
    };
    OpenError::Damaged(format!("{} cannot be opened ({error}); {remedy}", directory.display()))
}

/// Whether a start failed for want of room, of which the reserve has some.
pub(super) fn lacks_room(error: &OpenError) -> bool {
    match error {
        OpenError::Store(StoreError::Full | StoreError::Stopped) => true,
        OpenError::Log(error) => error.is_full(),
        _ => false,
    }
}

/// Brings the store to the end of the log. What it lacks must still be there.
pub fn replay(log: &dyn Log, store: &dyn Store) -> Result<(), OpenError> {
    let from = store.applied().position;
    if from > log.last() {
        return Err(OpenError::Damaged(format!(
            "the store is at position {}, past the log's end at {}: the data directory is \
             damaged; restore it from a backup",
            from.0,
            log.last().0
        )));
    }
    if Position(from.0 + 1) < log.first() {
        return Err(OpenError::Damaged(format!(
            "the store is at position {}, but the log begins at {}: the data directory is \
             damaged; restore it from a backup",
            from.0,
            log.first().0
        )));
    }
    replay_to(log, store, log.last())
}

/// Brings the store to this position, where a frame ends.
pub(crate) fn replay_to(log: &dyn Log, store: &dyn Store, last: Position) -> Result<(), OpenError> {
    let mut next = Position(store.applied().position.0 + 1);
    while next <= last {
        for frame in log.read(next, REPLAY_BYTES_MAX)? {
            if frame.last() <= last {
                apply_frame(&frame, store)?;
            }
            next = Position(frame.last().0 + 1);
        }
    }
    Ok(())
}

/// Applies what of a frame the store lacks: all of it, as batches are atomic, or nothing.
pub fn apply_frame(frame: &Frame, store: &dyn Store) -> Result<(), StoreError> {
    let standing = store.applied();
    if frame.last() <= standing.position {
        return Ok(());
    }
    let known = standing.position.0.saturating_sub(frame.first.0 - 1) as usize;
    let snapshot = store.snapshot();
    let base = ReadRows::new(snapshot.as_ref());
    let mut layers = Layers::new(&[], &base);
    let mut version = standing.version;
    for encoded in frame.records.iter().skip(known) {
        let record = decode_record(encoded)?;
        version = version.max(version_of(&record));
        absorb(record, &mut layers)?;
    }
    let dirty = Dirty { last: frame.last(), ..layers.current };
    let commit = Millis(frame.commit_ms);
    let applied = Applied { epoch: frame.epoch, position: frame.last(), commit, version };
    store.write(&dirty, applied)
}

/// The version that a record took; job ids are versions too.
pub fn version_of(record: &Record) -> Version {
    match record {
        Record::Edge(record) => record.new.version,
        Record::Job { job, .. } => Version(job.id.0),
        _ => Version::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_full_disk_nobody_is_told_to_remove_anything() {
        let said = |error, first| not_opened(error, Path::new("/s"), Position(first)).to_string();
        for full in [StoreError::Full, StoreError::Stopped] {
            let said = said(full, 1);
            assert!(said.starts_with("disk full") && said.contains("make some"), "{said}");
        }
        let damaged = || StoreError::Damaged("a row".to_owned());
        assert!(said(damaged(), 1).contains("remove that folder"));
        assert!(said(damaged(), 2).contains("from a backup"));
    }
}
