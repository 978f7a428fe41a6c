//! The embedded engine: opens a data directory, brings the store up to the log, and keeps the
//! commit path and the chores running until it is closed.

mod moving;
mod opening;
mod serving;
mod standby;
mod threads;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use guanxi_core::audit::{AuditQuery, AuditRun, AuditSettings, AuditState, AuditVerdict};
use guanxi_core::clock::{Clock, SteadyClock, SystemClock};
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::hot::HotReads;
use guanxi_core::random::random;
use guanxi_core::signal::Signal;
use guanxi_core::snapshot::StoreError;
use guanxi_model::{Catalog, Epoch, Error, Position, Region, Secret};
use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::moving::{Confirmed, MoveState, Moved, Paused};
pub(crate) use self::opening::replay_to;
pub use self::opening::version_of;
pub use self::opening::{apply_frame, replay};
pub use self::serving::ServedEngine;
pub use self::standby::{Acknowledgement, Promoted, Shipped, unshipped};

use self::moving::MoveRegister;
use self::opening::{check_clock, lacks_room, open_store};

use crate::audit::Auditor;
use crate::background::Workbench;
use crate::backup::{Backup, BackupOrigin};
use crate::checkpoint::{self, Persisted};
use crate::commit::{CommitSettings, Committer, Meter, Unmetered};
use crate::directory::{
    Directory, DirectoryError, Role, note_clock, read_moved, read_role, steady_clock,
};
use crate::disk::{Disk, RealDisk};
use crate::disk_room::DiskRoom;
use crate::following::{FollowStatus, Following, FollowingGround};
use crate::log::{FileLog, Log, LogError, LogOptions};
use crate::log_holds::Holds;
use crate::resident::keeper::{FilterKeeper, FilterParts};
use crate::resident::{ResidentSettings, ResidentStatus};
use crate::shipping::{Shipping, ShippingSettings, StandbyStatus};
use crate::store::EmbeddedStore;
use crate::store::disk::StoreSettings;
use crate::tail::{Tail, TailFrom, Tails};
use crate::transfer::{self, Copy};

#[derive(Clone)]
pub struct Settings {
    pub data_dir: PathBuf,
    /// Which region gives out the versions.
    pub region: Region,
    pub commit: CommitSettings,
    pub log: LogSettings,
    pub store: StoreSettings,
    pub resident: ResidentSettings,
    pub shipping: ShippingSettings,
    /// The primary to follow, by the name that callers are told.
    pub follow: Option<String>,
    pub audit: AuditSettings,
    /// Start although the clock is more than an hour behind the last write.
    pub clock_may_be_behind: bool,
    /// Believe the clock as it is now, although it jumped forward since the machine was started.
    pub clock_may_have_jumped: bool,
    pub meter: Arc<dyn Meter>,
}

impl Settings {
    pub fn new(data_dir: impl Into<PathBuf>) -> Settings {
        Settings {
            data_dir: data_dir.into(),
            region: Region::default(),
            commit: CommitSettings::default(),
            log: LogSettings::default(),
            store: StoreSettings::default(),
            resident: ResidentSettings::default(),
            shipping: ShippingSettings::default(),
            follow: None,
            audit: AuditSettings::default(),
            clock_may_be_behind: false,
            clock_may_have_jumped: false,
            meter: Arc::new(Unmetered),
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("data_dir", &self.data_dir).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct LogSettings {
    pub segment_bytes: u64,
    /// Records older than this may go.
    pub retention_ms: u64,
    /// A log larger than this gives back its oldest segments.
    pub retention_bytes: u64,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings {
            segment_bytes: LogOptions::default().segment_bytes,
            retention_ms: 24 * 60 * 60 * 1_000,
            retention_bytes: 4 << 30,
        }
    }
}

/// Why a data directory could not be opened. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Damaged(String),
    #[error(
        "the clock is {0} s behind the last write in the data directory; set it right, or start \
         with clock_may_be_behind if the writes came from a wrong clock"
    )]
    Clock(u64),
    #[error(
        "{} is a standby's directory: start it with --follow and the address of its primary, and \
         promote it with `guanxi promote` if it is to take writes", .0.display()
    )]
    Standby(PathBuf),
    #[error("could not start: {0}")]
    Start(String),
}

/// How the engine fares, for whoever watches it.
#[derive(Debug, Clone)]
pub struct EngineStatus {
    pub epoch: Epoch,
    /// The end of the log.
    pub durable: Position,
    /// What readers see.
    pub applied: Position,
    /// The oldest record that the log still has.
    pub log_first: Position,
    /// What the store has on disk without the log's help.
    pub persisted: Position,
    pub queue_len: usize,
    pub queue_max: usize,
    pub log_bytes: u64,
    pub store_bytes: u64,
    /// What is at hand in memory.
    pub resident: ResidentStatus,
    /// How long the log may still hold a record.
    pub log_keeps_ms: u64,
    /// The last word on whether everything agrees.
    pub audited: Option<AuditVerdict>,
    /// Why writes are refused.
    pub refusing: Option<String>,
    /// How far ahead the machine's clock is, while it is not believed.
    pub clock_held_back_ms: Option<u64>,
    /// The cluster that has taken over, from this service or from the primary that it follows.
    pub moved: Option<Moved>,
    /// How a standby fares; none on a primary.
    pub following: Option<FollowStatus>,
    /// Who follows this one.
    pub standbys: Vec<StandbyStatus>,
}

pub struct Engine {
    log: Arc<FileLog>,
    store: Arc<dyn EmbeddedStore>,
    disk: Arc<dyn Disk>,
    clock: Arc<SteadyClock>,
    /// None on a standby, until it is promoted.
    committer: Arc<OnceLock<Arc<Committer>>>,
    /// None where no primary was ever followed since the start.
    following: Option<Following>,
    promoting: Mutex<()>,
    moving: MoveRegister,
    shipping: Arc<Shipping>,
    /// What readers see.
    applied: Arc<watch::Sender<Position>>,
    persisted: Arc<Persisted>,
    filter: Arc<FilterKeeper>,
    holds: Arc<Holds>,
    room: Arc<DiskRoom>,
    signal: Signal,
    auditor: Arc<Auditor>,
    tails: Arc<Tails>,
    hot: HotReads,
    settings: Settings,
    crew: Crew,
    workers: Workers,
    /// Held until the end: nobody else opens the directory.
    directory: Directory,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("data_dir", &self.settings.data_dir).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens or makes the data directory. Blocks while it replays what the store lacks.
    pub fn open(settings: Settings) -> Result<Arc<Engine>, OpenError> {
        Engine::open_by(settings, Arc::new(SystemClock))
    }

    /// The same by another clock than the machine's.
    pub fn open_by(settings: Settings, clock: Arc<dyn Clock>) -> Result<Arc<Engine>, OpenError> {
        Engine::open_on(Arc::new(RealDisk), clock, settings)
    }

    fn open_on(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Arc<Engine>, OpenError> {
        let directory = Directory::open(disk.clone(), clock.as_ref(), &settings.data_dir)?;
        let settings = settings.fitted(disk.as_ref());
        let room = Arc::new(DiskRoom::open(disk.clone(), settings.data_dir.clone()));
        let role = read_role(disk.as_ref(), &settings.data_dir)?;
        let moving = MoveRegister::new(read_moved(disk.as_ref(), &settings.data_dir)?);
        let follow = standby::primary_to_follow(&settings, role)?;
        let options = LogOptions { segment_bytes: settings.log.segment_bytes };
        let folder = settings.data_dir.join(transfer::LOG);
        let open_log = || Ok(FileLog::open(disk.clone(), &folder, directory.seed(), options)?);
        let log = Arc::new(room.with_reserve(lacks_room, open_log)?);
        let jumped = settings.clock_may_have_jumped;
        let last_ms = log.last_commit_ms();
        let clock = steady_clock(disk.as_ref(), &settings.data_dir, clock, last_ms, jumped);
        let clock = Arc::new(clock);
        check_clock(clock.as_ref(), log.as_ref(), settings.clock_may_be_behind)?;
        note_clock(disk.as_ref(), &settings.data_dir, &clock);
        if log.last() == Position(0) && log.lineage().is_first() {
            // Two new directories must not take each other's tokens and event ids for their own.
            log.begin_epoch(log.lineage().next_epoch(random()))?;
        }
        let store: Arc<dyn EmbeddedStore> = Arc::new(room.with_reserve(lacks_room, || {
            let store = open_store(&settings, log.as_ref())?;
            replay(log.as_ref(), &store)?;
            Ok(store)
        })?);
        let persisted = Arc::new(Persisted::new(store.persist()?));
        let shipping = Arc::new(Shipping::new(settings.shipping, log.last()));
        let applied = Arc::new(watch::Sender::new(store.applied().position));
        let start = |error: std::io::Error| OpenError::Start(error.to_string());
        let crew = Crew::default();
        let workers = crew.workers();
        let signal = workers.signal().clone();
        let ground = FollowingGround {
            crew: crew.clone(),
            disk: disk.clone(),
            data_dir: settings.data_dir.clone(),
            log: log.clone(),
            store: store.clone(),
            shipping: shipping.clone(),
            room: room.clone(),
            signal: signal.clone(),
            applied: applied.clone(),
        };
        let following =
            follow.map(|primary| Following::start(primary, ground, role == Role::Standby));
        let bench = Workbench {
            store: store.clone(),
            log: log.clone(),
            clock: clock.clone(),
            committer: Arc::default(),
            signal,
        };
        let auditor = Arc::new(Auditor::new(bench.clone(), settings.audit));
        let filter = FilterParts {
            store: store.clone(),
            log: log.clone(),
            disk: disk.clone(),
            room: room.clone(),
            data_dir: settings.data_dir.clone(),
            seed: directory.seed(),
            bytes_max: settings.resident.filter_bytes_max,
        };
        let engine = Arc::new(Engine {
            tails: Tails::new(log.clone()),
            log,
            store,
            disk,
            clock,
            committer: bench.committer,
            following: following.transpose().map_err(start)?,
            promoting: Mutex::default(),
            moving,
            shipping,
            applied,
            persisted,
            filter: Arc::new(FilterKeeper::new(filter)),
            holds: Arc::default(),
            room,
            signal: bench.signal,
            auditor,
            hot: HotReads::default(),
            settings,
            workers,
            crew,
            directory,
        });
        engine.start_upkeep().map_err(start)?;
        if engine.following.is_none() {
            engine.take_writes()?;
        }
        Ok(engine)
    }

    /// Its threads.
    pub fn crew(&self) -> &Crew {
        &self.crew
    }

    /// The kinds as committed.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.store.catalog()
    }

    /// Begins a copy of the whole store as readers see it now.
    pub fn copy(&self) -> Result<Copy, Error> {
        Copy::begin(self.log.as_ref(), self.store.as_ref(), &self.holds)
    }

    /// Begins a backup: of everything, or of what came after a position that was given out in an
    /// epoch.
    pub fn backup(&self, after: Option<(Option<Epoch>, Position)>) -> Result<Backup, Error> {
        let origin = BackupOrigin {
            log: self.log.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            holds: self.holds.clone(),
            secret: self.secret().clone(),
        };
        match after {
            None => Backup::full(origin),
            Some((epoch, position)) => Backup::after(origin, epoch, position),
        }
    }

    /// What tokens, cursors and event ids are sealed with.
    pub fn secret(&self) -> &Arc<Secret> {
        self.directory.secret()
    }

    /// Begins an audit in the background and returns its number; there is one at a time.
    pub fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error> {
        if let (true, Some(moved)) = (query.repair, self.moving.moved()) {
            return Err(moving::moved_away(&moved));
        }
        self.auditor.begin(query)
    }

    /// The audit of this number, once it has ended.
    pub async fn audit_ended(&self, number: u64) -> Option<AuditRun> {
        self.auditor.board.ended(number).await
    }

    pub fn audit_state(&self) -> AuditState {
        self.auditor.board.state()
    }

    /// Follows the log from there on. Its records are those that readers see.
    pub fn tail(&self, from: TailFrom) -> Result<Tail, Error> {
        self.may_be_shown()?;
        self.tails.begin(from, self.applied.subscribe())
    }

    /// What is read most.
    pub fn hot(&self) -> &HotReads {
        &self.hot
    }

    pub fn status(&self) -> EngineStatus {
        EngineStatus {
            epoch: self.log.epoch(),
            durable: self.log.last(),
            applied: self.store.applied().position,
            log_first: self.log.first(),
            persisted: self.persisted.get(),
            queue_len: self.committer.get().map_or(0, |committer| committer.queue_len()),
            queue_max: self.settings.commit.queue_max,
            log_bytes: self.log.bytes(),
            store_bytes: self.store.bytes(),
            resident: self.store.resident(),
            // A segment goes when its last record is old enough, and is ended when its first is.
            log_keeps_ms: self
                .settings
                .log
                .retention_ms
                .saturating_mul(2)
                .saturating_add(checkpoint::TRIM_LATE_MS),
            audited: self.auditor.board.verdict(),
            refusing: self.refusing(),
            clock_held_back_ms: self.clock.held_back_ms(),
            moved: self.moving.moved(),
            following: self.following_status(),
            standbys: self.shipping.standbys(),
        }
    }

    /// Serves what waits, then makes everything durable and leaves the mark of a clean stop.
    pub fn close(&self) {
        self.signal.stop();
        // Before the chores end: one of them may wait for a standby, or for room on the disk.
        self.shipping.stop();
        if let Some(committer) = self.committer.get() {
            committer.take_no_more();
        }
        self.workers.finish();
        self.auditor.board.join();
        if let Some(committer) = self.committer.get() {
            committer.close();
        } else if let Some(following) = &self.following
            && let Err(error) = following.end()
        {
            tracing::error!(%error, "not all that came from the primary is in the store");
        }
        if let Some(lost) = self.crew.lost() {
            tracing::error!("{lost}: no clean stop, the next start checks what is there");
            return;
        }
        match self.store.persist() {
            Ok(position) => self.persisted.set(position),
            Err(error) => tracing::error!(%error, "the store could not be made durable"),
        }
        self.filter.save();
        if let Err(error) = self.store.settle() {
            tracing::error!(%error, "the store could not be settled; the next start takes longer");
        }
        if let Err(error) = self.log.close() {
            tracing::error!(%error, "no clean stop: the next start checks the log's end");
        }
    }
}
