//! Mending a store that has stopped at a write that failed: it is opened anew beside its log, which
//! has all that the store lost, while readers wait for a moment. The log took the same batch on the
//! same disk just before; so what failed was most likely room, if only for a moment that nobody saw.

use std::sync::Arc;

use guanxi_core::snapshot::StoreError;

use crate::disk_room::{DiskRoom, Stall};
use crate::engine::{OpenError, replay_to};
use crate::log::Log;
use crate::store::Store;

/// Mends in a row that the store did not live to flush after, on a disk that was never seen full.
/// Whoever fills and empties a disk is not so lucky so often: it fails for another cause.
const UNEXPLAINED_MENDS_MAX: u32 = 16;

/// Tries in a row to open a store anew that failed for another cause than room, before nothing more
/// is tried: about a minute, in which what passes by itself, such as a want of descriptors, does.
const FAILED_OPENINGS_MAX: u32 = 300;

/// Whoever writes to the store has one.
pub(crate) struct ReopeningWriter {
    store: Arc<dyn Store>,
    log: Arc<dyn Log>,
    room: Arc<DiskRoom>,
    /// The store is to be opened anew at the next try, and nothing is taken until then.
    due: bool,
    /// It was mended on the disk as full as it is, and has written nothing since.
    in_vain: bool,
    unexplained: u32,
    failed_openings: u32,
}

impl ReopeningWriter {
    pub fn new(store: Arc<dyn Store>, log: Arc<dyn Log>, room: Arc<DiskRoom>) -> ReopeningWriter {
        ReopeningWriter {
            store,
            log,
            room,
            due: false,
            in_vain: false,
            unexplained: 0,
            failed_openings: 0,
        }
    }

    /// Writes. A store that has stopped is mended at once where the disk has room. `Full` when it
    /// is to be tried again, which mends it first; callers are told before that.
    pub fn write(
        &mut self,
        write: &mut dyn FnMut(&dyn Store) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let written = self.attempt(write);
        // Only a write shows that the store is well.
        if written.is_ok() {
            self.in_vain = false;
            self.room.outlived();
        }
        written
    }

    /// For whoever writes, when nothing is to be written: a disk that was full may get some room
    /// back by it, and a store that has stopped meanwhile, for whatever cause, is mended before
    /// somebody waits for it.
    pub fn rest(&mut self) {
        let tidies = self.due || self.room.was_full();
        let rest = &mut |store: &dyn Store| if tidies { store.rest() } else { store.check() };
        match self.attempt(rest) {
            Ok(()) => self.room.went_on(Stall::Store),
            Err(error) => tracing::debug!(%error, "the store could not be tidied"),
        }
    }

    fn attempt(
        &mut self,
        work: &mut dyn FnMut(&dyn Store) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.due {
            self.mend()?;
        }
        let mut done = work(self.store.as_ref());
        if matches!(done, Err(StoreError::Stopped)) {
            self.note_stop()?;
            if self.room.has_room() && self.mend().is_ok() {
                done = work(self.store.as_ref());
            }
        }
        match done {
            Err(StoreError::Stopped) => {
                self.due = true;
                self.room.stall(Stall::Stopped);
                Err(StoreError::Full)
            }
            done => done,
        }
    }

    /// Refuses a store that stops again and again for no cause that a full disk could be.
    fn note_stop(&mut self) -> Result<(), StoreError> {
        if self.room.was_full() || !self.store.is_in_doubt() {
            self.unexplained = 0;
        }
        self.unexplained += 1;
        match self.unexplained > UNEXPLAINED_MENDS_MAX {
            true => Err(StoreError::Stopped),
            false => Ok(()),
        }
    }

    fn mend(&mut self) -> Result<(), StoreError> {
        // Where nothing is open, nothing can be read, so it is tried however full the disk is.
        if self.in_vain && self.store.is_open() && !self.room.has_room() {
            return Err(StoreError::Full);
        }
        tracing::warn!("the store has stopped at a write that failed; it is opened anew");
        let replay = |fresh: &dyn Store, last| match replay_to(self.log.as_ref(), fresh, last) {
            Err(OpenError::Store(error)) => Err(error),
            Err(error) => Err(StoreError::Io(error.to_string())),
            Ok(()) => Ok(()),
        };
        let no_room = |error: &StoreError| {
            matches!(error, StoreError::Full | StoreError::Stopped) && !self.room.has_room()
        };
        let mended = self.room.with_reserve(no_room, || self.store.mend(&replay));
        self.in_vain = !matches!(mended, Ok(false));
        match mended {
            Ok(true) => {
                tracing::info!("the store goes on");
                self.due = false;
                self.failed_openings = 0;
                self.room.went_on(Stall::Stopped);
                Ok(())
            }
            // Somebody reads on.
            Ok(false) => Err(StoreError::Full),
            Err(error) => {
                tracing::error!(%error, "the store could not be opened anew");
                if !matches!(error, StoreError::Full | StoreError::Stopped) {
                    self.failed_openings += 1;
                }
                match self.failed_openings > FAILED_OPENINGS_MAX {
                    true => Err(error),
                    false => Err(StoreError::Full),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
