//! What a reader of the store on disk looks at: one moment of it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fjall::{Guard, Keyspace, Readable as _, Snapshot, UserValue};
use guanxi_core::snapshot::StoreError;

use super::fjall_error;
use crate::store::keyed::{KeyView, VisitKey};
use crate::store::layout::Key;

/// How long those who read on, such as an export, may keep a store that has stopped from being
/// mended: nothing is written meanwhile.
pub(super) const LONG_LOOKS_DEADLINE: Duration = Duration::from_secs(5);

/// Who looks at the database.
#[derive(Default)]
pub(super) struct Looks {
    /// The views of now have it too. True tells them to end.
    now: Arc<AtomicBool>,
    /// The same of views that were told so.
    ending: Vec<Arc<AtomicBool>>,
    /// Since when they stand in the way of mending the store.
    pub in_the_way: Option<Instant>,
}

impl Looks {
    /// For one more view.
    pub fn begin(&self) -> Arc<AtomicBool> {
        self.now.clone()
    }

    pub fn are_over(&mut self) -> bool {
        self.ending.retain(|ending| Arc::strong_count(ending) > 1);
        self.ending.is_empty() && Arc::strong_count(&self.now) == 1
    }

    /// Tells those to end that stand in the way for too long.
    pub fn end_late(&mut self) {
        let since = *self.in_the_way.get_or_insert_with(Instant::now);
        if since.elapsed() >= LONG_LOOKS_DEADLINE && !self.now.load(Ordering::Acquire) {
            tracing::warn!("who reads for long is sent away, so that the store can be mended");
            self.now.store(true, Ordering::Release);
            self.ending.push(std::mem::take(&mut self.now));
            self.in_the_way = None;
        }
    }
}

pub struct DiskView {
    /// None where the store is not open, because it is being opened anew or could not be.
    pub(super) shown: Option<(Snapshot, Keyspace)>,
    /// The store has stopped, and cannot be mended while somebody looks.
    pub(super) must_end: Arc<AtomicBool>,
}

impl DiskView {
    fn shown(&self) -> Result<&(Snapshot, Keyspace), StoreError> {
        let shown = self.shown.as_ref().filter(|_| !self.must_end.load(Ordering::Acquire));
        shown.ok_or(StoreError::Stopped)
    }
}

impl std::fmt::Debug for DiskView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskView").finish_non_exhaustive()
    }
}

impl KeyView for DiskView {
    type Bytes = UserValue;

    fn get(&self, key: &[u8]) -> Result<Option<UserValue>, StoreError> {
        let (snapshot, rows) = self.shown()?;
        snapshot.get(rows, key).map_err(fjall_error)
    }

    fn range(
        &self,
        range: (Bound<Key>, Bound<Key>),
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<(), StoreError> {
        let (snapshot, rows) = self.shown()?;
        let mut iterator = snapshot.range::<Key, _>(rows, range);
        let mut next: Box<dyn FnMut() -> Option<Guard>> = match reverse {
            false => Box::new(move || iterator.next()),
            true => Box::new(move || iterator.next_back()),
        };
        while let Some(guard) = next() {
            self.shown()?;
            let (key, value) = guard.into_inner().map_err(fjall_error)?;
            if visit(&key, &value)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}
