//! Work that is prepared by a thread beside the one that needs it: a merge that runs ahead, and
//! rows on their way to the store. Both end together.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use guanxi_core::crew;

use super::IngestError;
use super::rows::PutRow;
use super::sorter::Merge;

/// Bytes that are handed over at once.
const BATCH_BYTES: usize = 256 << 10;
/// Batches that may wait.
const BATCHES_MAX: usize = 4;

/// Keys with their values, in order.
#[derive(Debug, Default)]
pub(super) struct Entries {
    bytes: Vec<u8>,
    /// Where each key ends, and its value.
    ends: Vec<(u32, u32)>,
}

impl Entries {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len() as u32));
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES
    }

    pub fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut begin = 0;
        self.ends.iter().map(move |(key_end, end)| {
            let (key_end, end) = (*key_end as usize, *end as usize);
            let entry = (&self.bytes[begin..key_end], &self.bytes[key_end..end]);
            begin = end;
            entry
        })
    }
}

/// Gives the records of a merge to `take`; the merge runs ahead.
pub(super) fn records_ahead(
    mut merge: Merge,
    mut take: impl FnMut(&[u8]) -> Result<(), IngestError>,
) -> Result<(), IngestError> {
    let give = move |put: &mut PutRow<'_>| {
        while let Some(record) = merge.next()? {
            put(record, &[])?;
        }
        Ok(())
    };
    entries_ahead(give, |entries| entries.iter().try_for_each(|(record, _)| take(record)))
}

/// Takes entries in this thread that `give` makes in another.
pub(super) fn entries_ahead(
    give: impl FnOnce(&mut PutRow<'_>) -> Result<(), IngestError> + Send,
    mut take: impl FnMut(&Entries) -> Result<(), IngestError>,
) -> Result<(), IngestError> {
    let (sender, receiver) = sync_channel(BATCHES_MAX);
    thread::scope(|scope| {
        let giving = crew::joined(scope, "guanxi-ahead", move || give_all(give, &sender))?;
        let taken = take_all(receiver, &mut take);
        let given = giving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // Where the taker has stopped, its reason is the one that counts.
        taken.and(given)
    })
}

fn give_all(
    give: impl FnOnce(&mut PutRow<'_>) -> Result<(), IngestError>,
    to: &SyncSender<Entries>,
) -> Result<(), IngestError> {
    let mut gathered = Entries::default();
    let gone = |_| IngestError::from(io::Error::from(io::ErrorKind::BrokenPipe));
    give(&mut |key, value| {
        gathered.push(key, value);
        match gathered.is_full() {
            true => to.send(std::mem::take(&mut gathered)).map_err(gone),
            false => Ok(()),
        }
    })?;
    to.send(gathered).map_err(gone)
}

/// On an error the receiver goes, and the giver ends with it.
fn take_all(
    from: Receiver<Entries>,
    take: &mut impl FnMut(&Entries) -> Result<(), IngestError>,
) -> Result<(), IngestError> {
    from.into_iter().try_for_each(|entries| take(&entries))
}
