//! The embedded engine: opens a data directory, brings the store up to the log, and keeps the
//! commit path and the chores running until it is closed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use guanxi_model::codec::decode_record;
use guanxi_model::decide::built_in_kinds;
use guanxi_model::{
    Catalog, Change, Code, Epoch, Error, Millis, Position, Record, TenantId, Token, Version,
};

use crate::audit::{AuditQuery, AuditRun, AuditSettings, AuditState, Auditor, Verdict};
use crate::background::{Signal, Workbench};
use crate::checkpoint::{self, Persisted};
use crate::clock::{Clock, SystemClock};
use crate::commit::{
    CommitSettings, Committer, CommitterParts, Meter, Request, Unmetered, Written,
};
use crate::directory::{Directory, DirectoryError};
use crate::disk::{Disk, RealDisk};
use crate::log::{FileLog, Frame, Log, LogError, LogOptions};
use crate::overlay::{Base, Dirty};
use crate::read::Reader;
use crate::store::disk::{DiskBackend, Found, StoreSettings};
use crate::store::{Applied, KeyedStore, Store, StoreError};
use crate::tail::{Tail, TailFrom, Tails};
use crate::{jobs, scrubber, sweeper};

/// How long a read waits for the position of its token.
const TOKEN_WAIT: Duration = Duration::from_millis(200);
/// A clock behind the last frame by more than this is said loudly.
const CLOCK_BEHIND_WARN_MS: u64 = 5_000;
/// A clock behind the last frame by more than this is refused unless told otherwise.
const CLOCK_BEHIND_REFUSE_MS: u64 = 3_600_000;
/// Log bytes that replay holds in memory at once.
const REPLAY_BYTES_MAX: usize = 4 << 20;
/// How long the first start may take to write the built-in kinds.
const FIRST_KINDS_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Settings {
    pub data_dir: PathBuf,
    /// The low byte of versions: which region gave them out.
    pub region: u8,
    pub commit: CommitSettings,
    pub log: LogSettings,
    pub store: StoreSettings,
    pub audit: AuditSettings,
    /// Start although the clock is more than an hour behind the last write.
    pub clock_may_be_behind: bool,
    pub meter: Arc<dyn Meter>,
}

impl Settings {
    pub fn new(data_dir: impl Into<PathBuf>) -> Settings {
        Settings {
            data_dir: data_dir.into(),
            region: 0,
            commit: CommitSettings::default(),
            log: LogSettings::default(),
            store: StoreSettings::default(),
            audit: AuditSettings::default(),
            clock_may_be_behind: false,
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
    #[error("could not start: {0}")]
    Start(String),
}

/// How the engine fares, for whoever watches it.
#[derive(Debug, Clone)]
pub struct Status {
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
    /// How long the log may still hold a record.
    pub log_keeps_ms: u64,
    /// The last word on whether everything agrees.
    pub audited: Option<Verdict>,
    /// Why writes are refused.
    pub refusing: Option<String>,
}

pub struct Engine {
    log: Arc<FileLog>,
    store: Arc<dyn Store>,
    committer: Arc<Committer>,
    persisted: Arc<Persisted>,
    signal: Arc<Signal>,
    auditor: Arc<Auditor>,
    tails: Arc<Tails>,
    settings: Settings,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held until the end: nobody else opens the directory.
    _directory: Directory,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("data_dir", &self.settings.data_dir).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens or makes the data directory. Blocks while it replays what the store lacks.
    pub fn open(settings: Settings) -> Result<Arc<Engine>, OpenError> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let directory = Directory::open(disk.clone(), clock.as_ref(), &settings.data_dir)?;
        let options = LogOptions { segment_bytes: settings.log.segment_bytes };
        let folder = settings.data_dir.join("log");
        let log = Arc::new(FileLog::open(disk, &folder, directory.seed(), options)?);
        check_clock(clock.as_ref(), log.as_ref(), settings.clock_may_be_behind)?;
        let store: Arc<dyn Store> = Arc::new(open_store(&settings, log.as_ref())?);
        replay(log.as_ref(), store.as_ref())?;
        let persisted = Arc::new(Persisted::new(store.persist()?));
        let signal = Arc::new(Signal::default());
        let parts = CommitterParts {
            log: log.clone(),
            store: store.clone(),
            clock: clock.clone(),
            meter: settings.meter.clone(),
            settings: settings.commit,
            region: settings.region,
            job_changed: Box::new({
                let signal = signal.clone();
                move || signal.nudge()
            }),
        };
        let start = |error: std::io::Error| OpenError::Start(error.to_string());
        let committer = Arc::new(Committer::start(parts).map_err(start)?);
        create_kinds(&committer, &store.catalog())?;
        let auditor = Arc::new(Auditor::new(
            store.clone(),
            log.clone(),
            clock.clone(),
            signal.clone(),
            settings.audit,
        ));
        let bench = Workbench {
            store: store.clone(),
            log: log.clone(),
            clock,
            committer: committer.clone(),
            signal: signal.clone(),
        };
        auditor.take_writes(bench.clone());
        let engine = Arc::new(Engine {
            tails: Tails::new(log.clone()),
            log,
            store,
            committer,
            persisted: persisted.clone(),
            signal,
            auditor,
            settings,
            threads: Mutex::default(),
            _directory: directory,
        });
        engine.start_chores(&bench, &persisted).map_err(start)?;
        Ok(engine)
    }

    fn start_chores(&self, bench: &Workbench, persisted: &Arc<Persisted>) -> std::io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut spawn = |name: &str, run: Box<dyn FnOnce(Workbench) + Send>| {
            let bench = bench.clone();
            let thread = std::thread::Builder::new().name(name.into());
            threads.push(thread.spawn(move || run(bench))?);
            Ok::<_, std::io::Error>(())
        };
        spawn("guanxi-sweep", Box::new(|bench| sweeper::run(&bench)))?;
        spawn("guanxi-jobs", Box::new(|bench| jobs::run(&bench)))?;
        let (auditor, rate) = (self.auditor.clone(), self.settings.audit.scrub_rows_per_second);
        spawn("guanxi-scrub", Box::new(move |_| scrubber::run(&auditor, rate)))?;
        let (persisted, log_settings) = (persisted.clone(), self.settings.log);
        spawn(
            "guanxi-checkpoint",
            Box::new(move |bench| checkpoint::run(&bench, &persisted, &log_settings)),
        )
    }

    /// Does the request's changes; resolves when they are durable and visible.
    pub async fn write(&self, request: Request, deadline: Instant) -> Result<Written, Error> {
        self.committer.write(request, deadline).await
    }

    /// The kinds as committed.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.store.catalog()
    }

    /// One consistent picture with everything that was acknowledged.
    pub fn reader(&self) -> Result<Reader, Error> {
        Ok(Reader::new(self.store.snapshot()))
    }

    /// The token of what readers see now.
    pub fn token(&self, tenant: TenantId) -> Token {
        let applied = self.store.applied();
        Token { tenant, epoch: self.log.epoch(), position: applied.position }
    }

    /// Waits shortly until readers see what the token stands for.
    pub async fn at_least(&self, token: &Token) -> Result<(), Error> {
        if !self.log.lineage().accepts(token.epoch, token.position) {
            return Err(Error::new(
                Code::PositionExpired,
                "the token is of another history of this service than the one it has now",
            ));
        }
        if self.store.applied().position >= token.position {
            return Ok(());
        }
        let mut applied = self.committer.applied();
        let reached = applied.wait_for(|position| *position >= token.position);
        match tokio::time::timeout(TOKEN_WAIT, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::new(
                Code::Unavailable,
                "what the token stands for is not here yet; try again shortly",
            )),
        }
    }

    /// Begins an audit in the background and returns its number; there is one at a time.
    pub fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error> {
        self.auditor.begin(query)
    }

    /// The audit of this number, once it has ended.
    pub async fn audit_ended(&self, number: u64) -> Option<AuditRun> {
        self.auditor.ended(number).await
    }

    pub fn audit_state(&self) -> AuditState {
        self.auditor.state()
    }

    /// Follows the log from there on. Its records are those that readers see.
    pub fn tail(&self, from: TailFrom) -> Result<Tail, Error> {
        self.tails.begin(from, self.committer.applied())
    }

    pub fn status(&self) -> Status {
        Status {
            epoch: self.log.epoch(),
            durable: self.log.last(),
            applied: self.store.applied().position,
            log_first: self.log.first(),
            persisted: self.persisted.get(),
            queue_len: self.committer.queue_len(),
            queue_max: self.settings.commit.queue_max,
            log_bytes: self.log.bytes(),
            store_bytes: self.store.bytes(),
            // A segment goes when its last record is old enough, and is ended when its first is.
            log_keeps_ms: self
                .settings
                .log
                .retention_ms
                .saturating_mul(2)
                .saturating_add(checkpoint::TRIM_LATE_MS),
            audited: self.auditor.verdict(),
            refusing: self.committer.refusing().map(str::to_owned),
        }
    }

    /// Serves what waits, then makes everything durable and leaves the mark of a clean stop.
    pub fn close(&self) {
        self.signal.stop();
        let mut threads = self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
        self.auditor.join();
        self.committer.close();
        match self.store.persist() {
            Ok(position) => self.persisted.set(position),
            Err(error) => tracing::error!(%error, "the store could not be made durable"),
        }
        if let Err(error) = self.store.settle() {
            tracing::error!(%error, "the store could not be settled; the next start takes longer");
        }
        if let Err(error) = self.log.close() {
            tracing::error!(%error, "no clean stop: the next start checks the log's end");
        }
    }
}

fn check_clock(clock: &dyn Clock, log: &dyn Log, may_be_behind: bool) -> Result<(), OpenError> {
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
fn open_store(settings: &Settings, log: &dyn Log) -> Result<KeyedStore<DiskBackend>, OpenError> {
    let directory = settings.data_dir.join("store");
    let found = crate::store::disk::find(&directory);
    let found = found.map_err(|error| StoreError::Io(error.to_string()))?;
    let backend = match found {
        Found::Ready => DiskBackend::open(&directory, &settings.store).map_err(|error| {
            // What the log has from its first record on, it can build again.
            let remedy = match log.first() <= Position(1) {
                true => "remove that folder and start again: it is built anew from the log",
                false => "restore the data directory from a backup",
            };
            let folder = directory.display();
            OpenError::Damaged(format!("{folder} cannot be opened ({error}); {remedy}"))
        })?,
        Found::Nothing | Found::Unfinished if log.first() <= Position(1) => {
            if log.last() > Position(0) {
                tracing::warn!("there is no finished store; it is built anew from the log");
            }
            DiskBackend::create(&directory, &settings.store)?
        }
        Found::Nothing | Found::Unfinished => {
            return Err(OpenError::Damaged(format!(
                "{} is missing or unfinished, and the log begins at position {}: the data \
                 directory is damaged; restore it from a backup",
                directory.display(),
                log.first().0
            )));
        }
    };
    Ok(KeyedStore::open(backend)?)
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
    let mut next = Position(from.0 + 1);
    while next <= log.last() {
        for frame in log.read(next, REPLAY_BYTES_MAX)? {
            apply_frame(&frame, store)?;
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
    let base = Base::new(snapshot.as_ref());
    let mut dirty = Dirty { last: frame.last(), ..Dirty::default() };
    let mut version = standing.version;
    for encoded in frame.records.iter().skip(known) {
        let record = decode_record(encoded)?;
        version = version.max(version_of(&record));
        dirty.absorb(&record, &[], &base)?;
    }
    let commit = Millis(frame.commit_ms);
    let applied = Applied { epoch: frame.epoch, position: frame.last(), commit, version };
    store.write(&dirty, applied)
}

/// The version that a record took; job ids are versions too.
fn version_of(record: &Record) -> Version {
    match record {
        Record::Edge(record) => record.new.version,
        Record::Job { job, .. } => Version(job.id.0),
        _ => Version::ZERO,
    }
}

/// The kinds that come ready, where they are missing.
fn create_kinds(committer: &Committer, catalog: &Catalog) -> Result<(), OpenError> {
    let tenant = TenantId::DEFAULT;
    let start = |error: Error| OpenError::Start(error.to_string());
    let missing: Vec<Change> = built_in_kinds()
        .map_err(start)?
        .into_iter()
        .filter(|spec| catalog.find(tenant, spec.name.as_str()).is_none())
        .map(|spec| Change::CreateKind { tenant, spec: Box::new(spec) })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let request = Request { tenant, changes: missing, key: None };
    let deadline = Instant::now() + FIRST_KINDS_DEADLINE;
    let written = committer.write_blocking(request, deadline).map_err(start)?;
    for answer in written.answers {
        answer.map_err(start)?;
    }
    Ok(())
}
