//! What a reader of the store on disk looks at: one moment of it.

use std::ops::Bound;
use std::sync::Arc;

use fjall::{Guard, Keyspace, Readable as _, Snapshot, UserValue};

use super::fjall_error;
use crate::store::StoreError;
use crate::store::keyed::{KeyView, Visit};
use crate::store::layout::Key;

pub struct DiskView {
    /// None where the store is not open, because it is being opened anew or could not be.
    pub(super) shown: Option<(Snapshot, Keyspace)>,
    pub(super) _looking: Arc<()>,
}

impl DiskView {
    fn shown(&self) -> Result<&(Snapshot, Keyspace), StoreError> {
        self.shown.as_ref().ok_or(StoreError::Stopped)
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
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let (snapshot, rows) = self.shown()?;
        let mut iterator = snapshot.range::<Key, _>(rows, range);
        let mut next: Box<dyn FnMut() -> Option<Guard>> = match reverse {
            false => Box::new(move || iterator.next()),
            true => Box::new(move || iterator.next_back()),
        };
        while let Some(guard) = next() {
            let (key, value) = guard.into_inner().map_err(fjall_error)?;
            if visit(&key, &value)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}
