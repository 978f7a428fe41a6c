//! Following: a standby takes the primary's frames as they are. Each goes into the log with an
//! fsync, which is what the next request acknowledges, and then into the store, where readers see
//! it. How frames get here is the protocols' affair.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use guanxi_core::crew::{self, Crew, Workers};
use guanxi_core::signal::Signal;
use guanxi_core::snapshot::StoreError;
use guanxi_model::Position;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::directory::{DirectoryError, write_role};
use crate::disk::Disk;
use crate::disk_room::{DiskRoom, Stall};
use crate::engine::apply_frame;
use crate::log::{Frame, Lineage, Log, LogError, Shipment};
use crate::reopening::ReopeningWriter;
use crate::shipping::Shipping;
use crate::store::Store;

/// Frames that may wait for the store: enough that neither disk idles, few enough to hold in
/// memory whatever their size.
const UNAPPLIED_FRAMES_MAX: usize = 8;

/// The pause before a frame that found the disk full is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(200);

/// A primary that has nothing new answers more often than this.
const SILENCE_MS_MAX: u64 = 10_000;

/// Why a standby cannot take a shipment.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(
        "this directory holds {beyond} records past position {}, where the history of the service \
         it is to follow forked off: they exist only here. Move the data directory away (it has \
         them still), and start with an empty one", fork.0
    )]
    Beyond { beyond: u64, fork: Position },
    #[error(
        "the service to follow has another history than this directory. Check the address given \
         with --follow, or move the data directory away and start with an empty one"
    )]
    OtherHistory,
    #[error("this service follows nobody any more")]
    Promoted,
    #[error("disk full: what came finds no room; it is asked for again when there is some")]
    Full,
    #[error("what came could not be kept: {0}; look after the disk and restart")]
    Log(LogError),
    #[error("what came could not be kept: {0}")]
    Role(#[from] DirectoryError),
    #[error("the store could not be written: {0}; look after the disk and restart")]
    Store(String),
}

impl From<LogError> for FollowError {
    fn from(error: LogError) -> FollowError {
        match error {
            LogError::Full { .. } => FollowError::Full,
            error => FollowError::Log(error),
        }
    }
}

/// How far behind its primary a standby is, as far as it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowStatus {
    pub primary: String,
    /// The primary's last position when it was last heard of.
    pub primary_last: Position,
    pub lag_positions: u64,
    /// The age of the last applied record while there are later ones, and the time since the last
    /// contact while the primary cannot be reached.
    pub lag_ms: u64,
    /// None before the first.
    pub last_contact_ms_ago: Option<u64>,
    /// Why it does not follow at the moment.
    pub trouble: Option<String>,
    /// Somebody has to see to it: asking again will not help.
    pub is_stuck: bool,
}

pub(crate) struct Following {
    pub primary: String,
    ground: FollowingGround,
    intake: Mutex<Intake>,
    contact: Mutex<Contact>,
    /// Why the store takes no more.
    failed: Arc<OnceLock<String>>,
    workers: Workers,
}

impl Drop for Following {
    fn drop(&mut self) {
        let _told = self.end();
    }
}

/// What a standby works on.
#[derive(Clone)]
pub(crate) struct FollowingGround {
    pub crew: Crew,
    pub disk: Arc<dyn Disk>,
    pub data_dir: PathBuf,
    pub log: Arc<dyn Log>,
    pub store: Arc<dyn Store>,
    pub shipping: Arc<Shipping>,
    pub room: Arc<DiskRoom>,
    pub signal: Signal,
    pub applied: Arc<watch::Sender<Position>>,
}

struct Intake {
    /// None once it follows no more.
    to_store: Option<SyncSender<Frame>>,
    /// The directory says that it is a standby's.
    marked: bool,
}

#[derive(Default)]
struct Contact {
    last: Option<Instant>,
    primary_last: Position,
    trouble: Option<String>,
    is_stuck: bool,
}

impl Following {
    pub fn start(
        primary: String,
        ground: FollowingGround,
        marked: bool,
    ) -> std::io::Result<Following> {
        let (to_store, frames) = sync_channel(UNAPPLIED_FRAMES_MAX);
        let failed = Arc::new(OnceLock::new());
        let (applying, failing) = (ground.clone(), failed.clone());
        let workers = ground.crew.workers();
        workers.spawn("guanxi-apply", move |_| apply_all(&applying, &frames, &failing))?;
        let intake = Mutex::new(Intake { to_store: Some(to_store), marked });
        Ok(Following { primary, ground, intake, contact: Mutex::default(), failed, workers })
    }

    /// Makes the shipment durable and hands it to the store.
    pub fn take(&self, shipment: Shipment) -> Result<(), FollowError> {
        let mut intake = self.intake.lock();
        let Intake { to_store: Some(to_store), marked, .. } = &mut *intake else {
            return Err(FollowError::Promoted);
        };
        if let Some(why) = self.failed.get() {
            return Err(FollowError::Store(why.clone()));
        }
        if !shipment.frames.is_empty() && self.ground.room.is_full() {
            return Err(FollowError::Full);
        }
        let log = self.ground.log.as_ref();
        check(&log.lineage(), log.last(), &shipment.lineage)?;
        if !*marked {
            write_role(self.ground.disk.as_ref(), &self.ground.data_dir, false)?;
            *marked = true;
        }
        adopt(log, &shipment.lineage)?;
        for frame in shipment.frames {
            log.append(&frame)?;
            self.ground.shipping.appended(frame.last());
            // It fails when the store's thread is lost, and with it this instance.
            let _ended = to_store.send(frame);
            adopt(log, &shipment.lineage)?;
        }
        let mut contact = self.contact.lock();
        contact.last = Some(Instant::now());
        contact.primary_last = shipment.last;
        contact.trouble = None;
        contact.is_stuck = false;
        Ok(())
    }

    /// The primary could not be asked, or what it said could not be taken.
    pub fn note_trouble(&self, why: String, is_stuck: bool) {
        let mut contact = self.contact.lock();
        contact.trouble = Some(why);
        contact.is_stuck = is_stuck;
    }

    /// Takes no more shipments and returns when all that came is in the store, or why it is not.
    pub fn end(&self) -> Result<(), FollowError> {
        let mut intake = self.intake.lock();
        // Told before the end of what it takes tells it.
        self.workers.signal().stop();
        intake.to_store = None;
        if !self.workers.finish() {
            let _first = self.failed.set("the thread that writes it panicked".into());
        }
        match self.failed.get() {
            None => Ok(()),
            Some(why) => Err(FollowError::Store(why.clone())),
        }
    }

    /// Whether a primary has accepted this directory, now or before.
    pub fn has_followed(&self) -> bool {
        self.intake.lock().marked
    }

    pub fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    pub fn status(&self, now_ms: u64) -> FollowStatus {
        let contact = self.contact.lock();
        let applied = self.ground.store.applied();
        let lag_positions = contact.primary_last.0.saturating_sub(applied.position.0);
        let last_contact_ms_ago = contact.last.map(|last| last.elapsed().as_millis() as u64);
        let behind_ms = match lag_positions {
            0 => 0,
            _ => now_ms.saturating_sub(applied.commit.0),
        };
        let away_ms = match (&contact.trouble, last_contact_ms_ago) {
            (None, Some(ago)) if ago < SILENCE_MS_MAX => 0,
            (_, Some(ago)) => ago,
            (_, None) => now_ms.saturating_sub(applied.commit.0),
        };
        FollowStatus {
            primary: self.primary.clone(),
            primary_last: contact.primary_last,
            lag_positions,
            lag_ms: behind_ms.max(away_ms),
            last_contact_ms_ago,
            trouble: contact.trouble.clone(),
            is_stuck: contact.is_stuck,
        }
    }
}

/// Whether the primary's history continues ours.
fn check(own: &Lineage, last: Position, theirs: &Lineage) -> Result<(), FollowError> {
    let Some(later) = theirs.forks().strip_prefix(own.forks()) else {
        return Err(FollowError::OtherHistory);
    };
    match later.first() {
        Some(fork) if fork.at < last => {
            Err(FollowError::Beyond { beyond: last.0 - fork.at.0, fork: fork.at })
        }
        _ => Ok(()),
    }
}

/// Begins the epochs that the primary began where our log ends now.
fn adopt(log: &dyn Log, theirs: &Lineage) -> Result<(), LogError> {
    let known = log.lineage().forks().len();
    let here = theirs.forks().iter().skip(known).take_while(|fork| fork.at == log.last());
    for fork in here {
        log.begin_epoch(fork.epoch)?;
    }
    Ok(())
}

fn apply_all(ground: &FollowingGround, frames: &Receiver<Frame>, failed: &OnceLock<String>) {
    let mut writer =
        ReopeningWriter::new(ground.store.clone(), ground.log.clone(), ground.room.clone());
    for frame in frames {
        crew::turn();
        // What came before the failure was known is left out: the log has it.
        if failed.get().is_some() {
            continue;
        }
        let mut apply = || writer.write(&mut |store| apply_frame(&frame, store));
        let mut applied = apply();
        // Not while a standby stops: the frame is in the log, and the next start brings it here.
        while matches!(applied, Err(StoreError::Full)) && !ground.signal.wait(FULL_PAUSE) {
            ground.room.met_full(Stall::Store);
            applied = apply();
        }
        ground.room.went_on(Stall::Store);
        if let Err(error) = applied {
            tracing::error!(%error, "the store could not be written; following ends here");
            let _first = failed.set(error.to_string());
            continue;
        }
        ground.applied.send_replace(frame.last());
    }
}

#[cfg(test)]
mod tests;
