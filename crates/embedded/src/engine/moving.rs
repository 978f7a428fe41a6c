//! The engine as the one that a cluster takes over from: writes pause for a moment, so that what
//! the log ends with can be carried over, and then for good. A pause that nobody confirms ends by
//! itself; so a mover that dies never leaves a service that refuses. Who may ask for one is
//! `claim`'s affair.

mod claim;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_core::random::random;
use guanxi_model::{Code, Epoch, Error, Position};
use parking_lot::{Mutex, MutexGuard, RwLock};

use self::claim::{ClaimStanding, Claims, pause_over};
use super::Engine;
use crate::commit::Committer;
pub use crate::directory::Moved;
use crate::directory::{DirectoryError, remove_moved, write_moved};
use crate::log::Log;

/// What is said while the disk has not confirmed the end of a move, nor that there was none.
const UNSURE: &str = "whether this service has moved to a cluster is not known, as its disk has \
                      not confirmed it, and nothing is written until it is: look after the disk \
                      and restart the service";

/// How the engine's move into a cluster stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveState {
    /// Nobody has begun.
    Here,
    /// A move has begun; nothing pauses.
    Begun {
        id: u64,
    },
    /// Writes pause until it is confirmed, or for so long.
    Paused {
        id: u64,
        left: Duration,
    },
    Moved(Moved),
}

/// Where the log ends while writes pause: everything up to here is visible, and nothing follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paused {
    pub epoch: Epoch,
    pub position: Position,
}

/// The end of a move, as the mover tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    pub run: u64,
    /// The position that the pause answered with.
    pub position: Position,
    pub now_at: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct MoveRegister {
    claims: Mutex<Claims>,
    moved: RwLock<Option<Moved>>,
    /// The disk has not confirmed what was last to be written of a move, or removed: only a start
    /// can tell which of the two it has.
    unsure: AtomicBool,
}

impl MoveRegister {
    pub fn new(moved: Option<Moved>) -> MoveRegister {
        MoveRegister { moved: RwLock::new(moved), ..MoveRegister::default() }
    }

    pub fn moved(&self) -> Option<Moved> {
        self.moved.read().clone()
    }

    fn set(&self, moved: Option<Moved>) {
        *self.moved.write() = moved;
    }

    /// Notes whether the disk has confirmed what was written last.
    fn note<E>(&self, written: Result<(), E>) -> Result<(), E> {
        self.unsure.store(written.is_err(), Ordering::SeqCst);
        written
    }

    /// Why nothing is done here before a restart.
    pub fn unsure(&self) -> Option<&'static str> {
        self.unsure.load(Ordering::SeqCst).then_some(UNSURE)
    }

    /// Refuses what must not be done while nobody knows whether this service has moved.
    pub fn refuse_unsure(&self) -> Result<(), Error> {
        self.unsure().map_or(Ok(()), |why| Err(Error::new(Code::Unavailable, why)))
    }

    fn refuse_moved(&self) -> Result<(), Error> {
        self.refuse_unsure()?;
        match self.moved() {
            Some(moved) => Err(moved_away(&moved)),
            None => Ok(()),
        }
    }
}

impl Engine {
    /// Blocks while a confirmation is written.
    pub fn move_state(&self) -> MoveState {
        let claims = self.moving.claims.lock();
        if let Some(moved) = self.moving.moved() {
            return MoveState::Moved(moved);
        }
        match claims.standing(Instant::now()) {
            None => MoveState::Here,
            Some(ClaimStanding { id, left: None }) => MoveState::Begun { id },
            Some(ClaimStanding { id, left: Some(left) }) => MoveState::Paused { id, left },
        }
    }

    /// Whether a cluster has taken over, here or, on a standby, from its primary.
    pub fn moved(&self) -> Option<Moved> {
        self.moving.moved()
    }

    /// Begins a move, or goes on with a run of it; returns the run, which every further call names.
    /// Blocks while a confirmation is written.
    pub fn begin_move(&self, id: u64, run: Option<u64>) -> Result<u64, Error> {
        let mut claims = self.movable()?;
        let now = Instant::now();
        let Some(run) = run else {
            let run = random().max(1);
            if claims.begin(id, run, now)? {
                self.take_writes_again();
            }
            tracing::info!(id, "a move into a cluster has begun");
            return Ok(run);
        };
        claims.go_on(id, run, now)?;
        Ok(run)
    }

    /// How long a move has to wait before it may make writes pause for so long.
    pub fn rest_before_pause(&self, limit: Duration) -> Duration {
        self.moving.claims.lock().rest(limit, Instant::now())
    }

    /// A move's run asks for a copy of the service; `follows` when it is what came after a place.
    pub fn read_for_move(&self, run: u64, follows: bool) -> Result<(), Error> {
        self.moving.claims.lock().reads(run, follows, Instant::now())
    }

    /// Takes no more writes for so long, and returns when all that were taken are visible.
    pub async fn pause_for_move(&self, run: u64, limit: Duration) -> Result<Paused, Error> {
        let until = self.movable()?.pause(run, limit, Instant::now())?;
        let Some(committer) = self.committer.get() else {
            return Err(self.read_only());
        };
        let why = "writes pause for some seconds, while this service moves into a cluster; send \
                   it again";
        let why = Error::new(Code::ReadOnly, why).passing();
        let paused = committer.pause(why, until).await;
        let mut claims = self.moving.claims.lock();
        if let Err(error) = paused {
            claims.end_pause(Instant::now());
            return Err(error);
        }
        let (epoch, position) = (self.log.epoch(), self.log.last());
        if !claims.paused_at(run, position, Instant::now()) {
            // Another run took its place while this one waited; one's pause comes seconds later.
            committer.resume();
            return Err(pause_over());
        }
        tracing::info!(position = position.0, "writes pause for a move into a cluster");
        Ok(Paused { epoch, position })
    }

    /// The move gives up, for now: writes are taken again, and another may begin.
    pub fn let_go_of_move(&self, id: u64) -> Result<(), Error> {
        let mut claims = self.movable()?;
        if claims.let_go(id, Instant::now())? {
            self.take_writes_again();
        }
        Ok(())
    }

    /// Everything up to the position is in the cluster: no write is taken here ever again. Durable
    /// when it returns; blocks while it writes.
    pub fn confirm_move(&self, confirmed: Confirmed) -> Result<(), Error> {
        let mut claims = self.movable()?;
        let Some(committer) = self.committer.get() else {
            return Err(self.read_only());
        };
        let Confirmed { run, position, now_at } = confirmed;
        let id = claims.confirming(run, position, Instant::now())?;
        let moved = Moved { id, position, now_at };
        // In this order: once it refuses for good, the time that passes here does not matter.
        if !committer.pause_for_good(moved_away(&moved)) {
            return Err(pause_over());
        }
        let written = write_moved(self.disk.as_ref(), &self.settings.data_dir, &moved);
        claims.end_pause(Instant::now());
        if let Err(error) = written {
            return Err(self.take_confirmation_back(committer, &error));
        }
        tracing::warn!(
            position = moved.position.0,
            now_at = moved.now_at.as_deref().unwrap_or("a cluster"),
            "moved to a cluster: writes are refused here from now on"
        );
        self.moving.set(Some(moved));
        // Standbys that wait for frames are told at once, as none will come.
        self.shipping.appended(self.log.last());
        Ok(())
    }

    /// The disk did not confirm the end of a move, which may be on it all the same: it is removed
    /// again. Where the disk does not confirm that either, nobody knows what the next start will
    /// find, and so no write is taken until then.
    fn take_confirmation_back(&self, committer: &Committer, error: &DirectoryError) -> Error {
        tracing::error!(%error, "the move could not be written down");
        let removed = remove_moved(self.disk.as_ref(), &self.settings.data_dir);
        if let Err(error) = self.moving.note(removed) {
            tracing::error!(%error, "it could not be taken back: writes are refused until a restart");
            let unsure = Error::new(Code::Unavailable, UNSURE);
            committer.refuse(unsure.clone());
            return unsure.outcome_unknown();
        }
        tracing::warn!("the move was taken back: writes are taken again");
        committer.resume();
        let message = "the move could not be written down, see the service's log; look after its \
                       disk and try again";
        Error::new(Code::Unavailable, message)
    }

    /// What its primary says of a move: a standby of one that has moved must not be promoted, also
    /// after a restart; one that came back makes it a standby like any other.
    pub(super) fn learn_of_move(&self, moved: Option<&Moved>) -> Result<(), DirectoryError> {
        if self.moving.moved().as_ref() == moved && self.moving.unsure().is_none() {
            return Ok(());
        }
        let (disk, directory) = (self.disk.as_ref(), &self.settings.data_dir);
        // Known at once, whether or not the disk takes it: the next shipment tries again.
        self.moving.set(moved.cloned());
        match moved {
            Some(moved) => {
                self.moving.note(write_moved(disk, directory, moved))?;
                tracing::warn!(
                    now_at = moved.now_at.as_deref().unwrap_or("a cluster"),
                    "the primary has moved to a cluster: this standby cannot be promoted any more"
                );
            }
            None => {
                self.moving.note(remove_moved(disk, directory))?;
                tracing::warn!("the primary takes writes again: this is its standby as before");
            }
        }
        Ok(())
    }

    /// The claims of a service that can be moved: not one that has moved, nor a standby, which takes
    /// no writes anyway. That is asked under the lock, which a confirmation holds until it is done.
    fn movable(&self) -> Result<MutexGuard<'_, Claims>, Error> {
        let claims = self.moving.claims.lock();
        self.moving.refuse_moved()?;
        match self.is_standby() {
            true => Err(self.read_only()),
            false => Ok(claims),
        }
    }

    fn take_writes_again(&self) {
        if let Some(committer) = self.committer.get() {
            committer.resume();
            tracing::info!("the move let go: writes are taken again");
        }
    }
}

/// What a write is told that comes after the move.
pub(super) fn moved_away(moved: &Moved) -> Error {
    let message = format!(
        "this service has moved to a cluster and takes no more writes; send them to {}",
        moved.place()
    );
    Error::new(Code::ReadOnly, message)
}

#[cfg(test)]
mod tests;
