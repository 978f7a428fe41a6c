//! Mending a store that a full disk has stopped: it is opened anew beside its log, which has all
//! that the store lost, while readers wait for a moment.

use std::sync::Arc;

use crate::engine::replay_to;
use crate::log::Log;
use crate::room::DiskRoom;
use crate::store::{Store, StoreError};

/// Whoever writes to the store has one.
pub(crate) struct Mender {
    store: Arc<dyn Store>,
    log: Arc<dyn Log>,
    room: Arc<DiskRoom>,
    /// The store is to be opened anew at the next try.
    due: bool,
    /// It was mended on the disk as full as it is, and stopped again.
    in_vain: bool,
}

impl Mender {
    pub fn new(store: Arc<dyn Store>, log: Arc<dyn Log>, room: Arc<DiskRoom>) -> Mender {
        Mender { store, log, room, due: false, in_vain: false }
    }

    /// Writes. `Full` when it is to be tried again: the next try mends a store that a full disk
    /// has stopped, and its callers are told before that. A store that stopped for another cause
    /// stays as it is: after a failed sync, what is read back need not be on the disk.
    pub fn write(
        &mut self,
        write: &mut dyn FnMut(&dyn Store) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.due {
            self.mend()?;
        }
        match write(self.store.as_ref()) {
            Err(StoreError::Stopped) if self.room.was_full() => {
                self.due = true;
                self.room.stall();
                Err(StoreError::Full)
            }
            done => {
                if done.is_ok() {
                    self.in_vain = false;
                    self.room.outlived();
                }
                done
            }
        }
    }

    /// For whoever writes, when nothing is to be written: a full disk may get some room back by it.
    pub fn rest(&mut self) {
        if self.room.is_full()
            && let Err(error) = self.write(&mut |store| store.rest())
        {
            tracing::debug!(%error, "the store could not be tidied");
        }
    }

    fn mend(&mut self) -> Result<(), StoreError> {
        if self.in_vain && !self.room.has_room() {
            return Err(StoreError::Full);
        }
        tracing::warn!("the store has met a full disk and stopped; it is opened anew");
        let replay = |fresh: &dyn Store, last| {
            replay_to(self.log.as_ref(), fresh, last)
                .map_err(|error| StoreError::Io(error.to_string()))
        };
        let mended = self.store.mend(&replay);
        self.in_vain = !matches!(mended, Ok(false));
        match mended {
            Ok(true) => {
                tracing::info!("the store goes on");
                self.due = false;
                Ok(())
            }
            // Somebody reads on.
            Ok(false) => Err(StoreError::Full),
            Err(error) => {
                tracing::error!(%error, "the store could not be opened anew");
                Err(StoreError::Full)
            }
        }
    }
}
