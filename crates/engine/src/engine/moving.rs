//! The engine as the one that a cluster takes over from: writes pause for a moment, so that what
//! the log ends with can be carried over, and then for good. A pause that nobody confirms ends by
//! itself; so a mover that dies never leaves a service that refuses.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use guanxi_model::{Code, Epoch, Error, Position};

use super::Engine;
pub use crate::directory::Moved;
use crate::directory::write_moved;
use crate::log::Log;

/// How the engine's move into a cluster stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveState {
    /// Nothing pauses.
    Here,
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

#[derive(Debug, Default)]
pub(super) struct Moving {
    pause: Mutex<Option<Pause>>,
    moved: OnceLock<Moved>,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    id: u64,
    until: Instant,
    /// None as long as something is under way.
    position: Option<Position>,
}

impl Moving {
    pub fn new(moved: Option<Moved>) -> Moving {
        let moving = Moving::default();
        if let Some(moved) = moved {
            let _first = moving.moved.set(moved);
        }
        moving
    }

    pub fn moved(&self) -> Option<&Moved> {
        self.moved.get()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pause>> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    pub fn move_state(&self) -> MoveState {
        if let Some(moved) = self.moving.moved() {
            return MoveState::Moved(moved.clone());
        }
        let now = Instant::now();
        match *self.moving.lock() {
            Some(Pause { id, until, .. }) if until > now => {
                MoveState::Paused { id, left: until - now }
            }
            _ => MoveState::Here,
        }
    }

    /// Takes no more writes for so long, and returns when all that were taken are visible.
    pub async fn pause_for_move(&self, id: u64, limit: Duration) -> Result<Paused, Error> {
        let Some(committer) = self.committer.get() else {
            return Err(self.read_only());
        };
        let until = Instant::now() + limit;
        self.claim_pause(Pause { id, until, position: None })?;
        let why = "writes pause for some seconds, while this service moves into a cluster; send \
                   it again";
        let why = Error::new(Code::ReadOnly, why).passing();
        if let Err(error) = committer.pause(why, until).await {
            *self.moving.lock() = None;
            return Err(error);
        }
        let (epoch, position) = (self.log.epoch(), self.log.last());
        tracing::info!(position = position.0, "writes pause for a move into a cluster");
        *self.moving.lock() = Some(Pause { id, until, position: Some(position) });
        Ok(Paused { epoch, position })
    }

    /// One move at a time.
    fn claim_pause(&self, pause: Pause) -> Result<(), Error> {
        if let Some(moved) = self.moving.moved() {
            return Err(moved_away(moved));
        }
        let mut standing = self.moving.lock();
        match *standing {
            Some(other) if other.until > Instant::now() && other.id != pause.id => {
                Err(Error::new(Code::Conflict, "another move has made writes pause"))
            }
            _ => {
                *standing = Some(pause);
                Ok(())
            }
        }
    }

    /// Takes writes again before the pause is over.
    pub fn resume_from_move(&self, id: u64) -> Result<(), Error> {
        if let Some(moved) = self.moving.moved() {
            return Err(moved_away(moved));
        }
        let mut pause = self.moving.lock();
        if let (Some(Pause { id: standing, .. }), Some(committer)) = (*pause, self.committer.get())
        {
            if standing != id {
                return Err(Error::new(Code::Conflict, "the pause is of another move"));
            }
            *pause = None;
            committer.resume();
            tracing::info!("the move let go: writes are taken again");
        }
        Ok(())
    }

    /// Everything up to the position is in the cluster: no write is taken here ever again. Durable
    /// when it returns; blocks while it writes.
    pub fn confirm_move(&self, moved: Moved) -> Result<(), Error> {
        if let Some(before) = self.moving.moved() {
            return match before.id == moved.id && before.position == moved.position {
                true => Ok(()),
                false => Err(moved_away(before)),
            };
        }
        let Some(committer) = self.committer.get() else {
            return Err(self.read_only());
        };
        let mut pause = self.moving.lock();
        let stands = pause
            .is_some_and(|pause| pause.id == moved.id && pause.position == Some(moved.position));
        let over = || {
            let message = "the pause is over, and writes are taken again: pause them once more, \
                           and carry over what came since";
            Error::new(Code::Conflict, message)
        };
        // In this order: once it refuses for good, the time that passes here does not matter.
        if !stands || !committer.pause_for_good(moved_away(&moved)) {
            return Err(over());
        }
        let written = write_moved(self.disk.as_ref(), &self.settings.data_dir, &moved);
        if let Err(error) = written {
            tracing::error!(%error, "the move could not be written down; writes are taken again");
            *pause = None;
            committer.resume();
            let message = "the move could not be written down, see the service's log; look after \
                           its disk and try again";
            return Err(Error::new(Code::Unavailable, message));
        }
        *pause = None;
        tracing::warn!(
            position = moved.position.0,
            now_at = moved.now_at.as_deref().unwrap_or("a cluster"),
            "moved to a cluster: writes are refused here from now on"
        );
        let _first = self.moving.moved.set(moved);
        Ok(())
    }
}

/// What a write is told that comes after the move.
pub(super) fn moved_away(moved: &Moved) -> Error {
    let now_at = match &moved.now_at {
        Some(address) => format!("send them to {address}"),
        None => "send them to the cluster".to_owned(),
    };
    let message = format!("this service has moved to a cluster and takes no more writes; {now_at}");
    Error::new(Code::ReadOnly, message)
}
