//! Keeps the filter of edges: loads what was saved and adds what the log has since, or scans the
//! store; makes a larger one when it is full; saves it now and then and at a clean stop, so that
//! the next start need not scan. All of it beside readers and writers: until a filter is whole, the
//! one before it is asked, or none.

use std::ops::{ControlFlow, Deref};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::signal::{Next, Signal};
use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::decode_record;
use guanxi_model::{EdgeKey, EdgeRow, Position, Record};
use parking_lot::Mutex;

use super::file::{self, FilterOrigin};
use super::filter::EdgeFilter;
use super::planted::{ResidentBug, planted};
use crate::disk::Disk;
use crate::disk_room::DiskRoom;
use crate::log::{Log, LogError};
use crate::store::EmbeddedStore;

/// Of the file beside the log and the store.
pub(crate) const FILTER: &str = "FILTER";

/// How often it is looked whether the filter is nearly full: an import brings some ten thousand edges
/// meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Room for so many edges it has at least: 400 KB that nobody would miss.
const EDGES_MIN: u64 = 1 << 18;
/// It is made anew when it has room for less than this share more.
const NEARLY_FULL_SHARE: u64 = 8;
/// Edges that are read from one picture: a few ten milliseconds, as nobody may look at a store
/// that is to be opened anew.
const PIECE_EDGES: usize = 1 << 15;
/// Readings of one piece that may fail, and the pause behind each: longer than a store takes to be
/// opened anew.
const PIECE_TRIES: u32 = 30;
const PIECE_PAUSE: Duration = Duration::from_secs(1);
/// An edge takes at least so much of the store, so that a first scan has room for all.
const EDGE_BYTES_MIN: u64 = 40;
/// A filter of more than so many times what it needs is made anew after its first scan.
const SPARE_MAX: u64 = 4;
/// A full filter is made anew without growing where so large a part of it was removed.
const REMOVED_SHARE: u64 = 4;
/// Bytes of the log that are held in memory at once.
const LOG_BYTES_MAX: usize = 4 << 20;
/// Records behind which it is saved again, and how long it is left alone at least: what a start
/// after a crash must read of the log, and how often so many bytes are written.
const SAVED_RECORDS_MAX: u64 = 2_000_000;
const SAVING_INTERVAL: Duration = Duration::from_secs(60);
/// It is saved where the disk has so many times its bytes left.
const ROOM_SHARE: u64 = 16;

/// What the filter is kept with.
pub(crate) struct FilterParts {
    pub store: Arc<dyn EmbeddedStore>,
    pub log: Arc<dyn Log>,
    pub disk: Arc<dyn Disk>,
    pub room: Arc<DiskRoom>,
    pub data_dir: PathBuf,
    /// Of the directory.
    pub seed: u64,
    pub bytes_max: u64,
}

pub(crate) struct FilterKeeper {
    parts: FilterParts,
    edges_min: u64,
    piece_edges: usize,
    /// Up to where it is on the disk, and when it was put there.
    saved: Mutex<Option<(Position, Instant)>>,
}

impl Deref for FilterKeeper {
    type Target = FilterParts;

    fn deref(&self) -> &FilterParts {
        &self.parts
    }
}

impl FilterKeeper {
    pub fn new(parts: FilterParts) -> FilterKeeper {
        let saved = Mutex::default();
        FilterKeeper { parts, edges_min: EDGES_MIN, piece_edges: PIECE_EDGES, saved }
    }

    /// One whose filters are full soon, and whose scans have many pieces.
    #[cfg(any(test, feature = "conformance"))]
    pub fn small(parts: FilterParts) -> FilterKeeper {
        FilterKeeper { edges_min: 1, piece_edges: 2, ..FilterKeeper::new(parts) }
    }

    fn path(&self) -> PathBuf {
        self.data_dir.join(FILTER)
    }

    /// Does what there is to do now.
    pub fn turn(&self, signal: &Signal) -> Result<Next, StoreError> {
        let wanted = match self.store.filter() {
            Some((filter, _)) => self.grown(&filter),
            None => (!self.resume(signal)).then(|| self.first_edges()),
        };
        match wanted {
            Some(edges) => self.build(edges, signal)?,
            None => self.save_if_due(),
        }
        Ok(Next::After(LOOK_INTERVAL))
    }

    /// How many edges there may be, before anybody has counted them.
    fn first_edges(&self) -> u64 {
        (self.store.bytes() / EDGE_BYTES_MIN).max(self.edges_min)
    }

    /// Makes a filter of what stands, while batches go on.
    pub fn build(&self, edges: u64, signal: &Signal) -> Result<(), StoreError> {
        let begun = Instant::now();
        let filter = Arc::new(EdgeFilter::for_edges(edges, self.bytes_max));
        // First: what a batch adds behind the scan's back, it adds here too.
        if !planted(ResidentBug::BuildMissesBatches) {
            self.store.begin_filter(filter.clone());
        }
        match self.scan(&filter, signal) {
            Ok(true) => {}
            stopped => {
                self.store.abandon_filter();
                return stopped.map(drop);
            }
        }
        if planted(ResidentBug::BuildMissesBatches) {
            self.store.begin_filter(filter.clone());
        }
        let needed = (filter.added() * 3 / 2).max(self.edges_min);
        if filter.blocks() > SPARE_MAX * EdgeFilter::blocks_for(needed, self.bytes_max) {
            self.store.abandon_filter();
            return self.build(needed, signal);
        }
        self.store.finish_filter();
        let (edges, took_ms) = (filter.added(), begun.elapsed().as_millis() as u64);
        tracing::info!(edges, bytes = filter.bytes(), took_ms, "the filter of edges was built");
        Ok(())
    }

    /// Adds every edge that stands, piece by piece, each as it is when it is read. What is put into
    /// pieces that are done, its batch adds. False when it is to stop.
    fn scan(&self, filter: &EdgeFilter, signal: &Signal) -> Result<bool, StoreError> {
        let (mut after, mut failures) = (None, 0);
        while !signal.is_stopped() {
            match self.piece(filter, after.as_ref()) {
                Ok(Some(last)) => (after, failures) = (Some(last), 0),
                Ok(None) => return Ok(true),
                Err(error) => {
                    failures += 1;
                    if failures == PIECE_TRIES {
                        return Err(error);
                    }
                    signal.wait(PIECE_PAUSE);
                }
            }
        }
        Ok(false)
    }

    /// The last edge of the piece; none where nothing comes behind it.
    fn piece(
        &self,
        filter: &EdgeFilter,
        after: Option<&EdgeKey>,
    ) -> Result<Option<EdgeKey>, StoreError> {
        let (mut count, mut last) = (0, None);
        self.store.picture().edge_keys(after, &mut |edge| {
            filter.add(&edge);
            last = Some(edge);
            count += 1;
            match count < self.piece_edges {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(last.filter(|_| count == self.piece_edges))
    }

    /// Goes on with the filter that was saved, until it is to stop; false where there is none to go on
    /// with.
    fn resume(&self, signal: &Signal) -> bool {
        let loaded = match file::load(self.disk.as_ref(), &self.path(), self.bytes_max) {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::warn!(%error, "the saved filter could not be read; it is built anew");
                None
            }
        };
        let resumed =
            loaded.is_some_and(|(filter, origin)| self.resume_from(filter, origin, signal));
        if !resumed {
            // Another history may bring the log to where this one would fit.
            if let Err(error) = file::remove(self.disk.as_ref(), &self.path()) {
                tracing::warn!(%error, "a filter of no use could not be removed");
            }
        }
        resumed
    }

    fn resume_from(&self, filter: EdgeFilter, origin: FilterOrigin, signal: &Signal) -> bool {
        let FilterOrigin { seed, epoch, position } = origin;
        let lineage = self.log.lineage();
        // Where the log does not continue it, nobody knows what it lacks.
        if seed != self.seed
            || !lineage.accepts(epoch, position)
            || position > self.log.last()
            || Position(position.0 + 1) < self.log.first()
        {
            return false;
        }
        let filter = Arc::new(filter);
        self.store.begin_filter(filter.clone());
        // All batches from here on set their bits themselves.
        let until = self.store.applied().position;
        let added = match planted(ResidentBug::SavedFilterLacksBits) {
            true => Ok(true),
            false => self.add_logged(&filter, position, until, signal),
        };
        match added {
            Ok(true) => {
                self.store.finish_filter();
                *self.saved.lock() = Some((position, Instant::now()));
                let (edges, records) = (filter.added(), until.0.saturating_sub(position.0));
                tracing::info!(edges, bytes = filter.bytes(), records, "the filter was loaded");
                true
            }
            // The file stays for the next start.
            Ok(false) => {
                self.store.abandon_filter();
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the saved filter could not be brought up to the log");
                self.store.abandon_filter();
                false
            }
        }
    }

    /// Adds the edges of the records after one position, up to another. False when it is to stop.
    fn add_logged(
        &self,
        filter: &EdgeFilter,
        after: Position,
        until: Position,
        signal: &Signal,
    ) -> Result<bool, LogError> {
        let mut next = Position(after.0 + 1);
        while next <= until {
            if signal.is_stopped() {
                return Ok(false);
            }
            for frame in self.log.read(next, LOG_BYTES_MAX)? {
                for encoded in &frame.records {
                    match decode_record(encoded) {
                        Ok(Record::Edge(record)) if EdgeRow::stands(&record.new) => {
                            filter.add(&record.key);
                        }
                        Ok(Record::Edge(_)) => filter.note_removal(),
                        Ok(_) => {}
                        // The store was brought up to it by these very records.
                        Err(error) => tracing::error!(error = error.0, "a record is unreadable"),
                    }
                }
                next = Position(frame.last().0 + 1);
            }
        }
        Ok(true)
    }

    fn save_if_due(&self) {
        let now = self.store.applied().position;
        let due = match *self.saved.lock() {
            None => true,
            Some((position, at)) => {
                now.0.saturating_sub(position.0) >= SAVED_RECORDS_MAX
                    && at.elapsed() >= SAVING_INTERVAL
            }
        };
        if due {
            self.save();
        }
    }

    /// Puts it on the disk as it is now, unless it is there already. A disk without room goes
    /// without it: the next start scans.
    pub fn save(&self) {
        let Some((filter, applied)) = self.store.filter() else { return };
        let mut saved = self.saved.lock();
        if saved.is_some_and(|(position, _)| position == applied.position) {
            return;
        }
        // Also where it fails: it is tried again as seldom.
        *saved = Some((saved.map_or(Position(0), |(position, _)| position), Instant::now()));
        let wanted = file::file_bytes(&filter).saturating_mul(ROOM_SHARE);
        let has_room = self.disk.room(&self.data_dir).is_ok_and(|room| room.free_bytes >= wanted);
        if !has_room || self.room.is_full() {
            return;
        }
        let origin =
            FilterOrigin { seed: self.seed, epoch: applied.epoch, position: applied.position };
        match file::save(self.disk.as_ref(), &self.path(), &filter, origin) {
            Ok(()) => *saved = Some((applied.position, Instant::now())),
            Err(error) => tracing::warn!(%error, "the filter of edges could not be saved"),
        }
    }

    /// For how many edges a full filter is to be made anew, if that gains anything.
    fn grown(&self, filter: &EdgeFilter) -> Option<u64> {
        let (added, removed) = (filter.added(), filter.removed());
        if added < filter.capacity() - filter.capacity() / NEARLY_FULL_SHARE {
            return None;
        }
        // Those that were put and removed again and again count as often.
        let standing = added - removed.min(added / 2);
        let edges = (standing * 3 / 2).max(self.edges_min);
        let grows = EdgeFilter::blocks_for(edges, self.bytes_max) > filter.blocks();
        (grows || removed >= added / REMOVED_SHARE).then_some(edges)
    }
}
