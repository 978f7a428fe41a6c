//! Offline import: makes a data directory from lines, without a service and without a log of them.
//! Lines are taken in by any number of threads, sorted, decided by the model's rules as if they had
//! come one after the other, and written in the order of keys. How lines are read is not decided
//! here.
//!
//! The directory begins a new epoch behind a position that counts what was decided: nobody can ask
//! its log for what stands in the store alone.

mod ahead;
mod deciding;
mod exclusions;
mod line;
mod rejects;
mod rows;
mod settings;
mod sorter;
mod source;
mod view;

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use guanxi_core::clock::{Clock as _, SystemClock};
use guanxi_core::random::random;
use guanxi_core::snapshot::StoreError;
use guanxi_model::change::KindSpec;
use guanxi_model::codec::CodecError;
use guanxi_model::decide::built_in_kinds;
use guanxi_model::import::RejectedLine;
use guanxi_model::{Catalog, Change, Epoch, Error, Millis, Position, Region, Request, TenantId};

pub use self::deciding::LinesDecided;
pub use self::line::{FILES_MAX, LINES_MAX, LinePlace};

use self::ahead::{Entries, entries_ahead, records_ahead};
use self::deciding::{Deciding, Series};
use self::exclusions::Exclusions;
use self::rejects::{read_reject, write_reject};
use self::rows::{RowsInOrder, RowsOut};
use self::settings::SettingsInTime;
use self::sorter::{Merge, Sorter, SpillFolder};
use crate::commit::Decider;
use crate::disk::is_full;
use crate::engine::Settings;
use crate::log::{Beginning, Lineage};
use crate::overlay::Dirty;
use crate::store::memory::MemoryBackend;
use crate::store::{Applied, EmbeddedStore as _, KeyedStore, Store as _};
use crate::transfer::{FillError, LandingError, LandingSite, give_back};

/// What all sorts together keep in memory, where nobody says.
pub const MEMORY_BYTES_DEFAULT: usize = 1 << 30;
/// Rejected lines wait in this share of it.
const REJECTS_SHARE: usize = 32;
/// So do settings of nodes, and what excludes edges.
const SIDE_SHARE: usize = 8;
/// Edges of one source that are decided together.
const SOURCE_EDGES_MAX: usize = 4_000_000;
/// How often it is told how far the work is.
const TOLD_EVERY: u64 = 8_192;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngestStep {
    /// Lines are sorted and decided.
    Deciding,
    /// Rows are written.
    Writing,
}

/// Told how far a step is, of all that it has; may stop the work.
pub type TellIngest<'a> = dyn FnMut(IngestStep, u64, u64) -> ControlFlow<()> + 'a;

#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    #[error(transparent)]
    Landing(#[from] LandingError),
    #[error(transparent)]
    Store(StoreError),
    #[error("disk full: what is sorted did not fit beside the new data directory")]
    Full,
    #[error("could not keep what is sorted: {0}")]
    Spill(io::Error),
    #[error("kind {0}")]
    Kind(String),
    #[error(
        "{0} settings of nodes do not fit into the memory that the import may use: give it more"
    )]
    TooManySettings(usize),
    #[error(
        "source {source_id} has more than {SOURCE_EDGES_MAX} edges of kind {kind}, which counts or \
         groups them: import into a running service"
    )]
    SourceTooLarge { source_id: u64, kind: String },
    #[error("stopped before its end")]
    Stopped,
}

impl From<io::Error> for IngestError {
    fn from(error: io::Error) -> IngestError {
        match is_full(&error) {
            true => IngestError::Full,
            false => IngestError::Spill(error),
        }
    }
}

impl From<StoreError> for IngestError {
    fn from(error: StoreError) -> IngestError {
        match error {
            StoreError::Full => IngestError::Full,
            error => IngestError::Store(error),
        }
    }
}

impl From<CodecError> for IngestError {
    fn from(error: CodecError) -> IngestError {
        IngestError::Store(error.into())
    }
}

/// A directory that lines are being taken in for.
pub struct Ingest {
    ground: IngestGround,
    spill: SpillFolder,
    catalog: Arc<Catalog>,
    memory_bytes: usize,
    now: Millis,
    region: Region,
}

/// Its files, which go when the work is given up. It stays marked as unfinished.
struct IngestGround {
    site: Option<LandingSite>,
    data_dir: PathBuf,
    /// The rows that a service makes at its first start.
    first_rows: KeyedStore<MemoryBackend>,
    finished: bool,
}

impl Drop for IngestGround {
    fn drop(&mut self) {
        if !self.finished {
            give_back(&self.data_dir);
        }
    }
}

impl std::fmt::Debug for Ingest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ingest").field("data_dir", &self.ground.data_dir).finish_non_exhaustive()
    }
}

const TENANT: TenantId = TenantId::DEFAULT;

impl Ingest {
    /// Takes the directory that the settings name. `kinds` are made beside those that every service
    /// has, unless it has one of the name.
    pub fn begin(
        settings: &Settings,
        kinds: Vec<KindSpec>,
        memory_bytes: usize,
    ) -> Result<Ingest, IngestError> {
        let now = Millis(SystemClock.now_ms());
        let first_rows = KeyedStore::open(MemoryBackend::default())?;
        create_kinds(&first_rows, kinds, now, settings.region)?;
        let site = LandingSite::take(settings)?;
        let spill = site.spill();
        let (data_dir, site) = (settings.data_dir.clone(), Some(site));
        let catalog = first_rows.catalog();
        let ground = IngestGround { site, data_dir, first_rows, finished: false };
        let spill = SpillFolder::create(&spill)?;
        Ok(Ingest { ground, spill, catalog, memory_bytes, now, region: settings.region })
    }

    /// The kinds that the lines may name.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Where one of so many threads puts its lines.
    pub fn sink(&self, sinks: usize) -> LineSink {
        let share = self.memory_bytes / 2 / sinks.max(1);
        LineSink {
            catalog: self.catalog.clone(),
            lines: Sorter::new(&self.spill, share),
            rejects: Sorter::new(&self.spill, share / REJECTS_SHARE),
        }
    }

    /// Decides all lines that were put into the sinks.
    pub fn decide(
        self,
        sinks: Vec<LineSink>,
        tell: &mut TellIngest<'_>,
    ) -> Result<DecidedIngest, IngestError> {
        let Ingest { ground, spill, catalog, memory_bytes, now, region } = self;
        let (mut runs, mut reject_runs) = (Vec::new(), Vec::new());
        let (mut lines, mut rejected) = (0, 0);
        for sink in sinks {
            lines += sink.lines.records();
            rejected += sink.rejects.records();
            runs.extend(sink.lines.into_runs());
            reject_runs.extend(sink.rejects.into_runs());
        }
        let merge = Merge::of(&spill, runs)?;
        let standing = ground.first_rows.applied();
        let side = memory_bytes / SIDE_SHARE;
        let mut deciding = Deciding {
            tenant: TENANT,
            catalog: &catalog,
            series: Series::new(now, region, standing.version, standing.position.0),
            done: LinesDecided { rejected, ..LinesDecided::default() },
            rejects: Sorter::new(&spill, memory_bytes / REJECTS_SHARE),
            rows: RowsOut::new(TENANT, &spill, memory_bytes / 2),
            settings: SettingsInTime::new(catalog.kinds(TENANT), side),
            exclusions: Exclusions::new(TENANT, &catalog, &spill, side),
            unit: None,
        };
        let mut decided = 0;
        records_ahead(merge, |record| {
            deciding.take(record)?;
            decided += 1;
            if decided % TOLD_EVERY == 0 && tell(IngestStep::Deciding, decided, lines).is_break() {
                return Err(IngestError::Stopped);
            }
            Ok(())
        })?;
        deciding.end_unit()?;
        let Deciding { series, done, rejects, rows, .. } = deciding;
        reject_runs.extend(rejects.into_runs());
        let rejects = Merge::of(&spill, reject_runs)?;
        let epoch = Beginning::new().lineage.next_epoch(random());
        let applied = Applied {
            epoch,
            // A position of 0 would say that the log has everything.
            position: Position(series.records.max(1)),
            commit: now,
            version: series.version,
        };
        let dirty = Dirty { last: applied.position, ..Dirty::default() };
        ground.first_rows.write(&dirty, applied)?;
        let others = ground.first_rows.picture().raw_rows(None, usize::MAX)?;
        let rows = rows.into_rows(others)?;
        Ok(DecidedIngest { ground, spill, catalog, done, rejects, rows, applied })
    }
}

/// The kinds that every service begins with, and these, as a service makes them.
fn create_kinds(
    store: &KeyedStore<MemoryBackend>,
    kinds: Vec<KindSpec>,
    now: Millis,
    region: Region,
) -> Result<(), IngestError> {
    let built_in = built_in_kinds().map_err(|error| IngestError::Kind(error.message))?;
    let mut decider = Decider::new(Epoch(1), store.applied(), region);
    for spec in built_in.into_iter().chain(kinds) {
        if store.catalog().find(TENANT, spec.name.as_str()).is_some() {
            continue;
        }
        let name = spec.name.clone();
        let change = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let request = Request::one(TENANT, change);
        let batch = decider.decide(std::iter::once(&request), now, store)?;
        let refused = |error: &Error| IngestError::Kind(format!("{name}: {}", error.message));
        for answers in &batch.answers {
            let answers = answers.as_ref().map_err(refused)?;
            answers.iter().try_for_each(|answer| answer.as_ref().map(drop).map_err(refused))?;
        }
        store.write(&batch.dirty, batch.applied)?;
    }
    Ok(())
}

/// Where a thread puts its lines.
#[derive(Debug)]
pub struct LineSink {
    catalog: Arc<Catalog>,
    lines: Sorter,
    rejects: Sorter,
}

impl LineSink {
    /// A line that asks for a change.
    pub fn take(&mut self, place: LinePlace, change: &Change) -> Result<(), IngestError> {
        let LineSink { catalog, lines, .. } = self;
        let mut written = Ok(());
        lines.push_with(|out| written = line::write(change, place, catalog, out))?;
        // What was begun of it would be read as a line.
        written.map_err(|error| IngestError::Store(StoreError::Damaged(error.message)))
    }

    /// A line that cannot be read.
    pub fn reject(&mut self, place: LinePlace, error: &Error) -> Result<(), IngestError> {
        Ok(write_reject(&mut self.rejects, place, error)?)
    }
}

/// All lines are decided; nothing of them stands yet.
pub struct DecidedIngest {
    ground: IngestGround,
    spill: SpillFolder,
    catalog: Arc<Catalog>,
    done: LinesDecided,
    rejects: Merge,
    rows: RowsInOrder,
    applied: Applied,
}

impl std::fmt::Debug for DecidedIngest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecidedIngest").field("done", &self.done).finish_non_exhaustive()
    }
}

impl DecidedIngest {
    pub fn done(&self) -> LinesDecided {
        self.done
    }

    /// The next rejected line in the order of files and lines; none at the end.
    pub fn next_reject(&mut self) -> Result<Option<(LinePlace, RejectedLine)>, IngestError> {
        match self.rejects.next()? {
            Some(record) => Ok(Some(read_reject(record)?)),
            None => Ok(None),
        }
    }

    /// Writes the rows and makes the directory one that can be opened.
    pub fn land(self, tell: &mut TellIngest<'_>) -> Result<Landed, IngestError> {
        let DecidedIngest { mut ground, spill, catalog, rejects, rows, applied, .. } = self;
        drop(rejects);
        let Some(site) = ground.site.take() else { return Err(IngestError::Stopped) };
        let secret = site.secret();
        let (mut written, all) = (0, rows.rows);
        let landing = site.fill(|fill| {
            let put = |entries: &Entries| {
                for (key, value) in entries.iter() {
                    fill(key, value)?;
                }
                written += entries.len();
                match tell(IngestStep::Writing, written, all.max(written)).is_break() {
                    true => Err(IngestError::Stopped),
                    false => Ok(()),
                }
            };
            entries_ahead(|put| rows.give(&catalog, put), put).map_err(FillError::Source)
        })?;
        let lineage = lineage(applied.epoch)?;
        landing.finish(&lineage, &secret)?;
        ground.finished = true;
        Ok(Landed { applied, rows: written, spilled_bytes: spill.bytes_written() })
    }
}

/// What the directory has.
#[derive(Debug, Clone, Copy)]
pub struct Landed {
    pub applied: Applied,
    pub rows: u64,
    /// What did not fit into memory meanwhile.
    pub spilled_bytes: u64,
}

/// One epoch from the beginning on, which no other directory has.
fn lineage(epoch: Epoch) -> Result<Lineage, IngestError> {
    let lineage = Beginning::new().lineage.with(epoch, Position(0));
    lineage.map_err(|error| IngestError::Landing(error.into()))
}
